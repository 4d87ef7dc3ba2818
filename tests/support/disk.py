"""A disk in memory, as a value: files, folders, and each change that was made to them.

It knows what a power failure takes: the bytes of a file are durable once that file was fsynced, a
name in a folder once that folder was. See :mod:`tests.support.power_loss`.
"""

from __future__ import annotations

import errno
import hashlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["ROOT_INODE", "Change", "Disk", "Renamed", "Resized", "Synced", "Written", "failure"]

ROOT_INODE: Final = 1


class Written(NamedTuple):
    """Bytes at a position of a file; what lay between its end and them is zero."""

    inode: int
    position: int
    data: bytes


class Resized(NamedTuple):
    """A file was cut, or grown with zeros."""

    inode: int
    size: int


class Renamed(NamedTuple):
    """A name in a folder (by inode) came to mean another inode, or with None nothing."""

    folder: int
    name: str
    inode: int | None


class Synced(NamedTuple):
    """A file or folder was fsynced."""

    inode: int


Change = Written | Resized | Renamed | Synced


def failure(code: int, path: object = None) -> OSError:
    """Make the error that a system call would give."""
    return OSError(code, os.strerror(code), path)


@dataclass
class Disk:
    """Contents of ``files`` and ``folders`` by inode; ``changes`` made so far, in order."""

    files: dict[int, bytes] = field(default_factory=dict)
    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT_INODE: {}})
    changes: list[Change] = field(default_factory=list)

    def copy(self) -> Self:
        """Return an independent disk with the same content, and no changes yet."""
        folders = {inode: dict(names) for inode, names in self.folders.items()}
        return type(self)(dict(self.files), folders)

    # Looking

    def find(self, parts: tuple[str, ...]) -> int:
        """Return the inode of a path below the root.

        Raises:
            OSError: ENOENT or ENOTDIR.
        """
        inode = ROOT_INODE
        for part in parts:
            names = self.folders.get(inode)
            if names is None:
                raise failure(errno.ENOTDIR, "/".join(parts))
            if part not in names:
                raise failure(errno.ENOENT, "/".join(parts))
            inode = names[part]
        return inode

    def links(self, inode: int) -> int:
        """Count the names of an inode."""
        return sum(list(names.values()).count(inode) for names in self.folders.values())

    def tree(self) -> dict[str, bytes | None]:
        """Return every path that can be reached: a file's bytes, None for a folder."""
        return dict(self._walk("", ROOT_INODE))

    def _walk(self, prefix: str, inode: int) -> Iterator[tuple[str, bytes | None]]:
        for name, child in sorted(self.folders[inode].items()):
            path = prefix + name
            if child in self.folders:
                yield path, None
                yield from self._walk(path + "/", child)
            else:
                yield path, self.files[child]

    def digest(self, without: frozenset[str] = frozenset()) -> bytes:
        """Hash the tree; ``without`` names files whose bytes do not matter."""
        hashed = hashlib.blake2b(digest_size=16)
        for path, data in self.tree().items():
            hashed.update(path.encode() + b"\0")
            if data is not None and path.rpartition("/")[2] not in without:
                hashed.update(len(data).to_bytes(8, "big") + data)
        return hashed.digest()

    def save(self, folder: Path) -> None:
        """Write the tree to a folder of a real disk."""
        folder.mkdir(parents=True)
        for path, data in self.tree().items():
            if data is None:
                (folder / path).mkdir()
            else:
                (folder / path).write_bytes(data)

    # Changing

    def new_file(self) -> int:
        """Make a file without a name."""
        inode = self._next_inode()
        self.files[inode] = b""
        return inode

    def new_folder(self) -> int:
        """Make a folder without a name."""
        inode = self._next_inode()
        self.folders[inode] = {}
        return inode

    def _next_inode(self) -> int:
        return max(0, *self.files, *self.folders) + 1

    def apply(self, change: Change) -> None:
        """Make a change, and remember it."""
        match change:
            case Written(inode, position, data):
                before = self.files[inode]
                padded = before[:position].ljust(position, b"\0")
                self.files[inode] = padded + data + before[position + len(data) :]
            case Resized(inode, size):
                self.files[inode] = self.files[inode][:size].ljust(size, b"\0")
            case Renamed(folder, name, None):
                self.folders[folder].pop(name, None)
            case Renamed(folder, name, int(inode)):
                self.folders[folder][name] = inode
            case Synced():
                pass
        self.changes.append(change)
