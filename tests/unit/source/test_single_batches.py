"""The streaming reader under a Spark without admission control, as 4.0 and 4.1 are.

In which order such a Spark asks was seen with a source that writes it down:

* without a checkpoint: ``latestOffset()``, ``initialOffset()``, ``partitions(initial, latest)``;
* with one: ``partitions(p, p)``, where p is the end of the last batch that was planned; that batch
  again if it was not committed; then ``latestOffset()``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.support.streams import Log

from kafkalog.files.system import system
from kafkalog.streaming.spark import readers as stream_reader
from kafkalog.streaming.spark.datasource import KafkaLogDataSource
from kafkalog.streaming.spark.readers import splits_of

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.streaming.spark.readers import LogStreamReader


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setattr(stream_reader, "HAS_ADMISSION_CONTROL", False)
    monkeypatch.setattr(system, "memory", {})
    log = Log(tmp_path / "log")
    log.append("t-0", 5)
    return log


def reader_of(log: Log, **given: str) -> LogStreamReader:
    options = {"path": str(log.path), "subscribe": "t", "fetchOffset.retryIntervalMs": "1"} | given
    source = KafkaLogDataSource(options)
    return cast("LogStreamReader", source.streamReader(source.schema()))


def at(offset: int) -> dict[str, dict[str, int]]:
    return {"t": {"0": offset}}


def planned(reader: LogStreamReader, start: Any, end: Any) -> list[tuple[int, int]]:
    """Return the offsets of the splits of a batch."""
    splits = [split for part in reader.partitions(start, end) for split in splits_of(part)]
    return [(piece.start_offset, piece.end_offset) for split in splits for piece in split.slices]


def test_batches_follow_each_other_though_spark_does_not_say_where_one_starts(log: Log) -> None:
    reader = reader_of(log, startingOffsets="earliest", maxOffsetsPerTrigger="2")
    assert reader.latestOffset() == at(2)
    assert reader.initialOffset() == at(0)
    assert planned(reader, at(0), at(2)) == [(0, 2)]
    assert reader.latestOffset() == reader.latestOffset() == at(4)
    assert planned(reader, at(2), at(4)) == [(2, 4)]
    assert reader.latestOffset() == at(5)


def test_a_restart_goes_on_after_the_last_batch_that_was_planned(log: Log) -> None:
    reader = reader_of(log, maxOffsetsPerTrigger="1")
    assert reader.partitions(at(2), at(2)) == []
    assert planned(reader, at(0), at(2)) == [(0, 2)]
    assert reader.latestOffset() == at(3)


def test_a_first_batch_reads_what_a_moving_start_leaves_since_it_may_be_the_only_one(
    log: Log,
) -> None:
    log.commit_position("g", "t-0", 3)
    reader = reader_of(log, startingOffsets="group:g")
    assert (reader.latestOffset(), reader.initialOffset()) == (at(5), at(3))


def test_a_start_at_the_end_is_kept_by_a_first_batch_without_rows(log: Log) -> None:
    for start in (
        {"startingOffsets": "latest"},
        {
            "startingTimestamp": "9999999999999",
            "startingOffsetsByTimestampStrategy": "latest",
        },
    ):
        reader = reader_of(log, **start)
        before = reader.control.initial()
        log.append("t-0", 1)
        assert reader.latestOffset() == reader.initialOffset()
        assert planned(reader, reader.initialOffset(), reader.initialOffset()) == []
        assert reader.control.next_end(before, take_all=False) != before


@pytest.mark.parametrize(
    ("given", "warns"),
    [
        ({"maxOffsetsPerTrigger": "1"}, True),
        ({"maxBytesPerTrigger": "1"}, True),
        ({"minOffsetsPerTrigger": "1"}, True),
        ({}, False),
    ],
)
def test_a_limit_comes_with_the_warning_that_some_triggers_end_after_one_batch(
    given: dict[str, str], warns: bool, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    reader_of(log, startingOffsets="earliest", **given).latestOffset()
    said = [line for line in caplog.messages if "single micro-batch" in line]
    assert len(said) == warns
    assert all(name in line for line in said for name in given)
