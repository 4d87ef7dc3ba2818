"""How a segment grows by a batch: its bytes, its largest timestamp, its index entries.

It computes them, and :mod:`.appender` writes. Three of the five steps of an append
(``plan_append`` has the first two, which choose the segment):

3. **append** the batch to the log;
4. remember the **largest timestamp** so far, with the last offset of the batch that reached it;
5. if more than ``index.interval.bytes`` were appended since the last **index entry**, add one to
   each index, for this batch.

Everything depends on what the files hold, and nothing on what is only in memory. So appending at
once or in pieces, with the log closed between them, makes the same files. Two things follow:

- The bytes since the last index entry are the segment's size less the position of that entry.
- Each time an append ends, the time index gets a *final entry* with the largest timestamp, as Kafka
  writes one on roll and on close. Whoever opens the segment next takes its largest timestamp from
  there. The next append overwrites it, so that many small appends do not fill the index. It is
  recognised by its offset, which lies beyond the last entry of the offset index.

Before magic 2 each plain message is a batch. They are small and many, so those without an index
entry are added together.

Source: Kafka 4.1 ``LogSegment.append``, ``LogSegment.recover``.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np

from kafkalog.errors import CorruptIndexError, RecordTooLargeError
from kafkalog.model import MAX_OFFSET, NO_TIMESTAMP
from kafkalog.streaming.log.files import OFFSET_INDEX, TIME_INDEX
from kafkalog.streaming.log.indexes import OFFSET_ENTRY, TIME_ENTRY
from kafkalog.streaming.log.valid_batches import ValidBatches

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.segment import LogSegment
    from kafkalog.streaming.options.topic_settings import LogConfig
    from kafkalog.streaming.records.arrow_buffers import Integers
    from kafkalog.streaming.records.batch import BatchTable

__all__ = [
    "ADOPTED_BYTES",
    "ADOPTED_SHARE",
    "BatchFacts",
    "Messages",
    "RunPart",
    "SegmentAppend",
    "SegmentGrowth",
    "SegmentPlanning",
    "SegmentState",
    "facts_of",
    "index_segment",
    "load_segment_state",
    "plan_append",
    "roll_jitter_ms",
]

_MAX_RELATIVE_OFFSET: Final = 2**31 - 1


@dataclass(slots=True)
class SegmentState:
    """What the files of an active segment say, as far as appending depends on it."""

    base_offset: int
    next_offset: int
    created_ms: int
    """Wall clock; counts only while the segment has no timestamps."""
    size: int = 0
    first_timestamp: int = NO_TIMESTAMP
    """The max timestamp of the first batch."""
    max_timestamp: int = NO_TIMESTAMP
    offset_of_max: int = -1
    index_entries: int = 0
    indexed_position: int = 0
    """The position in the last entry of the offset index; 0 without one."""
    time_entries: int = 0
    """Without the final one."""
    indexed_timestamp: int = NO_TIMESTAMP
    """The timestamp in the last of these."""
    lost_index_entries: tuple[tuple[int, int], ...] = ()
    """Entries counted above that the offset index lacks: it is written again."""
    lost_time_entries: tuple[tuple[int, int], ...] = ()

    @classmethod
    def empty(cls, base_offset: int, now_ms: int) -> Self:
        """Return the state of a segment that is created now."""
        return cls(base_offset, base_offset, now_ms)

    def can_index(self, offset: int) -> bool:
        """Return whether an index can hold an offset; segments of old brokers may go beyond."""
        return offset - self.base_offset <= _MAX_RELATIVE_OFFSET

    def latest_time_entry(self) -> tuple[int, int]:
        """Return the largest timestamp and its relative offset, as the time index stores them."""
        return (self.max_timestamp, self.offset_of_max - self.base_offset)

    def final_time_entries(self) -> bytes:
        """Return the final time index entry; nothing where the last one says the same."""
        if self.max_timestamp <= self.indexed_timestamp or not self.can_index(self.offset_of_max):
            return b""
        return np.array([self.latest_time_entry()], TIME_ENTRY).tobytes()


class BatchFacts(NamedTuple):
    """What appending needs to know of a batch."""

    position: int
    size: int
    magic: int
    base_offset: int
    last_offset: int
    max_timestamp: int


def facts_of(table: BatchTable) -> Iterator[BatchFacts]:
    """Walk over the batches of a table."""
    columns = (
        table.position,
        table.size,
        table.magic,
        table.base_offset,
        table.last_offset,
        table.max_timestamp,
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return (BatchFacts(*row) for row in rows)


class Messages(NamedTuple):
    """The messages of a table by columns, int64[n] each, to be searched: so not strided."""

    position: Integers
    end_position: Integers
    offset: Integers
    timestamp: Integers

    @classmethod
    def of(cls, table: BatchTable) -> Self:
        """Take those of a table of magic 0 or 1; a wrapper counts as one."""
        columns = (table.position, table.end_position, table.last_offset, table.max_timestamp)
        return cls(*map(np.ascontiguousarray, columns))

    def facts(self, row: int) -> BatchFacts:
        """Return the facts of one message, as a batch."""
        position, offset = int(self.position[row]), int(self.offset[row])
        size = int(self.end_position[row]) - position
        return BatchFacts(position, size, 1, offset, offset, int(self.timestamp[row]))


class RunPart(NamedTuple):
    """Some batches of a run, back to back in its bytes."""

    run: int
    source_position: int
    size: int


@dataclass(frozen=True, slots=True)
class SegmentAppend:
    """What one segment gets: bytes at a position of its log, entries at one of each index.

    The indexes end after the entries given; what a broker preallocated, and the final time index
    entry of an earlier append, are overwritten or cut off.
    """

    base_offset: int
    creates: bool
    """The segment's files do not exist yet."""
    seals: bool
    """Another segment follows: nothing will be appended to this one any more."""
    position: int
    parts: tuple[RunPart, ...]
    index_position: int
    index_entries: bytes
    time_index_position: int
    time_index_entries: bytes
    adopts: int | None = None
    """The run whose file becomes the segment; it is the first of ``parts``."""

    @property
    def size(self) -> int:
        """Bytes appended to the log."""
        return sum(part.size for part in self.parts)


