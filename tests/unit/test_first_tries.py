"""What people try first: times and offsets as Python has them, a folder next to the one meant."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import kafkalog
from kafkalog.errors import LogDirectoryError, OptionError, UnknownTopicOrPartitionError
from kafkalog.model import TopicPartition
from kafkalog.streaming.groups.administration import GroupWriter
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.sink.write_options import WriteOptions
from kafkalog.streaming.source.arguments import texts
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.source.stream_control import StreamControl
from kafkalog.streaming.spark.writers import make_batch_writer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FIRST_MS = 1_700_000_000_000
FIRST = datetime.fromtimestamp(FIRST_MS // 1000, UTC)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give t-0 with ten records, one a second, and u-0 with one."""
    times = [FIRST + timedelta(seconds=second) for second in range(10)]
    rows = {"value": [str(second) for second in range(10)], "timestamp": times}
    kafkalog.append(tmp_path / "log", "t", pa.table(rows))
    kafkalog.append(tmp_path / "log", "u", pa.table({"value": ["other"]}))
    return tmp_path / "log"


def values(log: Path, topic: str | None = "t", **options: Any) -> list[bytes]:
    table = kafkalog.read(log, topic, columns=["value"], options=options).read_all()
    found: list[bytes] = table.column("value").to_pylist()
    return found


@pytest.mark.parametrize("name", ["read", "tail", "append", "get"])
def test_an_option_that_is_given_as_an_argument_is_told_apart(log: Path, name: str) -> None:
    given = [pa.table({"value": ["a"]})] if name == "append" else ["k"] if name == "get" else []
    with pytest.raises(OptionError, match=r"'startingOffsets'.* options=.'startingOffsets': …."):
        list(getattr(kafkalog, name)(log, "t", *given, startingOffsets="latest") or ())
    with pytest.raises(OptionError, match="Arguments: path, topic, "):
        list(getattr(kafkalog, name)(log, "t", *given, limit=1) or ())


@pytest.mark.parametrize(
    "third",
    [
        FIRST_MS + 3000,
        str(FIRST_MS + 3000),
        FIRST + timedelta(seconds=3),
        (FIRST + timedelta(seconds=3)).astimezone(timezone(timedelta(hours=2))),
        (FIRST + timedelta(seconds=3)).isoformat(),
        "2023-11-14T22:13:23Z",
        "2023-11-14 22:13:23",
    ],
)
def test_a_time_is_given_as_it_comes(log: Path, third: Any) -> None:
    assert values(log, startingTimestamp=third)[0] == b"3"
    assert values(log, endingTimestamp=third)[-1] == b"2"
    assert values(log, startingOffsetsByTimestamp={"t": {0: third}})[0] == b"3"


