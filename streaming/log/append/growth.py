"""Grow a segment batch by batch: its bytes, its largest timestamp, its index entries.

Three of the five steps of an append (``plan`` has the first two, which choose the segment):

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

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np

from kafkalog.errors import CorruptIndexError
from kafkalog.model import MAX_OFFSET, NO_TIMESTAMP
from kafkalog.streaming.log.files import OFFSET_INDEX, TIME_INDEX
from kafkalog.streaming.log.indexes import OFFSET_ENTRY, TIME_ENTRY
from kafkalog.streaming.log.valid_batches import ValidBatches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kafkalog.streaming.log.segment import LogSegment
    from kafkalog.streaming.records.arrow_buffers import Integers
    from kafkalog.streaming.records.batch import BatchTable


__all__ = [
    "BatchFacts",
    "Messages",
    "RunPart",
    "SegmentAppend",
    "SegmentGrowth",
    "SegmentState",
    "facts_of",
    "index_segment",
    "load_segment_state",
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