class SegmentGrowth:
    """A segment while batches are added to it; ``state`` is what it has come to."""

    def __init__(
        self,
        state: SegmentState,
        index_interval_bytes: int,
        *,
        creates: bool = False,
        adopts: int | None = None,
    ) -> None:
        self.state = replace(state, lost_index_entries=(), lost_time_entries=())
        self._before = state
        self._interval = index_interval_bytes
        self._creates = creates
        self._adopts = adopts
        self._parts: list[RunPart] = []
        self._index_entries = list(state.lost_index_entries)
        self._time_entries = list(state.lost_time_entries)

    @property
    def is_unborn(self) -> bool:
        """Whether the segment is still to be made, and nothing was added to it."""
        return self._creates and not self._parts

    def append(self, run: int, batch: BatchFacts) -> None:
        """Add a batch of a run."""
        state = self.state
        self._extend_parts(run, batch.position, batch.size)
        if state.size == 0:
            state.first_timestamp = batch.max_timestamp
        if batch.max_timestamp > state.max_timestamp:
            state.max_timestamp, state.offset_of_max = batch.max_timestamp, batch.last_offset
        if state.size - state.indexed_position > self._interval and state.can_index(
            batch.last_offset
        ):
            self._add_index_entries(batch.last_offset)
        state.size += batch.size
        state.next_offset = batch.last_offset + 1

    def end_without_entry(self, messages: Messages, first: int) -> int:
        """Return the end of the messages from ``first`` on that get no index entry."""
        room = self._interval - (self.state.size - self.state.indexed_position)
        start = messages.position[first]
        return int(np.searchsorted(messages.position, start + room, side="right"))

    def append_many(self, run: int, messages: Messages, first: int, end: int) -> None:
        """Add the messages ``[first, end)``; :meth:`end_without_entry` has given their end."""
        state = self.state
        start = int(messages.position[first])
        size = int(messages.end_position[end - 1]) - start
        self._extend_parts(run, start, size)
        times = messages.timestamp[first:end]
        slot = int(times.argmax())
        if times[slot] > state.max_timestamp:
            state.max_timestamp = int(times[slot])
            state.offset_of_max = int(messages.offset[first + slot])
        state.size += size
        state.next_offset = int(messages.offset[end - 1]) + 1

    def close(self, *, seals: bool) -> SegmentAppend:
        """Return what was added, with the final time index entry."""
        state = self.state
        index_entries = state.index_entries - len(self._index_entries)
        time_entries = state.time_entries - len(self._time_entries)
        times = np.array(self._time_entries, TIME_ENTRY).tobytes()
        return SegmentAppend(
            base_offset=state.base_offset,
            creates=self._creates,
            seals=seals,
            position=self._before.size,
            parts=tuple(self._parts),
            index_position=index_entries * OFFSET_ENTRY.itemsize,
            index_entries=np.array(self._index_entries, OFFSET_ENTRY).tobytes(),
            time_index_position=time_entries * TIME_ENTRY.itemsize,
            time_index_entries=times + state.final_time_entries(),
            adopts=self._adopts,
        )

    def as_lost(self) -> SegmentState:
        """Return the state of a segment whose log has what was added, and whose indexes do not."""
        return replace(
            self.state,
            lost_index_entries=tuple(self._index_entries),
            lost_time_entries=tuple(self._time_entries),
        )

    def _extend_parts(self, run: int, position: int, size: int) -> None:
        part = self._parts[-1] if self._parts else None
        if part is not None and part.run == run:
            self._parts[-1] = RunPart(run, part.source_position, part.size + size)
        else:
            self._parts.append(RunPart(run, position, size))

    def _add_index_entries(self, last_offset: int) -> None:
        state = self.state
        self._index_entries.append((last_offset - state.base_offset, state.size))
        state.index_entries += 1
        state.indexed_position = state.size
        if state.max_timestamp > state.indexed_timestamp:
            self._time_entries.append(state.latest_time_entry())
            state.time_entries += 1
            state.indexed_timestamp = state.max_timestamp


