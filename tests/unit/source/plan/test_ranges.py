from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalog.model import OffsetRange, TopicPartition
from kafkalog.streaming.source.planner import cut_ranges


def ranges(*sizes: int) -> list[OffsetRange]:
    return [
        OffsetRange(TopicPartition("t", partition), 1, 1 + size)
        for partition, size in enumerate(sizes)
    ]


def sizes_by_partition(cut: list[OffsetRange]) -> list[list[int]]:
    by_partition: dict[TopicPartition, list[int]] = {}
    for entry in cut:
        by_partition.setdefault(entry.topic_partition, []).append(entry.end - entry.start)
    return list(by_partition.values())


def test_without_limits_each_partition_with_data_is_one_range() -> None:
    assert cut_ranges(ranges(5, 0, 7), None, None) == [ranges(5)[0], ranges(5, 0, 7)[2]]


@pytest.mark.parametrize(
    ("sizes", "min_partitions", "expected"),
    [
        ((10, 20), 1, [[10], [20]]),
        ((10,), 3, [[3, 3, 4]]),
        ((4, 20), 4, [[4], [6, 7, 7]]),
        ((1, 1000), 4, [[1], [333, 333, 334]]),
        ((100, 3), 4, [[33, 33, 34], [3]]),
        ((10, 10, 1), 6, [[3, 3, 4], [3, 3, 4], [1]]),
        ((1,), 4, [[1]]),
    ],
)
def test_minimum_partitions_are_shared_out_by_size(
    sizes: tuple[int, ...], min_partitions: int, expected: list[list[int]]
) -> None:
    assert sizes_by_partition(cut_ranges(ranges(*sizes), min_partitions, None)) == expected


@pytest.mark.parametrize(
    ("sizes", "min_partitions", "counts"),
    [
        ((10_000, 15_000, 20_000), 9, [2, 3, 4]),
        ((500, 12_000, 15_001), 6, [1, 2, 3]),
        ((1, 1, 10_000), 6, [1, 1, 4]),
    ],
)
def test_skewed_partitions_get_pieces_in_proportion(
    sizes: tuple[int, ...], min_partitions: int, counts: list[int]
) -> None:
    cut = sizes_by_partition(cut_ranges(ranges(*sizes), min_partitions, None))
    assert [len(pieces) for pieces in cut] == counts


@pytest.mark.parametrize(
    ("sizes", "min_partitions", "max_records", "expected"),
    [
        ((5,), None, 4, [[2, 3]]),
        ((39, 49, 59), None, 20, [[19, 20], [16, 16, 17], [19, 20, 20]]),
        ((39,), 1, 20, [[19, 20]]),
        ((20,), 1, 20, [[20]]),
    ],
)
def test_no_range_has_more_than_the_maximum_of_records(
    sizes: tuple[int, ...],
    min_partitions: int | None,
    max_records: int,
    expected: list[list[int]],
) -> None:
    cut = cut_ranges(ranges(*sizes), min_partitions, max_records)
    assert sizes_by_partition(cut) == expected


def test_the_maximum_of_records_comes_before_the_minimum_of_partitions() -> None:
    assert len(cut_ranges(ranges(39), 4, 20)) == 4


@given(
    st.lists(st.integers(0, 2000), max_size=6),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 500),
)
def test_cutting_never_drops_or_repeats_an_offset(
    sizes: list[int], min_partitions: int | None, max_records: int | None
) -> None:
    whole = ranges(*sizes)
    cut = cut_ranges(whole, min_partitions, max_records)
    assert all(entry.start < entry.end for entry in cut)
    for entry in whole:
        pieces = [piece for piece in cut if piece.topic_partition == entry.topic_partition]
        assert all(left.end == right.start for left, right in pairwise(pieces))
        if entry.end > entry.start:
            assert (pieces[0].start, pieces[-1].end) == (entry.start, entry.end)
        if max_records is not None:
            assert all(piece.end - piece.start <= max_records for piece in pieces)
