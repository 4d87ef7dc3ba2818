"""The functions that append and read without Spark."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest

import kafkalog
from kafkalog.checkpoints.commit_state import STAGED_PREFIX
from kafkalog.errors import (
    CommitError,
    LogDirectoryError,
    OptionError,
    RecordTooLargeError,
    RowError,
)
from kafkalog.model import TopicPartition
from kafkalog.streaming.commit.committer import Committer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EARLIEST = {"startingOffsets": "earliest"}


def values(path: Path, topic: str = "t", **options: str) -> list[Any]:
    reader = kafkalog.read(path, topic, columns=["value"], strings=["value"], options=options)
    return reader.read_all().column("value").to_pylist()


def table(*rows: str) -> pa.Table:
    return pa.table({"value": list(rows)})


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    outcome = kafkalog.append(
        tmp_path,
        "t",
        pa.table(
            {
                "key": pa.array([b"k", None]),
                "value": pa.array(["a", None]),
                "partition": pa.array([1, 0], pa.int32()),
                "timestamp": pa.array([1_700_000_000_000, 5], pa.timestamp("ms")),
                "headers": pa.array(
                    [[{"key": "h", "value": b"1"}], None],
                    pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
                ),
            }
        ),
        options={"numPartitions": "2", "compression.type": "lz4"},
    )
    ends = {TopicPartition("t", 0): 1, TopicPartition("t", 1): 1}
    assert (outcome.appended, outcome.end_offsets) == (True, ends)
    found = kafkalog.read(tmp_path, "t", options={"includeHeaders": "true"}).read_all()
    assert found.drop_columns(["timestamp", "headers"]).to_pylist() == [
        {"key": None, "value": None, "topic": "t", "partition": 0, "offset": 0, "timestampType": 0},
        {"key": b"k", "value": b"a", "topic": "t", "partition": 1, "offset": 0, "timestampType": 0},
    ]
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [5000, 1_700_000_000_000_000]
    assert found.column("headers").to_pylist()[1] == [{"key": "h", "value": b"1"}]


@pytest.mark.parametrize("kind", ["table", "batch", "generator", "reader"])
def test_tables_batches_and_streams_of_batches_are_taken(tmp_path: Path, kind: str) -> None:
    rows = table("a", "b", "c")
    data = {
        "table": rows,
        "batch": rows.combine_chunks().to_batches()[0],
        "generator": (batch for batch in rows.to_batches(max_chunksize=1)),
        "reader": rows.to_reader(max_chunksize=2),
    }[kind]
    kafkalog.append(tmp_path, "t", data)
    assert values(tmp_path) == ["a", "b", "c"]


@pytest.mark.parametrize("kind", ["generator", "reader", "iterator"])
def test_the_rest_of_a_stream_is_not_taken_for_all_of_it(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after an append has failed that had read some of it."""
    rows = table("a", "b", "c")

    def of(kind: str) -> Any:
        batches = rows.to_batches(max_chunksize=1)
        made = {"generator": (batch for batch in batches), "iterator": iter(batches)}
        return made.get(kind) or rows.to_reader(max_chunksize=1)

    data, named = of(kind), {"transactional_id": "me", "version": 1}

    def fails(*_: Any, **__: Any) -> None:
        raise CommitError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(Committer, "commit", fails)
        with pytest.raises(CommitError):
            kafkalog.append(tmp_path, "t", data, **named)
    with pytest.raises(RowError, match="pass a new iterator over the same rows"):
        kafkalog.append(tmp_path, "t", data, **named)
    assert kafkalog.append(tmp_path, "t", of(kind), **named).appended
    assert values(tmp_path) == ["a", "b", "c"]


def test_columns_come_in_the_order_asked_for(tmp_path: Path) -> None:
    kafkalog.append(tmp_path, "t", table("a"))
    found = kafkalog.read(tmp_path, "t", columns=["offset", "value"], strings=["value"])
    assert found.schema.names == ["offset", "value"]
    assert found.schema.field("value").type == pa.string()
    assert found.read_all().to_pylist() == [{"offset": 0, "value": "a"}]