def index_segment(
    base_offset: int, tables: Iterable[BatchTable], index_interval_bytes: int
) -> SegmentAppend:
    """Return the indexes of a segment with these batches, as Kafka's recovery rebuilds them."""
    growth = SegmentGrowth(SegmentState.empty(base_offset, 0), index_interval_bytes)
    for run, table in enumerate(tables):
        for batch in facts_of(table):
            growth.append(run, batch)
    return growth.close(seals=True)


# ----------------------------------------------------------------------------------------------
# What appending continues from, derived from an active segment's files.


_LOGGER = logging.getLogger("kafkalog.log")


def load_segment_state(segment: LogSegment, index_interval_bytes: int) -> SegmentState:
    """Derive the state of an active segment; reads no more than what its last index entry leaves.

    Entries that its indexes lack at their end, as a loss of power may leave them, are in the state.
    A segment with a missing or wrong index is read whole, to know what the index would hold.

    Raises:
        CorruptRecordError: the log does not end with a valid batch: cut it there first.
    """
    try:
        return _load_indexed(segment, index_interval_bytes)
    except CorruptIndexError as error:
        _LOGGER.warning("%s: the indexes are recreated: %s", segment.path, error)
        return _load_by_scan(segment, index_interval_bytes)


def _load_indexed(segment: LogSegment, index_interval_bytes: int) -> SegmentState:
    index, times = segment.offset_index(), segment.time_index()
    if index is None or times is None:
        missing = segment.file(OFFSET_INDEX if index is None else TIME_INDEX)
        raise CorruptIndexError(f"{missing} is missing or wrong")
    last = index.last_entry()
    if segment.floor_position(MAX_OFFSET) != last.position:
        raise CorruptIndexError(f"{index.path} does not fit the log")
    # Entries for later batches are final ones: they are written over.
    time_entries = times.count_through(last.offset) if len(index) else 0
    indexed = times.entry(time_entries - 1) if time_entries else None
    first = segment.header_at(0)
    state = SegmentState(
        base_offset=segment.base_offset,
        next_offset=segment.base_offset,
        # A segment without timestamps never writes to its time index once it has made it.
        created_ms=segment.file(TIME_INDEX).stat().st_mtime_ns // 1_000_000,
        size=last.position,
        first_timestamp=NO_TIMESTAMP if first is None else first.max_timestamp,
        max_timestamp=NO_TIMESTAMP if indexed is None else indexed.timestamp,
        offset_of_max=-1 if indexed is None else indexed.offset,
        index_entries=len(index),
        indexed_position=last.position,
        time_entries=time_entries,
        indexed_timestamp=NO_TIMESTAMP if indexed is None else indexed.timestamp,
    )
    if len(index):
        _check_covered(segment, state)
    growth = SegmentGrowth(state, index_interval_bytes)
    indexed_offset_seen = last.position == 0
    for table in ValidBatches(segment, last.position).to_the_end():
        _grow(growth, table)
        indexed_offset_seen |= bool((table.last_offset == last.offset).any())
    if not indexed_offset_seen:
        raise CorruptIndexError(f"{index.path} ends with offset {last.offset}, where no batch ends")
    return growth.as_lost()


