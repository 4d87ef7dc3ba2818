"""What appending continues from, derived from an active segment's files."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kafkalog.errors import CorruptIndexError
from kafkalog.model import MAX_OFFSET, NO_TIMESTAMP
from kafkalog.streaming.log.append.growth import SegmentGrowth, SegmentState, facts_of
from kafkalog.streaming.log.files import OFFSET_INDEX, TIME_INDEX
from kafkalog.streaming.log.log_end import ValidBatches

if TYPE_CHECKING:
    from kafkalog.streaming.log.segment import LogSegment
    from kafkalog.streaming.records.batch import BatchTable

__all__ = ["load_segment_state"]

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
        created_ms=times.path.stat().st_mtime_ns // 1_000_000,
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