def test_rows_may_name_their_topics(tmp_path: Path) -> None:
    kafkalog.append(tmp_path, None, pa.table({"value": ["a", "b"], "topic": ["x", "y"]}))
    found = kafkalog.read(tmp_path, ["x", "y"], columns=["topic", "value"], strings=["value"])
    assert [tuple(row.values()) for row in found.read_all().to_pylist()] == [
        ("x", "a"),
        ("y", "b"),
    ]
    with pytest.raises(RowError, match="no topic"):
        kafkalog.append(tmp_path, None, table("a"))


def test_an_append_with_a_version_is_there_once(tmp_path: Path) -> None:
    for version, row, appended in [
        (3, "a", True),
        (3, "a", False),
        (1, "c", False),
        (7, "d", True),
    ]:
        outcome = kafkalog.append(tmp_path, "t", table(row), transactional_id="me", version=version)
        assert outcome.appended is appended
    assert kafkalog.append(tmp_path, "t", table("e"), transactional_id="you", version=0).appended
    assert values(tmp_path) == ["a", "d", "e"]


def test_any_text_may_tell_appends_apart(tmp_path: Path) -> None:
    for name in ("../../x", "\udcff" * 300, "\0\n"):
        appended = [
            kafkalog.append(tmp_path, "t", table("a"), transactional_id=name, version=0).appended
            for _ in range(2)
        ]
        assert appended == [True, False]


def test_an_append_without_a_version_is_always_a_new_one(tmp_path: Path) -> None:
    for _ in range(3):
        kafkalog.append(tmp_path, "t", table("a"))
    assert values(tmp_path) == ["a"] * 3


def test_bounds_and_other_options_mean_what_they_mean_in_spark(tmp_path: Path) -> None:
    kafkalog.append(tmp_path, "t", table(*"abcde"))
    assert values(tmp_path, startingOffsets='{"t":{"0":1}}', endingOffsets='{"t":{"0":3}}') == [
        "b",
        "c",
    ]


def test_several_directories_are_one_set(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    kafkalog.append(folders, "t", table("x", "y"), options={"numPartitions": "2"})
    assert sorted(path.name for path in tmp_path.glob("*/t-*")) == ["t-0", "t-1"]
    assert kafkalog.read(folders, "t").read_all().num_rows == 2


def test_a_failed_append_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kafkalog.append(tmp_path, "t", table("a"))

    def fail(*_: object) -> None:
        raise CommitError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Committer, "commit", fail)
        with pytest.raises(CommitError):
            kafkalog.append(tmp_path, "t", table("b"))
    assert [path for path in tmp_path.iterdir() if path.name.startswith(STAGED_PREFIX)] == []
    assert values(tmp_path) == ["a"]


def test_a_tail_gives_what_is_there_and_then_what_comes(tmp_path: Path) -> None:
    kafkalog.append(tmp_path, "t", table("a"))
    found: list[str] = []
    seen = threading.Semaphore(0)

    def follow() -> None:
        for batch in kafkalog.tail(tmp_path, "t", strings=["value"], options=EARLIEST):
            for value in batch.column("value").to_pylist():
                found.append(value)
                seen.release()
            if found[-1] == "end":
                return

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    assert seen.acquire(timeout=60)
    assert found == ["a"]
    for row in ("b", "c", "end"):
        kafkalog.append(tmp_path, "t", table(row))
        assert seen.acquire(timeout=60)
    follower.join(60)
    assert found == ["a", "b", "c", "end"]


