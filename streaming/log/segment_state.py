"""What appending goes on from, derived from an active segment's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.errors import CorruptIndexError
from kafkalog.model import MAX_OFFSET, NO_TIMESTAMP
from kafkalog.streaming.log.files import OFFSET_INDEX, TIME_INDEX
from kafkalog.streaming.log.log_end import valid_chunks
from kafkalog.streaming.log.segment_growth import SegmentState

if TYPE_CHECKING:
    from kafkalog.streaming.log.segment import LogSegment

__all__ = ["load_state"]


def load_state(segment: LogSegment) -> SegmentState:
    """Derive the state of an active segment; reads no more than what its last index entry leaves.

    Raises:
        CorruptIndexError: an index is missing or wrong: rebuild it first.
        CorruptRecordError: the log does not end with a valid batch: cut it there first.
    """
    index, times = segment.offset_index(), segment.time_index()
    if index is None or times is None:
        missing = segment.file(OFFSET_INDEX if index is None else TIME_INDEX)
        raise CorruptIndexError(f"{missing}: is missing or wrong, and must be rebuilt to append")
    last = index.last_entry()
    if segment.floor_position(MAX_OFFSET) != last.position:
        raise CorruptIndexError(
            f"{index.path}: does not fit the log, and must be rebuilt to append"
        )
    # Entries for later batches are final ones: they are written over.
    time_entries = times.count_through(last.offset) if len(index) else 0
    indexed = times.entry(time_entries - 1) if time_entries else None
    first = segment.header_at(0)
    state = SegmentState(
        base_offset=segment.base_offset,
        next_offset=segment.base_offset,
        # A segment without timestamps never writes to its time index once it has made it.
        created_ms=times.path.stat().st_mtime_ns // 1_000_000,
        size=segment.size,
        first_timestamp=NO_TIMESTAMP if first is None else first.max_timestamp,
        max_timestamp=NO_TIMESTAMP if indexed is None else indexed.timestamp,
        offset_of_max=-1 if indexed is None else indexed.offset,
        index_entries=len(index),
        indexed_position=last.position,
        time_entries=time_entries,
        indexed_timestamp=NO_TIMESTAMP if indexed is None else indexed.timestamp,
    )
    _walk_tail(segment, state)
    return state


def _walk_tail(segment: LogSegment, state: SegmentState) -> None:
    chunks = valid_chunks(segment, state.indexed_position)
    while True:
        try:
            table = next(chunks).table
        except StopIteration as stop:
            if stop.value is not None:
                raise stop.value from None
            return
        state.next_offset = int(table.last_offset[-1]) + 1
        slot = int(table.max_timestamp.argmax())
        if table.max_timestamp[slot] > state.max_timestamp:
            state.max_timestamp = int(table.max_timestamp[slot])
            state.offset_of_max = int(table.last_offset[slot])
