"""Find offsets by timestamp, with Kafka's answers.

A time index says which batches may hold a timestamp; which record it is, the records tell.

Source: Kafka ``UnifiedLog.fetchOffsetByTimestamp``, ``LogSegment.findOffsetByTimestamp``,
``FileRecords.searchForTimestamp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.errors import CorruptIndexError
from kafkalog.model import NO_TIMESTAMP
from kafkalog.streaming.log.time_index import TimestampOffset
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.records.control import as_data_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from kafkalog.streaming.log.segment import Chunk, LogSegment
    from kafkalog.streaming.records.batch import BatchTable

    Mask = npt.NDArray[np.bool_]

__all__ = ["find_by_timestamp", "find_max_timestamp", "largest_timestamp"]


def find_by_timestamp(
    segments: Sequence[LogSegment], timestamp: int, log_start_offset: int
) -> TimestampOffset | None:
    """Find the first record, by offset, with at least this timestamp (ms) in a log.

    As in Kafka, only the first segment whose largest timestamp is not below it is searched. A
    segment without any timestamps counts as being as old as its file.

    Returns:
        that record's own timestamp and offset; None if there is none.

    Raises:
        FileNotFoundError: a segment is gone.
        CorruptRecordError: bytes on the way that are no valid batch.
    """
    for active, segment in _newest_last(segments):
        with segment:
            latest = largest_timestamp(segment, active=active).timestamp
            if latest == NO_TIMESTAMP:
                latest = segment.path.stat().st_mtime_ns // 1_000_000
            if latest >= timestamp:
                return _find_in_segment(segment, timestamp, log_start_offset)
    return None


def find_max_timestamp(segments: Sequence[LogSegment]) -> TimestampOffset | None:
    """Find the first record, by offset, with the greatest timestamp of a log.

    Raises:
        FileNotFoundError: a segment is gone.
        CorruptRecordError: bytes on the way that are no valid batch.
    """
    best, holder = TimestampOffset(NO_TIMESTAMP, -1), None
    for active, segment in _newest_last(segments):
        with segment:
            latest = largest_timestamp(segment, active=active)
            if latest.timestamp > best.timestamp:
                best, holder = latest, segment
    if holder is None:
        return None
    with holder:
        return _first_record(
            holder,
            holder.floor_position(best.offset),
            lambda table: table.max_timestamp == best.timestamp,
            best.timestamp,
            holder.base_offset,
        )


def largest_timestamp(segment: LogSegment, *, active: bool) -> TimestampOffset:
    """Find the largest timestamp of a segment, with the last offset of the first batch with it.

    A sealed segment's is the last entry of its time index. Without entries, and behind the last
    ones of an active segment, the batches are asked.

    Returns:
        timestamp -1 where there is none.
    """
    times = segment.time_index()
    indexed = None if times is None or not len(times) else times.last_entry()
    if indexed is not None and not active:
        return indexed
    best = indexed or TimestampOffset(NO_TIMESTAMP, segment.base_offset)
    start = 0 if indexed is None else segment.floor_position(indexed.offset)
    for header in segment.headers(start):
        if header.max_timestamp > best.timestamp:
            best = TimestampOffset(header.max_timestamp, header.last_offset)
    return best


def _newest_last(segments: Sequence[LogSegment]) -> list[tuple[bool, LogSegment]]:
    """Pair each segment with whether it is the active one."""
    last = len(segments) - 1
    return [(slot == last, segment) for slot, segment in enumerate(segments)]


def _find_in_segment(
    segment: LogSegment, timestamp: int, log_start_offset: int
) -> TimestampOffset | None:
    offset = segment.base_offset
    times = segment.time_index()
    try:
        offset = times.lookup(timestamp).offset if times is not None else offset
    except CorruptIndexError:
        times = None  # then from the beginning
    return _first_record(
        segment,
        segment.floor_position(max(offset, log_start_offset)),
        lambda table: table.max_timestamp >= timestamp,
        timestamp,
        log_start_offset,
    )


def _first_record(
    segment: LogSegment,
    position: int,
    candidates: Callable[[BatchTable], Mask],
    timestamp: int,
    start_offset: int,
) -> TimestampOffset | None:
    """Find the first record at or above a timestamp and an offset, in the batches asked for."""
    for chunk in segment.chunks(position):
        found = _first_in_chunk(segment, chunk, candidates(chunk.table), timestamp, start_offset)
        if found is not None:
            return found
    return None


def _first_in_chunk(
    segment: LogSegment, chunk: Chunk, candidates: Mask, timestamp: int, start_offset: int
) -> TimestampOffset | None:
    decoder = RecordDecoder(Columns.OFFSET | Columns.TIMESTAMP_MS)
    # A marker has an offset and a timestamp too, and counts.
    table = as_data_batches(chunk.table)
    for slot in candidates.nonzero()[0].tolist():
        for rows in decoder.decode(
            chunk.data,
            table[slot : slot + 1],
            file_position=chunk.file_position,
            path=str(segment.path),
            start_offset=start_offset,
        ):
            times = rows.column("timestampMs").to_numpy()
            row = int((times >= timestamp).argmax())
            if times[row] >= timestamp:
                return TimestampOffset(int(times[row]), rows.column("offset")[row].as_py())
    return None
