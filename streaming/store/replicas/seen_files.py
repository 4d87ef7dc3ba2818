"""Which files were compared and copied: a directory may be away for a moment amid that.

Example: a mount fails, and is back after 3 ms. Meanwhile a replica's folder is not there, so it is
made and gets a first segment, below the mount. The segments after that one get into the log itself,
which has a hole then. What each name stood for is noted here, and is the same in the end, or the
replica is not in sync.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kafkalog.errors import LogDirectoryError
from kafkalog.files.regular import open_regular, read_whole
from kafkalog.files.stalling import at

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SeenFiles", "was_away"]


class SeenFiles:
    """The device and inode of each file by the path under which it was opened last."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[int, int]] = {}

    def note(self, path: Path, descriptor: int) -> None:
        """Take note of a file that is open."""
        self._seen[path] = _identity(os.fstat(descriptor))

    def read(self, path: Path, *, limit: int) -> bytes:
        """Read a small file whole, and take note of it.

        Raises:
            FileNotFoundError: nothing has that name.
            LogDirectoryError: not a regular file, not readable, or longer than ``limit`` bytes.
        """
        descriptor = open_regular(path)
        try:
            self.note(path, descriptor)
            return read_whole(descriptor, path, limit=limit)
        finally:
            os.close(descriptor)

    def check(self) -> None:
        """See that each path names the file that it named.

        Raises:
            LogDirectoryError: one does not.
        """
        for path, seen in self._seen.items():
            try:
                with at(path):
                    found = _identity(path.stat())
            except FileNotFoundError:
                found = None
            if found != seen:
                raise was_away(path)


def was_away(path: Path) -> LogDirectoryError:
    """Say that a file of a partition's folder is not the one that it was."""
    return LogDirectoryError(
        f"{path} is another file than a moment ago, or gone. Was {path.parent.parent} away, or did "
        "somebody replace it? The next write compares it again"
    )


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
