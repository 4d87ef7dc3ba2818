"""One segment of a partition's log: seek by offset, and read whole batches forward.

Everything is read with ``pread`` from a descriptor opened once: a segment that a cleaner renames or
retention unlinks stays readable until it is closed, and one that is truncated merely ends earlier.

The indexes are hints. What they say is verified at the batch they lead to; a missing, stale or
damaged index costs a scan of the segment and a line in the log, never wrong data.

Source: Kafka ``LogSegment``, ``FileLogInputStream``, ``FileRecords.searchForOffsetWithSize``.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np

from kafkalog.errors import CorruptIndexError, CorruptRecordError
from kafkalog.files.closing import Closing
from kafkalog.files.open_file import open_file
from kafkalog.files.remote_path import RemotePath, place_in
from kafkalog.files.system import once_per_process
from kafkalog.model import MAX_OFFSET
from kafkalog.streaming.log.files import LOG, OFFSET_INDEX, TIME_INDEX, file_name
from kafkalog.streaming.log.indexes import OffsetIndex, TimeIndex
from kafkalog.streaming.records import batch_kernels as kernels
from kafkalog.streaming.records.batch import parse_header, scan_batches
from kafkalog.streaming.records.batch_layout import HEADER_SIZE
from kafkalog.streaming.records.message_sets.reader import MessageSetReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import numpy.typing as npt

    from kafkalog.files.open_file import FileIdentity, OpenFile
    from kafkalog.streaming.records.batch import BatchHeader, BatchTable

    Integers = npt.NDArray[np.int64]

    Bytes = npt.NDArray[np.uint8]

__all__ = ["CHUNK_BYTES", "Chunk", "LogSegment", "ends_with_gap", "first_offsets", "misplaced"]


# ----------------------------------------------------------------------------------------------
# Which batches have offsets that fit: no checksum covers the base offset of a batch.
#
# Offsets ascend through a log, with gaps where compaction has removed records. A batch is damaged
# if its offsets do not follow those before it. It is also damaged if a gap before it or inside of
# it leaps over the next batch, which would fit without it. A gap that nothing after it
# contradicts is a gap.
#
# How far offsets lie from the segment's base offset is no measure: brokers before 2.0 let
# segments span more than 2^31 of them (KAFKA-5413, KAFKA-6264), which their indexes cannot
# express.


def ends_with_gap(table: BatchTable, before: int) -> bool:
    """Return whether offsets are missing before the last one of some batches, or inside of it.

    Args:
        table: n > 0 batches.
        before: the last offset before them.
    """
    previous = before if len(table) == 1 else int(table.last_offset[-2])
    facts = table.facts[-1].tolist()
    base, last = facts[kernels.BASE_OFFSET], facts[kernels.LAST_OFFSET]
    if facts[kernels.MAGIC] < 2:
        return bool(last != previous + 1)
    return bool(base != previous + 1 or last - base + 1 != facts[kernels.COUNT])


def misplaced(table: BatchTable, before: int, after: int) -> npt.NDArray[np.bool_]:
    """Return which batches have offsets that do not fit.

    Args:
        table: n > 0 batches.
        before: the last offset before them.
        after: the first offset after them; ``MAX_OFFSET`` if it is not known.

    Returns:
        bool[n]
    """
    wrong = np.zeros(len(table), np.bool_)
    if len(table) == 1:  # as in many small segments
        column = table.base_offset if table.magic[0] == 2 else table.last_offset
        if before < column[0] and table.last_offset[0] < after:
            return wrong
    first, last = first_offsets(table), table.last_offset
    if last[-1] < after and (first > np.concatenate(([before], last[:-1]))).all():
        return wrong
    following = np.concatenate((first[1:], [after]))
    has_all = _has_all(table)
    for row in range(len(table)):
        has_gap = first[row] != before + 1 or not has_all[row]
        leaps = has_gap and before < following[row] <= last[row]
        wrong[row] = leaps or first[row] <= before
        if not wrong[row]:
            before = int(last[row])
    return wrong


def _has_all(table: BatchTable) -> npt.NDArray[np.bool_]:
    """Return which batches have as many records as offsets; outer messages count as one."""
    has_all: npt.NDArray[np.bool_] = table.last_offset - table.base_offset + 1 == table.count
    return has_all | (table.magic < 2)


def first_offsets(table: BatchTable) -> Integers:
    """Return the first offset of each batch; of outer messages of magic 0 and 1, the only one."""
    return np.where(table.magic == 2, table.base_offset, table.last_offset)


# ----------------------------------------------------------------------------------------------

_LOGGER = logging.getLogger("kafkalog.log")

CHUNK_BYTES: Final = 2 << 20
"""Bytes read at once: what Python does for each costs little beside the decoding.

