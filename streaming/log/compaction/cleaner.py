"""One round of compaction: fill the map of offsets, filter batches, write segments."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkalog.errors import ChecksumMismatchError
from kafkalog.files.atomic import write_new
from kafkalog.files.closing import Closing
from kafkalog.files.regular import create_exclusive, sync, write_all
from kafkalog.streaming.log.compaction.batch_filter import (
    BatchFilter,
    FilterRules,
    Scratch,
    find_records,
)
from kafkalog.streaming.log.compaction.cleanable import (
    SourceSegment,
    group_segments,
)
from kafkalog.streaming.log.compaction.transactions import CleanedTransactions
from kafkalog.streaming.log.files import LOG, TXN_INDEX, file_name
from kafkalog.streaming.log.indexes import TXN_ENTRY, AbortedTransaction
from kafkalog.streaming.log.read.transactions import AbortedTransactions
from kafkalog.streaming.log.recovery import build_indexes
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segments import LogSegments
from kafkalog.streaming.log.valid_batches import ValidBatches
from kafkalog.streaming.records.batch import invalid_checksums

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from kafkalog.streaming.log.compaction.batch_filter import Piece, Records
    from kafkalog.streaming.log.compaction.cleanable import Cleanable
    from kafkalog.streaming.log.compaction.offset_map import OffsetMap
    from kafkalog.streaming.log.compaction.transactions import LastRecords
    from kafkalog.streaming.log.segment import Chunk
    from kafkalog.streaming.options.topic_settings import LogConfig
    from kafkalog.streaming.records.arrow_buffers import Integers


__all__ = [
    "CleanedGroup",
    "CleanedLog",
    "CleanedSegment",
    "SegmentWriter",
    "build_offset_map",
    "checked_chunks",
    "clean_log",
]


# ----------------------------------------------------------------------------------------------
# Batches that a cleaner may rely upon: a damaged log is not cleaned.


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


# ----------------------------------------------------------------------------------------------
# Fill the map of offsets from the dirty part of a log.
#
# Source: Kafka ``Cleaner.buildOffsetMap``.


def build_offset_map(
    directory: Path,
    dirty: Sequence[LogSegment],
    start: int,
    end: int,
    offsets: OffsetMap,
    progress: Callable[[int], object] = lambda _: None,
) -> None:
    """Let a map have the last offset of each key from ``start`` on, until it is full.

    Control batches and those of aborted transactions are left out. ``offsets.latest_offset``
    becomes how far the map speaks of the log: ``end - 1``, or less if it is full.

    Args:
        directory: the partition's folder.
        dirty: its segments from the one that holds ``start`` on, all of them below ``end``.
        start: the first offset wanted.
        end: where the last segment ends.
        offsets: is cleared first.
        progress: see :func:`~kafkalog.streaming.log.compaction.cleaner.checked_chunks`.

    Raises:
        CorruptRecordError: bytes that are no sound batch.
    """
    offsets.clear()
    builder = _Builder(directory, start, offsets)
    ends = [*(segment.base_offset for segment in dirty[1:]), end]
    for segment, segment_end in zip(dirty, ends, strict=True):
        with segment:
            for chunk in checked_chunks(segment, segment.floor_position(start), progress):
                if not builder.add(segment, chunk):
                    return
        # There may be a gap before the next segment.
        offsets.pass_to(segment_end - 1)


class _Builder:
    def __init__(self, directory: Path, start: int, offsets: OffsetMap) -> None:
        self._aborted = AbortedTransactions(directory)
        self._start = start
        self._offsets = offsets
        self._scratch = Scratch()

    def add(self, segment: LogSegment, chunk: Chunk) -> bool:
        """Add the next batches; False if the map is full."""
        chunk = chunk._replace(table=chunk.table[chunk.table.last_offset >= self._start])
        table = chunk.table
        if not len(table):
            return True
        data = ~table.is_control & ~table.is_emptied & ~self._aborted.mask(segment, table)
        rows = np.flatnonzero(data)
        done = 0
        for records in find_records(
            *(chunk.data, table[rows], self._scratch),
            file_position=chunk.file_position,
            path=str(segment.path),
        ):
            self._note_odd(records)
            first = int(np.searchsorted(records.offsets, self._start))
            columns = (records.key_starts, records.key_lengths, records.offsets)
            taken = first + self._offsets.put(
                records.source, *(np.ascontiguousarray(column[first:]) for column in columns)
            )
            if taken < len(records.offsets):
                batch = int(np.searchsorted(records.firsts, taken, side="right")) - 1
                self._pass_before(table.last_offset, int(rows[done + batch]))
                return False
            done += len(records.table)
        self._offsets.pass_to(int(table.last_offset[-1]))
        return True

    def _note_odd(self, records: Records) -> None:
        """Say of which batches the map alone cannot tell that nothing stays of them.

        They have records without a key, which are to be counted, or at offsets that are not between
        the batch's own.
        """
        table, firsts, offsets = records.table, records.firsts, records.offsets
        lasts = np.append(firsts[1:], len(offsets)) - 1
        odd = (offsets[firsts] < table.base_offset) | (offsets[lasts] > table.last_offset)
        if (records.key_lengths < 0).any():
            odd |= np.logical_or.reduceat(records.key_lengths < 0, firsts)
        if not (np.diff(offsets) > 0).all():
            odd[:] = True
        if odd.any():
            rows = np.flatnonzero(odd)
            first, last = table.base_offset[rows[0]], table.last_offset[rows[-1]]
            self._offsets.leave_to_keys(int(first), int(last))

    def _pass_before(self, last_offsets: Integers, row: int) -> None:
        """Say that all batches before the one in a row were looked at."""
        if row and last_offsets[row - 1] > self._offsets.latest_offset:
            self._offsets.pass_to(int(last_offsets[row - 1]))


# ----------------------------------------------------------------------------------------------
# Cleaned segments, as they are written into a folder that nobody else looks at.
#
# A log gets its indexes when it is complete, from its batches as they lie on the disk: what was
# written is read again, checksums and all, before anything is replaced by it.


_INT_MAX: Final = 2**31 - 1
"""What a segment may have of bytes, and its last offset above its base offset."""


class CleanedSegment(NamedTuple):
    """A segment that is complete and durable."""

    base_offset: int
    size: int
    files: tuple[Path, ...]
    """Its log, its offset and time index, and where it has one its index of aborted transactions;
    all of them have their final names, with the writer's prefix."""