def _check_covered(segment: LogSegment, state: SegmentState) -> None:
    """Compare the time index with the first batch and the last indexed one, which it covers."""
    for position in (0, state.indexed_position):
        header = segment.header_at(position)
        if header is not None and header.max_timestamp > state.indexed_timestamp:
            raise CorruptIndexError(
                f"{segment.file(TIME_INDEX)} ends with timestamp {state.indexed_timestamp}, and "
                f"the batch at position {position}, which it covers, has {header.max_timestamp}"
            )


def _load_by_scan(segment: LogSegment, index_interval_bytes: int) -> SegmentState:
    created_ms = segment.path.stat().st_mtime_ns // 1_000_000
    growth = SegmentGrowth(
        SegmentState.empty(segment.base_offset, created_ms), index_interval_bytes
    )
    for table in ValidBatches(segment).to_the_end():
        _grow(growth, table)
    return growth.as_lost()


def _grow(growth: SegmentGrowth, table: BatchTable) -> None:
    for batch in facts_of(table):
        growth.append(0, batch)


# ----------------------------------------------------------------------------------------------
# Plan an append: which segment each batch goes to, before a byte is written.
#
# The first two of Kafka's five steps for each append, which here is each batch:
#
# 1. **roll** to a new segment if the batch does not belong into the active one any more: it would
#    exceed ``segment.bytes``; its timestamp is later than that of the segment's *first* batch by
#    more than ``segment.ms`` less the segment's jitter; an index is full; or
# 2. the batch's last **offset relative** to the segment's base offset would not fit an int32.
#
# A run that is alone in a file of its own may be **adopted**: the file becomes a segment, and
# nothing is copied. The active segment is rolled before it. The rules above must let one segment
# hold the whole run, and one of these must be true:
#
# - The run does not fit into the active segment, so that a roll is due anyway.
# - It has a quarter of ``segment.bytes`` or more. So segments stay few: at most eight times as many
#   as Kafka would make.
# - The log is new, and the run becomes its first segment.
#
# Source: Kafka 4.1 ``LogSegment.shouldRoll``, ``UnifiedLog.maybeRoll``.


ADOPTED_BYTES: Final = 1 << 20
"""Smaller runs are always copied, which costs no more."""

ADOPTED_SHARE: Final = 4
"""A run of this part of ``segment.bytes`` is adopted though it would fit into the active one."""


