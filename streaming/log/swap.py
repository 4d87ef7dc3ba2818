"""Swap segments as the cleaner does, or truncate a log; what a crash cuts off is ended later."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkalog.checkpoints.broker import read_leader_epochs, write_leader_epochs
from kafkalog.errors import CorruptIndexError, LogDirectoryError
from kafkalog.files.atomic import write_atomically, write_new
from kafkalog.files.regular import (
    copy_range,
    create_exclusive,
    fsync_directory,
    open_regular,
    sync,
    try_to_link,
)
from kafkalog.model import MAX_OFFSET
from kafkalog.streaming.log.files import (
    CLEANED,
    DELETED,
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    parse_base_offset,
)
from kafkalog.streaming.log.indexes import TXN_ENTRY, AbortedTransaction, TxnIndex
from kafkalog.streaming.log.producer_state import list_snapshots
from kafkalog.streaming.log.recovery import build_indexes, remove_segment
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segments import CLEANED_KINDS, list_base_offsets, next_offset
from kafkalog.streaming.log.valid_batches import ValidBatches

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path


__all__ = [
    "Removed",
    "bring_in",
    "finish_swap",
    "remove_retired",
    "replace_segments",
    "retire_below",
    "rewrite_segment",
    "truncate_log",
]


# ----------------------------------------------------------------------------------------------
# Replace segments of a log: files that are retired, and swaps that may be cut off.


# ----------------------------------------------------------------------------------------------
# Files of a partition that are dead: renamed to ``.deleted``, and unlinked some time after that.
#
# Whoever has listed or opened a segment meanwhile reads on. Kafka waits for
# ``file.delete.delay.ms`` in the process that renamed them; nothing of ours waits. Files that a
# killed process left go with any later round, by the time of their rename (``ctime``). A broker
# unlinks all of them when it starts.
#
# Source: Kafka ``LogSegment.changeFileSuffixes``, ``LocalLog.deleteSegmentFiles``,
# ``ProducerStateManager.removeAndMarkSnapshotForDeletion``.


_KINDS: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT)
"""In the order in which those of one segment are renamed: without its log it is none."""


class Removed(NamedTuple):
    """How many files were unlinked, and the bytes that they had."""

    files: int = 0
    bytes: int = 0

    def plus(self, more: Removed) -> Removed:
        """Return the sums."""
        return Removed(self.files + more.files, self.bytes + more.bytes)


def retire_below(folder: Path, base_offset: int) -> None:
    """Rename all files of segments below ``base_offset``, the oldest segment first.

    So what is left is a whole log whenever this is cut off. Also takes indexes without a log, which
    that leaves.
    """
    for _, _, name in sorted(_numbered_below(folder, base_offset)):
        with suppress(FileNotFoundError):
            (folder / name).replace(folder / (name + DELETED))


def _numbered_below(folder: Path, base_offset: int) -> list[tuple[int, int, str]]:
    return [
        (base, rank, name)
        for name in (path.name for path in folder.iterdir())
        for rank, kind in enumerate(_KINDS)
        if (base := parse_base_offset(name, kind)) is not None and base < base_offset
    ]


def remove_retired(folder: Path, renamed_before_ms: int) -> Removed:
    """Unlink the files of a folder that were renamed before a time, in ms by the system's clock."""
    files = size = 0
    for path in [path for path in folder.iterdir() if _is_retired(path.name)]:
        with suppress(FileNotFoundError):
            found = path.lstat()
            if found.st_ctime_ns < renamed_before_ms * 1_000_000:
                path.unlink()
                files, size = files + 1, size + found.st_size
    return Removed(files, size)


def _is_retired(name: str) -> bool:
    stem = name.removesuffix(DELETED)
    return stem != name and any(parse_base_offset(stem, kind) is not None for kind in _KINDS)


# ----------------------------------------------------------------------------------------------
# Put new segments in the place of others as Kafka's cleaner does, and end a swap that was cut
# off.
#
# ====  =====================================================================================
# step
# ====  =====================================================================================
# 1     all files of the new segments are in the folder, as ``.cleaned``
# 2     they are renamed to ``.swap``, the highest segment first
# 3     the old segments are renamed to ``.deleted``, the lowest first
# 4     the ``.swap`` files get their final names
# ====  =====================================================================================
#
# Up to the last rename of step 2 the old segments count, after it the new ones: for readers, for
# a broker that starts, and for :func:`finish_swap`.
#
# A loss of power may keep either half of a rename that no fsync of the folder has covered. So the
# log of a segment becomes ``.swap`` durably while its indexes are ``.cleaned``, which makes it
# void; and it gets its final name as a second one (``link``), if the file system can do that.
#
# Source: Kafka ``LocalLog.replaceSegments``, ``LogLoader.load``.


def bring_in(folder: Path, files: Iterable[Path]) -> None:
    """Move files whose names end as those of a segment into a partition's folder, durably.

    There their names end in ``.cleaned``. Readers pass over them; the next session removes them.
    """
    for path in files:
        path.replace(folder / (path.name[-_name_length(path) :] + CLEANED))
    fsync_directory(folder)


