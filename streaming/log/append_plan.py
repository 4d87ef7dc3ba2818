"""Where batches go when they are appended, computed before a byte is written.

Kafka's five steps for each append, which here is each batch:

1. **roll** to a new segment if the batch does not belong into the active one any more: it would
   exceed ``segment.bytes``; the segment's *first* timestamp is older than ``segment.ms`` less the
   segment's jitter, by the batch's own timestamps; an index is full; or
2. the batch's last **offset relative** to the segment's base offset would not fit an int32;
3. **append** it to the log;
4. remember the **largest timestamp** so far, with the last offset of the batch that reached it;
5. if more than ``index.interval.bytes`` were appended since the last **index entry**, add one to
   each index, for this batch.

As everything depends on what the files hold, and on nothing that only lives in memory, appending in
one go or in pieces, with the log closed between them, makes the same files. Two things follow:

- The bytes since the last index entry are the segment's size less the position of that entry.
- Each time an append ends, the time index gets a *final entry* with the largest timestamp, as Kafka
  writes one on roll and on close: whoever opens the segment next takes its largest timestamp from
  there. The next append writes over it, so that many small appends do not fill the index. It is
  told from the others by its offset, which lies beyond the last entry of the offset index.

Source: Kafka 4.1 ``LogSegment.append``, ``LogSegment.shouldRoll``, ``UnifiedLog.maybeRoll``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np

from kafkalog.errors import RecordTooLargeError
from kafkalog.model import NO_TIMESTAMP
from kafkalog.streaming.log.offset_index import OFFSET_ENTRY
from kafkalog.streaming.log.time_index import TIME_ENTRY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.config import LogConfig
    from kafkalog.streaming.records.batch import BatchTable

__all__ = ["RunPart", "SegmentAppend", "SegmentState", "plan_append", "roll_jitter_ms"]

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

    @classmethod
    def empty(cls, base_offset: int, now_ms: int) -> Self:
        """Give the state of a segment that is created now."""
        return cls(base_offset, base_offset, now_ms)


class RunPart(NamedTuple):
    """The batches ``[first_batch, end_batch)`` of a run, back to back in its bytes."""

    run: int
    first_batch: int
    end_batch: int
    source_position: int
    size: int


@dataclass(frozen=True, slots=True)
class SegmentAppend:
    """What one segment gets: bytes at a position of its log, entries at one of each index.

    The indexes end behind the entries given; what a broker preallocated, or the final time index
    entry of an earlier append, is written over or cut off.
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

    @property
    def size(self) -> int:
        """Bytes appended to the log."""
        return sum(part.size for part in self.parts)


def roll_jitter_ms(topic_partition: TopicPartition, base_offset: int, config: LogConfig) -> int:
    """Give what is taken off ``segment.ms`` for one segment, so that not all roll at once.

    Kafka draws it when it opens a segment. Here a segment may be opened for each append, and drawn
    anew each time it would drift to the earliest roll: so it is a hash of the segment's name.
    """
    if config.segment_jitter_ms == 0:
        return 0
    name = f"{topic_partition}/{base_offset}".encode()
    drawn = int.from_bytes(hashlib.blake2b(name, digest_size=4).digest(), "big") & 0x7FFFFFFF
    return drawn % min(config.segment_jitter_ms, config.segment_ms)


def plan_append(
    topic_partition: TopicPartition,
    config: LogConfig,
    state: SegmentState,
    runs: Sequence[BatchTable],
    *,
    creates: bool = False,
    now_ms: int,
) -> tuple[list[SegmentAppend], SegmentState]:
    """Place the batches of ``runs``, one after the other, behind ``state``.

    Offsets in the tables are final and ascend. ``creates`` says that the segment of ``state`` does
    not exist yet.

    Returns:
        what each segment gets, in order, and the state of the last one afterwards.

    Raises:
        RecordTooLargeError: a batch that exceeds ``segment.bytes`` alone.
    """
    segment = _OpenSegment(topic_partition, config, state, creates=creates)
    planned = []
    for run, table in enumerate(runs):
        for batch in _batches(table):
            if segment.must_roll(batch, now_ms):
                planned.append(segment.close(seals=True))
                fresh = SegmentState.empty(_new_base_offset(batch, segment.state), now_ms)
                segment = _OpenSegment(topic_partition, config, fresh, creates=True)
            segment.append(run, batch)
    planned.append(segment.close(seals=False))
    return planned, segment.state


class _Batch(NamedTuple):
    number: int
    position: int
    size: int
    magic: int
    base_offset: int
    last_offset: int
    max_timestamp: int


