"""What happens to nodes: slow ones, older copies, locks and power of one or two of them."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.layouts import Layout
    from tests.simulation.machine import Machine
    from tests.simulation.node_facts import Disks
    from tests.simulation.power import Node

__all__ = ["NodeFaults"]

_SLOW_S: Final = (0.01, 0.1, 1.0)
_AWAY_S: Final = (0.003, 0.1, 5.0)
_SLOWED_S: Final = 2.0
_BROKEN_S: Final = 0.002
_ERRORS: Final = (errno.EIO, errno.ENOSPC, errno.EROFS)


class NodeFaults:
    """Lets what is drawn happen to nodes of a machine.

    ``only`` is the node to which all of it happens; None for any. ``older`` is told of each node
    that was put back as an older copy.
    """

    def __init__(
        self,
        machine: Machine,
        layout: Layout,
        disks: Disks,
        older: Callable[[int], None],
        only: int | None = None,
    ) -> None:
        self._machine = machine
        self._layout = layout
        self._disks = disks
        self._older = older
        self._only = only
        self._copies: dict[int, dict[str, Node]] = {}
        machine.images.most_away = max(layout.directories) * 2
        machine.instead = {
            "error": lambda value: self._break(value, 1),
            "error two": lambda value: self._break(value, 2),
            "vanish": lambda value: self._take_away("vanish", value, 1),
            "vanish two": lambda value: self._take_away("vanish", value, 2),
            "empty": lambda value: self._take_away("empty", value, 1),
            "empty two": lambda value: self._take_away("empty", value, 2),
            "old": self._put_copy,
            "slow": self._slow,
            "lost": self._lose_locks,
            "node power": self._lose_power,
        }

    def _nodes(self, value: int, count: int) -> list[int]:
        """Choose nodes by a number that was drawn."""
        if self._only is not None:
            return [self._only]
        nodes = list(range(len(self._layout.directories)))
        turn = (value >> 4) % len(nodes)
        return (nodes[turn:] + nodes[:turn])[:count]

    def _directories(self, value: int, count: int) -> list[str]:
        """Choose a directory of each of some nodes."""
        found = []
        for node in self._nodes(value, count):
            names = self._layout.names[node]
            found.append(names[(value >> 8) % len(names)])
        return found

    def _until(self, seconds: float) -> int:
        return self._machine.scheduler.now + int(seconds * 1e9)

    def _break(self, value: int, count: int) -> None:
        until = self._until(_BROKEN_S) if value & 4 else self._machine.scheduler.now + 1
        for name in self._directories(value, count):
            self._machine.break_directory(name, _ERRORS[value & 3] if value & 3 < 3 else 5, until)

    def _take_away(self, kind: str, value: int, count: int) -> None:
        until = self._until(_AWAY_S[value % 3])
        for name in self._directories(value, count):
            if self._stays_known(name):
                self._machine.images.take_away(name, kind, until)

    def _stays_known(self, name: str) -> bool:
        """Whether a node is left without a directory: else nobody can tell a set from a new one."""
        hidden = self._machine.images.hidden
        others = (names for names in self._layout.names if name not in names)
        return any(all(hidden(each) is None for each in names) for names in others)

    def _slow(self, value: int) -> None:
        for node in self._nodes(value, 1):
            for name in self._layout.names[node]:
                self._machine.slow[name] = (_SLOW_S[value % 3], self._until(_SLOWED_S))

    def _lose_locks(self, value: int) -> None:
        """Let a server give away the locks that a sleeping host has on one node, two, or all."""
        machine = self._machine
        nodes = self._nodes(value, (1, 1, 2, len(self._layout.directories))[value & 3])
        names = {name for node in nodes for name in self._layout.names[node]}
        lost = machine.lose_locks(machine.scheduler.running.process, names)
        if len(nodes) > len(self._layout.directories) - self._layout.majority:
            machine.cut_off |= lost
        machine.scheduler.pause(90.0)

    def _lose_power(self, value: int) -> None:
        """Let a node lose its power: what is open there is stale, what was not synced may go."""
        machine = self._machine
        for node in self._nodes(value, 1):
            names = {*self._layout.names[node]}
            machine.go_stale(names)
            for name in names:
                folder = machine.images.hidden(name) or machine.root.names[name]  # type: ignore[index]
                if machine.unsynced is not None:
                    machine.unsynced.lose(value, below=folder)

    def _put_copy(self, value: int) -> None:
        """Put an older copy in a node's place, for good; the first time it is made.

        replicas.md, Limits: only a quiet set's, whose other nodes have all.
        """
        (node,) = self._nodes(value, 1)
        images, root = self._machine.images, self._machine.root
        names = self._layout.names[node]
        assert root.names is not None
        if images or not all(name in root.names for name in names):
            return
        if node not in self._copies:
            self._copies[node] = {name: images.copy_of(root.names[name]) for name in names}
        elif self._others_have_all(node):
            self._machine.go_stale({*names})
            root.names |= self._copies.pop(node)
            self._older(node)

    def _others_have_all(self, node: int) -> bool:
        state = self._disks.newest()
        if state is None or self._disks.is_unfinished():
            return False
        others = {*range(len(self._layout.directories))} - {node}
        replicas = state.replicas.values()
        are_in_sync = all({*nodes} - {node} <= {*isr} - {node} for _, nodes, isr in replicas)
        return others <= {*self._disks.are_whole(state)} and are_in_sync
