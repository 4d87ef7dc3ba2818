"""What may never be of a set of several nodes, whoever did what for whatever reason.

Nothing here knows how kafkalog works. ``placed`` are the states that came into place, as a disk
sees it; ``acknowledged`` says on how many nodes the records of a write lay when it was told ok;
``stands`` is what ``kafkalog node list`` has said, ``shown`` what lay on the disks meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.simulation.auditor import History, Place, Write

__all__ = ["Acknowledged", "NodeHistory", "Placed", "Shown", "Stand", "audit_nodes"]


class Placed(NamedTuple):
    """A state that came into place in a directory; ``ends`` has high watermarks by partition."""

    at: int
    node: int
    directory: str
    sequence: int
    commit: str
    epoch: int
    controller: str
    ends: Mapping[int, int]


class Acknowledged(NamedTuple):
    """A write was told ok: ``holding`` nodes had its records then, of ``asked`` at least."""

    write: Write
    holding: int
    asked: int


class Stand(NamedTuple):
    """What somebody was told of the high watermarks and leader epochs, by partition."""

    who: str
    began: int
    ended: int
    partitions: Mapping[int, tuple[int, int]]


class Shown(NamedTuple):
    """What replicas in sync of a partition hold below its high watermark, by node and offset."""

    at: int
    partition: int
    by_node: Mapping[int, Mapping[int, int]]


@dataclass
class NodeHistory:
    """What was seen of nodes; ``nodes`` is how many there are, ``directories`` of each how many."""

    directories: tuple[int, ...] = ()
    placed: list[Placed] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    stands: list[Stand] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    older: dict[int, list[int]] = field(default_factory=dict)
    """When an older copy came in a node's place, by node."""
    not_whole: list[str] = field(default_factory=list)
    """What was not as it should be when all nodes had been back for a while."""

    @property
    def majority(self) -> int:
        """How many nodes decide."""
        return len(self.directories) // 2 + 1


def audit_nodes(nodes: NodeHistory, history: History) -> list[str]:
    """Say what is wrong."""
    if not nodes.directories:
        return []
    found = [
        *_two_controllers(nodes),
        *_falling_states(nodes),
        *_falling_marks(nodes),
        *_above_the_mark(nodes, history),
        *_known_to_few(nodes, history),
        *_held_by_few(nodes, history),
        *_differing(nodes),
        *nodes.not_whole,
    ]
    return list(dict.fromkeys(found))[:20]


def _two_controllers(nodes: NodeHistory) -> Iterator[str]:
    """Of one number one commit is decided, and under one epoch one controller decides.

    replicas.md, rules 2 and 3: "The first rename is the commit, and a state in place anywhere is
    decided"; "no two controllers prepare different states under one epoch". A state without a
    controller is what a node that lost its own was given: nobody has decided it there.
    """
    commits: dict[int, Placed] = {}
    controllers: dict[int, Placed] = {}
    for each in nodes.placed:
        first = commits.setdefault(each.sequence, each)
        if first.commit != each.commit:
            yield f"two commits {each.sequence} are in place: {first} and {each}"
        first = controllers.setdefault(each.epoch, each) if each.controller else each
        if first.controller != each.controller:
            yield f"two controllers publish under epoch {each.epoch}: {first} and {each}"


def _falling_states(nodes: NodeHistory) -> Iterator[str]:
    """What is in place in a directory is followed by what is newer, or by itself.

    But a node that has lost its state gets an older one, without a controller, as if it had been
    away.
    """
    last: dict[str, Placed] = {}
    for each in nodes.placed:
        before = last.get(each.directory)
        is_older = before and (each.sequence, each.epoch) < (before.sequence, before.epoch)
        if before and is_older and not _may_be_older(nodes, each, since=before.at):
            yield f"{each.directory} gets {each} after {before}"
        last[each.directory] = each


def _may_be_older(nodes: NodeHistory, placed: Placed, since: int) -> bool:
    came_back = any(since <= at <= placed.at for at in nodes.older.get(placed.node, ()))
    return came_back or not placed.controller


def _falling_marks(nodes: NodeHistory) -> Iterator[str]:
    """A high watermark and a leader epoch that somebody was told do not fall for who asks later."""
    for one in nodes.stands:
        for other in nodes.stands:
            if one.ended < other.began:
                for partition, before in one.partitions.items():
                    now = other.partitions.get(partition, (0, 0))
                    if now[0] < before[0] or now[1] < before[1]:
                        yield (
                            f"{other.who} is told that {partition} stands at {now} (high "
                            f"watermark, leader epoch), {one.who} was told {before}"
                        )


def _above_the_mark(nodes: NodeHistory, history: History) -> Iterator[str]:
    """Who has read a row, read it below the high watermark: whoever asks later is told so."""
    for read in history.reads:
        ends = {partition: offset + 1 for partition, offset, _ in read.rows}
        for stand in nodes.stands:
            if stand.began > read.ended:
                for partition, end in ends.items():
                    mark, _ = stand.partitions.get(partition, (0, 0))
                    if end > mark:
                        yield (
                            f"{read.reader} has read {partition} up to {end}, and its high "
                            f"watermark is {mark} for {stand.who}"
                        )


def _places(history: History) -> dict[str, Place]:
    return {value: (p, offset) for read in history.reads for p, offset, value in read.rows}


def _known_to_few(nodes: NodeHistory, history: History) -> Iterator[str]:
    """An acknowledged write is known to a majority.

    replicas.md, rule 3: "The write returns when a majority has it". But who was told that it may
    not be durable (``DurabilityError``) was told so.
    """
    places = _places(history)
    for write in history.writes:
        seen = [places[value] for value in write.values if value in places]
        if write.outcome != "ok" or write.is_doubtful or len(seen) < len(write.values):
            continue
        known: dict[int, set[str]] = {}
        for each in nodes.placed:
            if each.at < write.acknowledged and all(each.ends.get(p, 0) > o for p, o in seen):
                known.setdefault(each.node, set()).add(each.directory)
        whole = [n for n, names in known.items() if len(names) == nodes.directories[n]]
        if len(whole) < nodes.majority:
            yield f"{[*write.values]} is acknowledged, and known to nodes {whole} only"


def _held_by_few(nodes: NodeHistory, history: History) -> Iterator[str]:
    """The records of an acknowledged write lay on as many nodes as were to be in sync."""
    for each in nodes.acknowledged:
        if each.holding < each.asked and not history.cuts:
            text = f"on {each.holding} nodes, and {each.asked} were asked for"
            yield f"{[*each.write.values]} is acknowledged, and lies {text}"


def _differing(nodes: NodeHistory) -> Iterator[str]:
    """Replicas in sync are equal below the high watermark."""
    for each in nodes.shown:
        (first, whole), *others = each.by_node.items()
        for node, batches in others:
            if batches != whole:
                wrong = sorted(batches.items() ^ whole.items())[:3]
                text = (
                    f"{each.partition} differs on nodes {first} and {node}: offsets, CRCs {wrong}"
                )
                yield text
