from __future__ import annotations

from kafkalog.model import TopicPartition
from kafkalog.streaming.log.slices import SegmentSlice
from kafkalog.streaming.source.packing import pack_splits
from kafkalog.streaming.source.planner import LogSplit


def splits(*sizes: int) -> list[LogSplit]:
    """Give a split of one slice for each size."""
    return [
        LogSplit(TopicPartition("t", number), (SegmentSlice("t/0", 0, 1, 1, 7, 7 + size, 0, 9),))
        for number, size in enumerate(sizes)
    ]


def sizes(packs: list[tuple[LogSplit, ...]]) -> list[list[int]]:
    return [[split.slices[0].size for split in pack] for pack in packs]


def test_splits_in_a_row_share_a_task_as_long_as_they_are_small_together() -> None:
    assert sizes(pack_splits(splits(40, 60, 1, 99, 1), 100)) == [[40, 60], [1, 99], [1]]


def test_a_large_split_has_a_task_of_its_own_and_the_order_stays() -> None:
    given = splits(10, 500, 10, 10, 500)
    packs = pack_splits(given, 100)
    assert sizes(packs) == [[10], [500], [10, 10], [500]]
    assert [split for pack in packs for split in pack] == given


def test_no_splits_are_no_tasks() -> None:
    assert pack_splits([]) == []


def test_a_thousand_partitions_with_a_few_rows_each_take_few_tasks() -> None:
    assert len(pack_splits(splits(*[1000] * 1000))) == 4
