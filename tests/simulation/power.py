"""Files and folders, and what a loss of power leaves of what no fsync has covered.

Of a file any of its writes and cuts may survive: whole, in part (up to a multiple of 512 bytes or
anywhere), or as zeros. Of a folder each name is what it was at the last fsync, or anything since.
A failed fsync drops what it should have covered: nobody is told again, and the power takes it.
"""

from __future__ import annotations

import random
from typing import Final, NamedTuple

__all__ = ["Node", "Unsynced"]

_SECTOR: Final = 512


class _Change(NamedTuple):
    """Bytes at a position; or a new size, if ``data`` is None."""

    position: int
    data: bytes | None


class Node:
    """A file (``data``) or a folder (``names``), and what was durable of it before it was changed.

    ``durable`` is None where that is what it is now.
    """

    __slots__ = (
        "changed",
        "changes",
        "data",
        "durable",
        "is_dropped",
        "links",
        "modified",
        "names",
        "number",
        "versions",
    )

    def __init__(self, number: int, now: int, *, is_folder: bool) -> None:
        self.number = number
        self.data = bytearray()
        self.names: dict[str, Node] | None = {} if is_folder else None
        self.links = 0
        self.modified = self.changed = now
        self.durable: bytes | None = None
        self.changes: list[_Change] = []
        self.is_dropped = False
        self.versions: dict[str, list[Node | None]] = {}
        """What each name was at the last fsync, and since; only of names that were changed."""


class Unsynced:
    """What is not durable of a tree of files; told of each change before it is made."""

    def __init__(self, root: Node) -> None:
        self._root = root
        self._dirty: dict[int, Node] = {}

    def change(self, node: Node, position: int, data: bytes | None) -> None:
        """Bytes are about to be written to a file; or it gets another size."""
        if node.durable is None:
            node.durable = bytes(node.data)
            self._dirty[node.number] = node
        node.changes.append(_Change(position, data))

    def name(self, folder: Node, name: str, node: Node | None) -> None:
        """A name in a folder is about to mean another node, or nothing."""
        assert folder.names is not None
        folder.versions.setdefault(name, [folder.names.get(name)]).append(node)
        self._dirty[folder.number] = folder

    def sync(self, node: Node) -> None:
        """A file or folder is durable as it is, but for what was dropped."""
        if node.is_dropped and node.durable is not None:
            node.durable = _changed(node.durable, node.changes)
            node.changes.clear()
            if node.durable != node.data:
                return
        self._settle(node)

    def drop(self, node: Node) -> None:
        """The fsync of a file has failed: nobody will write down what it should have covered."""
        if node.durable is not None:
            node.changes.clear()
            node.is_dropped = True

    def settle(self) -> None:
        """Let all be durable."""
        for node in list(self._dirty.values()):
            self._settle(node)

    def _settle(self, node: Node) -> None:
        node.durable = None
        node.changes.clear()
        node.is_dropped = False
        node.versions.clear()
        self._dirty.pop(node.number, None)

    def lose(self, seed: int, below: Node | None = None) -> None:
        """Let the power go; only of what lies below a folder, if one is given."""
        chance = random.Random(seed)
        known = None if below is None else {each.number for each in _all_below(below)}
        # Whether nothing, all, or any part survives; of names and of files.
        names, files = chance.choice((0.0, 0.5, 0.9, 1.0)), chance.choice((0.0, 0.5, 0.9, 1.0))
        for number, node in sorted(self._dirty.items()):
            if known is not None and number not in known:
                continue
            if node.names is not None:
                for name, versions in node.versions.items():
                    survives = chance.random() < names
                    found = chance.choice(versions[1:]) if survives else versions[0]
                    if names == 1.0:
                        found = versions[-1]
                    if found is None:
                        node.names.pop(name, None)
                    else:
                        node.names[name] = found
            elif node.durable is not None:
                left = [_torn(c, chance) if chance.random() >= files else c for c in node.changes]
                content = _changed(node.durable, [each for each in left if each is not None])
                node.data[:] = content
        for number, node in list(self._dirty.items()):
            if known is None or number in known:
                self._settle(node)
        self._count_links()

    def _count_links(self) -> None:
        nodes = [self._root]
        found = [self._root]
        while nodes:
            for each in (nodes.pop().names or {}).values():
                each.links = 0
                found.append(each)
                nodes.append(each)
        for node in {each.number: each for each in found}.values():
            for each in (node.names or {}).values():
                each.links += 1


def _all_below(folder: Node) -> list[Node]:
    """Return a folder and all below it, also what a name in it was before."""
    nodes, found = [folder], {folder.number: folder}
    while nodes:
        node = nodes.pop()
        earlier = [each for versions in node.versions.values() for each in versions]
        for each in (*(node.names or {}).values(), *earlier):
            if each is not None and each.number not in found:
                found[each.number] = each
                nodes.append(each)
    return list(found.values())


def _torn(change: _Change, chance: random.Random) -> _Change | None:
    """Give what is left of a change that did not survive whole: nothing, a part, or zeros."""
    data = change.data
    kind = chance.randrange(4)
    if data is None or kind == 0:
        return None
    if kind == 1:
        return change._replace(data=bytes(len(data)))
    cut = chance.randrange(len(data) + 1)
    if kind == 2:
        cut -= (change.position + cut) % _SECTOR
    return change._replace(data=data[:cut]) if cut > 0 else None


def _changed(content: bytes, changes: list[_Change]) -> bytes:
    held = bytearray(content)
    for position, data in changes:
        if data is None:
            del held[position:]
            held.extend(bytes(position - len(held)))
        else:
            held.extend(bytes(max(position - len(held), 0)))
            held[position : position + len(data)] = data
    return bytes(held)