def _name_length(path: Path) -> int:
    return len(file_name(0, path.suffix))


def replace_segments(folder: Path, old: Collection[int], new: Sequence[int]) -> None:
    """Let new segments take the place of old ones, durably.

    REQUIRES: the files of the new ones, at least a log and an index of each, are there as
    ``.cleaned``, durably; no other swap was left unfinished; a segment that is none of the old ones
    comes after them.

    Args:
        folder: of the partition.
        old: base offsets of the segments that go.
        new: base offsets of those that come, ascending. The first one is that of the first old one.
    """
    for base in reversed(new):
        _to_swap(folder, base)
    for base in sorted(old):
        for kind in CLEANED_KINDS if base in new else (*CLEANED_KINDS, SNAPSHOT):
            _retire(folder / file_name(base, kind))
    _put_in_place(folder, new)


def _to_swap(folder: Path, base: int) -> None:
    """Let what is ``.cleaned`` of a segment become ``.swap``, durably, its log first."""
    for kinds in (CLEANED_KINDS[:1], CLEANED_KINDS[1:]):
        for kind in kinds:
            path = folder / file_name(base, kind)
            with suppress(FileNotFoundError):
                _with(path, CLEANED).replace(_with(path, SWAP))
        fsync_directory(folder)


def _retire(path: Path) -> None:
    with suppress(FileNotFoundError):
        path.replace(_with(path, DELETED))


def _put_in_place(folder: Path, bases: Collection[int]) -> None:
    """Give ``.swap`` files their final names, durably; what had these names was renamed.

    The log comes last: as long as it is ``.swap``, it counts.
    """
    files = [folder / file_name(base, kind) for base in bases for kind in reversed(CLEANED_KINDS)]
    files = [path for path in files if _with(path, SWAP).exists()]
    for path in files:
        path.unlink(missing_ok=True)
        try_to_link(_with(path, SWAP), path)
    fsync_directory(folder)
    for is_log in (True, False):
        for path in files:
            if (path.suffix == LOG) == is_log:
                _settle(path)
        fsync_directory(folder)


def _settle(path: Path) -> None:
    """Let a file have its final name alone."""
    swap = _with(path, SWAP)
    if _is_same(swap, path):
        swap.unlink()
    else:
        swap.replace(path)


def finish_swap(folder: Path) -> bool:
    """End a swap that was cut off, ours or a broker's, as a broker does that starts; durably.

    REQUIRES: nobody else changes the folder. May be cut off anywhere, and run again.

    Returns:
        whether there was one.

    Raises:
        CorruptRecordError: a log that was to come into its place cannot be read.
    """
    names = [path.name for path in folder.iterdir()]
    cleaned = {name: found[0] for name in names if (found := _numbered(name, CLEANED))}
    swaps = {name: found[0] for name in names if (found := _numbered(name, SWAP))}
    if not cleaned and not swaps:
        return False
    first = min(cleaned.values(), default=MAX_OFFSET)
    void = [name for name, base in swaps.items() if base >= first]
    for each in (void, [*cleaned]):
        for name in each:
            (folder / name).unlink()
        if each:  # a .swap file is void only as long as a .cleaned one lies below
            fsync_directory(folder)
    left = sorted({base for name, base in swaps.items() if name not in void})
    if left:
        logs = [base for base in left if file_name(base, LOG + SWAP) in swaps]
        _retire_replaced(folder, names, logs)
        _put_in_place(folder, left)
    return True


def _retire_replaced(folder: Path, names: Iterable[str], bases: Sequence[int]) -> None:
    """Rename what lies in the range of offsets of new segments, whose logs are ``.swap``."""
    end = 0
    for base in bases:
        with LogSegment(folder, base, SWAP) as segment:
            end = max(end, next_offset(segment))
    for name in names:
        found = _numbered(name, "")
        if found is None:
            continue
        base, kind = found
        is_replaced = base in bases or (bases and bases[0] <= base < end)
        is_new = kind == SNAPSHOT and base in bases
        path = folder / name
        if is_replaced and not is_new and not _is_same(_with(path, SWAP), path):
            _retire(path)


def _numbered(name: str, suffix: str) -> tuple[int, str] | None:
    """Return the base offset and the kind that a name with a suffix tells; None of other names."""
    stem = name.removesuffix(suffix)
    if suffix and stem == name:
        return None
    for kind in (*CLEANED_KINDS, SNAPSHOT):
        base = parse_base_offset(stem, kind)
        if base is not None:
            return base, kind
    return None


