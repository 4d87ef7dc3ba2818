"""Copy the partitions of a log directory that is written to meanwhile.

A file is copied once, and again only if it has changed. Logs grow at their ends, so only the new
part of one that has grown is copied. The last of several passes, for which writers may have to
wait, has little to do.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.files.atomic import TEMPORARY_SUFFIX
from kafkalog.files.copies import copy_range
from kafkalog.files.deferred_signals import check_interrupt
from kafkalog.files.open_file import peek_at
from kafkalog.files.regular import (
    create_exclusive,
    fsync_directory,
    fsync_file,
    make_directory,
    open_regular,
)
from kafkalog.files.system import system
from kafkalog.streaming.log.files import (
    DELETED,
    LOG,
    parse_base_offset,
    parse_partition_directory,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping
    from pathlib import Path

__all__ = ["FolderCopy", "LogSizes"]

LogSizes = dict[tuple[str, str], int]
"""By folder and name of a ``.log`` file: up to where its bytes will not change any more."""

_SETTLED_NS: Final = 1_000_000_000
"""A file that changed so shortly before it was copied may have changed again in one tick."""
_COMPARED_BYTES: Final = 4096


class _Copied(NamedTuple):
    """What a file was when it was copied, and how much of it was."""

    inode: tuple[int, int]
    stamp: tuple[int, int, int]
    size: int


class FolderCopy:
    """The copy of all partitions of one log directory. ``bytes`` counts what was copied."""

    def __init__(self, source: Path, target: Path) -> None:
        self.source = source
        self.target = target
        self.bytes = 0
        self._copied: dict[tuple[str, str], _Copied] = {}
        self._folders: set[str] = set()
        self._only: Container[str] | None = None

    def take_only(self, names: Container[str]) -> None:
        """Copy these folders alone from now on."""
        self._only = names

    @property
    def partitions(self) -> int:
        """How many partitions the copy holds."""
        return len(self._folders)

    def log_sizes(self) -> LogSizes:
        """Return the sizes of all ``.log`` files now; the caller holds the locks."""
        sizes = {}
        for folder, name in self._files():
            if name.endswith(LOG):
                sizes[folder, name] = (self.source / folder / name).lstat().st_size
        return sizes

    def bring_up_to_date(self, sizes: Mapping[tuple[str, str], int] | None = None) -> int:
        """Copy what has changed, and remove what is gone.

        ``sizes`` bounds what is copied of each log. Nothing else of active segments is copied then:
        it is about to change.

        Returns:
            how many files were replaced, or are gone, that had been listed or copied.
        """
        found = list(self._files())
        active = _active_stems(found)
        changed = self._remove_all_but(found)
        for folder, name in found:
            check_interrupt()
            is_log = name.endswith(LOG)
            if sizes is not None:
                is_active = name.partition(".")[0] == active.get(folder)
                if (folder, name) not in sizes if is_log else is_active:
                    continue
            limit = None if sizes is None or not is_log else sizes[folder, name]
            changed += self._copy(folder, name, is_log=is_log, limit=limit)
        return changed

    def sync(self) -> None:
        """Make the copy durable."""
        for folder, name in self._copied:
            fsync_file(self.target / folder / name)
        for folder in sorted(self._folders):
            fsync_directory(self.target / folder)
        fsync_directory(self.target)

    def _files(self) -> Iterator[tuple[str, str]]:
        """List folders of partitions with the names of their files, logs in order of offsets."""
        for path in sorted(self.source.iterdir()):
            folder = path.name
            if parse_partition_directory(folder) is None or not path.is_dir():
                continue
            if self._only is not None and folder not in self._only:
                continue
            try:
                entries = sorted(os.scandir(path), key=lambda entry: entry.name)
            except FileNotFoundError:
                continue  # deleted meanwhile
            if folder not in self._folders:
                make_directory(self.target / folder)
                self._folders.add(folder)
            for entry in entries:
                is_left_out = entry.name.endswith((DELETED, TEMPORARY_SUFFIX))
                if not is_left_out and not entry.is_dir(follow_symlinks=False):
                    yield folder, entry.name

    def _remove_all_but(self, found: list[tuple[str, str]]) -> int:
        gone = self._copied.keys() - set(found)
        for folder, name in gone:
            (self.target / folder / name).unlink()
            del self._copied[folder, name]
        for folder in sorted(self._folders - {folder for folder, _ in found}):
            if not (self.source / folder).is_dir():
                (self.target / folder).rmdir()
                self._folders.remove(folder)
        return len(gone)

    def _copy(self, folder: str, name: str, *, is_log: bool, limit: int | None) -> bool:
        """Copy one file if it has changed; tell whether it replaces another."""
        known = self._copied.get((folder, name))
        now_ns = system.time_ns()
        try:
            descriptor = open_regular(self.source / folder / name)
        except FileNotFoundError:
            return True  # the next listing tells
        try:
            status = os.fstat(descriptor)
            stamp = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            if known is not None and known.stamp == stamp:
                return False
            end = status.st_size if limit is None else min(limit, status.st_size)
            path = self.target / folder / name
            inode = (status.st_dev, status.st_ino)
            grows = is_log and known is not None and known.inode == inode and known.size <= end
            start = 0
            if known is not None and grows and _ends_alike(path, descriptor, known.size):
                start = known.size
            copied = _write(path, descriptor, start, end)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(descriptor)
        if copied < status.st_size or status.st_ctime_ns > now_ns - _SETTLED_NS:
            stamp = (-1, -1, -1)
        self.bytes += copied - start
        self._copied[folder, name] = _Copied(inode, stamp, copied)
        return known is not None and known.inode != inode


def _active_stems(files: list[tuple[str, str]]) -> dict[str, str]:
    """Give, by folder, what the names of the active segment's files begin with."""
    return {
        folder: name.partition(".")[0]
        for folder, name in files
        if parse_base_offset(name, LOG) is not None
    }


def _ends_alike(path: Path, source: int, size: int) -> bool:
    """Return whether what was copied is still there, by its end: a log that was cut differs."""
    start = max(0, size - _COMPARED_BYTES)
    copy = open_regular(path)
    try:
        return peek_at(copy, start, size - start) == peek_at(source, start, size - start)
    finally:
        os.close(copy)


def _write(path: Path, source: int, start: int, end: int) -> int:
    """Bring the bytes ``[start, end)`` into a file that has those before; return where it ends."""
    if start == 0:
        path.unlink(missing_ok=True)
        target = create_exclusive(path)
    else:
        target = open_regular(path, os.O_RDWR)
    try:
        position = start
        for data_start, data_end in _data(source, start, end):
            check_interrupt()
            size = data_end - data_start
            copied = copy_range(source, data_start, size, target, data_start)
            position = data_start + copied
            if copied < size:  # it was cut meanwhile
                end = position
        os.ftruncate(target, end)
        return end
    finally:
        os.close(target)


def _data(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a file that are no holes: a broker's preallocated indexes are many."""
    while start < end:
        try:
            found = os.lseek(descriptor, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            yield start, end
            return
        hole = end
        with suppress(OSError):
            hole = os.lseek(descriptor, found, os.SEEK_HOLE)
        if found < end:
            yield found, min(hole, end)
        start = max(hole, found + 1)