def _batches(table: BatchTable) -> Iterator[_Batch]:
    columns = (
        table.position,
        table.size,
        table.magic,
        table.base_offset,
        table.last_offset,
        table.max_timestamp,
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return (_Batch(number, *row) for number, row in enumerate(rows))


def _new_base_offset(batch: _Batch, state: SegmentState) -> int:
    """Choose the base offset of the segment that starts with ``batch``.

    Before magic 2 the first offset is inside the message; Kafka takes the smallest possible one.
    """
    first = batch.base_offset if batch.magic >= 2 else batch.last_offset - _MAX_RELATIVE_OFFSET
    return max(first, state.next_offset)


class _OpenSegment:
    """A segment while batches are planned into it; ``state`` is what it will have come to."""

    def __init__(
        self, topic_partition: TopicPartition, config: LogConfig, state: SegmentState, creates: bool
    ) -> None:
        self.state = replace(state)
        self._before = state
        self._topic_partition = topic_partition
        self._config = config
        self._creates = creates
        self._roll_after_ms = config.max_segment_ms - roll_jitter_ms(
            topic_partition, state.base_offset, config
        )
        self._parts: list[RunPart] = []
        self._index_entries: list[tuple[int, int]] = []
        self._time_entries: list[tuple[int, int]] = []

    def must_roll(self, batch: _Batch, now_ms: int) -> bool:
        """Steps 1 and 2; an empty segment rolls only to get another base offset."""
        state, config = self.state, self._config
        if batch.size > config.segment_bytes:
            raise RecordTooLargeError(
                f"{self._topic_partition}: the batch at offset {batch.base_offset} has "
                f"{batch.size} bytes, more than a whole segment may have: segment.bytes is "
                f"{config.segment_bytes}"
            )
        if not 0 <= batch.last_offset - state.base_offset <= _MAX_RELATIVE_OFFSET:
            return True
        return state.size > 0 and (
            state.size > config.segment_bytes - batch.size
            or self._waited_ms(batch, now_ms) > self._roll_after_ms
            or state.index_entries >= config.segment_index_bytes // OFFSET_ENTRY.itemsize
            # The last slot is kept for the final entry.
            or state.time_entries >= config.segment_index_bytes // TIME_ENTRY.itemsize - 1
        )

    def _waited_ms(self, batch: _Batch, now_ms: int) -> int:
        if self.state.first_timestamp >= 0:
            return batch.max_timestamp - self.state.first_timestamp
        return now_ms - self.state.created_ms

    def append(self, run: int, batch: _Batch) -> None:
        """Steps 3 to 5."""
        state = self.state
        self._extend_parts(run, batch)
        if state.size == 0:
            state.first_timestamp = batch.max_timestamp
        if batch.max_timestamp > state.max_timestamp:
            state.max_timestamp, state.offset_of_max = batch.max_timestamp, batch.last_offset
        if state.size - state.indexed_position > self._config.index_interval_bytes:
            self._add_index_entries(batch)
        state.size += batch.size
        state.next_offset = batch.last_offset + 1

    def _extend_parts(self, run: int, batch: _Batch) -> None:
        if self._parts and self._parts[-1].run == run:
            part = self._parts[-1]
            self._parts[-1] = part._replace(end_batch=batch.number + 1, size=part.size + batch.size)
        else:
            self._parts.append(
                RunPart(run, batch.number, batch.number + 1, batch.position, batch.size)
            )

    def _add_index_entries(self, batch: _Batch) -> None:
        state = self.state
        self._index_entries.append((batch.last_offset - state.base_offset, state.size))
        state.index_entries += 1
        state.indexed_position = state.size
        if state.max_timestamp > state.indexed_timestamp:
            self._time_entries.append(self._latest_time_entry())
            state.time_entries += 1
            state.indexed_timestamp = state.max_timestamp

    def _latest_time_entry(self) -> tuple[int, int]:
        return (self.state.max_timestamp, self.state.offset_of_max - self.state.base_offset)

    def close(self, *, seals: bool) -> SegmentAppend:
        final = []
        if self.state.max_timestamp > self.state.indexed_timestamp:
            final.append(self._latest_time_entry())
        return SegmentAppend(
            base_offset=self.state.base_offset,
            creates=self._creates,
            seals=seals,
            position=self._before.size,
            parts=tuple(self._parts),
            index_position=self._before.index_entries * OFFSET_ENTRY.itemsize,
            index_entries=np.array(self._index_entries, OFFSET_ENTRY).tobytes(),
            time_index_position=self._before.time_entries * TIME_ENTRY.itemsize,
            time_index_entries=np.array([*self._time_entries, *final], TIME_ENTRY).tobytes(),
        )
