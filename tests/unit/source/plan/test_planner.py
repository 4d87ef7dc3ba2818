from __future__ import annotations

import logging
import pickle
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.logs import Row, batch_bytes, write_checkpoint, write_segment

from kafkalog.errors import DataLossError
from kafkalog.model import OffsetRange, TopicPartition
from kafkalog.streaming.log import partition_log
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.source.loss import LossPolicy
from kafkalog.streaming.source.planner import LogSplit, plan_splits, readable_ranges

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.streaming.log.read.slice_reader import SegmentSlice

T0, T1, T2 = (TopicPartition("t", partition) for partition in range(3))
FAIL, WARN = LossPolicy(fail=True), LossPolicy(fail=False)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give t-0 [0, 100) in two segments with index entries, and t-1 [3, 10)."""
    for base in (0, 50):
        batches = b"".join(batch_bytes(base + n, [Row(b"x" * 100)] * 5) for n in range(0, 50, 5))
        write_segment(tmp_path / "t-0", base, batches, index=True)
    write_segment(tmp_path / "t-1", 0, batch_bytes(0, [Row()] * 10))
    write_checkpoint(tmp_path, "log-start-offset-checkpoint", {"t-1": 3})
    return tmp_path


@pytest.fixture
def logs(log: Path) -> EndOffsets:
    logs = EndOffsets([str(log)], lambda _: True)
    logs.look()
    return logs


def planned(logs: EndOffsets, ranges: list[OffsetRange], **given: str) -> list[LogSplit]:
    options = ReadOptions.parse({"path": "/logs", "subscribe": "t"} | given)
    return plan_splits(ranges, options, logs, FAIL)


def offsets(splits: list[LogSplit]) -> list[tuple[str, list[tuple[int, int]]]]:
    return [
        (str(split.topic_partition), [(s.start_offset, s.end_offset) for s in split.slices])
        for split in splits
    ]


def test_a_range_is_one_split_of_slices_in_order(logs: EndOffsets) -> None:
    splits = planned(logs, [OffsetRange(T0, 7, 93), OffsetRange(T1, 3, 10)])
    assert offsets(splits) == [("t-0", [(7, 50), (50, 93)]), ("t-1", [(3, 10)])]
    assert pickle.loads(pickle.dumps(splits)) == splits


@pytest.mark.parametrize("split_bytes", [600, 1000, 3000, 6000, 7000, 10**6])
def test_large_ranges_are_cut_by_bytes_at_batch_boundaries(
    logs: EndOffsets, split_bytes: int
) -> None:
    splits = planned(logs, [OffsetRange(T0, 0, 100)], splitBytes=str(split_bytes))
    pieces = [piece for split in splits for piece in split.slices]
    assert [piece.start_offset for piece in pieces[1:]] == [
        piece.end_offset for piece in pieces[:-1]
    ]
    assert (pieces[0].start_offset, pieces[-1].end_offset) == (0, 100)
    assert all(piece.end_offset % 5 == 0 for piece in pieces)
    batch = len(batch_bytes(0, [Row(b"x" * 100)] * 5))
    for split in splits:
        batches = sum(piece.end_offset - piece.start_offset for piece in split.slices) // 5
        assert batches * batch <= split_bytes + 2 * batch  # cut at the next batch that is indexed
    assert len(splits) >= min(20 * batch // (split_bytes * 2), 18)


def test_limits_on_partitions_cut_by_offsets_as_spark_does(logs: EndOffsets) -> None:
    splits = planned(logs, [OffsetRange(T0, 0, 100)], minPartitions="3", splitBytes="1")
    assert offsets(splits) == [
        ("t-0", [(0, 33)]),
        ("t-0", [(33, 50), (50, 66)]),
        ("t-0", [(66, 100)]),
    ]
    splits = planned(logs, [OffsetRange(T0, 0, 50)], maxRecordsPerPartition="25")
    assert offsets(splits) == [("t-0", [(0, 25)]), ("t-0", [(25, 50)])]


def test_a_new_partition_is_read_from_its_log_start(
    logs: EndOffsets, caplog: pytest.LogCaptureFixture
) -> None:
    ranges = readable_ranges({}, {T0: 40}, logs.look().offsets, logs, FAIL)
    assert ranges == [OffsetRange(T0, 0, 40)]
    with pytest.raises(
        DataLossError, match=r"ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO\] .*t-1 at 3"
    ):
        readable_ranges({}, {T1: 10}, logs.look().offsets, logs, FAIL)
    with caplog.at_level(logging.WARNING, "kafkalog"):
        assert readable_ranges({}, {T1: 10}, logs.look().offsets, logs, WARN) == [
            OffsetRange(T1, 3, 10)
        ]
    assert "t-1 at 3" in caplog.text


def test_a_partition_that_is_gone_is_a_loss(logs: EndOffsets) -> None:
    with pytest.raises(DataLossError, match=r"KAFKA_DATA_LOSS.PARTITIONS_DELETED\].*t-2 from 7"):
        readable_ranges({T0: 5, T2: 7}, {T0: 9}, logs.look().offsets, logs, FAIL)
    ranges = readable_ranges({T0: 5, T2: 7}, {T0: 9}, logs.look().offsets, logs, WARN)
    assert ranges == [OffsetRange(T0, 5, 9)]


def test_a_new_partition_that_is_gone_again_is_a_loss(logs: EndOffsets) -> None:
    with pytest.raises(DataLossError, match=r"INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS.* t-2"):
        readable_ranges({}, {T2: 9}, logs.look().offsets, logs, FAIL)
    assert readable_ranges({}, {T2: 9}, logs.look().offsets, logs, WARN) == []


def test_a_partition_that_is_deleted_while_a_batch_is_planned_is_a_loss(
    logs: EndOffsets, log: Path
) -> None:
    available = logs.look().offsets
    shutil.rmtree(log / "t-0")
    with pytest.raises(DataLossError, match=r"PARTITIONS_DELETED\].*t-0 from 7"):
        readable_ranges({T0: 7}, {T0: 9}, available, logs, FAIL)
    with pytest.raises(DataLossError, match=r"INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS.* t-0"):
        readable_ranges({}, {T0: 9}, available, logs, FAIL)
    assert readable_ranges({T1: 5}, {T0: 9, T1: 9}, available, logs, WARN) == [
        OffsetRange(T1, 5, 9)
    ]


def test_an_end_that_went_back_is_a_loss(logs: EndOffsets) -> None:
    with pytest.raises(
        DataLossError, match=r"PARTITION_OFFSET_CHANGED.*t-0 from 9 to 4.*failOnDataLoss"
    ):
        readable_ranges({T0: 9}, {T0: 4}, logs.look().offsets, logs, FAIL)
    assert readable_ranges({T0: 9}, {T0: 4}, logs.look().offsets, logs, WARN) == []


def test_offsets_below_the_log_start_are_a_loss(logs: EndOffsets) -> None:
    with pytest.raises(
        DataLossError, match=r"COULD_NOT_READ_OFFSET_RANGE\] .*t-1: the 2 offsets \[1, 3\)"
    ):
        readable_ranges({T1: 1}, {T1: 8}, logs.look().offsets, logs, FAIL)
    ranges = readable_ranges({T1: 1}, {T1: 8}, logs.look().offsets, logs, WARN)
    assert ranges == [OffsetRange(T1, 3, 8)]
    assert readable_ranges({T1: 0}, {T1: 2}, logs.look().offsets, logs, WARN) == []


def test_offsets_beyond_what_is_committed_are_a_loss(logs: EndOffsets) -> None:
    with pytest.raises(DataLossError, match=r"t-1: the 5 offsets \[10, 15\) cannot be read"):
        readable_ranges({T1: 4}, {T1: 15}, logs.look().offsets, logs, FAIL)
    ranges = readable_ranges({T1: 4}, {T1: 15}, logs.look().offsets, logs, WARN)
    assert ranges == [OffsetRange(T1, 4, 10)]


def test_equal_start_and_end_is_nothing_to_read(logs: EndOffsets) -> None:
    assert readable_ranges({T1: 4}, {T1: 4}, logs.look().offsets, logs, FAIL) == []


def test_a_partition_deleted_while_it_is_planned_is_a_loss(log: Path, logs: EndOffsets) -> None:
    shutil.rmtree(log / "t-0")
    with pytest.raises(DataLossError, match="PARTITIONS_DELETED"):
        planned(logs, [OffsetRange(T0, 0, 100)])


def test_retention_while_a_range_is_planned_is_a_loss(log: Path, logs: EndOffsets) -> None:
    (log / "t-0" / f"{0:020d}.log").unlink()
    with pytest.raises(DataLossError, match=r"t-0: the 43 offsets \[7, 50\)"):
        planned(logs, [OffsetRange(T0, 7, 100)])
    options = ReadOptions.parse({"path": "/logs", "subscribe": "t"})
    splits = plan_splits([OffsetRange(T0, 7, 100)], options, logs, WARN)
    assert offsets(splits) == [("t-0", [(50, 100)])]


def test_retention_while_a_loss_is_described_is_no_failure_of_its_own(
    log: Path, logs: EndOffsets, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (log / "t-0" / f"{base:020d}.log" for base in (0, 50))
    write_segment(log / "t-0", 100, batch_bytes(100, [Row()] * 5))
    ends = logs.look().offsets
    first.unlink()
    slices = partition_log.slice_segment

    def slice_and_delete(*given: Any, **named: Any) -> SegmentSlice:
        found = slices(*given, **named)
        second.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(partition_log, "slice_segment", slice_and_delete)
    assert readable_ranges({T0: 0}, {T0: 100}, ends, logs, WARN) == [OffsetRange(T0, 50, 100)]
    assert "the log starts at 50 now" in caplog.text


def test_a_long_list_of_losses_is_cut_short() -> None:
    gone = {TopicPartition("t", partition): 5 for partition in range(500)}
    with pytest.raises(DataLossError, match="t-9 from 5 and 490 more"):
        FAIL.partitions_deleted(gone)
