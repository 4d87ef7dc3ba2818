"""Leave out batches that cannot hold a wanted timestamp, whatever the order of timestamps.

Two things tell, and both know largest timestamps only:

- **A time index entry** (t, o) says that nothing at or below offset o is later than t. It is
  believed only if the batch with o is there and has t. Then a reader of what is later than t leaves
  out everything up to that batch.
- **A batch's header** has its largest timestamp. If all that is wanted is later,
  the batch is left out. If the header tells every record's timestamp (append time, or one record),
  a batch that is later than all that is wanted is left out too. Otherwise it is not: the base
  timestamp is the first record's, not the smallest, and compaction gives it another meaning.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from kafkalog.errors import CorruptIndexError
from kafkalog.files.remote_path import RemotePath
from kafkalog.model import MAX_OFFSET
from kafkalog.streaming.log.read.slices import open_planned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.streaming.log.intervals import Intervals
    from kafkalog.streaming.log.read.slices import SegmentSlice
    from kafkalog.streaming.log.segment import LogSegment
    from kafkalog.streaming.records.batch_header import BatchHeader

__all__ = ["may_hold", "offset_behind_older", "thin_slice"]

_GAP_BYTES: Final = 64 << 10
"""Batches that are not wanted are read all the same where they are fewer bytes than this between
two that are: a read costs more."""


def offset_behind_older(segment: LogSegment, timestamp: int) -> int:
    """Find an offset of an open segment below which nothing has ``timestamp`` or a later one.

    By the time index alone, and one batch that bears it out; the base offset if it tells nothing.
    """
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
