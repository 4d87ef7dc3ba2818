"""Walk over the batches of a log, past damage: what ``onCorruptRecord=skip`` does."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkalog.errors import CorruptIndexError, CorruptRecordError
from kafkalog.model import MAX_OFFSET, many
from kafkalog.streaming.log.segment import CHUNK_BYTES, Chunk, ends_with_gap, misplaced
from kafkalog.streaming.log.segments import SegmentListing, leaps_into_higher, retrying
from kafkalog.streaming.records.batch import invalid_checksums, scan_batches
from kafkalog.streaming.records.batch_layout import HEADER_SIZE
from kafkalog.streaming.records.compression import DEFAULT_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from kafkalog.files.open_file import FileIdentity
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.segment import LogSegment
    from kafkalog.streaming.records.batch import BatchTable
    from kafkalog.streaming.records.columns import RecordDecoder


__all__ = ["SUMMARY", "Place", "Salvage", "walk_batches"]


# ----------------------------------------------------------------------------------------------
# Continue after damage: what ``onCorruptRecord=skip`` does, and says.
#
# A batch whose size can be right is left out whole: it has a wrong checksum, records that cannot
# be decoded, a count or offsets that are negative, or offsets that do not fit between its
# neighbours'. Where not even the size can be right, reading continues at the next position that
# the offset index names, or else after the segment. A warning names everything that is left out,
# with its place and what is wrong.


_LOGGER = logging.getLogger("kafkalog.log")

SUMMARY: Final = "skipped damage at"
"""How the warning begins that counts what the others name."""


class Place(NamedTuple):
    """Where something was left out: the base offset of its segment, and a position in that."""

    base_offset: int
    position: int


class Salvage:
    """Finds the sound batches of segments; ``places`` and ``bytes`` count what was left out."""

    def __init__(
        self,
        topic_partition: TopicPartition | None,
        *,
        check_records: bool = True,
        max_decompressed_bytes: int = DEFAULT_LIMIT,
        known: set[Place] | None = None,
    ) -> None:
        """Prepare.

        Args:
            topic_partition: whose segments are read, for warnings; None for no warnings, where
                others read the same and say what they leave out.
            check_records: whether batches with a wrong checksum, or records that cannot be decoded,
                are left out; without, only bytes and offsets that are no batch's are.
            max_decompressed_bytes: a batch that holds more counts as damaged.
            known: places that were counted and warned of before, by others that read the same; what
                is found is added. It grows with the damage.
        """
        self._known = known
        self._topic_partition = topic_partition
        self._decoder = _decoder(max_decompressed_bytes) if check_records else None
        self._last_offset = -1
        self.position = 0
        self.places = 0
        self.bytes = 0
        self.found_any = False
        """Whether anything was left out, known before or not."""
        self._untold: list[Place] = []

    def take_places(self) -> list[Place]:
        """Return the places that were found since this was last asked, in their order."""
        untold, self._untold = self._untold, []
        return untold

    def chunks(
        self, segment: LogSegment, start_position: int, end_position: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the sound batches that start below ``end_position``, in order, piece by piece.

        Unlike ``LogSegment.chunks`` it always gets to the end; ``position`` is where it got to.
        """
        if start_position != self.position or self._last_offset < segment.base_offset:
            self._last_offset = segment.base_offset - 1
        self.position, needed = start_position, 0
        while self.position < (end := min(size := segment.size, end_position or size)):
            rest = size - self.position
            length = min(needed or max(min(CHUNK_BYTES, end - self.position), HEADER_SIZE), rest)
            data = segment.opened.read(self.position, length)
            scan = scan_batches(data, file_position=self.position, path=str(segment.place()))
            needed = 0 if scan.consumed else scan.needed
            if scan.consumed:
                chunk = Chunk(data[: scan.consumed], scan.table, self.position)
                sound = self._sound(segment, chunk)
                self.position += scan.consumed
                if len(sound):
                    yield chunk._replace(table=sound)
            elif scan.invalid_size:
                self._skip_to(segment, self.position + scan.invalid_size, str(scan.invalid))
            elif scan.invalid is not None:
                self._skip_to_known(segment, str(scan.invalid))
            elif not len(data) < needed <= rest:
                self._skip_to_known(segment, f"a batch of {needed} bytes with {rest} bytes left")
                needed = 0

    def report(self) -> None:
        """Say in one line how much was left out, if anything was."""
        if self.places:
            text = f"%s: {SUMMARY} %s, %d bytes in all"
            self._warn(text, many(self.places, "place"), self.bytes)

    # Batches

    def _sound(self, segment: LogSegment, chunk: Chunk) -> BatchTable:
        """Return the batches that may be shown, and warn of the others."""
        table = chunk.table
        if self._decoder is not None:
            bad = invalid_checksums(chunk.data, table, file_position=chunk.file_position)
            for row in np.flatnonzero(bad).tolist():
                self._leave_out(segment, table, row, "its bytes do not match its checksum")
            table = self._decodable(segment, chunk, table[~bad])
        if not len(table):
            return table
        wrong = self._misplaced(segment, table, chunk.file_position + len(chunk.data))
        if wrong.any():
            for row in np.flatnonzero(wrong).tolist():
                self._leave_out(
                    segment, table, row, "its offsets do not fit between its neighbours'"
                )
            table = table[~wrong]
        if len(table):
            self._last_offset = int(table.last_offset[-1])
        return table

    def _decodable(self, segment: LogSegment, chunk: Chunk, table: BatchTable) -> BatchTable:
        """Decode all records once in advance: rows that were given cannot be retracted."""
        assert self._decoder is not None  # noqa: S101 - the caller has looked
        bad = np.zeros(len(table), np.bool_)
        first = 0
        while first < len(table):
            try:
                for _ in self._decoder.decode(
                    chunk.data,
                    table[first:],
                    file_position=chunk.file_position,
                    path=str(segment.path),
                ):
                    pass
                break
            except CorruptRecordError as error:
                row = int(np.searchsorted(table.position, error.position))
                bad[row] = True
                self._leave_out(segment, table, row, str(error))
                first = row + 1
        return table[~bad]

    def _misplaced(self, segment: LogSegment, table: BatchTable, end: int) -> NDArray[np.bool_]:
        """Return which batches do not fit between their neighbours; the next one is at ``end``."""
        following = MAX_OFFSET
        if ends_with_gap(table, self._last_offset):
            if end < segment.size:
                header = segment.header_at(end)
                following = MAX_OFFSET if header is None else header.offset
            elif leaps_into_higher(segment, table[-1:]):
                following = int(table.last_offset[-1])
        return misplaced(table, self._last_offset, following)

    def _leave_out(self, segment: LogSegment, table: BatchTable, row: int, reason: str) -> None:
        if not self._count(segment, int(table.position[row]), int(table.size[row])):
            return
        self._warn(
            "%s: skipped the batch at position %d of %s (offsets %s to %d as its header says, "
            "%d bytes), since onCorruptRecord is skip: %s",
            table.position[row],
            segment.path,
            table.base_offset[row] if table.base_offset[row] >= 0 else "up",
            table.last_offset[row],
            table.size[row],
            reason,
        )

    # Bytes

    def _skip_to_known(self, segment: LogSegment, reason: str) -> None:
        """Continue where the index knows a batch, after bytes without a usable size."""
        for candidate in self._indexed(segment, self.position):
            if _first_offset(segment, candidate) is not None:
                self._skip_to(segment, candidate, reason)
                return
        self._skip_to(segment, segment.size, reason)

    def _skip_to(self, segment: LogSegment, end: int, reason: str) -> None:
        """Continue at a position, after bytes whose header cannot be right."""
        start, self.position = self.position, end
        if not self._count(segment, start, end - start):
            return
        follower = _first_offset(segment, end)
        self._warn(
            "%s: skipped %d bytes at positions %d to %d of %s, with whatever was in them of the "
            "offsets from %d on and below %s, since onCorruptRecord is skip: %s",
            end - start,
            start,
            end,
            segment.path,
            self._last_offset + 1,
            "the next segment's first" if follower is None else follower,
            reason,
        )

    def _indexed(self, segment: LogSegment, position: int) -> list[int]:
        index = segment.offset_index(around_damage=True)
        try:
            entries = None if index is None else index.between(position, segment.size)
        except CorruptIndexError as error:
            self._warn("%s: %s is of no help after damage: %s", segment.path, error)
            entries = None
        return [] if entries is None else entries[:, 1].tolist()

    def _count(self, segment: LogSegment, position: int, size: int) -> bool:
        """Note a place; tells whether nobody has warned of it."""
        place = Place(segment.base_offset, position)
        self._untold.append(place)
        self.found_any = True
        if self._known is not None:
            if place in self._known:
                return False
            self._known.add(place)
        self.places += 1
        self.bytes += size
        return True

    def _warn(self, text: str, *arguments: object) -> None:
        if self._topic_partition is not None:
            _LOGGER.warning(text, self._topic_partition, *arguments)


