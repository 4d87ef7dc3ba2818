"""What a loss of power may leave of the changes that were made to a disk.

Only what an fsync has covered is certain. Of the rest any part may survive: each name in a folder
is what it was at its last fsync or anything that it has been since, independently of all other
names; of the writes and cuts of a file any may be missing, whole or torn.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.support.disk import ROOT_INODE, Change, Disk, Renamed, Resized, Synced, Written

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Unsynced"]

_MOST_CONTENTS: Final = 64


@dataclass
class Unsynced:
    """A disk whose content is durable, and the changes since; add them in their order."""

    durable: Disk
    data: dict[int, list[Written | Resized]] = field(default_factory=dict)
    names: dict[tuple[int, str], list[int | None]] = field(default_factory=dict)

    @classmethod
    def after(cls, before: Disk, folders: Iterable[int]) -> Unsynced:
        """Begin with a disk on which everything is durable; ``folders`` it has, or is to get."""
        durable = before.copy()
        for inode in folders:
            durable.folders.setdefault(inode, {})
        return cls(durable)

    def add(self, change: Change) -> None:
        """Take the next change."""
        match change:
            case Written(inode) | Resized(inode):
                self.data.setdefault(inode, []).append(change)
            case Renamed(folder, name, inode):
                self.names.setdefault((folder, name), []).append(inode)
            case Synced(inode) if inode in self.durable.folders:
                self._sync_folder(inode)
            case Synced(inode):
                content = self.durable.files.get(inode, b"")
                self.durable.files[inode] = _changed(content, self.data.pop(inode, []))

    def _sync_folder(self, folder: int) -> None:
        for at, name in [key for key in self.names if key[0] == folder]:
            inode = self.names.pop((at, name))[-1]
            _name(self.durable, folder, name, inode)

    def survivors(self, limit: int, chance: random.Random) -> Iterator[Disk]:
        """Return disks that a loss of power may leave now: all of them if ``limit`` allows.

        Otherwise those where nothing, all, all but one, or only one thing survives, as far as the
        limit goes, and then any.
        """
        axes = self._axes(chance)
        if math.prod(len(axis.choices) for axis in axes) <= limit:
            picks: Iterator[Sequence[int]] = itertools.product(
                *(range(len(axis.choices)) for axis in axes)
            )
        else:
            picks = itertools.islice(_picks(axes, chance), limit)
        for pick in picks:
            yield self._disk([(axis, axis.choices[i]) for axis, i in zip(axes, pick, strict=True)])

    def _axes(self, chance: random.Random) -> list[_Axis]:
        axes = []
        for (folder, name), versions in sorted(self.names.items(), key=lambda item: item[0]):
            known = self.durable.folders[folder].get(name)
            axes.append(_Axis((folder, name), tuple(dict.fromkeys([known, *versions]))))
        for inode, changes in sorted(self.data.items()):
            contents = _contents(self.durable.files.get(inode, b""), changes, chance)
            axes.append(_Axis(inode, tuple(contents)))
        return axes

    def _disk(self, chosen: Sequence[tuple[_Axis, object]]) -> Disk:
        disk = self.durable.copy()
        for axis, choice in chosen:
            if isinstance(axis.what, int):
                disk.files[axis.what] = choice  # type: ignore[assignment]
            else:
                _name(disk, *axis.what, choice)  # type: ignore[arg-type]
        return disk


@dataclass(frozen=True)
class _Axis:
    """A name (folder, name) or a file (inode), and what may be left of it: the first is nothing."""

    what: int | tuple[int, str]
    choices: tuple[object, ...]


def _picks(axes: Sequence[_Axis], chance: random.Random) -> Iterator[Sequence[int]]:
    sizes = [len(axis.choices) for axis in axes]
    none, whole = [0] * len(axes), [size - 1 for size in sizes]
    yield from (none, whole)
    singles = [
        [*base[:slot], choice, *base[slot + 1 :]]
        for base in (whole, none)
        for slot, size in enumerate(sizes)
        for choice in range(size)
    ]
    chance.shuffle(singles)
    yield from singles
    while True:
        yield [chance.randrange(size) for size in sizes]


def _contents(
    durable: bytes, changes: Sequence[Written | Resized], chance: random.Random
) -> list[bytes]:
    """List what a file may hold: nothing new first, everything last."""
    found = dict.fromkeys([durable])
    torn = [_torn(change, chance) for change in changes]
    if math.prod(len(each) for each in torn) <= _MOST_CONTENTS:
        for picked in itertools.product(*torn):
            found[_changed(durable, [change for change in picked if change is not None])] = None
    else:
        for _ in range(_MOST_CONTENTS):
            picked = tuple(chance.choice(each) for each in torn)
            found[_changed(durable, [change for change in picked if change is not None])] = None
    whole = _changed(durable, changes)
    found.pop(whole, None)
    return [*found, whole]


def _torn(change: Written | Resized, chance: random.Random) -> tuple[Written | Resized | None, ...]:
    """Return what may be left of one change: nothing, a part, zeros in its place, or all."""
    if isinstance(change, Resized):
        return (None, change)
    inode, position, data = change
    cut = chance.randint(1, len(data) - 1) if len(data) > 1 else 0
    parts = (data[:cut], bytes(cut) + data[cut:], data[:cut] + bytes(len(data) - cut))
    torn = [Written(inode, position, part) for part in (*parts, bytes(len(data))) if part]
    return (None, *torn, change)


def _changed(content: bytes, changes: Sequence[Written | Resized]) -> bytes:
    scratch = Disk({0: content}, {ROOT_INODE: {}})
    for change in changes:
        scratch.apply(change._replace(inode=0))
    return scratch.files[0]


def _name(disk: Disk, folder: int, name: str, inode: int | None) -> None:
    if inode is None:
        disk.folders[folder].pop(name, None)
        return
    disk.folders[folder][name] = inode
    if inode not in disk.folders:
        disk.files.setdefault(inode, b"")
