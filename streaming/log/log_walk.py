"""Walk forward over the batches of a log, from segment to segment, whatever happens to the files.

The offset is what leads: when a segment ends, the next one is the one that holds the next offset
by then, be it the one that follows, or one that a cleaner has made of both.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.streaming.log.segment import Chunk
from kafkalog.streaming.log.segment_files import list_segments

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kafkalog.streaming.log.open_file import FileIdentity
    from kafkalog.streaming.log.salvage import Salvage
    from kafkalog.streaming.log.segment import LogSegment
    from kafkalog.streaming.records.batch import BatchTable

__all__ = ["following_segment", "is_same_file", "leaps_into_follower", "walk_batches"]

_ATTEMPTS: Final = 5
"""Listing and opening race with cleaners and retention."""


def walk_batches(
    directory: Path,
    offset: int,
    *,
    within: LogSegment | None = None,
    salvage: Salvage | None = None,
) -> Iterator[tuple[LogSegment, Chunk]]:
    """Read the batches from the one that holds ``offset`` on, to the end of the log.

    Args:
        directory: the partition's folder.
        offset: the first one wanted; batches that end below it are left out.
        within: begin in this segment, which stays open, though another may have its name by now.
        salvage: what leads around damage, instead of an error.

    Yields:
        batches, about 1 MiB at a time, and the segment that they lie in, open until the next turn.

    Raises:
        CorruptRecordError: bytes that cannot be a batch; those before them were yielded.
        UnknownTopicOrPartitionError: the folder is gone.
    """
    segment = _segment_of(directory, offset, None) if within is None else within
    while segment is not None:
        with nullcontext(segment) if segment is within else segment:
            position = segment.floor_position(offset)
            chunks = (
                segment.chunks(position) if salvage is None else salvage.chunks(segment, position)
            )
            for chunk in chunks:
                first = int(np.searchsorted(chunk.table.last_offset, offset))
                if first < len(chunk.table):
                    yield segment, Chunk(chunk.data, chunk.table[first:], chunk.file_position)
                    offset = int(chunk.table.last_offset[-1]) + 1
            done = segment.identity
        # A segment may hold nothing from the offset on: it is behind us all the same.
        segment = _segment_of(directory, max(offset, segment.base_offset), done)


def following_segment(segment: LogSegment) -> LogSegment | None:
    """Give the segment behind one, as the folder has them now; None behind the last one."""
    later = (s for s in list_segments(segment.directory) if s.base_offset > segment.base_offset)
    return next(later, None)


def leaps_into_follower(segment: LogSegment, batch: BatchTable) -> bool:
    """Tell whether the last batch of an open file, a table of one, has offsets of later segments.

    Not so where the segment of these offsets has the batch as well: a copy that took a while may
    have what a cleaner joined, and what it was joined of. Nor of a file that was replaced since.
    """
    first, last = int(batch.base_offset[0]), int(batch.last_offset[0])
    listed = list_segments(segment.directory)
    later = [other for other in listed if segment.base_offset < other.base_offset <= last]
    if later and any(is_same_file(segment, other) for other in listed):
        with suppress(FileNotFoundError), later[-1] as other:
            return not other.holds(first, last)
    return False


def is_same_file(opened: LogSegment, listed: LogSegment) -> bool:
    """Tell whether the file of an open segment is the one that has its name now."""
    if opened.base_offset != listed.base_offset:
        return False
    with suppress(FileNotFoundError), listed:
        return opened.identity == listed.identity
    return False


def _segment_of(directory: Path, offset: int, done: FileIdentity | None) -> LogSegment | None:
    """Open the segment that an offset belongs to; the one behind it if that is the one just read.

    None if there is no such segment.
    """
    for _ in range(_ATTEMPTS - 1):
        with suppress(FileNotFoundError):
            return _open_segment_of(directory, offset, done)
    return _open_segment_of(directory, offset, done)


def _open_segment_of(directory: Path, offset: int, done: FileIdentity | None) -> LogSegment | None:
    segments = list_segments(directory)
    floor = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
    for segment in segments[max(0, floor) :][:2]:
        if segment.identity != done:
            return segment
        segment.close()
    return None