@pytest.mark.parametrize(
    "options",
    [
        {"startingTimestamp": FIRST_MS // 1000},
        {"endingTimestamp": FIRST_MS // 1000},
        {"startingOffsetsByTimestamp": {"t": {0: FIRST_MS // 1000}}},
    ],
)
def test_seconds_by_mistake_are_noticed(log: Path, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"looks like seconds since 1970.*Give 1700000000000"):
        values(log, **options)


@pytest.mark.parametrize("time_ms", [5_000, 10**9 - 1, 4_102_444_800, 10**11])
def test_small_times_that_are_no_seconds_of_our_days_are_read(log: Path, time_ms: int) -> None:
    assert values(log, startingTimestamp=time_ms) == values(log)


@pytest.mark.parametrize("wrong", ["yesterday", "-5", "2023-13-01", "9" * 30])
def test_what_is_no_time_is_refused_with_an_example(log: Path, wrong: str) -> None:
    with pytest.raises(OptionError, match=r"startingTimestamp.*2026-11-22T10:15:00Z"):
        values(log, startingTimestamp=wrong)


@pytest.mark.parametrize(
    "offsets",
    [
        {"t": {0: 7}},
        {"t": {"0": 7}},
        {("t", 0): 7},
        {TopicPartition("t", 0): 7},
        {"t": {np.int32(0): np.int64(7)}},
        {("t", np.int64(0)): np.int64(7)},
    ],
)
def test_offsets_may_be_a_dict(log: Path, offsets: dict[Any, Any]) -> None:
    assert values(log, startingOffsets=offsets) == [b"7", b"8", b"9"]
    assert values(log, endingOffsets=offsets)[-1] == b"6"
    assert values(log, startingOffsets=json.dumps({"t": {"0": 7}}))[0] == b"7"


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ({("t", 0): 7, "u": "earliest"}, "side by side"),
        ({("t",): 7}, "expected a topic and a partition"),
        ([1, 2], "expected a text, a number or a dict"),
    ],
)
def test_a_dict_of_another_form_is_refused(log: Path, offsets: Any, said: str) -> None:
    with pytest.raises(OptionError, match=f"'startingOffsets'.*{said}"):
        values(log, startingOffsets=offsets)


def test_topics_may_be_matched_or_assigned_outside_spark(log: Path) -> None:
    assert len(values(log, None, subscribePattern="t|u")) == 11
    for numbers in ([0], (0,), {0}, range(1), [np.int64(0)]):
        assert values(log, None, assign={"u": numbers}) == [b"other"]
    with pytest.raises(OptionError, match="'assign'"):
        values(log, None, assign={"u": {0, "a"}})
    with pytest.raises(OptionError, match="subscribe"):
        values(log, "t", subscribePattern="u")
    with pytest.raises(OptionError, match="subscribe"):
        values(log, None)


@pytest.mark.parametrize("view", ["batches", "offsets", "latest", "records"])
def test_every_view_can_be_read_outside_spark(log: Path, view: str) -> None:
    GroupWriter([str(log)], "g").commit({TopicPartition("t", 0): 3})
    topic = "__consumer_offsets" if view == "offsets" else "t"
    table = kafkalog.read(log, topic, options={"view": view}).read_all()
    last = table.column_names[-1]
    chosen = kafkalog.read(log, topic, columns=[last], options={"view": view}).read_all()
    assert chosen.column_names == [last]
    assert chosen.num_rows == table.num_rows
    if view == "batches":
        assert table.column("baseOffset").to_pylist()[0] == 0
    if view == "offsets":
        assert 3 in table.column("committedOffset").to_pylist()


def test_a_view_has_its_own_columns_and_no_strings(log: Path) -> None:
    with pytest.raises(OptionError, match=r"view=batches has no column 'value', but .*baseOffset"):
        kafkalog.read(log, "t", columns=["value"], options={"view": "batches"})
    with pytest.raises(OptionError, match="strings is for records"):
        kafkalog.read(log, "t", strings=["value"], options={"view": "batches"})


def test_a_look_up_takes_times_as_they_come(log: Path) -> None:
    rows = {"key": ["k", "k"], "value": ["old", "new"]}
    times = [FIRST, FIRST + timedelta(days=1)]
    kafkalog.append(log, "k", pa.table({**rows, "timestamp": times}))
    for time in (FIRST + timedelta(hours=1), "2023-11-15T00:00:00Z", FIRST_MS + 1):
        found = kafkalog.get(log, "k", "k", as_of_timestamp=time)
        assert found is not None
        assert found["value"] == b"old"


def test_a_stream_waits_for_a_topic_that_is_not_there_yet(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    given = {"path": str(log), "subscribe": "later", "startingOffsets": "earliest"}
    with pytest.raises(
        UnknownTopicOrPartitionError, match="waitForTopics or subscribePattern waits"
    ):
        StreamControl(ReadOptions.parse(given)).initial()
    control = StreamControl(ReadOptions.parse({**given, "waitForTopics": "true"}))
    assert control.initial() == {}
    assert "waiting for topic later" in caplog.text
    kafkalog.append(log, "later", pa.table({"value": ["here"]}))
    assert control.next_end({}, take_all=True) == {TopicPartition("later", 0): 1}
    with pytest.raises(OptionError, match="'waitForTopics' is for streaming queries"):
        values(log, "later", waitForTopics=True)


def test_a_folder_next_to_a_log_directory_is_told_which_was_meant(log: Path) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match=f"Log directories in it: {log}$"):
        values(log.parent)
    for below in (log / "t-0" / "nothing", log / "nothing"):
        with pytest.raises(LogDirectoryError, match=f"a log directory: {log}"):
            values(below)


def test_insert_into_a_view_goes_to_its_topic_and_into_a_table_says_what_to_do() -> None:
    assert WriteOptions.parse({"path": "/log", "subscribe": "t"}).topic == "t"
    assert WriteOptions.parse({"path": "/log", "subscribe": "t", "topic": "u"}).topic == "u"
    with pytest.raises(OptionError, match="INSERT INTO a temporary view"):
        make_batch_writer({}, None, overwrite=False)  # type: ignore[arg-type]


def test_dir_shows_what_there_is() -> None:
    assert {"read", "append", "tail", "get", "scan", "Consumer"} <= {*dir(kafkalog)}


@pytest.mark.parametrize("name", ["joinGroup", "commitGroupOffsets"])
def test_what_only_a_stream_of_spark_can_do_is_refused_elsewhere(log: Path, name: str) -> None:
    options = {name: True, "kafka.group.id": "g", "kafka.group.instance.id": "a"}
    said = f"'{name}' is for streaming queries of Spark"
    with pytest.raises(OptionError, match=said):
        values(log, **options)
    with pytest.raises(OptionError, match=said):
        list(kafkalog.tail(log, "t", idle_timeout=0, options=options))
    with pytest.raises(OptionError, match=said):
        plan_batch(ReadOptions.parse({"path": str(log), "subscribe": "t", **texts(options, ())}))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda log: kafkalog.get(log, "t", 5), "a key is 5, expected text or bytes"),
        (lambda log: kafkalog.get(log, "t", None), "a key is None"),
        (lambda log: list(kafkalog.scan(log, "t", low=1)), "a key is 1"),
        (lambda log: kafkalog.get(log, "t", "k", as_of_offset=-1), "as_of_offset is -1"),
        (lambda log: kafkalog.get(log, "t", "k", as_of_offset="5"), "as_of_offset is '5'"),
        (lambda log: kafkalog.get(log, None, "k"), "a topic is None"),
        (lambda _: kafkalog.read(None, "t"), "a path is None"),
        (lambda _: kafkalog.read(b"log", "t"), "a path is b'log'"),
        (lambda log: kafkalog.read(log, 5), "a topic is 5"),
        (lambda log: kafkalog.read(log, b"t"), "a topic is b't'"),
        (lambda log: kafkalog.read(log, "t", options=["a"]), r"options are \['a'\]"),
        (lambda log: kafkalog.read(log, "t", options="a=b"), "options are 'a=b'"),
        (lambda log: kafkalog.read(log, "t", options={1: "a"}), "an option is called 1"),
        (lambda log: kafkalog.append(log, ["t"], pa.table({"value": ["a"]})), "a topic is"),
        (
            lambda log: kafkalog.append(
                log, "t", pa.table({"value": ["a"]}), transactional_id="", version=1
            ),
            "transactional_id is empty",
        ),
        (lambda log: kafkalog.read(f"{log}\ud800", "t"), "has half of a letter"),
        (
            lambda log: kafkalog.append(
                log, "v", pa.table({"value": ["a"]}), options={"replication.factor": "2"}
            ),
            "'replication.factor' is 2, and the path names one node",
        ),
        (lambda _: kafkalog.read("log;witness:", "t"), "'witness:' names no directory"),
    ],
)
def test_what_no_argument_can_be_is_told_in_a_sentence(
    log: Path, call: Callable[[Path], object], said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        call(log)
    rows = kafkalog.read(log, ["t", "u"]).read_all()
    assert rows.num_rows == 11
