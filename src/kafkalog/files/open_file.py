"""Files open for positioned reads: what a reader needs of one, and a local one."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from kafkalog.files.regular import naming

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

__all__ = [
    "FileIdentity",
    "LocalFile",
    "OpenFile",
    "fill_from",
    "next_data_at",
    "peek_at",
    "read_at",
]


# ----------------------------------------------------------------------------------------------
# A file that is open for positioned reads: what a reader needs of a place where logs lie.


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

    def next_data(self, position: int) -> int | None:
        """Return where the next bytes lie that may not be zeros; None if none follow.

        What a file system has never stored, a hole, reads as zeros and takes no room.
        """
        ...

    def will_read(self, position: int, end: int) -> None:
        """Say that the bytes ``[position, end)`` are about to be read in order."""
        ...

    def close(self) -> None:
        """Close it; closing twice does no harm."""
        ...


# ----------------------------------------------------------------------------------------------
# A local file, open for positioned reads: a descriptor that belongs to it.


def read_at(descriptor: int, position: int, length: int) -> npt.NDArray[np.uint8]:
    """Read up to ``length`` bytes into a new array; fewer only where the file ends."""
    data = np.empty(length, np.uint8)
    return data[: fill_from(descriptor, position, data)]


def peek_at(descriptor: int, position: int, length: int) -> bytes:
    """Read a few bytes, without an array; fewer only where the file ends."""
    data = part = os.pread(descriptor, length, position)
    while part and len(data) < length:
        part = os.pread(descriptor, length - len(data), position + len(data))
        data += part
    return data


def next_data_at(descriptor: int, position: int) -> int | None:
    """Return where the next bytes lie that may not be zeros (``SEEK_DATA``); None if none follow.

    A file system that does not know its holes stores all.
    """
    try:
        return os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        return position


def fill_from(descriptor: int, position: int, data: npt.NDArray[np.uint8]) -> int:
    """Fill an array with the bytes at ``position``; return how many there were before the end."""
    filled = 0
    with naming(descriptor):
        while filled < len(data):
            count = os.preadv(descriptor, [data.data[filled:]], position + filled)
            if count == 0:
                break
            filled += count
    return filled


class LocalFile:
    """A descriptor, which belongs to it: one that is not closed goes with the object."""

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
        """Read a few bytes; fewer only where the file ends."""
        return peek_at(self._descriptor, position, length)

    def next_data(self, position: int) -> int | None:
        """Return where the next bytes lie that may not be zeros; None if none follow."""
        return next_data_at(self._descriptor, position)

    def will_read(self, position: int, end: int) -> None:
        """Leave reading ahead to the kernel."""

    def close(self) -> None:
        """Close the descriptor; closing twice does no harm."""
        # Forgotten first: what interrupts this must not let a number be closed twice that is
        # somebody else's by then.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    __del__ = close
