"""A file for what a task cannot keep in memory. It has no name, so nothing of it is left behind.

It lies in Spark's local directory (``SPARK_LOCAL_DIRS``, which Spark gives its Python workers), or
where temporary files lie. The system frees its bytes when it is closed or its process dies.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.errors import SpillError
from kafkalog.files.regular import write_all
from kafkalog.files.system import system

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes

__all__ = ["SpillFile"]

_PREFIX: Final = ".kafkalog-spill-"
_WITHOUT_UNNAMED: Final = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT}
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class SpillFile:
    """Bytes that are appended, and read by their positions. Not shared between threads."""

    def __init__(self) -> None:
        """Make the file in one of the directories.

        Raises:
            SpillError: none of them can be written to.
        """
        self._descriptor, self._folder = _open()
        self.size = 0

    def append(self, data: Bytes) -> int:
        """Write bytes at the end; gives their position.

        Raises:
            SpillError: they cannot be written, as on a full disk.
        """
        position = self.size
        try:
            write_all(self._descriptor, data.data, position)
        except OSError as error:
            raise self._failed("write", len(data), error) from error
        self.size += len(data)
        return position

    def read(self, position: int, size: int) -> Bytes:
        """Return ``size`` bytes, uint8[size].

        Raises:
            SpillError: they cannot be read.
        """
        data = np.empty(size, np.uint8)
        found = 0
        try:
            while found < size:
                count = os.preadv(self._descriptor, [data[found:].data], position + found)
                if not count:
                    break
                found += count
        except OSError as error:
            raise self._failed("read", size, error) from error
        if found < size:
            raise self._failed("read", size, OSError(errno.EIO, "the file has become shorter"))
        return data

    def close(self) -> None:
        """Give the bytes back."""
        descriptor, self._descriptor = self._descriptor, -1  # forgotten before it is closed
        if descriptor >= 0:
            os.close(descriptor)

    def _failed(self, action: str, size: int, error: OSError) -> SpillError:
        return SpillError(
            f"{self._folder}: cannot {action} {size} bytes that do not fit table.memory, "
            f"after {self.size} bytes: {error.strerror}; make room there, let SPARK_LOCAL_DIRS "
            "(spark.local.dir) name another directory, or raise table.memory"
        )


def _open() -> tuple[int, str]:
    """Open a file without a name; gives its descriptor and the directory."""
    folders = [name for name in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if name]
    if folders:  # each task begins with another one
        first = system.random_id().int % len(folders)
        folders = folders[first:] + folders[:first]
    reasons = []
    for folder in folders or [tempfile.gettempdir()]:
        try:
            return _open_in(folder), folder
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
    raise SpillError("cannot make a file for what does not fit table.memory: " + "; ".join(reasons))


def _open_in(folder: str) -> int:
    unnamed = getattr(os, "O_TMPFILE", None)
    if unnamed is not None:
        try:
            return os.open(folder, unnamed | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in _WITHOUT_UNNAMED:
                raise
    return _open_and_remove(Path(folder))


def _open_and_remove(folder: Path) -> int:
    """Open a file and remove its name, where a file system knows none without.

    A process that is killed between the two leaves an empty file. The next one removes it, which
    harms nobody: such a name is of no use to its maker either.
    """
    for name in os.listdir(folder):  # noqa: PTH208
        if name.startswith(_PREFIX):
            _remove(folder / name)
    path = folder / f"{_PREFIX}{system.random_id().hex}"
    descriptor = os.open(path, _CREATE, 0o600)
    _remove(path)
    return descriptor


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
