from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.counted_reads import counted_reads
from tests.support.logs import Row, batch_bytes, write_segment

from kafkalog.model import OffsetRange, TopicPartition
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.source.loss import LossPolicy
from kafkalog.streaming.source.planner import (
    LARGEST_BYTES,
    SMALLEST_BYTES,
    LogSplit,
    by_bytes,
    plan_splits,
    split_target,
)

if TYPE_CHECKING:
    from pathlib import Path

HOT, COLD = TopicPartition("t", 0), TopicPartition("t", 1)
ROW = Row(b"x" * 10_000)
BATCH = len(batch_bytes(0, [ROW]))


def test_cores_share_a_batch_within_bounds() -> None:
    assert split_target(None, 160 << 20, cores=8) == 20 << 20
    assert split_target(None, 16 << 20, cores=8) == SMALLEST_BYTES
    assert split_target(None, 16 << 30, cores=8) == LARGEST_BYTES
    assert split_target(1 << 30, 16 << 30, cores=8) == 1 << 30
    assert split_target(None, 1) == SMALLEST_BYTES


def put(log: Path, key: TopicPartition, segments: int, batches: int) -> int:
    """Write segments of so many batches of one record; gives the end."""
    for base in range(0, segments * batches, batches):
        data = b"".join(batch_bytes(base + n, [ROW]) for n in range(batches))
        write_segment(log / str(key), base, data, index=True)
    return segments * batches


def sizes(splits: list[LogSplit]) -> dict[TopicPartition, list[int]]:
    found: dict[TopicPartition, list[int]] = {}
    for split in splits:
        total = sum(piece.size for piece in split.slices)
        found.setdefault(split.topic_partition, []).append(total)
    return found


def follow(log: Path) -> EndOffsets:
    tail = EndOffsets([str(log)], lambda _: True)
    tail.look()
    return tail


def plan(tail: EndOffsets, ends: dict[TopicPartition, int], **given: str) -> list[LogSplit]:
    options = ReadOptions.parse({"path": "/logs", "subscribe": "t"} | given)
    ranges = [OffsetRange(key, 0, end) for key, end in ends.items()]
    return plan_splits(ranges, options, tail, LossPolicy(fail=True))


@pytest.mark.parametrize(("segments", "batches"), [(1, 1000), (5, 200), (50, 20)])
def test_one_hot_partition_is_cut_into_parts_of_equal_bytes(
    tmp_path: Path, segments: int, batches: int
) -> None:
    end = put(tmp_path, HOT, segments, batches)
    tail = follow(tmp_path)
    with counted_reads() as fetched:
        splits = plan(tail, {HOT: end}, splitBytes=str(1000 * BATCH // 8))
    found = sizes(splits)[HOT]
    assert len(found) == 8
    slack = 2 * BATCH * (1 + segments // 8)  # an index bounds a cut by one batch more
    assert max(found) - min(found) <= slack
    assert 1000 * BATCH <= sum(found) <= 1000 * BATCH + 8 * BATCH
    pieces = [piece for split in splits for piece in split.slices]
    assert [piece.start_offset for piece in pieces[1:]] == [p.end_offset for p in pieces[:-1]]
    assert fetched[".log"] <= 61 * 3 * segments  # headers, to verify what the indexes say


def test_a_skewed_topic_balances(tmp_path: Path) -> None:
    ends = {HOT: put(tmp_path, HOT, 1, 700), COLD: put(tmp_path, COLD, 1, 100)}
    splits = plan(follow(tmp_path), ends, splitBytes=str(800 * BATCH // 8))
    found = sizes(splits)
    assert [len(found[key]) for key in (HOT, COLD)] == [7, 1]
    assert max(map(max, found.values())) <= 105 * BATCH


@pytest.mark.parametrize(("hundredths", "parts"), [(105, 1), (115, 2), (205, 2), (1600, 16)])
def test_a_small_rest_is_worth_no_task(tmp_path: Path, hundredths: int, parts: int) -> None:
    ends = {HOT: put(tmp_path, HOT, 1, 300)}
    size = 300 * BATCH * 100 // hundredths
    assert len(sizes(plan(follow(tmp_path), ends, splitBytes=str(size)))[HOT]) == parts


def test_sparks_rules_count_offsets_where_they_are_asked_for(tmp_path: Path) -> None:
    ends = {HOT: put(tmp_path, HOT, 1, 90), COLD: put(tmp_path, COLD, 1, 10)}
    rules = {"minPartitions": "10", "splitBytes": "1"}
    found = sizes(plan(follow(tmp_path), ends, **rules))
    assert [len(found[key]) for key in (HOT, COLD)] == [9, 1]


def test_what_is_small_or_cannot_be_cut_stays_whole(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, batch_bytes(0, [ROW] * 20))
    assert len(plan(follow(tmp_path), {HOT: 20}, splitBytes="100")) == 1
    assert len(plan(follow(tmp_path), {HOT: 20})) == 1
    assert list(by_bytes([], 5)) == []