def roll_jitter_ms(topic_partition: TopicPartition, base_offset: int, config: LogConfig) -> int:
    """Return what is taken off ``segment.ms`` for one segment, so that not all roll at once.

    Kafka draws it at random when it opens a segment. Here a segment may be opened for each append.
    A new random number each time would drift to the earliest roll. So it is a hash of the segment's
    name.
    """
    if config.segment_jitter_ms == 0:
        return 0
    name = f"{topic_partition}/{base_offset}".encode()
    drawn = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")
    return drawn % min(config.segment_jitter_ms, config.segment_ms)


def plan_append(
    topic_partition: TopicPartition,
    config: LogConfig,
    state: SegmentState,
    runs: Sequence[BatchTable],
    *,
    creates: bool = False,
    adoptable: Collection[int] = (),
    now_ms: int,
) -> tuple[list[SegmentAppend], SegmentState]:
    """Place the batches of ``runs``, one after the other, after ``state``.

    Offsets in the tables are final and ascend. ``creates`` says that the segment of ``state`` does
    not exist yet; ``adoptable`` are the runs that are alone in a file of their own.

    Returns:
        what each segment gets, in order, and the state of the last one afterwards.

    Raises:
        RecordTooLargeError: a batch that exceeds ``segment.bytes`` alone.
    """
    planning = SegmentPlanning(topic_partition, config, now_ms)
    planning.begin(state, creates=creates)
    for run, table in enumerate(runs):
        if not (run in adoptable and planning.adopt(run, table)):
            planning.append(run, table)
    return planning.end()


