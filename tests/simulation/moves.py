"""How a broker moves a replica from one of its log directories to another.

As Kafka's ``ReplicaAlterLogDirsThread`` and ``LogManager.replaceCurrentWithFutureLog`` do: what
there is is copied into a ``-future`` folder, which catches up. Then it takes the partition's name,
and only then does the old folder become a ``-delete`` one. So for a moment there are two. Unlike
Kafka, it makes the copy durable: histories with a broker know no loss of power.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Move", "delete_retired", "finish_moves", "remove"]

_RETIRED: Final = ("-delete", "-future")


class Move:
    """A replica on its way to another directory."""

    def __init__(self, source: Path, directories: Sequence[Path], chance: random.Random) -> None:
        """Make the folder of the copy."""
        self.source = source
        others = [each for each in directories if each != source.parent]
        self.target = chance.choice(others) / source.name
        self._id = f"{chance.getrandbits(128):032x}"
        self._future = self.target.with_name(f"{source.name}.{self._id}-future")
        os.mkdir(self._future)  # noqa: PTH102 - a call of the seam

    def catch_up(self) -> None:
        """Copy what the copy lacks."""
        for name in sorted(os.listdir(self.source)):  # noqa: PTH208 - a call of the seam
            content = _content(self.source / name)
            copy = self._future / name
            if copy.exists() and copy.stat().st_size == len(content):
                continue
            descriptor = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                while content:
                    content = content[os.write(descriptor, content) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def swap(self) -> None:
        """Let the copy take the partition's name; the old folder then awaits its deletion."""
        os.replace(self._future, self.target)  # noqa: PTH105
        os.replace(self.source, self.source.with_name(f"{self.source.name}.{self._id}-delete"))  # noqa: PTH105


def _content(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size, content = os.fstat(descriptor).st_size, b""
        while len(content) < size:
            content += os.pread(descriptor, size - len(content), len(content))
        return content
    finally:
        os.close(descriptor)


def finish_moves(directories: Sequence[Path]) -> None:
    """As a person would before a broker starts again: of two folders keep that with the longer log.

    Kafka does not start on two. Both are alike but for what the copy has got since.
    """
    found: dict[str, list[Path]] = {}
    for folder in directories:
        for name in os.listdir(folder):  # noqa: PTH208
            if (folder / name / "partition.metadata").exists() and not name.endswith(_RETIRED):
                found.setdefault(name, []).append(folder / name)
    delete_retired(directories, _RETIRED)  # a move that was cut off begins again
    for twice in found.values():
        for path in sorted(twice, key=_size)[:-1]:
            os.replace(path, path.with_name(f"{path.name}.{'0' * 32}-delete"))  # noqa: PTH105


def _size(path: Path) -> int:
    return sum(each.stat().st_size for each in path.iterdir() if each.suffix == ".log")


def delete_retired(directories: Sequence[Path], ends: tuple[str, ...] = ("-delete",)) -> None:
    """Delete what awaits that."""
    for folder in directories:
        for name in os.listdir(folder):  # noqa: PTH208
            if name.endswith(ends):
                remove(folder / name)


def remove(path: Path) -> None:
    """Remove a file, or a folder of files."""
    if path.is_dir():
        for each in sorted(path.iterdir()):
            each.unlink()
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
