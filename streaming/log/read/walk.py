"""Walk forward over the batches of a log, from segment to segment, whatever happens to the files.

Offsets lead, not files. When a segment ends, the next one is whichever holds the next offset at
that moment: the segment that follows, or one that a cleaner has made of both.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np

from kafkalog.streaming.log.segment import Chunk
from kafkalog.streaming.log.segments import LogSegments, retrying

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kafkalog.files.open_file import FileIdentity
    from kafkalog.streaming.log.read.salvage import Salvage
    from kafkalog.streaming.log.segment import LogSegment

__all__ = ["walk_batches"]


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
        within: begin in this segment, even if another one has its name by now; it stays open.
        salvage: passes over damage; None raises an error.

    Yields:
        batches, about 2 MiB at a time, and the segment that they lie in, open until the next turn.

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
        # A segment above the offset may hold nothing: the search continues after it all the same.
        segment = _segment_of(directory, max(offset, segment.base_offset), done)


def _segment_of(directory: Path, offset: int, done: FileIdentity | None) -> LogSegment | None:
    """Open the segment that an offset belongs to; if that was just read (``done``), the next one.

    None if there is no such segment.
    """
    return retrying(lambda: _open_segment_of(directory, offset, done))


def _open_segment_of(directory: Path, offset: int, done: FileIdentity | None) -> LogSegment | None:
    for segment in LogSegments.of(directory).from_floor(offset)[:2]:
        if segment.identity != done:
            return segment
        segment.close()
    return None