class SegmentWriter(Closing):
    """Writes what a group of segments becomes: one segment, or more if offsets leave no choice.

    Use it as a context manager; what is open then is closed. Not thread safe.
    """

    def __init__(
        self,
        folder: Path,
        base_offset: int,
        *,
        index_interval_bytes: int,
        modified_ns: int,
        prefix: str = "",
    ) -> None:
        """Create the log of the first segment.

        Args:
            folder: where the files go.
            base_offset: of the first segment.
            index_interval_bytes: as the topic's settings say.
            modified_ns: the time of change that the logs get; retention may go by it.
            prefix: what the names of the files begin with.

        Raises:
            FileExistsError: there is one already.
        """
        self._folder = folder
        self._prefix = prefix
        self._interval = index_interval_bytes
        self._modified_ns = modified_ns
        self._done: list[CleanedSegment] = []
        self._entries: list[AbortedTransaction] = []
        self._next_offset = base_offset
        self._descriptor = -1
        self._open(base_offset)

    def append(self, piece: Piece) -> None:
        """Add batches; a new segment begins where the offsets of these do not fit the open one."""
        too_wide = piece.last_offset - self._base_offset > _INT_MAX
        if self._size and (too_wide or self._size + len(piece.data) > _INT_MAX):
            first = max(piece.first_offset, self._next_offset)
            self._complete()
            self._open(first)
        write_all(self._descriptor, piece.data, self._size)
        self._size += len(piece.data)
        self._next_offset = piece.last_offset + 1

    def add_aborted(self, entries: list[AbortedTransaction]) -> None:
        """Note aborted transactions whose markers were added last."""
        self._entries += entries

    def finish(self) -> tuple[CleanedSegment, ...]:
        """Complete the open segment and return all of them.

        Raises:
            CorruptRecordError: what was written cannot be read.
        """
        self._complete()
        return tuple(self._done)

    def _open(self, base_offset: int) -> None:
        self._base_offset, self._size = base_offset, 0
        name = self._prefix + file_name(base_offset, LOG)
        self._descriptor = create_exclusive(self._folder / name)

    def _complete(self) -> None:
        os.utime(self._descriptor, ns=(self._modified_ns, self._modified_ns))
        sync(self._descriptor)
        self.close()
        with LogSegment(self._folder, self._base_offset, prefix=self._prefix) as segment:
            batches = ValidBatches(segment)
            beside = build_indexes(segment, batches, self._interval)
            if batches.end.problem is not None:
                raise batches.end.problem
            path = segment.path
        end = self._next_offset
        entries = [entry for entry in self._entries if entry.last_offset < end]
        self._entries = [entry for entry in self._entries if entry.last_offset >= end]
        if entries:
            content = np.array([(0, *entry) for entry in entries], TXN_ENTRY).tobytes()
            beside[path.with_suffix(TXN_INDEX)] = content
        for file, content in beside.items():
            write_new(file, content)
        self._done.append(CleanedSegment(self._base_offset, self._size, (path, *beside)))

    def close(self) -> None:
        """Close the log that is open; closing twice does no harm."""
        descriptor, self._descriptor = self._descriptor, -1  # forgotten before it is closed
        if descriptor >= 0:
            os.close(descriptor)


