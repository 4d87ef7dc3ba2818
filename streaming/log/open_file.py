"""A file of a log, open for positioned reads: what a reader needs of a place where logs lie.

A descriptor of a local file serves most. What lies in an object store or another file system opens
through :mod:`kafkalog.streaming.log.remote_file`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kafkalog.checkpoints.regular_file import open_regular
from kafkalog.checkpoints.remote_path import RemotePath
from kafkalog.streaming.log.page_reader import read_at

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

__all__ = ["FileIdentity", "LocalFile", "OpenFile", "open_file"]


class FileIdentity(NamedTuple):
    """Which file a path led to; another file put in its place has another inode."""

    device: int
    inode: int


class OpenFile(Protocol):
    """An open file. Not thread safe, not picklable."""

    @property
    def size(self) -> int:
        """Bytes that it has now."""
        ...

    @property
    def identity(self) -> FileIdentity:
        """Which file it is."""
        ...

    def read(self, position: int, length: int) -> Bytes:
        """Read up to ``length`` bytes into a new array; fewer only where the file ends."""
        ...

    def peek(self, position: int, length: int) -> bytes:
        """Read a few bytes."""
        ...

    def will_read(self, position: int, end: int) -> None:
        """Say that the bytes ``[position, end)`` are about to be read in order."""
        ...

    def close(self) -> None:
        """Close it; closing twice does no harm."""
        ...


def open_file(path: Path) -> OpenFile:
    """Open a regular file.

    Raises:
        FileNotFoundError: nothing has that name.
        LogDirectoryError: a link, FIFO, device, socket or folder has it, it may not be opened, or
            the store that it lies in fails.
    """
    if isinstance(path, RemotePath):
        from kafkalog.streaming.log.remote_file import open_remote  # noqa: PLC0415

        return open_remote(path)
    return LocalFile(open_regular(path))


class LocalFile:
    """A descriptor, which belongs to it."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def size(self) -> int:
        """Bytes that the file has now; a preallocated tail counts."""
        return os.fstat(self._descriptor).st_size

    @property
    def identity(self) -> FileIdentity:
        """Device and inode."""
        status = os.fstat(self._descriptor)
        return FileIdentity(status.st_dev, status.st_ino)

    def read(self, position: int, length: int) -> Bytes:
        """Read up to ``length`` bytes into a new array; fewer only where the file ends."""
        return read_at(self._descriptor, position, length)

    def peek(self, position: int, length: int) -> bytes:
        """Read a few bytes."""
        return os.pread(self._descriptor, length, position)

    def will_read(self, position: int, end: int) -> None:
        """Leave reading ahead to the kernel."""

    def close(self) -> None:
        """Close the descriptor; closing twice does no harm."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
