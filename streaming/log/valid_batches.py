"""Find where the valid batches of a segment end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from kafkalog.errors import CorruptRecordError
from kafkalog.model import MAX_OFFSET
from kafkalog.streaming.log.segment import CHUNK_BYTES, Chunk
from kafkalog.streaming.records.batch import invalid_checksums
from kafkalog.streaming.records.batch_layout import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    HEADER_SIZE,
    MAGIC,
    MAGIC_POSITION,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from kafkalog.streaming.log.segment import LogSegment
    from kafkalog.streaming.records.batch import BatchHeader, BatchTable


__all__ = [
    "MAX_SEGMENT_BYTES",
    "ValidBatches",
    "ValidEnd",
    "ends_in_zeros",
    "find_valid_end",
    "is_followed",
    "matches_checksum",
    "pass_damage",
    "valid_chunks",
]

MAX_SEGMENT_BYTES: Final = 2**31 - 1
"""What a broker's segments and indexes can have: it refuses to open larger ones."""


class ValidEnd(NamedTuple):
    """What a walk over a segment's batches came to."""

    next_offset: int
    position: int
    """Of the first byte after the valid batches."""
    problem: CorruptRecordError | None
    """What is wrong with that byte and those after it; None if the file ends there."""


class ValidBatches:
    """The valid batches of a segment from a position on, in tables of about 2 MiB of log each.

    ``end`` is where those end that were taken so far. What is wrong there, it says after the last.
    """

    def __init__(self, segment: LogSegment, position: int = 0) -> None:
        self._segment = segment
        self.end = ValidEnd(segment.base_offset, position, None)

    def __iter__(self) -> Iterator[BatchTable]:
        for chunk in self.chunks():
            yield chunk.table

    def chunks(self) -> Iterator[Chunk]:
        """Take them together with their bytes."""
        chunks = valid_chunks(self._segment, self.end.position)
        while True:
            try:
                chunk = next(chunks)
            except StopIteration as stop:
                if stop.value is not None:
                    self.end = self.end._replace(problem=stop.value)
                return
            next_offset = int(chunk.table.last_offset[-1]) + 1
            self.end = ValidEnd(next_offset, chunk.file_position + len(chunk.data), None)
            yield chunk

    def to_the_end(self) -> Iterator[BatchTable]:
        """Take them, and refuse bytes after them.

        Raises:
            CorruptRecordError: the file continues with bytes that are no valid batch.
        """
        yield from self
        if self.end.problem is not None:
            raise self.end.problem


def find_valid_end(segment: LogSegment, position: int) -> ValidEnd:
    """Walk from a batch at ``position`` to the first bytes that are no valid batch, or to the end.

    If there is none at ``position`` itself, its offset cannot be known from what follows: the walk
    starts again at the beginning of the segment.
    """
    batches = ValidBatches(segment, position)
    for _ in batches:
        pass
    if batches.end.position == position > 0:
        return find_valid_end(segment, 0)
    return batches.end


def pass_damage(segment: LogSegment, end: ValidEnd) -> ValidEnd:
    """Walk on from where a walk ended, as long as a batch there is damaged, and no torn tail.

    That is one that a valid batch lies right after; or one whose checksum is right, and whose
    header says what cannot be.
    """
    while end.problem is not None:
        header = segment.header_at(end.position)
        if header is None:
            break
        batches = ValidBatches(segment, header.position + header.size)
        for _ in batches:
            pass
        if batches.end.position > header.position + header.size:
            end = batches.end
        elif (
            end.next_offset <= header.offset <= header.last_offset < MAX_OFFSET
            and matches_checksum(segment, header)
        ):
            end = batches.end._replace(next_offset=header.last_offset + 1)
        else:
            break
    return end


def matches_checksum(segment: LogSegment, header: BatchHeader) -> bool:
    """Return whether a batch of magic 2 is as it was written, whatever its header says."""
    data = segment.opened.read(header.position, header.size).data
    if len(data) < max(header.size, HEADER_SIZE) or data[MAGIC_POSITION] != MAGIC:
        return False
    stored = int.from_bytes(data[CRC_POSITION:ATTRIBUTES_POSITION], "big")
    return crc32c(data[ATTRIBUTES_POSITION:]) == stored


def is_followed(segment: LogSegment, position: int) -> bool:
    """Return whether a valid batch lies right after the invalid one at ``position``.

    If so, the invalid batch is damaged and no torn tail, since nothing follows a torn tail. If its
    size cannot be right, its end cannot be told, and the answer is False.
    """
    header = segment.header_at(position)
    if header is None:
        return False
    return next(valid_chunks(segment, position + header.size), None) is not None


def ends_in_zeros(segment: LogSegment, position: int) -> bool:
    """Return whether nothing but zeros follows from a position on, as a preallocated segment has.

    A copy that was made before such a segment was full may have later segments after it. Holes are
    passed over, however large they are. More zeros than fit into a segment are none that a broker
    has set aside (Kafka ``FileRecords``: its size is an int32).
    """
    opened, looked_at = segment.opened, 0
    start = opened.next_data(position)
    while start is not None and start < segment.size:
        if looked_at > MAX_SEGMENT_BYTES or opened.read(start, CHUNK_BYTES).any():
            return False
        looked_at += CHUNK_BYTES
        start = opened.next_data(start + CHUNK_BYTES)
    return True


def valid_chunks(
    segment: LogSegment, position: int
) -> Generator[Chunk, None, CorruptRecordError | None]:
    """Read batches forward as long as their lengths, offsets and checksums are right.

    Yields:
        whole, verified batches, about 2 MiB at a time.

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
