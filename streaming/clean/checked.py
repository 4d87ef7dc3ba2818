"""Batches that a cleaner may rely upon: a damaged log is not cleaned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.errors import ChecksumMismatchError
from kafkalog.streaming.records.batch import invalid_checksums

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kafkalog.streaming.log.segment import Chunk, LogSegment

__all__ = ["checked_chunks"]


def checked_chunks(
    segment: LogSegment, position: int, progress: Callable[[int], object] = lambda _: None
) -> Iterator[Chunk]:
    """Read the batches of an inactive segment from a position on, about 2 MiB at a time.

    ``progress`` is told of the bytes that were read, after each of these; what it raises ends it.

    Raises:
        CorruptRecordError: bytes that are no sound batch, up to the end of the file.
    """
    for chunk in segment.chunks(position):
        table = chunk.table
        bad = invalid_checksums(chunk.data, table, file_position=chunk.file_position)
        if bad.any():
            row = int(bad.argmax())
            raise ChecksumMismatchError(
                f"{segment.path}: the batch at position {table.position[row]}, up to offset "
                f"{table.last_offset[row]}, does not match its checksum: the log is not cleaned",
                path=str(segment.path),
                position=int(table.position[row]),
                offset=int(table.base_offset[row]),
            )
        yield chunk
        progress(len(chunk.data))
        position = chunk.file_position + len(chunk.data)
    segment.refuse_rest(position)
