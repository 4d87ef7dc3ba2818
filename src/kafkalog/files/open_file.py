"""A file that is open for positioned reads: what a reader needs of a place where logs lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

__all__ = ["FileIdentity", "OpenFile"]


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
