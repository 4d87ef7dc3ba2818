"""Truncate, delete, start or re-index one segment; who calls decides where it is cut.

Recovery cuts where the valid batches end, and makes the indexes anew.

Indexes are replaced by a rename, so that readers keep the old one, or have the new one whole.

Source: Kafka ``LogSegment.recover``, ``LogSegment.truncateTo``.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.errors import CorruptRecordError, LogDirectoryError
from kafkalog.files.atomic import write_atomically
from kafkalog.files.regular import open_regular, read_regular, replace_end, sync
from kafkalog.streaming.log.files import LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, file_name
from kafkalog.streaming.log.growth import SegmentGrowth, index_segment, load_segment_state
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.log.valid_batches import ValidBatches

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kafkalog.streaming.log.valid_batches import ValidEnd
    from kafkalog.streaming.records.batch import BatchTable

    Looks = dict[str, os.stat_result]

__all__ = [
    "RebuiltSegment",
    "build_indexes",
    "correct_indexes",
    "correct_indexes_of_sound",
    "cut_segment",
    "inspect_segment",
    "rebuild_partition",
    "recover_segment",
    "remove_segment",
    "start_segment",
    "wrong_indexes",
]


# ----------------------------------------------------------------------------------------------
# Rebuild a partition's sparse indexes from its log, on request.
#
# Readers do without indexes, and appending corrects those of the active segment. This is for the
# other segments: of a copy without indexes, or with indexes of another moment, and of a damaged
# disk. The indexes become what Kafka 4.1's recovery makes of the same batches. Indexes of aborted
# transactions and producer snapshots are not touched: without them, readers look into the log.
#
# Source: Kafka ``LogSegment.recover``.


_MAX_BYTES: Final = 1 << 30


class RebuiltSegment(NamedTuple):
    """What was done about the indexes of the segment in ``log``."""

    log: Path
    replaced: tuple[Path, ...]
    """The indexes that held something else, or were missing."""
    problem: CorruptRecordError | None
    """What ends the valid batches before the end of the file, if anything does."""


def rebuild_partition(
    directory: Path, *, index_interval_bytes: int = 4096, fsync: bool = True
) -> list[RebuiltSegment]:
    """Rebuild the offset and time indexes of a partition's segments; each is replaced by a rename.

    The caller makes sure that nobody writes there meanwhile. A rebuilt index would end at damage.
    An existing one stays then, since it may lead readers beyond the damage.

    Raises:
        UnknownTopicOrPartitionError: the folder is gone.
        LogDirectoryError: a link, FIFO or device has the name of a segment or an index.
    """
    bases = list_base_offsets(directory)
    return [_rebuild(directory, base, index_interval_bytes, fsync=fsync) for base in bases]


def build_indexes(
    segment: LogSegment, batches: Iterable[BatchTable], index_interval_bytes: int
) -> dict[Path, bytes]:
    """Return what the sparse indexes of a segment with these batches should hold, by path."""
    built = index_segment(segment.base_offset, batches, index_interval_bytes)
    return {
        segment.file(OFFSET_INDEX): built.index_entries,
        segment.file(TIME_INDEX): built.time_index_entries,
    }


def _rebuild(
    directory: Path, base_offset: int, index_interval_bytes: int, *, fsync: bool
) -> RebuiltSegment:
    with LogSegment(directory, base_offset) as segment:
        batches = ValidBatches(segment)
        called_for = build_indexes(segment, batches, index_interval_bytes)
        problem, replaced = batches.end.problem, []
        for path, entries in called_for.items():
            present = _content(path)
            stays = present is not None and problem is not None
            if present != entries and not stays:
                write_atomically(path, entries, fsync=fsync)
                replaced.append(path)
        return RebuiltSegment(segment.path, tuple(replaced), problem)


def _content(path: Path) -> bytes | None:
    """Return what an index holds; None if there is none, b"" of one that no segment calls for."""
    try:
        return b"" if path.stat().st_size > _MAX_BYTES else read_regular(path, limit=_MAX_BYTES)
    except FileNotFoundError:
        return None


# ----------------------------------------------------------------------------------------------


def recover_segment(
    directory: Path, base_offset: int, *, index_interval_bytes: int, fsync: bool = True
) -> ValidEnd:
    """Check a whole segment, cut what follows its last valid batch, and rebuild its indexes.

    Returns:
        where the valid batches ended, and what was wrong with the bytes that were cut.
    """
    with LogSegment(directory, base_offset) as segment:
        batches = ValidBatches(segment)
        called_for = build_indexes(segment, batches, index_interval_bytes)
        if batches.end.problem is not None:
            _replace_end(segment.path, batches.end.position, b"", fsync=fsync)
    for path, entries in called_for.items():
        write_atomically(path, entries, fsync=fsync)
    return batches.end


def correct_indexes(
    directory: Path, base_offset: int, *, index_interval_bytes: int, fsync: bool = True
) -> list[Path]:
    """Replace the sparse indexes of a segment that do not hold what its batches call for.

    The indexes of an active segment are not fsynced with each commit, and a loss of power may leave
    any part of what was written to them.

    Returns:
        the files that were replaced, or made.

    Raises:
        CorruptRecordError: a batch is damaged. The indexes are left as they are: by them alone the
            batches after it are found.
    """
    wrong = wrong_indexes(directory, base_offset, index_interval_bytes=index_interval_bytes)
    for path, entries in wrong.items():
        write_atomically(path, entries, fsync=fsync)
    return list(wrong)


def correct_indexes_of_sound(
    directory: Path, base_offset: int, *, index_interval_bytes: int
) -> None:
    """Correct the indexes of a segment as :func:`correct_indexes` does; leave a damaged one alone.

    For writers, which need not report damage: readers and ``verify`` find it.
    """
    with suppress(CorruptRecordError):
        correct_indexes(directory, base_offset, index_interval_bytes=index_interval_bytes)


def wrong_indexes(
    directory: Path, base_offset: int, *, index_interval_bytes: int
) -> dict[Path, bytes]:
    """Return the indexes that :func:`correct_indexes` would replace, and what they should hold.

    Changes nothing.

    Raises:
        CorruptRecordError: see there.
    """
    with LogSegment(directory, base_offset) as segment:
        batches = ValidBatches(segment).to_the_end()
        called_for = build_indexes(segment, batches, index_interval_bytes)
    return {path: entries for path, entries in called_for.items() if not _holds(path, entries)}


def _holds(path: Path, entries: bytes) -> bool:
    try:
        return (
            path.stat().st_size == len(entries)
            and read_regular(path, limit=len(entries)) == entries
        )
    except FileNotFoundError:
        return False


def cut_segment(
    directory: Path,
    base_offset: int,
    size: int,
    *,
    index_interval_bytes: int,
    fsync: bool = True,
    looked_at: Looks | None = None,
) -> None:
    """Cut a segment's log to ``size`` bytes, which end with a batch, and its indexes with it.

    The indexes are then what they were when the log had that size. Also takes the zeros off files
    that a broker preallocated. If the files that were ``looked_at`` are given, no others are
    written to: another host may have put them there.

    Raises:
        CorruptRecordError: the log does not end with a valid batch at ``size``; nothing but its
            length has changed.
        LogDirectoryError: a file is another one than was looked at.
    """
    with LogSegment(directory, base_offset) as segment:
        if segment.size > size:
            _replace_end(segment.path, size, b"", fsync=fsync, looked_at=looked_at)
        rest = SegmentGrowth(
            load_segment_state(segment, index_interval_bytes), index_interval_bytes
        )
        indexes = rest.close(seals=False)
        for suffix, position, entries in (
            (OFFSET_INDEX, indexes.index_position, indexes.index_entries),
            (TIME_INDEX, indexes.time_index_position, indexes.time_index_entries),
        ):
            if position == 0:
                write_atomically(segment.file(suffix), entries, fsync=fsync)
            else:
                path = segment.file(suffix)
                _replace_end(path, position, entries, fsync=fsync, looked_at=looked_at)


def remove_segment(directory: Path, base_offset: int) -> None:
    """Unlink what there is of a segment, its log last: until then it is known to exist."""
    segment = LogSegment(directory, base_offset)
    for suffix in (TXN_INDEX, TIME_INDEX, OFFSET_INDEX, LOG):
        segment.file(suffix).unlink(missing_ok=True)


def start_segment(directory: Path, base_offset: int) -> None:
    """Make the files of an empty segment, its log last; files with these names are replaced.

    Whoever still has one of those open writes into a file that no longer has a name.
    """
    for suffix in (OFFSET_INDEX, TIME_INDEX, LOG):
        write_atomically(directory / file_name(base_offset, suffix), b"", fsync=False)


def inspect_segment(directory: Path, base_offset: int) -> Looks:
    """Return which files a segment has now, for who changes them after a proof of its locks."""
    looks: Looks = {}
    for suffix in (LOG, OFFSET_INDEX, TIME_INDEX):
        path = directory / file_name(base_offset, suffix)
        with suppress(FileNotFoundError):
            looks[path.name] = path.lstat()
    return looks


def _replace_end(
    path: Path, position: int, entries: bytes, *, fsync: bool, looked_at: Looks | None = None
) -> None:
    """Let a file end with ``entries`` at ``position``."""
    descriptor = open_regular(path, os.O_RDWR)
    try:
        if looked_at is not None:
            before = looked_at.get(path.name)
            if before is None or not os.path.samestat(before, os.fstat(descriptor)):
                raise LogDirectoryError(
                    f"{path}: is another file than when it was looked at: another host was given "
                    "the locks, and has recovered the log. Nothing was written to it"
                )
        replace_end(descriptor, position, entries)
        if fsync:
            sync(descriptor)
    finally:
        os.close(descriptor)
