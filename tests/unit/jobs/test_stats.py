"""``kafkalog topic stats`` counts what is in topics."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.corpus import UnpackedCase
from typer.testing import CliRunner

import kafkalog
from kafkalog.files.system import ThreadPool, system
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.inspection.figures import count_partitions, measure
from kafkalog.jobs.inspection.units import for_people, shown_size
from kafkalog.jobs.report.facts import gather
from kafkalog.model import ALL_TOPICS
from kafkalog.streaming.records.batch_rows import BatchDescriber

if TYPE_CHECKING:
    from pathlib import Path

STAMP = 1_700_000_000_000


def call(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


def counted(*words: object) -> list[dict[str, Any]]:
    code, text = call("stats", *words, "--json")
    assert code == 0, text
    return [json.loads(line) for line in text.splitlines()]


def test_each_partition_is_counted(tmp_path: Path) -> None:
    for number in range(2):
        table = pa.table(
            {
                "value": ["x" * 2000] * 3,
                "timestamp": pa.array([STAMP, STAMP + 7, STAMP + number], pa.timestamp("ms")),
            }
        )
        kafkalog.append(tmp_path, "t", table, options={"compression.type": "zstd"})
    size = (tmp_path / "t-0" / f"{0:020d}.log").stat().st_size
    assert counted(tmp_path, "--topic", "t") == [
        {
            "topic": "t",
            "partition": 0,
            "records": 6,
            "batches": 2,
            "bytes": size,
            "recordsPerBatch": 3.0,
            "bytesPerBatch": size // 2,
            "firstTimestamp": STAMP,
            "lastTimestamp": STAMP + 7,
            "codecs": {"zstd": 2},
            "producers": 0,
            "markers": 0,
        }
    ]
    code, text = call("stats", tmp_path)
    assert code == 0
    assert "2023-11-14T22:13:20Z (" in text
    assert "zstd=2" in text
    assert shown_size(size) in text


def test_markers_and_producers_of_transactions_are_counted_apart(tmp_path: Path) -> None:
    path = UnpackedCase("p06-transactions", tmp_path).path
    rows = {row["partition"]: row for row in counted(path, "--topic", "txn")}
    for partition, row in rows.items():
        words = ("--topic", "txn", "--partition", partition, "--count", 9999, "--json")
        batches = [json.loads(line) for line in call("dump", path, *words)[1].splitlines()]
        data = [each for each in batches if not each["control"]]
        assert row["batches"] == len(batches)
        assert row["markers"] == len(batches) - len(data) > 0
        assert row["records"] == sum(each["count"] for each in data)
        assert row["producers"] == len({each["producerId"] for each in data} - {-1}) > 0


def test_records_below_the_log_start_are_not_counted(tmp_path: Path) -> None:
    values = pa.table({"value": [str(number) for number in range(200)]})
    kafkalog.append(tmp_path, "t", values)
    kafkalog.append(tmp_path, "t", values)
    assert call("delete-records", tmp_path, "--offsets", '{"t":{"0":98}}')[0] == 0
    (row,) = counted(tmp_path)
    assert (row["records"], row["batches"]) == (302, 2)
    code, text = call("plot", tmp_path, "--json")
    assert code == 0
    spans = [json.loads(line) for line in text.splitlines()]
    assert sum(each["records"] for each in spans if each["kind"] == "time") == 302


def test_a_compacted_batch_that_begins_below_the_log_start_is_counted(tmp_path: Path) -> None:
    keys = [str(number % 50) for number in range(120)]
    rows = pa.table({"key": keys, "value": [f"{number}" for number in range(120)]})
    small = {"segment.bytes": "4000", "compression.type": "none"}
    kafkalog.append(tmp_path, "t", rows, options=small)
    for key in ("49", "7"):
        newer = pa.table({"key": [key], "value": ["x" * 3000]})
        kafkalog.append(tmp_path, "t", newer, options=small)
    both = ("--config", "cleanup.policy=compact,delete")
    assert call("compact", tmp_path, "--topic", "t", "--force", *both)[0] == 0
    assert call("delete-records", tmp_path, "--offsets", '{"t":{"0":80}}')[0] == 0
    readable = pa.table(kafkalog.read(tmp_path, "t"))
    (row,) = counted(tmp_path)
    assert row["records"] == readable.num_rows
    assert (readable["offset"][0].as_py(), row["batches"]) == (80, 3)


def test_bytes_and_records_a_batch_are_of_data_alone(tmp_path: Path) -> None:
    path = UnpackedCase("p06-transactions", tmp_path).path
    for row in counted(path, "--topic", "txn"):
        words = ("--topic", "txn", "--partition", row["partition"], "--count", 9999, "--json")
        batches = [json.loads(line) for line in call("dump", path, *words)[1].splitlines()]
        sizes = [each["size"] for each in batches if not each["control"]]
        assert row["bytesPerBatch"] == sum(sizes) // len(sizes)


def test_small_partitions_are_read_by_one_thread_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"value": ["x"] * 12, "partition": pa.array(range(12), pa.int32())})
    kafkalog.append(tmp_path, "t", table, options={"numPartitions": "12"})
    tasks = []
    submit = ThreadPool.submit

    def count(*given: Any) -> Any:
        tasks.append(given)
        return submit(*given)

    monkeypatch.setattr(ThreadPool, "submit", count)
    rows = count_partitions([str(tmp_path)], ALL_TOPICS, {}, lambda *_: None)
    assert ([row["records"] for row in rows], len(tasks)) == ([1] * 12, 1)


def test_what_is_counted_is_not_made_rows_of_in_arrow_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"value": ["x"] * 12, "partition": pa.array(range(12), pa.int32())})
    kafkalog.append(tmp_path, "t", table, options={"numPartitions": "12"})
    described = []
    monkeypatch.setattr(BatchDescriber, "feed", lambda *given, **_: described.append(given) or ())
    assert [row["records"] for row in counted(tmp_path)] == [1] * 12
    assert sum(row["records"] for row in gather([str(tmp_path)], (), print, checks=False).counts)
    assert not described


@pytest.mark.parametrize("batches", [3, 40])
def test_a_few_batches_and_many_are_measured_alike(tmp_path: Path, batches: int) -> None:
    for number in range(batches):
        stamps = pa.array([STAMP + number * 400] * 2, pa.timestamp("ms"))
        rows = pa.table({"value": ["x" * 10 * number] * 2, "timestamp": stamps})
        kafkalog.append(tmp_path, "t", rows, options={"flush": "os"})
    (found,) = measure(
        [str(tmp_path)], ALL_TOPICS, {}, lambda *_: None, most_spans=1000, has_gaps=True
    ).values()
    words = ("--topic", "t", "--partition", 0, "--count", 9999, "--json")
    rows = [json.loads(line) for line in call("dump", tmp_path, *words)[1].splitlines()]
    sizes = Counter(1 << (row["size"].bit_length() - 1) for row in rows)
    spans = Counter((STAMP + number * 400) // 1000 for number in range(batches))
    assert {least: pair[0] for least, pair in found.batch_sizes.items()} == sizes
    assert {span: pair[0] for span, pair in found.timeline.spans.items()} == {
        span: 2 * count for span, count in spans.items()
    }
    assert {
        sum(pair[1] for pair in pairs.values())
        for pairs in (found.batch_sizes, found.timeline.spans, found.codecs)
    } == {sum(row["size"] for row in rows)}


def test_a_topic_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    kafkalog.append(tmp_path, "t", pa.table({"value": ["x"]}))
    code, text = call("stats", tmp_path, "--topic", "u")
    assert (code, len(text.splitlines()), "Topics there: t" in text) == (2, 1, True)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1_048_575, "1.0 MiB"),
        (1_288_490_189, "1.2 GiB"),
        (2**70, "1048576.0 PiB"),
    ],
)
def test_sizes_are_shown_in_the_unit_that_suits_them(size: int, expected: str) -> None:
    assert shown_size(size) == expected


def test_rows_for_people_have_units_and_no_raw_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "time_ns", lambda: (STAMP + 11_100_000) * 1_000_000)
    row = {
        "offset": 2048,
        "bytes": 2048,
        "size": None,
        "timestamp": STAMP,
        "maxTimestamp": -1,
        "firstTimestamp": "none",
        "lastTimestamp": STAMP,
        "behindMs": 11_100_000,
    }
    assert for_people(row) == {
        "offset": 2048,
        "bytes": "2.0 KiB",
        "size": None,
        "timestamp": "2023-11-14T22:13:20.000Z",
        "maxTimestamp": None,
        "firstTimestamp": "none",
        "lastTimestamp": "2023-11-14T22:13:20Z (3 h 5 min ago)",
        "behind": "3 h 5 min",
    }
    later = for_people({"lastTimestamp": STAMP + 11_160_000})
    assert later["lastTimestamp"].endswith("(in 1 min)")


def test_times_before_1970_are_times_and_only_minus_one_is_none(tmp_path: Path) -> None:
    stamps = pa.array([-1000, -5, 7], pa.timestamp("ms"))
    kafkalog.append(tmp_path, "t", pa.table({"value": ["a", "b", "c"], "timestamp": stamps}))
    (row,) = counted(tmp_path)
    assert (row["firstTimestamp"], row["lastTimestamp"]) == (-1000, 7)
    assert for_people({"timestamp": -5, "maxTimestamp": -1}) == {
        "timestamp": "1969-12-31T23:59:59.995Z",
        "maxTimestamp": None,
    }


@pytest.mark.parametrize("command", ["topics", "describe", "stats", "verify --all"])
def test_tables_show_sizes_with_units_and_json_exact_ones(tmp_path: Path, command: str) -> None:
    kafkalog.append(tmp_path, "t", pa.table({"value": ["x" * 5000]}))
    size = (tmp_path / "t-0" / f"{0:020d}.log").stat().st_size
    name, *options = command.split()
    _, text = call(name, tmp_path, *options)
    assert shown_size(size) in text
    assert str(size) not in text
    _, text = call(name, tmp_path, *options, "--json")
    assert json.loads(text.splitlines()[0])["bytes"] == size


def test_a_sentence_names_a_file_of_a_log_by_its_folder() -> None:
    name = f"t-0/{0:020d}.log"
    row = {"problem": f"/a/b/{name}: the batch at position 0 is incomplete"}
    assert for_people(row) == {"problem": f"{name}: the batch at position 0 is incomplete"}
    assert for_people({"problem": "/a/b is away"}) == {"problem": "/a/b is away"}