# ----------------------------------------------------------------------------------------------
# One round of compaction: what a partition's segments become, written beside them.
#
# Nothing in the partition's folder changes. The caller replaces segments, and repeats the round
# where the map of offsets was full before all of the dirty part was in it.
#
# Source: Kafka ``Cleaner.doClean``, ``Cleaner.cleanSegments``.


_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class CleanedGroup:
    """Neighbouring segments, and what is to replace them: one segment in all but odd logs."""

    sources: tuple[SourceSegment, ...]
    segments: tuple[CleanedSegment, ...]


@dataclass(frozen=True, slots=True)
class CleanedLog:
    """What a round came to."""

    clean_to: int
    """The offset below which the log is clean once the groups are in place."""
    is_complete: bool
    """Whether that is all that could be cleaned; else the map was full."""
    groups: tuple[CleanedGroup, ...]
    keyless: int
    """Records that go because they have no key."""

    @property
    def bytes_before(self) -> int:
        """Bytes of the logs that are replaced."""
        return sum(source.size for group in self.groups for source in group.sources)

    @property
    def bytes_after(self) -> int:
        """Bytes of the logs that replace them."""
        return sum(segment.size for group in self.groups for segment in group.segments)


def clean_log(
    directory: Path,
    output: Path,
    cleanable: Cleanable,
    config: LogConfig,
    *,
    offsets: OffsetMap,
    last_records: LastRecords,
    now_ms: int,
    prefix: str = "",
    progress: Callable[[int], object] = lambda _: None,
) -> CleanedLog:
    """Clean a partition's log once and write the result into durable files in another folder.

    Args:
        directory: the partition's folder.
        output: a folder for segments with their final names, which the caller makes durable.
        cleanable: how far.
        config: the topic's settings.
        offsets: a map to be used.
        last_records: those of the active producers of the whole log.
        now_ms: the time, from which ``delete.retention.ms`` counts.
        prefix: what the names of the files begin with.
        progress: see :func:`~kafkalog.streaming.log.compaction.cleaner.checked_chunks`.

    Raises:
        CorruptRecordError: the log is damaged where it was to be cleaned.
        FileNotFoundError: a segment went away meanwhile.
    """
    start, end = cleanable.first_dirty_offset, cleanable.end_offset
    dirty, found = _listed(directory, start, end)
    if not dirty:
        return CleanedLog(start, is_complete=True, groups=(), keyless=0)
    build_offset_map(directory, dirty, start, end, offsets, progress)
    clean_to = offsets.latest_offset + 1
    sources = [source for source in found if source.base_offset < clean_to]
    rules = _rules(sources, cleanable, config, last_records, now_ms)
    new_segment = partial(SegmentWriter, output, prefix=prefix)
    cleaner = _Cleaner(directory, new_segment, config, offsets, rules, progress)
    return CleanedLog(clean_to, clean_to >= end, cleaner.clean(sources), cleaner.keyless)


