"""Take bytes out of the middle of a log, or off its end, and lose nothing else if killed.

A segment is rewritten as a broker's cleaner does it: the new files are written with the suffix
``.cleaned``, and swapped in (:mod:`~kafkalog.streaming.log.swap`).

Only a segment that another one follows is rewritten. Writers know nothing of swaps in the last one.

Source: Kafka ``LogLoader``, ``UnifiedLog.truncateTo``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

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
from kafkalog.streaming.log.append.recovery import build_indexes, remove_segment
from kafkalog.streaming.log.files import (
    CLEANED,
    SNAPSHOT,
    TXN_INDEX,
    file_name,
)
from kafkalog.streaming.log.index.txn import TXN_ENTRY, AbortedTransaction, TxnIndex
from kafkalog.streaming.log.log_end import ValidBatches
from kafkalog.streaming.log.producer_state import list_snapshots
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segments import CLEANED_KINDS, list_base_offsets
from kafkalog.streaming.log.swap import replace_segments

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

__all__ = ["rewrite_segment", "truncate_log"]


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


def _remove_leftovers(folder: Path, base_offset: int) -> None:
    for kind in CLEANED_KINDS:
        (folder / (file_name(base_offset, kind) + CLEANED)).unlink(missing_ok=True)
