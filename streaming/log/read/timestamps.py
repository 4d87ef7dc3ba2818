"""Find offsets by timestamp, with Kafka's answers.

A time index says which batches may hold a timestamp; which record it is, the records tell.

Source: Kafka ``UnifiedLog.fetchOffsetByTimestamp``, ``LogSegment.findOffsetByTimestamp``,
``FileRecords.searchForTimestamp``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.errors import CorruptIndexError, CorruptRecordError
from kafkalog.files.remote_path import RemotePath
from kafkalog.model import MAX_OFFSET, NO_TIMESTAMP
from kafkalog.streaming.log.indexes import TimestampOffset
from kafkalog.streaming.log.read.salvage import Salvage
from kafkalog.streaming.log.read.slice_reader import open_planned
from kafkalog.streaming.records.compression import DEFAULT_LIMIT
from kafkalog.streaming.records.control import as_data_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kafkalog.model import Intervals
    from kafkalog.streaming.log.read.slice_reader import SegmentSlice
    from kafkalog.streaming.log.segment import Chunk, LogSegment
    from kafkalog.streaming.records.batch import BatchHeader
    from kafkalog.streaming.records.columns import RecordDecoder


__all__ = [
    "find_by_timestamp",
    "find_max_timestamp",
    "largest_timestamp",
    "may_hold",
    "offset_behind_older",
    "thin_slice",
]


# ----------------------------------------------------------------------------------------------
# Leave out batches that cannot hold a wanted timestamp, whatever the order of timestamps.
#
# Two things tell, and both know largest timestamps only:
#
# - **A time index entry** (t, o) says that nothing at or below offset o is later than t. It is
#   believed only if the batch with o is there and has t. Then a reader of what is later than t
#   leaves out everything up to that batch.
# - **A batch's header** has its largest timestamp. If all that is wanted is later,
#   the batch is left out. If the header tells every record's timestamp (append time, or one
#   record), a batch that is later than all that is wanted is left out too. Otherwise not: the base
#   timestamp is the first record's, not the smallest, and compaction gives it another meaning.


_GAP_BYTES: Final = 64 << 10
"""Batches that are not wanted are read all the same where they are fewer bytes than this between
two that are: a read costs more."""


def offset_behind_older(segment: LogSegment, timestamp: int) -> int:
    """Find an offset of an open segment below which nothing has ``timestamp`` or a later one.

    By the time index alone, and one batch that bears it out; the base offset if it tells nothing.
    Of a segment that is known to be older without a look, all offsets are such.
    """
    if _is_told_older(segment, timestamp):
        return MAX_OFFSET
    times = segment.time_index() if timestamp > 0 else None
    with suppress(CorruptIndexError):
        entry = None if times is None else times.lookup(timestamp - 1)
        if entry is not None and entry.timestamp >= 0:
            for header in segment.headers(segment.floor_position(entry.offset)):
                if header.last_offset >= entry.offset:
                    if header.offset <= entry.offset and header.max_timestamp == entry.timestamp:
                        return header.last_offset + 1
                    break
    return segment.base_offset


def thin_slice(whole: SegmentSlice, times: Intervals) -> list[SegmentSlice]:
    """Cut out of a slice the batches that cannot hold a record with one of the timestamps, in ms.

    Costs a small read for each batch. In a store that costs more than the batch, so slices there
    are returned as they are. From the first bytes on that are no batch in its place, everything is
    kept: the reader finds what is wrong there, or missing at the end of a file.
    """
    segment = None if isinstance(whole.path, RemotePath) else open_planned(whole)
    if segment is None:
        return [whole]
    with segment:
        return _runs(segment, whole, times)


def _runs(segment: LogSegment, whole: SegmentSlice, times: Intervals) -> list[SegmentSlice]:
    runs: list[SegmentSlice] = []
    position, offset = whole.start_position, whole.start_offset
    last_offset = segment.base_offset - 1
    for header, following in _with_following(segment.headers(position)):
        leaps = header.offset > last_offset + 1 and header.last_offset >= min(
            whole.end_offset, MAX_OFFSET if following is None else following.offset
        )
        if header.offset <= last_offset or leaps:
            break
        last_offset = header.last_offset
        position = header.position + header.size
        if last_offset >= offset:
            end = min(last_offset + 1, whole.end_offset)
            if may_hold(header, times):
                _extend(runs, _piece(whole, header.position, position, offset, end))
            offset = end
        if offset == whole.end_offset:
            return runs
    _extend(runs, _piece(whole, position, whole.end_position, offset, whole.end_offset))
    return runs


def _with_following(
    headers: Iterator[BatchHeader],
) -> Iterator[tuple[BatchHeader, BatchHeader | None]]:
    """Pair each header with the one after it."""
    header = next(headers, None)
    while header is not None:
        following = next(headers, None)
        yield header, following
        header = following


def _piece(
    whole: SegmentSlice, position: int, end_position: int, offset: int, end_offset: int
) -> SegmentSlice:
    return whole._replace(
        start_position=position,
        end_position=max(position, end_position),
        start_offset=offset,
        end_offset=end_offset,
    )


def _extend(runs: list[SegmentSlice], piece: SegmentSlice) -> None:
    if runs and piece.start_position - runs[-1].end_position < _GAP_BYTES:
        runs[-1] = runs[-1]._replace(end_position=piece.end_position, end_offset=piece.end_offset)
    else:
        runs.append(piece)


def may_hold(header: BatchHeader, times: Intervals) -> bool:
    """Return whether a batch may hold a record with one of the timestamps."""
    if header.one_timestamp:
        return header.max_timestamp in times
    return header.max_timestamp >= times.first


# ----------------------------------------------------------------------------------------------


def find_by_timestamp(
    segments: Sequence[LogSegment],
    timestamp: int,
    log_start_offset: int,
    end_offset: int = MAX_OFFSET,
    *,
    max_decompressed_bytes: int = DEFAULT_LIMIT,
    salvage: Salvage | None = None,
) -> TimestampOffset | None:
    """Find the first record, by offset, with at least this timestamp (ms) in a log.

    As in Kafka, only the first segment whose largest timestamp is not below it is searched. A
    segment without any timestamps counts as being as old as its file.

    With ``salvage`` damage is passed over with a warning. If it took the record that is looked for,
    the next segments are searched too.

    Returns:
        that record's own timestamp and offset, at or above ``end_offset`` too; None without one.

    Raises:
        FileNotFoundError: a segment is gone.
        CorruptRecordError: bytes on the way that are no valid batch, below ``end_offset``, or a
            batch that holds more than ``max_decompressed_bytes``.
    """
    decoder = _decoder(max_decompressed_bytes)
    for active, segment in _newest_last(segments):
        with segment:
            if not _may_hold(segment, timestamp, end_offset, salvage, active=active):
                continue
            search = _Search(segment, decoder, timestamp, log_start_offset, end_offset)
            floor = max(_floor_entry(segment, timestamp).offset, log_start_offset)
            position = segment.floor_position(floor)
            if salvage is None:
                return search.first_from(position, lambda t: t >= timestamp, active=active)
            damaged = salvage.places
            found = search.first_around_damage(salvage, position)
        if found is not None or salvage.places == damaged:
            return found
    return None


def _may_hold(
    segment: LogSegment, timestamp: int, end_offset: int, salvage: Salvage | None, *, active: bool
) -> bool:
    if salvage is not None and segment.base_offset >= end_offset:
        return False
    if _is_told_older(segment, timestamp):
        return False
    latest = _latest(segment, end_offset, salvage, active=active).timestamp
    if latest == NO_TIMESTAMP:
        latest = segment.path.stat().st_mtime_ns // 1_000_000
    return latest >= timestamp


def _is_told_older(segment: LogSegment, timestamp: int) -> bool:
    """Whether a segment in a remote tier has nothing so late, as its broker has told."""
    if not isinstance(segment.path, RemotePath):
        return False
    told = segment.path.max_timestamp()
    return told is not None and NO_TIMESTAMP < told < timestamp


def find_max_timestamp(
    segments: Sequence[LogSegment], *, max_decompressed_bytes: int = DEFAULT_LIMIT
) -> TimestampOffset | None:
    """Find the first record, by offset, with the greatest timestamp of a log.

    Raises:
        FileNotFoundError: a segment is gone.
        CorruptRecordError: bytes on the way that are no valid batch, or a batch that holds more
            than ``max_decompressed_bytes``.
    """
    best, holder = TimestampOffset(NO_TIMESTAMP, -1), None
    for active, segment in _newest_last(segments):
        with segment:
            latest = largest_timestamp(segment, active=active)
            if latest.timestamp > best.timestamp:
                best, holder = latest, segment
    if holder is None:
        return None
    greatest = best.timestamp
    with holder:
        search = _Search(
            holder, _decoder(max_decompressed_bytes), greatest, holder.base_offset, MAX_OFFSET
        )
        position = holder.floor_position(best.offset)
        return search.first_from(position, lambda t: t == greatest, active=holder is segments[-1])


def largest_timestamp(
    segment: LogSegment, end_offset: int = MAX_OFFSET, *, active: bool
) -> TimestampOffset:
    """Find the largest timestamp of a segment, with the last offset of the first batch with it.

    It is that of the last entry of the time index, or of a batch after the last entry of the offset
    index: a broker that was killed, or copied while it ran, has not written the final entry. If the
    time index has nothing though the first batch has a timestamp, all headers are read.

    Batches that a cleaner has emptied count as far as the index has them: the cleaner of Kafka 2.8
    puts them there, that of 1.1 did not.

    Returns:
        timestamp -1 where there is none.

    Raises:
        CorruptRecordError: bytes on the way that are no batch, in the active segment below
            ``end_offset`` only.
    """
    best, position = _indexed(segment)
    last = -1
    for header in segment.headers(position):
        last = header.last_offset
        if header.max_timestamp > best.timestamp and not header.is_emptied:
            best = TimestampOffset(header.max_timestamp, header.last_offset)
        position = header.position + header.size
    _refuse_rest(segment, position, last, end_offset, active=active)
    return best


def _refuse_rest(
    segment: LogSegment, position: int, last_offset: int, end_offset: int, *, active: bool
) -> None:
    """Refuse what no batch was found in; after the end of an active segment anything may lie."""
    if not active or last_offset + 1 < end_offset < MAX_OFFSET:
        segment.refuse_rest(position)


def _latest(
    segment: LogSegment, end_offset: int, salvage: Salvage | None, *, active: bool
) -> TimestampOffset:
    """Find the largest timestamp, past damage if need be, of which a search or a read tells."""
    if salvage is None:
        return largest_timestamp(segment, end_offset, active=active)
    best, position = _indexed(segment)
    for chunk in Salvage(None, check_records=False).chunks(segment, position):
        times = np.where(chunk.table.count != 0, chunk.table.max_timestamp, NO_TIMESTAMP)
        row = int(times.argmax())
        if times[row] > best.timestamp:
            best = TimestampOffset(int(times[row]), int(chunk.table.last_offset[row]))
        if chunk.table.last_offset[-1] >= end_offset - 1:
            break
    return best


def _indexed(segment: LogSegment) -> tuple[TimestampOffset, int]:
    """Return the largest indexed timestamp, and the position after which a larger one may be."""
    best = _last_indexed(segment)
    if best.timestamp >= 0 or not _begins_with_timestamps(segment):
        return best, segment.floor_position(MAX_OFFSET)
    return best, 0


def _last_indexed(segment: LogSegment) -> TimestampOffset:
    """Return the last entry of the time index, as far as the log bears it out."""
    times = segment.time_index()
    with suppress(CorruptIndexError):
        if times is not None:
            return _borne_out(segment, times.last_entry())
    return _nothing_known(segment)


def _floor_entry(segment: LogSegment, timestamp: int) -> TimestampOffset:
    """Return the last entry not after a timestamp, as far as the log bears it out."""
    times = segment.time_index()
    with suppress(CorruptIndexError):
        if times is not None:
            return _borne_out(segment, times.lookup(timestamp))
    return _nothing_known(segment)


def _borne_out(segment: LogSegment, entry: TimestampOffset) -> TimestampOffset:
    """Compare an entry with the batch that it speaks of; nothing is known if that differs.

    A copy may have a time index that is older or newer than its log, or another log's. What it says
    of a log without a byte is believed, as a broker does: there is nothing in it to be missed. So
    is what it says of messages of magic 0, which have no timestamps: with LogAppendTime, brokers
    indexed when they appended them.
    """
    if entry.timestamp < 0 or not segment.size:
        return entry
    for header in segment.headers(segment.floor_position(entry.offset)):
        if header.last_offset >= entry.offset:
            if header.max_timestamp in (entry.timestamp, NO_TIMESTAMP):
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


def _decoder(max_decompressed_bytes: int) -> RecordDecoder:
    # not at import: a query that asks for no timestamp need not wait for it
    from kafkalog.streaming.records.columns import Columns, RecordDecoder  # noqa: PLC0415

    return RecordDecoder(
        Columns.OFFSET | Columns.TIMESTAMP_MS, max_decompressed_bytes=max_decompressed_bytes
    )


class _Search:
    """A search of one open segment for the first record at or above a timestamp and an offset."""

    def __init__(
        self,
        segment: LogSegment,
        decoder: RecordDecoder,
        timestamp: int,
        start_offset: int,
        end_offset: int,
    ) -> None:
        self._segment = segment
        self._decoder = decoder
        self._timestamp = timestamp
        self._start_offset = start_offset
        self._end_offset = end_offset

    def first_from(
        self, position: int, may_hold: Callable[[int], bool], *, active: bool
    ) -> TimestampOffset | None:
        """Search the batches from a position on whose largest timestamp tells that they may do.

        Of the others only the headers are read. A batch after the end may be torn, and is the end
        of the log then.
        """
        before, last = -1, -1
        for header in self._segment.headers(position):
            position = header.position + header.size
            before, last = last, header.last_offset
            if not may_hold(header.max_timestamp):
                continue
            try:
                for chunk in self._segment.chunks(header.position, header.position + 1):
                    found = self._first_in(chunk)
                    if found is not None:
                        return found
            except CorruptRecordError:
                # Of a damaged batch the one before it tells best where it lies.
                if (last if before < 0 else before + 1) < self._end_offset:
                    raise
                return None
        _refuse_rest(self._segment, position, last, self._end_offset, active=active)
        return None

    def first_around_damage(self, salvage: Salvage, position: int) -> TimestampOffset | None:
        """Search the sound batches from a position on, up to the end."""
        for chunk in salvage.chunks(self._segment, position):
            wanted = chunk.table.max_timestamp >= self._timestamp
            found = self._first_in(chunk._replace(table=chunk.table[wanted]))
            if found is not None or chunk.table.last_offset[-1] >= self._end_offset - 1:
                return found
        return None

    def _first_in(self, chunk: Chunk) -> TimestampOffset | None:
        for rows in self._decoder.decode(
            chunk.data,
            # A marker has an offset and a timestamp too, and counts.
            as_data_batches(chunk.table),
            file_position=chunk.file_position,
            path=str(self._segment.path),
            start_offset=self._start_offset,
        ):
            times = rows.column("timestampMs").to_numpy()
            row = int((times >= self._timestamp).argmax())
            if times[row] >= self._timestamp:
                return TimestampOffset(int(times[row]), rows.column("offset")[row].as_py())
        return None
