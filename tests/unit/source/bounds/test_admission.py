from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafkalog.model import MAX_OFFSET, TopicPartition
from kafkalog.streaming.source.admission import TriggerGate, limit_offsets


def partitions(*offsets: int) -> dict[TopicPartition, int]:
    return {TopicPartition("t", partition): offset for partition, offset in enumerate(offsets)}


def test_a_limit_is_split_in_proportion_to_the_backlog() -> None:
    first = limit_offsets(partitions(0, 0, 0), partitions(101, 11, 1), 10)
    assert first == partitions(8, 1, 1)
    assert limit_offsets(first, partitions(101, 11, 1), 10) == partitions(17, 2, 1)


def test_a_limit_beyond_the_backlog_takes_all_of_it() -> None:
    assert limit_offsets(partitions(5, 0), partitions(9, 3), MAX_OFFSET) == partitions(9, 3)


def test_a_limit_does_not_overflow_at_large_offsets() -> None:
    start = partitions(MAX_OFFSET - 5)
    assert limit_offsets(start, partitions(MAX_OFFSET), MAX_OFFSET) == partitions(MAX_OFFSET)


def test_an_end_below_its_start_is_left_for_the_data_loss_check() -> None:
    assert limit_offsets(partitions(9, 0), partitions(3, 10), 4) == partitions(3, 4)


@given(
    st.lists(st.tuples(st.integers(0, 10**15), st.integers(0, 10**12)), min_size=1, max_size=8),
    st.integers(1, 10**13),
)
def test_every_partition_with_a_backlog_advances_and_none_too_far(
    backlog: list[tuple[int, int]], limit: int
) -> None:
    start = partitions(*(offset for offset, _ in backlog))
    end = partitions(*(offset + count for offset, count in backlog))
    limited = limit_offsets(start, end, limit)
    for partition, offset in limited.items():
        assert offset <= end[partition]
        assert offset > start[partition] or end[partition] == start[partition]
    taken = sum(limited.values()) - sum(start.values())
    assert taken <= max(limit, 1) + len(backlog)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_minimum_holds_back_until_enough_offsets_or_time() -> None:
    clock = Clock()
    gate = TriggerGate(15, 5000, clock=clock)
    assert gate.opens(partitions(0), partitions(3))
    assert not gate.opens(partitions(3), partitions(9))
    assert gate.opens(partitions(3), partitions(21))
    clock.now += 4.9
    assert not gate.opens(partitions(21), partitions(31))
    clock.now += 0.2
    assert gate.opens(partitions(21), partitions(31))
