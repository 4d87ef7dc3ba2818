"""Log directories that are not mounted for a while, or in whose place something else is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.power import Node

__all__ = ["Images"]


class _Away(NamedTuple):
    node: Node
    until: int
    before: object


class Images:
    """What is mounted at the names in a folder; ``made`` makes an empty folder."""

    def __init__(self, root: Node, made: Callable[..., Node]) -> None:
        self._root = root
        self._made = made
        self._away: dict[str, _Away] = {}
        self._copies: dict[str, Node] = {}
        self.have_parted = False
        """Whether what was written to an older copy is not in the directory that came back."""

    @property
    def _names(self) -> dict[str, Node]:
        assert self._root.names is not None
        return self._root.names

    def take_away(self, name: str, kind: str, until: int) -> bool:
        """Put nothing, an empty folder, or an older copy in a directory's place for a while.

        Not the only one: a set of one directory cannot be told from one that is new, or older. The
        first time that an older copy is asked for, it is made.
        """
        if self._away or sum(each.startswith("d") for each in self._names) < 2:
            return False
        node = self._names[name]
        if kind == "old" and name not in self._copies:
            self._copies[name] = self._copy(node)
            return False
        del self._names[name]
        before: object = None
        if kind != "vanish":
            image = self._copies.pop(name) if kind == "old" else self._made(is_folder=True)
            self._names[name] = image
            before = _content(image) if kind == "old" else None
        self._away[name] = _Away(node, until, before)
        return True

    def bring_back(self, now: int | None = None) -> None:
        """Mount again what is due; all of it without a time."""
        for name, (node, until, before) in list(self._away.items()):
            if now is None or now >= until:
                if before is not None and _content(self._names[name]) != before:
                    self.have_parted = True
                del self._away[name]
                self._names[name] = node  # as a mount hides what was made in its place

    def __bool__(self) -> bool:
        return bool(self._away)

    def _copy(self, node: Node) -> Node:
        made = self._made(is_folder=node.names is not None)
        made.data[:] = node.data
        made.links = node.links
        made.modified = node.modified
        for name, each in (node.names or {}).items():
            assert made.names is not None
            made.names[name] = self._copy(each)
        return made


def _content(node: Node) -> object:
    if node.names is None:
        return bytes(node.data)
    return {name: _content(each) for name, each in node.names.items()}