def test_a_tail_starts_at_the_end_and_may_end_when_nothing_comes(tmp_path: Path) -> None:
    kafkalog.append(tmp_path, "t", table("a"))
    assert list(kafkalog.tail(tmp_path, "t", idle_timeout=0)) == []
    (batch,) = kafkalog.tail(tmp_path, "t", idle_timeout=0, options=EARLIEST)
    assert batch.num_rows == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"transactional_id": "x"}, "both transactional_id and version"),
        ({"transactional_id": "x", "version": -1}, "version is -1"),
        ({"transactional_id": "x", "version": 1 << 63}, "version is 9223372036854775808"),
        ({"transactional_id": "x", "version": 1.5}, r"version is 1\.5"),
        ({"transactional_id": "x", "version": "1"}, "version is '1'"),
        ({"options": {"txnVersion": "1"}}, "use its arguments"),
        ({"options": {"kafka.transactional.id": "x"}}, "use its arguments"),
        ({"options": {"segment.byte": "1"}}, "segment.bytes"),
    ],
)
def test_what_cannot_be_used_is_refused_and_nothing_made(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        kafkalog.append(tmp_path / "log", "t", table("a"), **arguments)
    assert not (tmp_path / "log").exists()


def test_what_is_of_another_kind_is_named_with_what_is_expected(tmp_path: Path) -> None:
    log: Any = tmp_path / "log"
    kafkalog.append(log, "t", table("a"))
    wrong: Any = "5"
    consumer = kafkalog.Consumer(log, "g", "t")
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: kafkalog.read(log, "t", strings=wrong), "strings is '5', expected a list"),
        (lambda: kafkalog.append(log, "t", table("a"), consumer=wrong), "a kafkalog.Consumer"),
        (lambda: next(kafkalog.tail(log, "t", idle_timeout=wrong)), "idle_timeout is '5'"),
        (lambda: kafkalog.Consumer(log, 5, "t"), "a group is 5, expected its id"),  # type: ignore[arg-type]
        (lambda: consumer.poll(wrong), "timeout is '5', expected a number of seconds"),
        (lambda: consumer.seek(wrong, 0), "a partition is '5', expected a pair"),
        (lambda: consumer.pause(wrong), "partitions is '5', expected a list"),
        (lambda: kafkalog.assign_partitions("range", wrong, {}), "topics is '5', expected a dict"),
        (lambda: kafkalog.assign_partitions("range", {}, wrong), "members is '5', expected a dict"),
    ]
    for call, said in calls:
        with pytest.raises(OptionError, match=said):
            call()
    consumer.close()


@pytest.mark.parametrize("data", [None, "abc", {"value": ["a"]}, [{"value": "a"}], [None]])
def test_what_is_no_arrow_is_refused_by_its_kind(tmp_path: Path, data: Any) -> None:
    with pytest.raises(RowError, match="rows come as a table, a record batch"):
        kafkalog.append(tmp_path, "t", data)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".kafkalog")]


def test_a_frame_of_pandas_is_appended_as_it_is(tmp_path: Path) -> None:
    moment = pd.Timestamp("2026-11-22T10:15:00Z")
    frame = pd.DataFrame({"key": ["a", None], "value": ["x", "y"], "timestamp": [moment] * 2})
    frame["key"] = frame["key"].astype("category")
    kafkalog.append(tmp_path, "t", frame[frame["value"] != "z"])
    rows = kafkalog.read(tmp_path, "t", strings=["key", "value"]).read_all().to_pylist()
    assert [(row["key"], row["value"]) for row in rows] == [("a", "x"), (None, "y")]
    assert {row["timestamp"] for row in rows} == {moment.to_pydatetime()}


def test_what_hands_out_arrow_is_appended_batch_by_batch(tmp_path: Path) -> None:
    class Frame:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            views = pa.array(["x", "a value of more than twelve bytes"], pa.string_view())
            columns = {"value": views, "key": pa.array(["k", None], pa.large_string())}
            return pa.table(columns).__arrow_c_stream__(requested_schema)

    kafkalog.append(tmp_path, "t", Frame())
    rows = kafkalog.read(tmp_path, "t", strings=["key", "value"]).read_all().to_pylist()
    assert [row["value"] for row in rows] == ["x", "a value of more than twelve bytes"]


def test_how_dicts_become_rows_is_said(tmp_path: Path) -> None:
    with pytest.raises(RowError, match=r"not as dict\. pyarrow\.Table\.from_pylist makes a table"):
        kafkalog.append(tmp_path, "t", [{"value": "a"}])  # type: ignore[list-item]


@pytest.mark.parametrize("name", ["value", "key", "timestamp"])
def test_two_columns_of_one_name_are_refused(tmp_path: Path, name: str) -> None:
    columns = [pa.array(["a"]), *[pa.array([1 if name == "timestamp" else "b"])] * 2]
    rows = pa.Table.from_arrays(columns, names=["value", name, name])
    with pytest.raises(RowError, match=f"more than one column '{name}'"):
        kafkalog.append(tmp_path, "t", rows)