class SegmentPlanning:
    """Fills segments, one after the other."""

    def __init__(self, topic_partition: TopicPartition, config: LogConfig, now_ms: int) -> None:
        self._topic_partition = topic_partition
        self._config = config
        self._now_ms = now_ms
        self._planned: list[SegmentAppend] = []
        self._growth: SegmentGrowth
        self._rules: _RollRules

    @property
    def sealed(self) -> list[SegmentAppend]:
        """What was filled so far: the segments that others follow."""
        return self._planned

    def begin(self, state: SegmentState, *, creates: bool) -> None:
        """Continue with a segment."""
        self._growth, self._rules = self._opened(state, creates=creates)

    def append(self, run: int, table: BatchTable) -> None:
        """Add the batches of a run, and roll where one does not belong to the segment."""
        if len(table) and table.magic[0] < 2:
            self._append_messages(run, table)
            return
        for batch in facts_of(table):
            self._append_one(run, batch)

    def _append_messages(self, run: int, table: BatchTable) -> None:
        """Add many small messages; those that neither roll nor are indexed are added together."""
        messages = Messages.of(table)
        row = 0
        while row < len(table):
            end = self._growth.end_without_entry(messages, row)
            end = self._rules.end_of_fitting(messages, row, end)
            if end - row > 1:
                self._growth.append_many(run, messages, row, end)
                row = end
            else:
                self._append_one(run, messages.facts(row))
                row += 1

    def _append_one(self, run: int, batch: BatchFacts) -> None:
        if self._rules.must_roll(batch):
            self._planned.append(self._growth.close(seals=True))
            base = _new_base_offset(batch, self._growth.state)
            self.begin(SegmentState.empty(base, self._now_ms), creates=True)
        self._growth.append(run, batch)

    def adopt(self, run: int, table: BatchTable) -> bool:
        """Let the file of a run be the next segment, if that is worth it and Kafka could do it."""
        before = self._growth
        first, *others = facts_of(table)
        base = _new_base_offset(first, before.state)
        replaces = before.is_unborn and base == before.state.base_offset
        if not (replaces or base > before.state.base_offset):
            return False
        if not self._is_worth_adopting(int(table.size.sum()), replaces=replaces):
            return False
        growth, rules = self._opened(
            SegmentState.empty(base, self._now_ms), creates=True, adopts=run
        )
        for batch in (first, *others):
            if rules.must_roll(batch):
                return False
            growth.append(run, batch)
        if not replaces:
            self._planned.append(before.close(seals=True))
        self._growth, self._rules = growth, rules
        return True

    def end(self) -> tuple[list[SegmentAppend], SegmentState]:
        """Return what each segment gets, and the state of the last one."""
        return [*self._planned, self._growth.close(seals=False)], self._growth.state

    def _is_worth_adopting(self, size: int, *, replaces: bool) -> bool:
        limit = self._config.segment_bytes
        fits = self._growth.state.size + size <= limit
        return size >= ADOPTED_BYTES and (replaces or not fits or size >= limit // ADOPTED_SHARE)

    def _opened(
        self, state: SegmentState, *, creates: bool, adopts: int | None = None
    ) -> tuple[SegmentGrowth, _RollRules]:
        growth = SegmentGrowth(
            state, self._config.index_interval_bytes, creates=creates, adopts=adopts
        )
        return growth, _RollRules(self._topic_partition, self._config, growth.state, self._now_ms)


def _new_base_offset(batch: BatchFacts, state: SegmentState) -> int:
    """Choose the base offset of the segment that starts with ``batch``.

    Before magic 2 the first offset is inside the message; Kafka takes the smallest possible one.
    """
    first = batch.base_offset if batch.magic >= 2 else batch.last_offset - _MAX_RELATIVE_OFFSET
    return max(first, state.next_offset)


class _RollRules:
    """Decides for one segment, whose growing ``state`` it watches, when another one follows."""

    def __init__(
        self, topic_partition: TopicPartition, config: LogConfig, state: SegmentState, now_ms: int
    ) -> None:
        self._topic_partition = topic_partition
        self._state = state
        self._age_ms = now_ms - state.created_ms
        self._segment_bytes = config.segment_bytes
        self._max_age_ms = config.max_segment_ms - roll_jitter_ms(
            topic_partition, state.base_offset, config
        )
        self._max_index_entries = config.segment_index_bytes // OFFSET_ENTRY.itemsize
        # The last slot is kept for the final entry.
        self._max_time_entries = config.segment_index_bytes // TIME_ENTRY.itemsize - 1

    def must_roll(self, batch: BatchFacts) -> bool:
        """Return whether a batch starts a new segment; after an empty one, only for its offset."""
        state = self._state
        if batch.size > self._segment_bytes:
            raise RecordTooLargeError(
                f"{self._topic_partition}: the batch at offset {batch.base_offset} has "
                f"{batch.size} bytes, more than a whole segment may have: segment.bytes is "
                f"{self._segment_bytes}"
            )
        if not 0 <= batch.last_offset - state.base_offset <= _MAX_RELATIVE_OFFSET:
            return True
        return state.size > 0 and (
            state.size > self._segment_bytes - batch.size
            or self._waited_ms(batch) > self._max_age_ms
            or state.index_entries >= self._max_index_entries
            or state.time_entries >= self._max_time_entries
        )

    def end_of_fitting(self, messages: Messages, first: int, end: int) -> int:
        """Return the end of the messages ``[first, end)`` that surely belong to the segment.

        Returns ``first`` if the segment is empty, full, or as old as the clock lets it become.
        """
        state = self._state
        if (
            state.size == 0
            or state.first_timestamp < 0 < self._age_ms - self._max_age_ms
            or state.index_entries >= self._max_index_entries
            or state.time_entries >= self._max_time_entries
        ):
            return first
        largest_end = int(messages.position[first]) + self._segment_bytes - state.size
        last_offset = state.base_offset + _MAX_RELATIVE_OFFSET
        end = min(
            end,
            int(np.searchsorted(messages.end_position[:end], largest_end, side="right")),
            int(np.searchsorted(messages.offset[:end], last_offset, side="right")),
        )
        if state.first_timestamp >= 0:
            too_young = messages.timestamp[first:end] > state.first_timestamp + self._max_age_ms
            end = first + int(too_young.argmax()) if too_young.any() else end
        return end

    def _waited_ms(self, batch: BatchFacts) -> int:
        if self._state.first_timestamp >= 0:
            return batch.max_timestamp - self._state.first_timestamp
        return self._age_ms