A worker of Spark's shares its core with the JVM, which has the caches to itself in between: there
such Python costs twice what it costs alone.
"""

_Index = TypeVar("_Index", OffsetIndex, TimeIndex)


class Chunk(NamedTuple):
    """Whole batches, read from one place: ``data`` is uint8[n] and starts at ``file_position``."""

    data: Bytes
    table: BatchTable
    file_position: int


class LogSegment(Closing):
    """The segment of a partition's folder with one base offset.

    Files are opened when first used and stay open until :meth:`close`; use it as a context manager.
    Not thread safe, not picklable. Records are not looked into, and checksums not verified.
    """

    def __init__(
        self, directory: Path, base_offset: int, suffix: str = "", *, prefix: str = ""
    ) -> None:
        """Take a segment whose files' names have these around them; nothing is opened yet."""
        self.directory = directory
        self.base_offset = base_offset
        self._prefix = prefix
        self._suffix = suffix
        self._opened: OpenFile | None = None
        self._indexes: dict[str, OffsetIndex | TimeIndex | None] = {}
        self._contradicted = False

    def __repr__(self) -> str:
        return f"LogSegment({str(self.path)!r})"

    def close(self) -> None:
        """Close what is open; the segment opens again when it is used again."""
        for index in self._indexes.values():
            if index is not None:
                index.close()
        self._indexes.clear()
        self._contradicted = False
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def unopened(self) -> LogSegment:
        """Return the segment of the same name, of which nothing is open."""
        return LogSegment(self.directory, self.base_offset, self._suffix, prefix=self._prefix)

    @cached_property
    def path(self) -> Path:
        """The ``.log`` file."""
        return self.file(LOG)

    def name(self, kind: str = LOG) -> str:
        """Return the name of one of the segment's files, such as ``.index``."""
        return f"{self._prefix}{file_name(self.base_offset, kind)}{self._suffix}"

    def file(self, kind: str) -> Path:
        """Return the path of one of its files."""
        return self.directory / self.name(kind)

    def place(self, kind: str = LOG) -> str | RemotePath:
        """Return the path of one of its files as it is opened and looked at soonest."""
        return place_in(self.directory, self.name(kind))

    @property
    def opened(self) -> OpenFile:
        """The open ``.log`` file.

        Raises:
            FileNotFoundError: the segment is gone.
            LogDirectoryError: a link, FIFO or device has its name.
        """
        if self._opened is None:
            self._opened = open_file(self.place())
        return self._opened

    @property
    def identity(self) -> FileIdentity:
        """Device and inode of the open ``.log`` file."""
        return self.opened.identity

    @property
    def size(self) -> int:
        """Bytes in the ``.log`` file now; a preallocated tail counts."""
        return self.opened.size

    # Indexes

    def offset_index(self, *, around_damage: bool = False) -> OffsetIndex | None:
        """Open the offset index; None, with a warning, if it is missing or contradicts itself.

        None too if an entry contradicted the log, but not with ``around_damage``: there each entry
        is held against the log, and all who pass over the same damage must continue at the same
        batch.
        """
        if self._contradicted and not around_damage:
            return None
        index = self._index(OFFSET_INDEX, OffsetIndex)
        if index:  # one without entries, as of a small segment, has none that lead beyond the log
            try:
                index.limit(self.size)
            except CorruptIndexError as error:
                self._give_up_index(OFFSET_INDEX, error)
                return None
        return index

    def time_index(self) -> TimeIndex | None:
        """Open the time index; None, with a warning, if it is missing or contradicts itself."""
        return self._index(TIME_INDEX, TimeIndex)

    def give_up_time_index(self, reason: str) -> None:
        """Use the time index no more, with a warning: it contradicts the log."""
        self._give_up_index(TIME_INDEX, CorruptIndexError(reason))

    def _index(self, suffix: str, kind: Callable[[Path | str, int], _Index]) -> _Index | None:
        if suffix not in self._indexes:
            # The log first: entries that are written later point into bytes that we do not see.
            _ = self.opened
            try:
                self._indexes[suffix] = kind(self.place(suffix), self.base_offset)
            except (FileNotFoundError, CorruptIndexError) as error:
                self._give_up_index(suffix, error)
        return self._indexes[suffix]  # type: ignore[return-value]

    def _give_up_index(self, suffix: str, error: Exception) -> None:
        index = self._indexes.get(suffix)
        if index is not None:
            index.close()
        self._indexes[suffix] = None
        self._say_not_used(
            suffix, "there is none" if isinstance(error, FileNotFoundError) else str(error)
        )

    def _say_not_used(self, suffix: str, reason: str) -> None:
        if self.size:
            _warn_once(f"{self.file(suffix)}: not used, the segment is scanned instead: {reason}")

    # Seeking

    def floor_position(self, offset: int) -> int:
        """Find a position of a batch such that all batches before it end below ``offset``.

        Costs at most 3 pages of the index near its tail, and one batch header; 0 without an index.
        """
        if not self.size:  # as of most partitions of a large topic: no index is opened for it
            return 0
        index = self.offset_index()
        if index is None:
            return 0
        try:
            entry = index.lookup(offset)
        except CorruptIndexError as error:
            self._give_up_index(OFFSET_INDEX, error)
            return 0
        if entry.position == 0 or self.begins_by(entry.offset, entry.position):
            return entry.position
        self._contradicted = True
        self._say_not_used(
            OFFSET_INDEX,
            f"it has offset {entry.offset} at position {entry.position}, where no batch with "
            "that offset starts",
        )
        return 0

    def begins_by(self, offset: int, position: int) -> bool:
        """Return whether a batch that starts at or below ``offset`` is at ``position``.

        Up to 1.1, brokers wrote the first offset of an append. Of a wrapper the header has the
        last one: there the messages inside tell.
        """
        place = self.place()
        known = place.offset_at(position) if isinstance(place, RemotePath) else None
        if known is not None:
            return self.base_offset <= known <= offset
        header = self.header_at(position)
        if header is None or header.offset < self.base_offset:
            return False
        if header.offset <= offset:
            return True
        return header.is_wrapper and self._first_offset_inside(position) <= offset

    def holds(self, offset: int, last_offset: int) -> bool:
        """Return whether it has a batch with these offsets, or a wrapper that ends there or later.

        Of a wrapper, a cleaner may have removed the last message, which names it.
        """
        with suppress(CorruptRecordError):
            position = self.translate_offset(last_offset)
            header = None if position is None else self.header_at(position)
            return header is not None and (header.is_wrapper or header.offset == offset)
        return False

    def _first_offset_inside(self, position: int) -> int:
        """Open the wrapper at ``position``; beyond all offsets if it cannot be opened."""
        with suppress(CorruptRecordError):
            for chunk in self.chunks(position, position + 1, HEADER_SIZE):
                facts = MessageSetReader().wrapper_facts(
                    chunk.data, chunk.table[:1], file_position=position, path=str(self.path)
                )
                return int(facts.base_offset[0])
        return MAX_OFFSET

    def end_position(self, offset: int) -> int:
        """Find a position from which on all offsets are at or above ``offset``, by the index.

        It is a bound for reading, close to the batch that ends the range; the size of the file if
        the index does not reach so far.
        """
        index = self.offset_index()
        try:
            position = None if index is None else index.end_position(offset)
        except CorruptIndexError as error:
            self._give_up_index(OFFSET_INDEX, error)
            position = None
        return self.size if position is None else position

    def translate_offset(self, offset: int) -> int | None:
        """Find the position of the first batch whose last offset is at or above ``offset``.

        None if the segment has no such batch: its last offsets may be gone by compaction.

        Raises:
            CorruptRecordError: bytes on the way there are no whole batch.
        """
        position = self.floor_position(offset)
        if position == 0 and self.offset_index() is None:
            return self._scan_for(offset)
        for header in self.headers(position):
            if header.last_offset >= offset:
                return header.position
            position = header.position + header.size
        self.refuse_rest(position)
        return None

    def _scan_for(self, offset: int) -> int | None:
        position = 0
        for chunk in self.chunks(0):
            slot = int((chunk.table.last_offset >= offset).argmax())
            if chunk.table.last_offset[slot] >= offset:
                return int(chunk.table.position[slot])
            position = chunk.file_position + len(chunk.data)
        self.refuse_rest(position)
        return None

    def refuse_rest(self, position: int) -> None:
        """Refuse bytes from ``position`` on, where a walk ended that found no whole batch.

        Raises:
            CorruptRecordError: there are such bytes.
        """
        for _ in self.chunks(position):
            return
        if position < self.size:
            raise CorruptRecordError(
                f"{self.path}: {self.size - position} bytes from position {position} to the end "
                "of the file are no whole batch",
                path=str(self.path),
                position=position,
            )

    # Reading

    def header_at(self, position: int) -> BatchHeader | None:
        """Read the header of the batch at ``position``; None if no whole batch can be there."""
        if position < 0:  # as a damaged index may say
            return None
        remaining = self.size - position
        return parse_header(self.opened.peek(position, HEADER_SIZE), position, remaining)

    def headers(self, position: int) -> Iterator[BatchHeader]:
        """Walk batch headers from ``position`` on, up to the first bytes that are no whole batch.

        One small read for each batch: for the few between an index entry and its neighbour.
        """
        while (header := self.header_at(position)) is not None:
            yield header
            position += header.size

    def chunks(
        self, start_position: int, end_position: int | None = None, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[Chunk]:
        """Read whole batches forward, about ``chunk_bytes`` at a time.

        The batch that straddles ``end_position`` is the last one; None reads to the end of the
        file. A batch larger than ``chunk_bytes`` comes alone: memory grows for one batch, and never
        beyond what the file still has. The generator ends without a word where the file ends inside
        a batch: the caller sees it by the position it got to.

        Raises:
            CorruptRecordError: bytes that cannot be a batch; the batches before them were yielded.
        """
        position, needed, last_offset = start_position, 0, self.base_offset - 1
        data = None
        size = self.size
        self.opened.will_read(position, size if end_position is None else min(end_position, size))
        while position < (end := size if end_position is None else min(end_position, size)):
            # At least a header, though it may lie beyond the end asked for.
            length = needed or max(min(chunk_bytes, end - position), HEADER_SIZE)
            del data  # who has let go of the last chunk needs memory for one
            data = self.opened.read(position, min(length, size - position))
            scan = scan_batches(data, file_position=position, path=str(self.place()))
            if scan.consumed:
                ordered = self._count_ordered(scan.table, position + scan.consumed, last_offset)
                if ordered < len(scan.table):
                    yield from self._chunk(data, scan.table[:ordered], position)
                    raise self.disorder(scan.table[ordered : ordered + 1])
                yield Chunk(data[: scan.consumed], scan.table, position)
                position += scan.consumed
                last_offset = int(scan.table.last_offset[-1])
            if scan.invalid is not None:
                raise scan.invalid
            size = self.size  # it may have grown
            needed = 0 if scan.consumed else scan.needed
            if not scan.consumed and not len(data) < needed <= size - position:
                return

    def _chunk(self, data: Bytes, table: BatchTable, position: int) -> Iterator[Chunk]:
        if len(table):
            yield Chunk(data[: int(table.size.sum())], table, position)

    def _count_ordered(self, table: BatchTable, end_position: int, last_offset: int) -> int:
        """Count the batches up to the first one whose offsets do not fit between its neighbours'.

        The batch at ``end_position`` is only asked where one leaps.
        """
        has_gap = ends_with_gap(table, last_offset)
        if len(table) == 1 and not has_gap:
            return 1
        following = self.header_at(end_position) if has_gap and end_position < self.size else None
        wrong = misplaced(table, last_offset, MAX_OFFSET if following is None else following.offset)
        return int(wrong.argmax()) if wrong.any() else len(table)

    def disorder(self, batch: BatchTable) -> CorruptRecordError:
        """Make the error about a batch, a table of one, whose offsets do not fit where it lies."""
        position, base = int(batch.position[0]), int(batch.base_offset[0])
        return CorruptRecordError(
            f"{self.path}: the batch at position {position} has offsets {base} to "
            f"{batch.last_offset[0]}, which do not fit between those before it and those after "
            f"it in the segment with base offset {self.base_offset}",
            path=str(self.path),
            position=position,
            offset=base,
        )


@once_per_process
def _warn_once(message: str) -> None:
    """Say the same about the same file once, though every query opens it again."""
    _LOGGER.warning("%s", message)
