from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from tests.support.logs import Row, batch_bytes, write_checkpoint, write_segment

from kafkalog.errors import DataLossError, OptionError, UnknownTopicOrPartitionError
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.source.end_offsets import EndOffsets

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give t-0 [2, 10) with timestamps 1000 and up, and t-1 [0, 4), of which 3 are committed."""
    for partition, count in ((0, 10), (1, 4)):
        rows = [Row(timestamp=1000 + n) for n in range(count)]
        write_segment(tmp_path / f"t-{partition}", 0, batch_bytes(0, rows))
    write_checkpoint(tmp_path, "log-start-offset-checkpoint", {"t-0": 2})
    write_checkpoint(tmp_path, "replication-offset-checkpoint", {"t-0": 10, "t-1": 3})
    return tmp_path


def spans(log: Path, **given: str) -> list[tuple[str, int, int]]:
    defaults = {"path": str(log), "subscribe": "t", "fetchOffset.retryIntervalMs": "0"}
    options = ReadOptions.parse(defaults | given)
    return [
        (str(s.topic_partition), s.slices[0].start_offset, s.slices[-1].end_offset)
        for s in plan_batch(options)
    ]


def test_a_batch_reads_from_earliest_to_what_is_committed(log: Path) -> None:
    assert spans(log) == [("t-0", 2, 10), ("t-1", 0, 3)]
    assert spans(log, readUpTo="logEnd") == [("t-0", 2, 10), ("t-1", 0, 4)]


def test_bounds_may_be_of_two_kinds(log: Path) -> None:
    found = spans(log, startingTimestamp="1002", endingOffsets='{"t":{"0":7,"1":-1}}')
    assert found == [("t-0", 2, 7), ("t-1", 2, 3)]
    found = spans(log, startingOffsets='{"t":{"0":4,"1":1}}', endingTimestamp="1009")
    assert found == [("t-0", 4, 9), ("t-1", 1, 3)]


def test_equal_bounds_are_nothing_to_read(log: Path) -> None:
    both = '{"t":{"0":5,"1":1}}'
    assert spans(log, startingOffsets=both, endingOffsets=both) == []


def test_a_start_behind_the_end_is_refused(log: Path) -> None:
    with pytest.raises(OptionError, match=r"RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET.* t-0"):
        spans(log, startingOffsets='{"t":{"0":9,"1":0}}', endingTimestamp="1004")
    with pytest.raises(OptionError, match=r"RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET.* t-1"):
        spans(log, startingOffsets='{"t":{"0":5,"1":4}}')


def test_a_log_that_retention_empties_while_it_is_planned_is_looked_at_again(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = EndOffsets.look

    def look_and_pause(logs: EndOffsets) -> object:
        found = look(logs)
        if (log / "t-0" / f"{0:020}.log").exists():
            shutil.rmtree(log / "t-0")
            write_segment(log / "t-0", 12, batch_bytes(12, [Row(timestamp=1), Row(timestamp=2)]))
            write_checkpoint(log, "replication-offset-checkpoint", {"t-0": 14, "t-1": 3})
        return found

    monkeypatch.setattr(EndOffsets, "look", look_and_pause)
    assert spans(log) == [("t-0", 12, 14), ("t-1", 0, 3)]


def test_bounds_outside_the_log_are_a_loss(log: Path) -> None:
    below = '{"t":{"0":0,"1":0}}'
    with pytest.raises(DataLossError, match=r"t-0: the 2 offsets \[0, 2\)"):
        spans(log, startingOffsets=below)
    assert spans(log, startingOffsets=below, failOnDataLoss="false") == spans(log)
    beyond = '{"t":{"0":12,"1":3}}'
    with pytest.raises(DataLossError, match=r"t-0: the 2 offsets \[10, 12\)"):
        spans(log, endingOffsets=beyond)
    assert spans(log, endingOffsets=beyond, failOnDataLoss="false") == spans(log)


def test_a_topic_that_does_not_exist_is_named(log: Path) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition of topic u is in"):
        spans(log, subscribe="t,u")
