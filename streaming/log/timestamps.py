"""Find offsets by timestamp, with Kafka's answers.

A time index says which batches may hold a timestamp; which record it is, the records tell.

Source: Kafka ``UnifiedLog.fetchOffsetByTimestamp``, ``LogSegment.findOffsetByTimestamp``,
``FileRecords.searchForTimestamp``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from kafkalog.errors import CorruptIndexError, CorruptRecordError
from kafkalog.model import MAX_OFFSET, NO_TIMESTAMP
from kafkalog.streaming.log.time_index import TimestampOffset
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.records.control import as_data_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kafkalog.streaming.log.segment import BatchHeader, Chunk, LogSegment

__all__ = ["find_by_timestamp", "find_max_timestamp", "largest_timestamp"]


def find_by_timestamp(
    segments: Sequence[LogSegment],
    timestamp: int,
    log_start_offset: int,
    end_offset: int = MAX_OFFSET,
) -> TimestampOffset | None:
    """Find the first record, by offset, with at least this timestamp (ms) in a log.

    As in Kafka, only the first segment whose largest timestamp is not below it is searched. A
    segment without any timestamps counts as being as old as its file.

    Returns:
        that record's own timestamp and offset; None if there is none. A record at or above
        ``end_offset`` may be given or not.

    Raises:
        FileNotFoundError: a segment is gone.
        CorruptRecordError: bytes on the way that are no valid batch, below ``end_offset``.
    """
    for active, segment in _newest_last(segments):
        with segment:
            latest = largest_timestamp(segment, active=active).timestamp
            if latest == NO_TIMESTAMP:
                latest = segment.path.stat().st_mtime_ns // 1_000_000
            if latest >= timestamp:
                return _find_in_segment(
                    segment, timestamp, log_start_offset, end_offset, active=active
                )
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
            lambda header: header.max_timestamp == best.timestamp,
            best.timestamp,
            holder.base_offset,
            active=holder is segments[-1],
        )


def largest_timestamp(segment: LogSegment, *, active: bool) -> TimestampOffset:
    """Find the largest timestamp of a segment, with the last offset of the first batch with it.

    It is that of the last entry of the time index, or lies behind the last entry of the offset
    index: a broker that was killed or copied while it ran has not written the final entry. Where
    the time index tells nothing though the first batch has a timestamp, all headers are asked.

    Returns:
        timestamp -1 where there is none.

    Raises:
        CorruptRecordError: bytes on the way that are no batch, unless it is the active segment.
    """
    best, position = _last_indexed(segment), 0
    if best.timestamp >= 0 or not _begins_with_timestamps(segment):
        position = segment.floor_position(MAX_OFFSET)
    for header in segment.headers(position):
        if header.max_timestamp > best.timestamp:
            best = TimestampOffset(header.max_timestamp, header.last_offset)
        position = header.position + header.size
    if not active:
        segment.refuse_rest(position)
    return best


def _last_indexed(segment: LogSegment) -> TimestampOffset:
    """Give the last entry of the time index, as far as the log bears it out."""
    times = segment.time_index()
    with suppress(CorruptIndexError):
        if times is not None:
            return _borne_out(segment, times.last_entry())
    return _nothing_known(segment)


def _floor_entry(segment: LogSegment, timestamp: int) -> TimestampOffset:
    """Give the last entry not after a timestamp, as far as the log bears it out."""
    times = segment.time_index()
    with suppress(CorruptIndexError):
        if times is not None:
            return _borne_out(segment, times.lookup(timestamp))
    return _nothing_known(segment)


def _borne_out(segment: LogSegment, entry: TimestampOffset) -> TimestampOffset:
    """Hold an entry against the batch that it speaks of; nothing is known if that differs.

    A copy may have a time index that is older or newer than its log, or another log's.
    """
    if entry.timestamp < 0:
        return entry
    for header in segment.headers(segment.floor_position(entry.offset)):
        if header.last_offset >= entry.offset:
            if header.max_timestamp == entry.timestamp:
                return entry
            break
    segment.give_up_time_index(
        f"it has timestamp {entry.timestamp} at offset {entry.offset}, where no batch reaches it"
    )
    return _nothing_known(segment)


def _nothing_known(segment: LogSegment) -> TimestampOffset:
    return TimestampOffset(NO_TIMESTAMP, segment.base_offset)


def _begins_with_timestamps(segment: LogSegment) -> bool:
    header = segment.header_at(0)
    return header is not None and header.max_timestamp >= 0


def _newest_last(segments: Sequence[LogSegment]) -> list[tuple[bool, LogSegment]]:
    """Pair each segment with whether it is the active one."""
    last = len(segments) - 1
    return [(slot == last, segment) for slot, segment in enumerate(segments)]


def _find_in_segment(
    segment: LogSegment,
    timestamp: int,
    log_start_offset: int,
    end_offset: int,
    *,
    active: bool,
) -> TimestampOffset | None:
    offset = _floor_entry(segment, timestamp).offset
    return _first_record(
        segment,
        segment.floor_position(max(offset, log_start_offset)),
        lambda header: header.max_timestamp >= timestamp,
        timestamp,
        log_start_offset,
        end_offset,
        active=active,
    )


def _first_record(
    segment: LogSegment,
    position: int,
    may_hold: Callable[[BatchHeader], bool],
    timestamp: int,
    start_offset: int,
    end_offset: int = MAX_OFFSET,
    *,
    active: bool,
) -> TimestampOffset | None:
    """Find the first record at or above a timestamp and an offset, in the batches that may hold it.

    Of the other batches only the headers are read. A batch behind ``end_offset`` may be torn, and
    is the end of the log then.
    """
    before, last = -1, -1
    for header in segment.headers(position):
        position = header.position + header.size
        before, last = last, header.last_offset
        if not may_hold(header):
            continue
        try:
            for chunk in segment.chunks(header.position, header.position + 1):
                found = _first_in_chunk(segment, chunk, timestamp, start_offset)
                if found is not None:
                    return found
        except CorruptRecordError:
            # Of a damaged batch the one before it tells best where it lies.
            if (last if before < 0 else before + 1) < end_offset:
                raise
            return None
    if not active:
        segment.refuse_rest(position)
    return None


def _first_in_chunk(
    segment: LogSegment, chunk: Chunk, timestamp: int, start_offset: int
) -> TimestampOffset | None:
    decoder = RecordDecoder(Columns.OFFSET | Columns.TIMESTAMP_MS)
    for rows in decoder.decode(
        chunk.data,
        # A marker has an offset and a timestamp too, and counts.
        as_data_batches(chunk.table),
        file_position=chunk.file_position,
        path=str(segment.path),
        start_offset=start_offset,
    ):
        times = rows.column("timestampMs").to_numpy()
        row = int((times >= timestamp).argmax())
        if times[row] >= timestamp:
            return TimestampOffset(int(times[row]), rows.column("offset")[row].as_py())
    return None