def test_a_folder_that_holds_log_directories_is_not_made_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    rows = pa.table({"value": ["a"]})
    kafkalog.append(log, "t", rows)
    with pytest.raises(LogDirectoryError, match=f"holds some: {log}. Nothing was written"):
        kafkalog.append(tmp_path, "t", rows)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    kafkalog.append([log, tmp_path / "other"], "t", rows)


def test_two_columns_that_are_not_looked_at_do_no_harm(tmp_path: Path) -> None:
    names = ["value", "topic", "topic", "offset", "offset"]
    rows = pa.Table.from_arrays([pa.array(["a"])] * len(names), names=names)
    assert kafkalog.append(tmp_path, "t", rows).appended


def test_options_may_be_numbers_and_booleans_as_in_spark(tmp_path: Path) -> None:
    options: dict[str, Any] = {"numPartitions": 2, "allowInternalTopics": False}
    outcome = kafkalog.append(tmp_path, "t", table("a"), options=options)
    assert len(outcome.end_offsets) == 2
    options = {"includeHeaders": True, "maxRecordsPerPartition": 1}
    assert "headers" in kafkalog.read(tmp_path, "t", options=options).schema.names


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "/other"}, "use its arguments"),
        ({"Subscribe": "other"}, "use its arguments"),
        ({"commitGroupOffsets": "true", "kafka.group.id": "g"}, "streaming queries of Spark"),
        ({"view": "offsets"}, "reads __consumer_offsets alone"),
    ],
)
def test_options_that_mean_nothing_here_are_refused(
    tmp_path: Path, options: dict[str, str], message: str
) -> None:
    kafkalog.append(tmp_path, "t", table("a"))
    with pytest.raises(OptionError, match=message):
        kafkalog.read(tmp_path, "t", options=options)
    with pytest.raises(OptionError, match=message):
        next(kafkalog.tail(tmp_path, "t", options=options))


def test_an_unknown_column_is_refused_by_name(tmp_path: Path) -> None:
    kafkalog.append(tmp_path, "t", table("a"))
    with pytest.raises(OptionError, match="no column 'worth'"):
        kafkalog.read(tmp_path, "t", columns=["worth"])


def test_appending_and_reading_need_no_spark_and_importing_nothing_at_all(tmp_path: Path) -> None:
    program = (
        "import sys, kafkalog\n"
        "print(*({'numba', 'numpy', 'pyarrow', 'pyspark'} & set(sys.modules)))\n"
        "import pyarrow as pa\n"
        f"kafkalog.append({str(tmp_path)!r}, 't', pa.table({{'value': ['a']}}))\n"
        f"kafkalog.read({str(tmp_path)!r}, 't').read_all()\n"
        "print(*({'pyspark', 'py4j'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["", ""]


def test_limits_of_micro_batches_are_said_to_have_no_effect_on_a_tail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kafkalog.append(tmp_path, "t", pa.table({"value": ["a"]}))
    options = {**EARLIEST, "minOffsetsPerTrigger": 5, "maxTriggerDelay": "1h"}
    (batch,) = kafkalog.tail(tmp_path, "t", idle_timeout=0, options=options)
    assert batch.num_rows == 1
    (said,) = caplog.messages
    assert said.startswith("minOffsetsPerTrigger: no effect here")


def test_a_key_whose_text_has_no_utf8_is_refused_and_its_bytes_are_a_key(tmp_path: Path) -> None:
    kafkalog.append(tmp_path, "t", pa.table({"key": [b"\xff"], "value": ["a"]}))
    with pytest.raises(OptionError, match="give its bytes"):
        kafkalog.get(tmp_path, "t", "\udcff")
    found = kafkalog.get(tmp_path, "t", b"\xff")
    assert found is not None
    assert found["value"] == b"a"


@pytest.mark.parametrize("form", ["v2", "v1", "v0"])
def test_the_limit_that_a_record_is_beyond_is_named(tmp_path: Path, form: str) -> None:
    rows = pa.table({"key": ["k"], "value": ["x" * 2_000_000]})
    settings = ["max.message.bytes", "segment.bytes"]
    for large, small in (settings, reversed(settings)):
        options = {large: "10485760", small: "1048576", "message.format": form}
        said = f"more than 1048576 bytes, which {small} allows"
        with pytest.raises(RecordTooLargeError, match=said):
            kafkalog.append(tmp_path, f"t-{small}", rows, options=options)
