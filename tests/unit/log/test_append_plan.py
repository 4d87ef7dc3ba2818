"""Which segment a batch goes to, and which index entries it makes: Kafka's rules, one by one."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.log_files import FLIGHTS, NOW_MS, make_table

from kafkalog.errors import RecordTooLargeError
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.growth import (
    ADOPTED_BYTES,
    SegmentAppend,
    SegmentState,
    index_segment,
    plan_append,
    roll_jitter_ms,
)
from kafkalog.streaming.log.indexes import OFFSET_ENTRY, TIME_ENTRY
from kafkalog.streaming.options.topic_settings import LogConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.streaming.records.batch import BatchTable

Batches = list[tuple[int, int, int]]


def _plan(
    batches: Batches, state: SegmentState | None = None, *, now_ms: int = NOW_MS, **settings: object
) -> list[SegmentAppend]:
    config = replace(LogConfig(), **settings)  # type: ignore[arg-type]
    state = state or SegmentState.empty(0, now_ms)
    table = make_table(batches, first_offset=state.next_offset)
    return plan_append(FLIGHTS, config, state, [table], now_ms=now_ms)[0]


def _bases(planned: Sequence[SegmentAppend]) -> list[int]:
    return [segment.base_offset for segment in planned]


def _index(segment: SegmentAppend) -> list[tuple[int, int]]:
    return list(np.frombuffer(segment.index_entries, OFFSET_ENTRY).tolist())


def _times(segment: SegmentAppend) -> list[tuple[int, int]]:
    return list(np.frombuffer(segment.time_index_entries, TIME_ENTRY).tolist())


# Rolling


def test_a_segment_rolls_when_the_batch_would_exceed_its_bytes() -> None:
    batches = [(400, 10, NOW_MS), (600, 10, NOW_MS), (1, 1, NOW_MS)]
    assert _bases(_plan(batches, segment_bytes=1000)) == [0, 20]
    assert _bases(_plan(batches, segment_bytes=1001)) == [0]
    assert _bases(_plan(batches, segment_bytes=999)) == [0, 10]


def test_a_batch_larger_than_a_segment_is_refused() -> None:
    with pytest.raises(RecordTooLargeError, match=r"segment\.bytes is 999"):
        _plan([(1000, 1, NOW_MS)], segment_bytes=999)


@pytest.mark.parametrize(("later", "expected"), [(1000, [0]), (1001, [0, 1])])
def test_a_segment_rolls_when_message_time_has_passed(later: int, expected: list[int]) -> None:
    batches = [(100, 1, NOW_MS), (100, 1, NOW_MS + later)]
    assert _bases(_plan(batches, segment_ms=1000, now_ms=0)) == expected


def test_the_first_batch_of_a_segment_starts_its_time_whatever_comes_between() -> None:
    batches = [(100, 1, 5000), (100, 1, 9000), (100, 1, 1000), (100, 1, 6001)]
    assert _bases(_plan(batches, segment_ms=4000)) == [0]
    assert _bases(_plan([*batches, (100, 1, 9001)], segment_ms=4000)) == [0, 4]


def test_batches_that_go_back_in_time_do_not_roll() -> None:
    assert _bases(_plan([(100, 1, 2**60), (100, 1, 0)], segment_ms=1)) == [0]


@pytest.mark.parametrize(("age", "expected"), [(1000, [0]), (1001, [0, 1])])
def test_a_segment_without_timestamps_rolls_by_the_clock(age: int, expected: list[int]) -> None:
    state = SegmentState(0, 1, created_ms=NOW_MS - age, size=100)
    planned = _plan([(100, 1, -1)], state, segment_ms=1000)
    assert _bases(planned) == expected


def test_an_empty_segment_does_not_roll_by_the_clock() -> None:
    state = SegmentState.empty(0, 0)
    assert _bases(_plan([(100, 1, -1)], state, segment_ms=1000)) == [0]


def test_a_compacted_topic_rolls_in_time_for_its_compaction() -> None:
    batches = [(100, 1, 0), (100, 1, 501)]
    lag = {"max_compaction_lag_ms": 500}
    assert _bases(_plan(batches, **lag)) == [0]
    assert _bases(_plan(batches, cleanup_policy=("compact",), **lag)) == [0, 1]


def test_a_segment_rolls_when_its_offset_index_is_full() -> None:
    batches = [(100, 1, NOW_MS)] * 15
    # six entries fit: every batch but the first has one
    assert _bases(_plan(batches, index_interval_bytes=0, segment_index_bytes=48)) == [0, 7, 14]


def test_a_segment_rolls_when_its_time_index_has_its_last_slot_left() -> None:
    rising = [(100, 1, NOW_MS + slot) for slot in range(6)]
    # three entries fit, of which one is kept for the final one
    settings = {"index_interval_bytes": 0, "segment_index_bytes": 36}
    planned = _plan(rising, **settings)
    assert _bases(planned) == [0, 3]
    assert [len(_times(segment)) for segment in planned] == [2, 2]
    assert _bases(_plan([(100, 1, NOW_MS)] * 4, **settings)) == [0]


def test_indexes_without_room_make_a_segment_of_each_batch() -> None:
    planned = _plan([(100, 1, NOW_MS)] * 3, segment_index_bytes=4)
    assert _bases(planned) == [0, 1, 2]


def test_a_segment_rolls_before_a_relative_offset_would_not_fit() -> None:
    full = SegmentState(0, 2**31 - 2, created_ms=0, size=100, first_timestamp=NOW_MS)
    assert _bases(_plan([(100, 2, NOW_MS)], full)) == [0]
    assert _bases(_plan([(100, 3, NOW_MS)], full)) == [0, 2**31 - 2]


def test_an_empty_segment_is_left_for_offsets_that_do_not_fit_it() -> None:
    table = make_table([(100, 1, NOW_MS)], first_offset=2**40)
    planned, state = plan_append(
        FLIGHTS, LogConfig(), SegmentState.empty(0, 0), [table], creates=True, now_ms=0
    )
    assert [(s.base_offset, s.creates, s.size) for s in planned] == [
        (0, True, 0),
        (2**40, True, 100),
    ]
    assert state.next_offset == 2**40 + 1


def test_a_segment_that_begins_with_an_old_message_set_begins_at_the_log_end() -> None:
    state = SegmentState(0, 50, created_ms=0, size=900, first_timestamp=0)
    table = make_table([(200, 10, NOW_MS)], first_offset=50)
    table.magic[:] = 1
    table.base_offset[:] = -1
    config = LogConfig(segment_bytes=1000)
    assert _bases(plan_append(FLIGHTS, config, state, [table], now_ms=0)[0]) == [0, 50]


def test_what_is_sealed_and_created_is_said() -> None:
    planned = _plan([(400, 1, NOW_MS)] * 5, segment_bytes=1000)
    assert [(s.base_offset, s.creates, s.seals, s.size) for s in planned] == [
        (0, False, True, 800),
        (2, True, True, 800),
        (4, True, False, 400),
    ]


def test_parts_name_the_bytes_of_each_run() -> None:
    first = make_table([(100, 1, 1), (200, 2, 2)])
    second = make_table([(300, 3, 3), (400, 4, 4)], first_offset=3)
    config = LogConfig(segment_bytes=700)
    planned, _ = plan_append(FLIGHTS, config, SegmentState.empty(0, 0), [first, second], now_ms=0)
    assert [list(segment.parts) for segment in planned] == [
        [(0, 0, 300), (1, 0, 300)],
        [(1, 300, 400)],
    ]


def test_appending_nothing_changes_nothing() -> None:
    (planned,) = _plan([])
    assert (planned.size, planned.index_entries, planned.time_index_entries) == (0, b"", b"")


# Jitter


@given(
    st.text("abc.-_", min_size=1, max_size=9),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(1, 2**40),
    st.integers(1, 2**40),
)
def test_jitter_is_stable_and_less_than_both_limits(
    topic: str, partition: int, base_offset: int, jitter: int, segment_ms: int
) -> None:
    config = LogConfig(segment_jitter_ms=jitter, segment_ms=segment_ms)
    drawn = roll_jitter_ms(TopicPartition(topic, partition), base_offset, config)
    assert 0 <= drawn < min(jitter, segment_ms)
    assert drawn == roll_jitter_ms(TopicPartition(topic, partition), base_offset, config)


def test_without_jitter_nothing_is_taken_off() -> None:
    assert roll_jitter_ms(FLIGHTS, 5, LogConfig()) == 0


def test_jitter_spreads_segments_and_stays_the_same_between_releases() -> None:
    config = LogConfig(segment_jitter_ms=1000)
    drawn = [roll_jitter_ms(FLIGHTS, base, config) for base in range(1000)]
    assert len(set(drawn)) > 500
    assert min(drawn) < 50
    assert max(drawn) > 950
    assert drawn[:4] == [356, 41, 901, 998]


def test_jitter_rolls_a_segment_earlier() -> None:
    config = LogConfig(segment_ms=10_000, segment_jitter_ms=5_000)
    limit = 10_000 - roll_jitter_ms(FLIGHTS, 0, config)
    changes = {"segment_ms": 10_000, "segment_jitter_ms": 5_000}
    assert _bases(_plan([(100, 1, 0), (100, 1, limit)], **changes)) == [0]
    assert _bases(_plan([(100, 1, 0), (100, 1, limit + 1)], **changes)) == [0, 1]


# Index entries


def test_the_first_batch_has_no_entry_and_the_one_that_exceeds_the_interval_has_one() -> None:
    (planned,) = _plan([(100, 1, NOW_MS)] * 4, index_interval_bytes=100)
    assert _index(planned) == [(2, 200)]
    (planned,) = _plan([(101, 1, NOW_MS)] * 4, index_interval_bytes=100)
    assert _index(planned) == [(1, 101), (2, 202), (3, 303)]


def test_a_time_entry_is_the_largest_timestamp_so_far_with_its_offset() -> None:
    batches = [(100, 2, 50), (100, 2, 40), (100, 2, 45), (100, 2, 60)]
    (planned,) = _plan(batches, index_interval_bytes=0)
    assert _index(planned) == [(3, 100), (5, 200), (7, 300)]
    assert _times(planned) == [(50, 1), (60, 7)]


def test_the_final_time_entry_covers_what_no_index_entry_does() -> None:
    (planned,) = _plan([(100, 2, 50), (100, 2, 70), (100, 2, 60)])
    assert _index(planned) == []
    assert _times(planned) == [(70, 3)]


def test_batches_without_timestamps_make_no_time_entries() -> None:
    (planned,) = _plan([(100, 2, -1)] * 3, index_interval_bytes=0)
    assert len(_index(planned)) == 2
    assert _times(planned) == []


# Against a model that goes through Kafka's steps with what a broker keeps in memory


@dataclass
class _KafkaSegment:
    base_offset: int
    size: int = 0
    bytes_since_last_entry: int = 0
    max_timestamp: int = -1
    offset_of_max: int = -1
    first_timestamp: int | None = None
    index: list[tuple[int, int]] = field(default_factory=list)
    times: list[tuple[int, int]] = field(default_factory=list)

    def append(self, size: int, last_offset: int, timestamp: int, interval: int) -> None:
        if self.first_timestamp is None:
            self.first_timestamp = timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp, self.offset_of_max = timestamp, last_offset
        if self.bytes_since_last_entry > interval:
            self.index.append((last_offset - self.base_offset, self.size))
            self.append_time()
            self.bytes_since_last_entry = 0
        self.bytes_since_last_entry += size
        self.size += size

    def append_time(self) -> None:
        if self.max_timestamp > (self.times[-1][0] if self.times else -1):
            self.times.append((self.max_timestamp, self.offset_of_max - self.base_offset))


def _as_a_broker(table: BatchTable, config: LogConfig) -> list[_KafkaSegment]:
    segments = [_KafkaSegment(0)]
    columns = (table.size, table.base_offset, table.last_offset, table.max_timestamp)
    for size, base, last, timestamp in zip(*(c.tolist() for c in columns), strict=True):
        segment = segments[-1]
        jitter = roll_jitter_ms(FLIGHTS, segment.base_offset, config)
        first = segment.first_timestamp
        waited = timestamp - first if first is not None and first >= 0 else 0
        if (
            segment.size > config.segment_bytes - size
            or (segment.size > 0 and waited > config.segment_ms - jitter)
            or (segment.size > 0 and len(segment.index) >= config.segment_index_bytes // 8)
            or (segment.size > 0 and len(segment.times) >= config.segment_index_bytes // 12 - 1)
            or last - segment.base_offset > 2**31 - 1
        ):
            segment.append_time()
            segments.append(_KafkaSegment(base))
        segments[-1].append(size, last, timestamp, config.index_interval_bytes)
    segments[-1].append_time()
    return segments


_batches = st.lists(
    st.tuples(st.integers(61, 400), st.integers(1, 2**29), st.integers(-1, 3000)),
    min_size=1,
    max_size=60,
)
_configs = st.builds(
    LogConfig,
    segment_bytes=st.integers(400, 3000),
    segment_ms=st.integers(1, 4000),
    segment_jitter_ms=st.integers(0, 3000),
    segment_index_bytes=st.integers(4, 120),
    index_interval_bytes=st.sampled_from([0, 1, 100, 256, 1000, 10_000]),
)


@settings(max_examples=200)
@given(_batches, _configs)
def test_the_plan_is_what_a_broker_does(batches: Batches, config: LogConfig) -> None:
    table = make_table(batches)
    planned, _ = plan_append(FLIGHTS, config, SegmentState.empty(0, NOW_MS), [table], now_ms=NOW_MS)
    expected = _as_a_broker(table, config)
    assert [segment.base_offset for segment in expected] == _bases(planned)
    assert [segment.size for segment in expected] == [segment.size for segment in planned]
    assert [segment.index for segment in expected] == [_index(segment) for segment in planned]
    assert [segment.times for segment in expected] == [_times(segment) for segment in planned]


@settings(max_examples=200)
@given(_batches, _configs)
def test_plain_messages_are_placed_as_batches_of_one_record_are(
    batches: Batches, config: LogConfig
) -> None:
    table = make_table([(size, 1, time) for size, _, time in batches])
    messages = make_table([(size, 1, time) for size, _, time in batches])
    messages.magic[:] = 1
    start = SegmentState.empty(0, NOW_MS)
    expected = plan_append(FLIGHTS, config, start, [table], now_ms=NOW_MS)
    assert plan_append(FLIGHTS, config, start, [messages], now_ms=NOW_MS) == expected


@settings(max_examples=150)
@given(_batches, _configs, st.lists(st.integers(0, 60), max_size=6))
def test_one_plan_or_several_after_each_other_come_to_the_same(
    batches: Batches, config: LogConfig, cuts: list[int]
) -> None:
    table = make_table(batches)
    start = SegmentState.empty(0, NOW_MS)
    _, at_once = plan_append(FLIGHTS, config, start, [table], now_ms=NOW_MS)
    state = start
    bounds = sorted({0, len(batches), *(cut for cut in cuts if cut < len(batches))})
    for first, end in itertools.pairwise(bounds):
        _, state = plan_append(FLIGHTS, config, state, [table[first:end]], now_ms=NOW_MS)
    assert at_once == state


@given(_batches, st.sampled_from([0, 100, 1000]))
def test_indexes_rebuilt_are_those_of_an_append(batches: Batches, interval: int) -> None:
    batches = [(size, count % 1000 + 1, time) for size, count, time in batches]
    table = make_table(batches)
    config = LogConfig(index_interval_bytes=interval)
    (planned,), _ = plan_append(FLIGHTS, config, SegmentState.empty(0, 0), [table], now_ms=0)
    built = index_segment(0, [table[:3], table[3:]], interval)
    assert planned.index_entries == built.index_entries
    assert planned.time_index_entries == built.time_index_entries


# Adopting files


def _plan_adopting(
    sizes: Sequence[int],
    *,
    adoptable: Sequence[int],
    state: SegmentState | None = None,
    creates: bool = False,
    **settings: object,
) -> list[SegmentAppend]:
    """Plan runs of one batch each: their sizes in MiB, and which are alone in a file."""
    config = replace(LogConfig(), **settings)  # type: ignore[arg-type]
    state = state or SegmentState.empty(0, NOW_MS)
    tables = [
        make_table([(size << 20, 10, NOW_MS)], first_offset=state.next_offset + 10 * slot)
        for slot, size in enumerate(sizes)
    ]
    return plan_append(
        FLIGHTS, config, state, tables, creates=creates, adoptable=adoptable, now_ms=NOW_MS
    )[0]


def test_a_file_that_does_not_fit_into_the_active_segment_becomes_the_next_one() -> None:
    sealed, adopted = _plan_adopting([90, 20], adoptable=[1], segment_bytes=100 << 20)
    assert (sealed.adopts, adopted.adopts) == (None, 1)
    assert sealed.seals
    assert (adopted.base_offset, adopted.creates, adopted.size) == (10, True, 20 << 20)


def test_a_file_that_fits_is_copied_unless_it_is_a_quarter_of_a_segment() -> None:
    (copied,) = _plan_adopting([10, 24], adoptable=[1], segment_bytes=100 << 20)
    assert copied.adopts is None
    _, adopted = _plan_adopting([10, 25], adoptable=[1], segment_bytes=100 << 20)
    assert adopted.adopts == 1


def test_a_file_becomes_the_first_segment_of_a_new_log() -> None:
    (first,) = _plan_adopting([1], adoptable=[0], creates=True)
    assert (first.adopts, first.base_offset, first.creates) == (0, 0, True)


def test_a_file_is_copied_into_an_active_segment_that_is_there_and_empty() -> None:
    (active,) = _plan_adopting([900], adoptable=[0])
    assert (active.adopts, active.creates) == (None, False)


def test_a_small_file_is_copied() -> None:
    batches = [(ADOPTED_BYTES - 1, 10, NOW_MS)]
    planned, _ = plan_append(
        FLIGHTS,
        LogConfig(),
        SegmentState.empty(0, NOW_MS),
        [make_table(batches)],
        creates=True,
        adoptable=[0],
        now_ms=NOW_MS,
    )
    assert planned[0].adopts is None


def test_what_follows_an_adopted_file_is_appended_to_it() -> None:
    first, second = _plan_adopting([80, 60, 10], adoptable=[1], segment_bytes=100 << 20)
    assert (first.adopts, second.adopts) == (None, 1)
    assert [part.run for part in second.parts] == [1, 2]


def test_a_file_that_kafka_would_split_is_copied_and_split() -> None:
    week, config = 604_800_000, LogConfig()
    batches = [(1 << 29, 10, NOW_MS), (1 << 28, 10, NOW_MS + week + 1)]
    planned, _ = plan_append(
        FLIGHTS,
        config,
        SegmentState.empty(0, NOW_MS),
        [make_table(batches)],
        creates=True,
        adoptable=[0],
        now_ms=NOW_MS,
    )
    assert [segment.adopts for segment in planned] == [None, None]
    assert _bases(planned) == [0, 10]


def test_the_indexes_of_an_adopted_file_are_those_that_a_recovery_would_build() -> None:
    batches = [(5000, count, NOW_MS + count) for count in range(1, 400)]
    table = make_table(batches, first_offset=70)
    planned, _ = plan_append(
        FLIGHTS,
        replace(LogConfig(), segment_bytes=2_000_000),
        replace(SegmentState.empty(0, NOW_MS), size=10, next_offset=70),
        [table],
        adoptable=[0],
        now_ms=NOW_MS,
    )
    rebuilt = index_segment(70, [table], 4096)
    assert planned[1].adopts == 0
    assert planned[1].index_entries == rebuilt.index_entries
    assert planned[1].time_index_entries == rebuilt.time_index_entries