def _first_offset(segment: LogSegment, position: int) -> int | None:
    """Return the offset that the batch at a position names; None where none can start."""
    header = segment.header_at(position) if position < segment.size else None
    return None if header is None or header.offset < segment.base_offset else header.offset


def _decoder(max_decompressed_bytes: int) -> RecordDecoder:
    # not at import: who only plans a query need not wait for it
    from kafkalog.streaming.records.columns import Columns, RecordDecoder  # noqa: PLC0415

    return RecordDecoder(
        Columns.OFFSET, max_decompressed_bytes=max_decompressed_bytes, check_crcs=False
    )


# ----------------------------------------------------------------------------------------------
# Walk forward over the batches of a log, from segment to segment, whatever happens to the files.
#
# Offsets lead, not files. When a segment ends, the next one is whichever holds the next offset at
# that moment: the segment that follows, or one that a cleaner has made of both.


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
    listing = SegmentListing(directory)
    segment = _segment_of(listing, offset, None) if within is None else within
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
        segment = _segment_of(listing, max(offset, segment.base_offset), done)


def _segment_of(
    listing: SegmentListing, offset: int, done: FileIdentity | None
) -> LogSegment | None:
    """Open the segment that an offset belongs to; if that was just read (``done``), the next one.

    None if there is no such segment.
    """
    return retrying(lambda: _open_segment_of(listing, offset, done), listing.refresh)


def _open_segment_of(
    listing: SegmentListing, offset: int, done: FileIdentity | None
) -> LogSegment | None:
    for segment in listing.segments().from_floor(offset, 2):
        if segment.identity != done:
            return segment
        segment.close()
    return None