class _Cleaner:
    def __init__(
        self,
        directory: Path,
        new_segment: Callable[..., SegmentWriter],
        config: LogConfig,
        offsets: OffsetMap,
        rules: FilterRules,
        progress: Callable[[int], object],
    ) -> None:
        self._directory = directory
        self._new_segment = new_segment
        self._progress = progress
        self._config = config
        self._rules = rules
        self._transactions = CleanedTransactions(directory)
        self._filter = BatchFilter(offsets, rules, self._transactions)

    @property
    def keyless(self) -> int:
        return self._filter.keyless

    def clean(self, sources: Sequence[SourceSegment]) -> tuple[CleanedGroup, ...]:
        """Write what the segments become, group by group."""
        groups = group_segments(
            sources,
            max_size=self._config.segment_bytes,
            max_index_size=self._config.segment_index_bytes,
            end_offset=self._rules.end_offset,
        )
        return tuple(self._clean_group(group) for group in groups)

    def _clean_group(self, group: Sequence[SourceSegment]) -> CleanedGroup:
        with self._new_segment(
            group[0].base_offset,
            index_interval_bytes=self._config.index_interval_bytes,
            modified_ns=group[-1].modified_ns,
        ) as writer:
            for source in group:
                self._take(source, writer)
            return CleanedGroup(tuple(group), writer.finish())

    def _take(self, source: SourceSegment, writer: SegmentWriter) -> None:
        keep_tombstones = source.modified_ns // _NS_PER_MS > self._rules.legacy_horizon_ms
        with LogSegment(self._directory, source.base_offset) as segment:
            for chunk in checked_chunks(segment, 0, self._progress):
                pieces = list(
                    self._filter.pieces(segment, chunk, keep_legacy_tombstones=keep_tombstones)
                )
                writer.add_aborted(self._transactions.take_kept())
                for piece in pieces:
                    writer.append(piece)


def _listed(directory: Path, start: int, end: int) -> tuple[LogSegments, list[SourceSegment]]:
    """Give the dirty segments, and all up to their end as they are before any of them is read.

    So the caller notices what replaces one of them meanwhile.
    """
    listed = LogSegments.of(directory)
    dirty = listed.between(start, end)
    return dirty, [_look(segment) for segment in listed.between(0, end)] if dirty else []


def _look(segment: LogSegment) -> SourceSegment:
    with segment:
        return SourceSegment.of(segment)


def _rules(
    sources: Sequence[SourceSegment],
    cleanable: Cleanable,
    config: LogConfig,
    last_records: LastRecords,
    now_ms: int,
) -> FilterRules:
    retention_ms = config.delete_retention_ms
    horizon_ms = _legacy_horizon(sources, cleanable.first_dirty_offset, retention_ms)
    return FilterRules(now_ms, retention_ms, cleanable.end_offset, horizon_ms, last_records)


def _legacy_horizon(sources: Sequence[SourceSegment], dirty: int, retention_ms: int) -> int:
    """Return up to when a segment of magic 0 or 1 must be written for its tombstones to go, ms."""
    before = [source for source in sources if source.base_offset < dirty]
    return before[-1].modified_ns // _NS_PER_MS - retention_ms if before else 0
