"""What the disks of nodes hold, looked at from outside: no call of a seam is made.

Nothing that runs notices that somebody looks, so it costs no step.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from crc32c import crc32c
from tests.simulation.machine import ROOT
from tests.simulation.node_audit import Placed, Shown
from tests.simulation.scene import TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.simulation.layouts import Layout
    from tests.simulation.machine import Machine
    from tests.simulation.power import Node

__all__ = ["Disks", "State"]

STATE: Final = "kafkalog.commit"
UNFINISHED: Final = ("kafkalog.intent", "kafkalog.commit.prepared", "kafkalog.unfinished")
_HEAD: Final = 12
"""Bytes of a batch before what its length counts (Kafka ``Records.LOG_OVERHEAD``)."""


class State(NamedTuple):
    """What a state file says: its rank, and the partitions of the topic that is looked at.

    ``partitions`` have log start, high watermark, log end and leader epoch, ``replicas`` the
    leader, the nodes, and those of them in sync, by number. Of ``rewritten`` partitions segments
    are being replaced, first on one node, then on the others.
    """

    sequence: int
    epoch: int
    commit: str
    controller: str
    partitions: dict[int, list[int]]
    replicas: dict[int, tuple[int, list[int], list[int]]]
    rewritten: frozenset[int]

    @property
    def rank(self) -> tuple[int, int]:
        """What orders states."""
        return self.sequence, self.epoch


class Disks:
    """The directories of all nodes; if the topic ``is_compacted``, batches lose records."""

    def __init__(
        self, machine: Machine, layout: Layout, now: Callable[[], int], *, is_compacted: bool
    ) -> None:
        self._machine = machine
        self._is_compacted = is_compacted
        self._layout = layout
        self._now = now
        self.placed: list[Placed] = []
        self.doubled: list[str] = []
        """Offsets that had two records under one leader epoch, on whatever node at any time."""
        self._known: dict[tuple[bytes, str, int, int], int] = {}
        machine.renamed = self._renamed

    def _renamed(self, path: str, node: Node) -> None:
        """A file has got another name: a state that is in place now is noted."""
        name, _, file = path.removeprefix(ROOT + "/").partition("/")
        state = _parsed(bytes(node.data)) if file == STATE else None
        if state is not None and name.startswith("d"):
            ends = {number: each[1] for number, each in state.partitions.items()}
            which = (state.sequence, state.commit, state.epoch, state.controller)
            node_id = self._layout.node_of(name)
            self.placed.append(Placed(self._now(), node_id, name, *which, ends))

    # What lies there

    def _folder(self, name: str) -> dict[str, Node]:
        node = (self._machine.root.names or {}).get(name)
        return {} if node is None else node.names or {}

    def _own(self, name: str) -> dict[str, Node]:
        """Return what a directory holds, though something else is in its place for a while."""
        hidden = self._machine.images.hidden(name)
        return self._folder(name) if hidden is None else hidden.names or {}

    def state_of(self, name: str) -> State | None:
        """Return the state in place in a directory; None if there is none."""
        file = self._folder(name).get(STATE)
        return None if file is None else _parsed(bytes(file.data))

    def is_unfinished(self) -> bool:
        """Whether a commit has begun anywhere, and not ended."""
        names = (name for names in self._layout.names for name in names)
        return any(UNFINISHED[n] in self._folder(name) for name in names for n in range(3))

    def newest(self) -> State | None:
        """Return the newest state in place anywhere."""
        states = (self.state_of(name) for names in self._layout.names for name in names)
        return max(filter(None, states), key=lambda each: each.rank, default=None)

    def are_whole(self, state: State) -> list[int]:
        """Return the nodes that hold a state in all of their directories."""
        return [
            node
            for node, names in enumerate(self._layout.names)
            if all((s := self.state_of(name)) and s.rank == state.rank for name in names)
        ]

    def holding(self, values: Iterable[str]) -> dict[str, set[int]]:
        """Return the nodes in whose logs each of these values lies."""
        found: dict[str, set[int]] = {value: set() for value in values}
        for node, names in enumerate(self._layout.names):
            logs = [log for name in names for log in _logs(self._own(name))]
            for value, nodes in found.items():
                if any(value.encode() in log for log in logs):
                    nodes.add(node)
        return found

    def shown(self) -> Iterator[Shown]:
        """Compare the replicas that are in sync for the newest state, and have it in place.

        replicas.md, rule 6: of who has not got it, the replicas are not in sync, whatever it says.
        """
        self._compare_epochs()
        state = self.newest()
        there = [] if state is None else self.are_whole(state)
        for number, (_, _, isr) in state.replicas.items() if state is not None else ():
            if number in state.rewritten:
                continue
            start, end, _, _ = state.partitions[number]
            by_node = {
                node: self._batches(node, f"{TOPIC}-{number}", start, end)
                for node in isr
                if node in there
            }
            if len(by_node) > 1:
                yield Shown(self._now(), number, by_node)

    def _compare_epochs(self) -> None:
        """See that no two records have one offset under one leader epoch (KIP-101).

        A topic that is made again begins again: it has another id.
        """
        for name in (name for names in self._layout.names for name in names):
            for folder, node in self._own(name).items():
                for log in _logs({folder: node}):
                    for offset, epoch, crc in _records(log, isolated_per_node=self._is_compacted):
                        key = (_topic_id(node), folder, offset, epoch)
                        if self._known.setdefault(key, crc) != crc:
                            self.doubled.append(f"two records: folder, offset, epoch {key[1:]}")

    def _batches(self, node: int, folder: str, start: int, end: int) -> dict[int, int]:
        """Return the CRC of each batch of a log by its first offset."""
        found: dict[int, int] = {}
        for name in self._layout.names[node]:
            names = getattr(self._folder(name).get(folder), "names", None) or {}
            for file, log in sorted(names.items()):
                if file.endswith(".log"):
                    found |= _crcs(bytes(log.data))
        return {offset: crc for offset, crc in found.items() if start <= offset < end}


def _topic_id(folder: Node) -> bytes:
    file = (folder.names or {}).get("partition.metadata")
    return b"" if file is None else bytes(file.data)


def _logs(names: dict[str, Node]) -> Iterator[bytes]:
    for folder, node in names.items():
        if folder.removeprefix(f"{TOPIC}-").isdecimal():  # no stray folder
            for name, file in (node.names or {}).items():
                if name.endswith(".log"):
                    yield bytes(file.data)


def _crcs(log: bytes) -> dict[int, int]:
    found, position = {}, 0
    while position + _HEAD <= len(log):
        offset = int.from_bytes(log[position : position + 8], "big")
        size = int.from_bytes(log[position + 8 : position + _HEAD], "big") + _HEAD
        if found and offset <= max(found):
            break  # torn, and above what is committed unless another replica has more
        found[offset] = zlib.crc32(log[position : position + size])
        position += size
    return found


def _records(log: bytes, *, isolated_per_node: bool) -> Iterator[tuple[int, int, int]]:
    """Yield the first offset, leader epoch and the CRC of the records of each whole batch.

    If they are to be looked at ``isolated_per_node``, those of each record, by its key and value.
    """
    position = 0
    while position + _HEAD <= len(log):
        offset = int.from_bytes(log[position : position + 8], "big")
        size = int.from_bytes(log[position + 8 : position + _HEAD], "big") + _HEAD
        batch = log[position : position + size]
        is_whole = len(batch) == size > 61 and crc32c(batch[21:]) == int.from_bytes(batch[17:21])
        if not is_whole:
            return
        epoch = int.from_bytes(batch[_HEAD : _HEAD + 4], "big")
        if isolated_per_node:
            yield from ((offset + delta, epoch, crc) for delta, crc in _apart(batch))
        else:
            yield offset, epoch, zlib.crc32(batch[61:])
        position += size


def _apart(batch: bytes) -> Iterator[tuple[int, int]]:
    """Yield the offset delta, and the CRC of key and value, of each record of a batch."""
    assert not int.from_bytes(batch[21:23]) & 7, "a batch is compressed"
    position = 61
    while position < len(batch):
        length, position = _varint(batch, position)
        _, place = _varint(batch, position + 1)  # after the attributes: the timestamp
        delta, place = _varint(batch, place)
        size, after = _varint(batch, place)
        size, after = _varint(batch, after + max(size, 0))
        yield delta, zlib.crc32(batch[place : after + max(size, 0)])
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a zigzag number, and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position


def _parsed(data: bytes) -> State | None:
    try:
        head, *lines = [json.loads(line) for line in data.splitlines()[1:]]
    except ValueError:
        return None  # torn
    topic: dict[str, Any] = next((each for each in lines if each.get("topic") == TOPIC), {})
    return State(
        head["sequence"],
        head["controllerEpoch"],
        head["commit"],
        head.get("controller", ""),
        {int(number): each for number, each in topic.get("partitions", {}).items()},
        {int(number): tuple(each[:3]) for number, each in topic.get("replicas", {}).items()},
        frozenset(int(n) for n, each in topic.get("replicas", {}).items() if _is_rewritten(each)),
    )


def _is_rewritten(replica: list[Any]) -> bool:
    sequence, start, end = replica[3] if len(replica) > 3 else (0, 0, 0)
    return bool(sequence) and start < end