def _with(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _is_same(path: Path, other: Path) -> bool:
    try:
        return os.path.samestat(path.lstat(), other.lstat())
    except FileNotFoundError:
        return False


# ----------------------------------------------------------------------------------------------
# Take bytes out of the middle of a log, or off its end, and lose nothing else if killed.
#
# A segment is rewritten as a broker's cleaner does it: the new files are written with the suffix
# ``.cleaned``, and swapped in, as above.
#
# Only a segment that another one follows is rewritten. Writers know nothing of swaps in the last
# one.
#
# Source: Kafka ``LogLoader``, ``UnifiedLog.truncateTo``.


def rewrite_segment(
    folder: Path,
    base_offset: int,
    gone: Sequence[tuple[int, int]],
    lost: Sequence[tuple[int, int]],
    *,
    index_interval_bytes: int,
) -> None:
    """Leave byte ranges out of a segment that another one follows, durably.

    Args:
        folder: of the partition.
        base_offset: of the segment.
        gone: positions ``[start, end)``, ascending, that end with batches.
        lost: offsets ``[start, end)`` that were in them: aborted transactions whose markers were
            there leave the index.
        index_interval_bytes: as the topic's settings say.

    Raises:
        LogDirectoryError: what would be left has damage of its own; nothing has changed.
    """
    old = LogSegment(folder, base_offset)
    _remove_leftovers(folder, base_offset)
    _copy_without(old.path, old.path.with_name(old.path.name + CLEANED), gone)
    with LogSegment(folder, base_offset, CLEANED) as new:
        batches = ValidBatches(new)
        files = build_indexes(new, batches, index_interval_bytes)
        problem = batches.end.problem
        if problem is not None:
            _remove_leftovers(folder, base_offset)
            raise LogDirectoryError(
                f"{old.path}: without what is to go, there would still be damage ({problem}); "
                "name all damaged places of a segment at once"
            )
    entries = _txn_entries(old.file(TXN_INDEX), base_offset, lambda at: not _is_in(at, lost))
    if entries is not None:
        files[new.file(TXN_INDEX)] = entries
    _swap_in(old.path, base_offset, files)


def _swap_in(log: Path, base_offset: int, beside: Mapping[Path, bytes]) -> None:
    """Write what lies beside a new log that is written already, and put all of it in place."""
    for path, content in beside.items():
        write_new(path, content)
    fsync_directory(log.parent)
    replace_segments(log.parent, [base_offset], [base_offset])


def truncate_log(
    folder: Path, base_offset: int, position: int, end: int, *, index_interval_bytes: int
) -> None:
    """Let a log end at a position of a segment, which is offset ``end``; durably.

    Segments after it go, the last one first, and with them what indexes, leader epochs and producer
    snapshots say of offsets from ``end`` on. All batches before the position must be valid.
    """
    for base in reversed(list_base_offsets(folder)):
        if base > base_offset:
            remove_segment(folder, base)
            fsync_directory(folder)
    for offset in list_snapshots(folder):
        if offset > end:
            (folder / file_name(offset, SNAPSHOT)).unlink()
    epochs = read_leader_epochs(folder)
    kept = [epoch for epoch in epochs if epoch.start_offset < end]
    if kept != epochs:
        write_leader_epochs(folder, kept)
    segment = LogSegment(folder, base_offset)
    with segment:
        kept_batches = (table[table.position < position] for table in ValidBatches(segment))
        called_for = build_indexes(segment, kept_batches, index_interval_bytes)
    # The log last: an index that says less than the log is right, one that says more is not.
    for path, content in called_for.items():
        write_atomically(path, content)
    entries = _txn_entries(segment.file(TXN_INDEX), base_offset, lambda at: at < end)
    if entries is not None:
        write_atomically(segment.file(TXN_INDEX), entries)
    descriptor = open_regular(segment.path, os.O_RDWR)
    try:
        os.ftruncate(descriptor, position)
        sync(descriptor)
    finally:
        os.close(descriptor)


def _copy_without(source: Path, target: Path, gone: Sequence[tuple[int, int]]) -> None:
    size = source.stat().st_size
    starts = [0, *(end for _, end in gone)]
    ends = [*(start for start, _ in gone), size]
    reader, writer = open_regular(source), -1
    try:
        writer = create_exclusive(target)
        position = 0
        for start, end in zip(starts, ends, strict=True):
            position += copy_range(reader, start, end - start, writer, position)
        # Retention and searches go by it where there are no timestamps. A segment in which nothing
        # is left is older than all: else a search by time would end at it, in a broker too.
        found = os.fstat(reader)
        os.utime(writer, ns=(found.st_atime_ns, found.st_mtime_ns if position else -1_000_000))
        sync(writer)
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)


def _txn_entries(path: Path, base_offset: int, keeps: Callable[[int], bool]) -> bytes | None:
    """Return the entries of an index of aborted transactions whose markers are kept.

    None if there is no index, or one that cannot be read: readers look into the log then, and so
    does a broker.
    """
    try:
        with TxnIndex(path, base_offset) as index:
            entries: list[AbortedTransaction] = [each for each in index if keeps(each.last_offset)]
    except (FileNotFoundError, CorruptIndexError):
        return None
    return np.array([(0, *each) for each in entries], TXN_ENTRY).tobytes()


def _is_in(offset: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(start <= offset < end for start, end in ranges)


def _remove_leftovers(folder: Path, base_offset: int) -> None:
    for kind in CLEANED_KINDS:
        (folder / (file_name(base_offset, kind) + CLEANED)).unlink(missing_ok=True)
