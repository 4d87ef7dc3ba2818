"""Take bytes out of the middle of a log, or off its end, and lose nothing else if killed.

A segment is rewritten as a broker's cleaner does it: the new files are written with the suffix
``.cleaned``, renamed to ``.swap`` one by one, and then to their final names. Up to the last of the
first renames the old segment counts, after it the new one, for readers and for a broker that
starts; either finishes what was cut off.

Only a segment that another one follows is rewritten. Writers know nothing of swaps in the last one.

Source: Kafka ``LocalLog.replaceSegments``, ``LogLoader``, ``UnifiedLog.truncateTo``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.checkpoints.broker import read_leader_epochs, write_leader_epochs
from kafkalog.errors import CorruptIndexError, LogDirectoryError
from kafkalog.files.atomic import write_atomically, write_new
from kafkalog.files.copies import copy_range
from kafkalog.files.regular import (
    create_exclusive,
    fsync_directory,
    open_regular,
    sync,
)
from kafkalog.streaming.log.append.index_rebuild import build_indexes
from kafkalog.streaming.log.append.recovery import remove_segment
from kafkalog.streaming.log.files import (
    CLEANED,
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    parse_base_offset,
)
from kafkalog.streaming.log.index.txn import TXN_ENTRY, AbortedTransaction, TxnIndex
from kafkalog.streaming.log.log_end import ValidBatches, find_valid_end
from kafkalog.streaming.log.producer_state import list_snapshots
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segment_files import list_base_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

__all__ = ["finish_swaps", "rewrite_segment", "truncate_log"]

_KINDS: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX)


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
    _swap_in(old.path, files)


def _swap_in(log: Path, beside: Mapping[Path, bytes]) -> None:
    """Write what lies beside a new log that is written already, and put all of it in place."""
    folder, written = log.parent, log.with_name(log.name + CLEANED)
    for path, content in beside.items():
        write_new(path, content)
    fsync_directory(folder)
    for path in (written, *beside):
        path.rename(path.with_suffix(SWAP))
    fsync_directory(folder)
    finish_swaps(folder)


def finish_swaps(folder: Path) -> None:
    """Finish what a rewriting left that was cut off, as a broker does when it starts.

    Raises:
        LogDirectoryError: a broker's cleaner was about to join segments.
    """
    names = {path.name for path in folder.iterdir()}
    cleaned = [_base(name, CLEANED) for name in names if _base(name, CLEANED) >= 0]
    first_cleaned = min(cleaned, default=None)
    bases = list_base_offsets(folder)
    for name in sorted(names):
        base = _base(name, SWAP)
        if base < 0:
            continue
        if first_cleaned is not None and base >= first_cleaned:
            (folder / name).unlink()
        elif name.endswith(LOG + SWAP):
            _check_single(folder, base, bases)
    for base in cleaned:
        _remove_leftovers(folder, base, (CLEANED,))
    # Indexes first: whoever reads on the way has a log without an index, not with a wrong one.
    swaps = [name for name in names if _base(name, SWAP) >= 0 and (folder / name).exists()]
    for name in sorted(swaps, key=lambda name: name.endswith(LOG + SWAP)):
        (folder / name).rename(folder / name.removesuffix(SWAP))
    if swaps or cleaned:
        fsync_directory(folder)


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
    fsync_directory(folder)


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
        found = os.fstat(reader)  # retention goes by it where there are no timestamps
        os.utime(writer, ns=(found.st_atime_ns, found.st_mtime_ns))
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


def _remove_leftovers(
    folder: Path, base_offset: int, suffixes: Sequence[str] = (CLEANED, SWAP)
) -> None:
    for kind in _KINDS:
        for suffix in suffixes:
            (folder / (file_name(base_offset, kind) + suffix)).unlink(missing_ok=True)


def _base(name: str, suffix: str) -> int:
    """Return the base offset in the name of a file with a suffix; -1 for other names."""
    if not name.endswith(suffix):
        return -1
    found = [parse_base_offset(name.removesuffix(suffix), kind) for kind in _KINDS]
    return next((base for base in found if base is not None), -1)


def _check_single(folder: Path, base_offset: int, bases: Sequence[int]) -> None:
    with LogSegment(folder, base_offset, SWAP) as segment:
        end = find_valid_end(segment, 0).next_offset
    if any(base_offset < base < end for base in bases):
        raise LogDirectoryError(
            f"{folder / file_name(base_offset, LOG)}{SWAP}: a broker's cleaner was about to join "
            "segments when it was killed. Start the broker once, which finishes that"
        )
