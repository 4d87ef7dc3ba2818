"""Log directories that are not mounted for a while, or in whose place something else is."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.power import Node

__all__ = ["Images"]


class _Away(NamedTuple):
    node: Node
    until: int
    before: object


class _Copy(NamedTuple):
    node: Node
    made: int


@dataclass
class _Shown:
    """When a copy was made, and until when it was in a directory's place, if it is not any more."""

    made: int
    until: int | None = None


class Images:
    """What is mounted at the names in a folder; ``made`` makes an empty folder.

    ``now`` gives the time that :meth:`copied` is asked in.
    """

    def __init__(self, root: Node, made: Callable[..., Node]) -> None:
        self._root = root
        self._made = made
        self._away: dict[str, _Away] = {}
        self._copies: dict[str, _Copy] = {}
        self._shown: list[_Shown] = []
        self.now: Callable[[], int] = itertools.count(1).__next__
        self.most_away = 1
        """How many directories may be away at a time."""
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
        is_enough = len(self._away) >= self.most_away or name in self._away
        if is_enough or sum(each.startswith("d") for each in self._names) < 2:
            return False
        node = self._names[name]
        if kind == "old" and name not in self._copies:
            self._copies[name] = _Copy(self.copy_of(node), self.now())
            return False
        del self._names[name]
        before: object = None
        if kind != "vanish":
            image = self._show(name) if kind == "old" else self._made(is_folder=True)
            self._names[name] = image
            before = _content(image) if kind == "old" else None
        self._away[name] = _Away(node, until, before)
        return True

    def _show(self, name: str) -> Node:
        copy = self._copies.pop(name)
        self._shown.append(_Shown(copy.made))
        return copy.node

    def copied(self, since: int) -> int | None:
        """Return when the oldest copy was made that was mounted at any time since then, if any."""
        made = [each.made for each in self._shown if each.until is None or each.until > since]
        return min(made, default=None)

    def bring_back(self, now: int | None = None) -> None:
        """Mount again what is due; all of it without a time."""
        for name, (node, until, before) in list(self._away.items()):
            if now is None or now >= until:
                if before is not None and _content(self._names[name]) != before:
                    self.have_parted = True
                if before is not None:
                    self._shown[-1].until = self.now()
                del self._away[name]
                self._names[name] = node  # as a mount hides what was made in its place
                self._root.versions.pop(name, None)  # nor does a loss of power show that again

    def hidden(self, name: str) -> Node | None:
        """Return the directory that is away, in whose place something else is or nothing."""
        away = self._away.get(name)
        return None if away is None else away.node

    def __bool__(self) -> bool:
        return bool(self._away)

    def copy_of(self, node: Node) -> Node:
        """Copy a file, or a folder and all below it."""
        made = self._made(is_folder=node.names is not None)
        made.data[:] = node.data
        made.links = node.links
        made.modified = node.modified
        for name, each in (node.names or {}).items():
            assert made.names is not None
            made.names[name] = self.copy_of(each)
        return made


def _content(node: Node) -> object:
    if node.names is None:
        return bytes(node.data)
    return {name: _content(each) for name, each in node.names.items()}
