"""Where the valid batches of a segment end."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kafkalog.errors import CorruptRecordError
from kafkalog.streaming.log.segment import CHUNK_BYTES, Chunk
from kafkalog.streaming.records.batch import invalid_checksums

if TYPE_CHECKING:
    from collections.abc import Generator

    from kafkalog.streaming.log.segment import LogSegment

__all__ = [
    "ValidEnd",
    "ends_in_zeros",
    "find_valid_end",
    "is_followed",
    "pass_damage",
    "valid_chunks",
]


class ValidEnd(NamedTuple):
    """What a walk over a segment's batches came to."""

    next_offset: int
    position: int
    """Of the first byte after the valid batches."""
    problem: CorruptRecordError | None
    """What is wrong with that byte and those after it; None if the file ends there."""


def find_valid_end(segment: LogSegment, position: int) -> ValidEnd:
    """Walk from a batch at ``position`` to the first bytes that are no valid batch, or to the end.

    If there is none at ``position`` itself, its offset cannot be known from what follows: the walk
    starts again at the beginning of the segment.
    """
    next_offset, start = segment.base_offset, position
    chunks = valid_chunks(segment, position)
    while True:
        try:
            chunk = next(chunks)
        except StopIteration as stop:
            if position == start and start > 0:
                return find_valid_end(segment, 0)
            return ValidEnd(next_offset, position, stop.value)
        position = chunk.file_position + len(chunk.data)
        next_offset = int(chunk.table.last_offset[-1]) + 1


def pass_damage(segment: LogSegment, end: ValidEnd) -> ValidEnd:
    """Walk on from where a walk ended, as long as a valid batch lies right after a damaged one."""
    while end.problem is not None and is_followed(segment, end.position):
        header = segment.header_at(end.position)
        assert header is not None  # noqa: S101 - it was followed
        end = find_valid_end(segment, end.position + header.size)
    return end


def is_followed(segment: LogSegment, position: int) -> bool:
    """Return whether a valid batch lies right after the invalid one at ``position``.

    If so, the invalid batch is damaged and no torn tail, since nothing follows a torn tail. If its
    size cannot be right, nobody knows where it ends, and the answer is False.
    """
    header = segment.header_at(position)
    if header is None:
        return False
    return next(valid_chunks(segment, position + header.size), None) is not None


def ends_in_zeros(segment: LogSegment, position: int) -> bool:
    """Return whether nothing but zeros follows from a position on, as a preallocated segment has.

    A copy that was made before such a segment was full may have later segments after it.
    """
    for start in range(position, segment.size, CHUNK_BYTES):
        if segment.opened.read(start, CHUNK_BYTES).any():
            return False
    return True


def valid_chunks(
    segment: LogSegment, position: int
) -> Generator[Chunk, None, CorruptRecordError | None]:
    """Read batches forward as long as their lengths, offsets and checksums are right.

    Yields:
        whole, verified batches, about 1 MiB at a time.

    Returns:
        what is wrong with the bytes after them; None if the file ends there.
    """
    try:
        for chunk in segment.chunks(position):
            invalid = invalid_checksums(chunk.data, chunk.table, file_position=chunk.file_position)
            if invalid.any():
                slot = int(invalid.argmax())
                if slot:
                    end = int(chunk.table.position[slot]) - chunk.file_position
                    yield Chunk(chunk.data[:end], chunk.table[:slot], chunk.file_position)
                return _wrong(segment, int(chunk.table.position[slot]), "has a wrong checksum")
            yield chunk
            position = chunk.file_position + len(chunk.data)
    except CorruptRecordError as error:
        return error
    return None if position == segment.size else _wrong(segment, position, "is incomplete")


def _wrong(segment: LogSegment, position: int, reason: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"{segment.path}: the batch at position {position} {reason}",
        path=str(segment.path),
        position=position,
    )
