from __future__ import annotations

from kafkalog.model import TopicPartition
from kafkalog.streaming.log.read.slice_reader import SegmentSlice
from kafkalog.streaming.source.batch_plan import pack_batch, pack_micro_batch, pack_splits
from kafkalog.streaming.source.planner import SMALLEST_BYTES, LogSplit


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
    assert pack_splits([], 100) == []
    assert pack_batch([]) == pack_micro_batch([]) == []


def test_a_micro_batch_of_a_few_rows_in_each_of_a_thousand_partitions_takes_few_tasks() -> None:
    assert len(pack_micro_batch(splits(*[1000] * 1000), cores=2)) == 4
    assert len(pack_micro_batch(splits(*[1000] * 4), cores=2)) == 1


def test_a_batch_read_of_many_partitions_has_a_few_tasks_for_each_core() -> None:
    packs = pack_batch(splits(*[1000] * 1000), cores=2)
    assert [len(pack) for pack in packs] == [125] * 8
    assert len(pack_batch(splits(*[1000] * 1000), cores=16)) == 67


def test_a_batch_read_of_few_partitions_has_a_task_for_each() -> None:
    assert len(pack_batch(splits(*[10] * 8), cores=2)) == 8
    assert len(pack_batch(splits(5000, *[10] * 8), cores=2)) == 2


def test_no_task_is_packed_beyond_what_a_large_partition_would_be_cut_into() -> None:
    megabytes = splits(*[1 << 20] * 1000)
    assert {len(pack) for pack in pack_batch(megabytes, cores=2)} == {SMALLEST_BYTES >> 20}
    assert {len(pack) for pack in pack_batch(megabytes, 3 << 20, cores=2)} == {3, 1}
    assert {len(pack) for pack in pack_micro_batch(megabytes, 3 << 20, cores=2)} == {3, 1}
    assert {len(p) for p in pack_micro_batch(splits(*[100] * 9), 300, cores=2)} == {3}
