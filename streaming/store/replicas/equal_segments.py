"""Let a replica in sync have the segments that its leader has now, as a cleaner puts them in place.

Readers of the replica notice it as they notice a cleaner of one node: the new files come as
``.cleaned``, and take the place of the old ones in one step
(:mod:`~kafkalog.streaming.log.swap`). Cut off anywhere, the replica has all its records.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from kafkalog.errors import LogDirectoryError
from kafkalog.files.regular import create_exclusive, fsync_directory, open_regular, sync
from kafkalog.files.shield import check_interrupt
from kafkalog.streaming.log.files import CLEANED, LOG, file_name
from kafkalog.streaming.log.segment_files import CLEANED_KINDS, list_base_offsets
from kafkalog.streaming.log.swap import finish_swap, replace_segments
from kafkalog.streaming.store.replicas.copying import copy_bytes, equal_bytes, of_leader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["make_equal"]


class _Group(NamedTuple):
    """Base offsets of neighbouring segments: what the leader has in place of what a replica has."""

    leading: list[int]
    own: list[int]


def make_equal(source: Path, target: Path, start: int, end: int, check: Callable[[], None]) -> None:
    """Replace segments of ``[start, end)`` in the folder ``target`` that differ from the source's.

    REQUIRES: the locks of both are held, and no swap is unfinished in the source. ``check`` is
    called once segments are copied, and raises if what was copied does not count.

    Raises:
        LeaderUnreadableError: a file of the source cannot be read.
        LogDirectoryError: the two logs do not have these offsets both; nothing was changed.
        OSError, CorruptRecordError: a file of the target cannot be read or written.
    """
    finish_swap(target)
    for group in _groups(source, target, start, end):
        check_interrupt()
        if group.leading == group.own and _is_same(source, target, group.own[0]):
            continue
        for base in group.leading:
            _copy_as_cleaned(source, target, base)
        fsync_directory(target)
        check()
        replace_segments(target, group.own, group.leading)


def _groups(source: Path, target: Path, start: int, end: int) -> Iterator[_Group]:
    """Split two logs where both begin a segment."""
    with of_leader(source):
        leading = list_base_offsets(source)
    own = list_base_offsets(target)
    theirs, ours = ([base for base in each if start <= base < end] for each in (leading, own))
    is_sealed = max(leading, default=0) >= end and max(own, default=0) >= end
    if theirs[:1] != ours[:1] or (theirs and not is_sealed):
        raise LogDirectoryError(
            f"{target}: its segments of offsets {start} to {end} are not those of {source}"
        )
    common = [base for base in theirs if base in ours]
    for base, following in zip(common, [*common[1:], end], strict=True):
        yield _Group(*([b for b in each if base <= b < following] for each in (theirs, ours)))


def _is_same(source: Path, target: Path, base: int) -> bool:
    names = [file_name(base, kind) for kind in CLEANED_KINDS]
    return all(_is_same_file(source, source / name, target / name) for name in names)


def _is_same_file(source: Path, leading: Path, own: Path) -> bool:
    one, other = _opened(source, leading), -1
    try:
        try:
            other = open_regular(own)
        except FileNotFoundError:
            return one < 0
        if one < 0:
            return False
        size = os.fstat(one).st_size
        if size != os.fstat(other).st_size:
            return False
        return equal_bytes(source, one, other, size) == size
    finally:
        _close(one, other)


def _copy_as_cleaned(source: Path, target: Path, base: int) -> None:
    for kind in CLEANED_KINDS:
        name = file_name(base, kind)
        reading, writing = _opened(source, source / name, is_needed=kind == LOG), -1
        if reading < 0:
            continue
        try:
            found = os.fstat(reading)
            writing = create_exclusive(target / (name + CLEANED))
            copy_bytes(source, reading, writing, 0, found.st_size)
            # Retention goes by it where there are no timestamps.
            os.utime(writing, ns=(found.st_atime_ns, found.st_mtime_ns))
            sync(writing)
        finally:
            _close(reading, writing)


def _opened(source: Path, path: Path, *, is_needed: bool = False) -> int:
    """Open a file of the leader; -1 of one that it does not have."""
    try:
        with of_leader(source):
            return open_regular(path)
    except FileNotFoundError:
        if is_needed:
            raise
        return -1


def _close(*files: int) -> None:
    for file in files:
        if file >= 0:
            os.close(file)
