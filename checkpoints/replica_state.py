"""Where the replicas of a partition lie, and which of them are in sync, as a commit state keeps it.

A node is what one broker's ``log.dirs`` would be. Its members are the log directories that it has.
A set whose state names no nodes is not replicated.

::

    in line 2     "nodes":[{"id":0,"members":["…"]},{"id":1,"members":["…"],"witness":true}],
                  "former":[…],"controller":"…","previous":"…","lentTo":"<cluster id>"
    in a topic    "replicas":{"0":[1,[1,2,0],[1,2]],"1":[2,[2,0,1],[2,0],[8,100,140]],
                  "2":[0,[3,0,1],[0,1],[0,0,0],[[3],[1],1048576]]}

``previous`` is the ``commit`` of the state before.
``former`` are the voters before, in the one state that changes them.

``replicas`` of a partition are its leader, the nodes that hold it in Kafka's order of preference,
and those of them that are in sync; the leader is -1 where none that lives is in sync. A fourth
value says that sealed segments were replaced since the partition was made, see :class:`Rewritten`.
A fifth is there while it moves: the nodes that it is added to, those that it is removed from, and
how many bytes a second are copied, 0 for as many as go.
``lentTo`` is the cluster that has the set, where a handover gave it to one: until a takeover nobody
else writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.sealed_file import natural, text, texts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from kafkalog.checkpoints.sealed_file import JsonObject

__all__ = [
    "NODE_FIELDS",
    "NO_LEADER",
    "NodeState",
    "ReplicaState",
    "Rewritten",
    "is_majority",
    "majority_of",
    "node_line",
    "parse_nodes",
    "parse_replicas",
    "replica_fields",
]

NO_LEADER: Final = -1
"""As in Kafka's ``LeaderAndIsr``: no replica that is in sync lives."""

NODE_FIELDS: Final = frozenset({"id", "members", "witness"})


class NodeState(NamedTuple):
    """A voter of a set: its id, the member ids of its directories; a witness holds no partition."""

    node_id: int
    member_ids: tuple[str, ...]
    is_witness: bool = False


class Rewritten(NamedTuple):
    """The last time that segments below the end of a log were replaced by others, on the leader.

    ``sequence`` is that of the commit that said so before, 0 if it never happened: who does not
    know that commit may have other bytes. Segments of offsets ``[start, end)`` may differ between
    the replicas in sync, of which each has all records: whoever replaced them was cut off.
    """

    sequence: int = 0
    start: int = 0
    end: int = 0

    @property
    def is_under_way(self) -> bool:
        """Whether replicas in sync may differ."""
        return self.end > self.start


class ReplicaState(NamedTuple):
    """The replicas of a partition, by the ids of their nodes; ``isr`` are those in sync.

    While it moves, ``replicas`` are first those that it is to have, then others that it still has.
    ``adding`` are new ones. ``removing`` are those that go once all that it is to have are in sync;
    one that is no replica any more may still have its folder. ``rate`` is how many bytes a second
    are copied to new ones, 0 for as many as go. Source: Kafka ``PartitionRegistration``.
    """

    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    rewritten: Rewritten = Rewritten()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    rate: int = 0

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas that it is to have."""
        return tuple(node for node in self.replicas if node not in self.removing)

    @property
    def is_moving(self) -> bool:
        """Whether it has other replicas than it is to have, or new ones."""
        return bool(self.adding) or self.target != self.replicas

    @property
    def left(self) -> tuple[int, ...]:
        """The nodes that hold no replica any more, and may still have its folder."""
        return tuple(node for node in self.removing if node not in self.replicas)

    def without(self, nodes: Iterable[int]) -> ReplicaState:
        """Return this with ``nodes`` out of the in-sync set, but for the last one of that.

        Of the last ones that were in sync one has to stay: nobody else has all records (Kafka's
        ``ReplicaStateMachine`` keeps it, too).
        """
        gone = frozenset(nodes)
        isr = tuple(node for node in self.isr if node not in gone) or self.isr
        return self._replace(isr=isr)


def majority_of(voters: int) -> int:
    """Return how many of so many voters are a majority."""
    return voters // 2 + 1


def is_majority(nodes: Collection[int], voters: Iterable[frozenset[int]]) -> bool:
    """Whether nodes are a majority of the voters, and of those before where they change."""
    return all(len(each & {*nodes}) >= majority_of(len(each)) for each in voters)


# Bytes


def node_line(node: NodeState) -> JsonObject:
    """Return what line 2 says of a node."""
    line: JsonObject = {"id": node.node_id, "members": list(node.member_ids)}
    return line | {"witness": True} if node.is_witness else line


def parse_nodes(given: object) -> tuple[NodeState, ...]:
    """Parse the nodes of line 2.

    Raises:
        ValueError, TypeError, LookupError: they are none that a release has written.
    """
    if not isinstance(given, list):
        raise TypeError(f"{given!r:.100} where nodes belong")
    nodes = tuple(_parse_node(line) for line in given)
    members = [member for node in nodes for member in node.member_ids]
    if len({node.node_id for node in nodes}) < len(nodes) or len({*members}) < len(members):
        raise ValueError(f"two nodes are one: {nodes!r:.200}")
    return nodes


def _parse_node(line: JsonObject) -> NodeState:
    if unknown := line.keys() - NODE_FIELDS:
        raise ValueError(f"a node has {sorted(unknown)!r:.100}")
    members = texts(line["members"])
    if not members:
        raise ValueError("a node without log directories")
    return NodeState(natural(line["id"]), members, line.get("witness", False) is True)


def replica_fields(replicas: Mapping[int, ReplicaState]) -> JsonObject:
    """Return what the line of a topic says of its replicas."""
    return {str(number): _replica_line(each) for number, each in sorted(replicas.items())}


def _replica_line(each: ReplicaState) -> list[object]:
    leader, replicas, isr, rewritten, adding, removing, rate = each
    line: list[object] = [leader, replicas, isr]
    if adding or removing:
        return [*line, rewritten, [adding, removing, rate]]
    return [*line, rewritten] if rewritten.sequence else line


def parse_replicas(given: JsonObject) -> dict[int, ReplicaState]:
    """Parse what the line of a topic says of its replicas.

    Raises:
        ValueError, TypeError: it is nothing that a release has written.
    """
    return {natural(int(text(number))): _parse_replica(each) for number, each in given.items()}


def _parse_replica(given: object) -> ReplicaState:
    if not isinstance(given, list) or len(given) not in {3, 4, 5}:
        raise TypeError(f"{given!r:.100} where leader, replicas and in-sync replicas belong")
    leader, replicas, isr, *rest = given
    rewritten = Rewritten(*map(natural, rest[0])) if rest else Rewritten()
    adding, removing, rate = rest[1] if len(rest) > 1 else ([], [], 0)
    state = ReplicaState(
        leader,
        tuple(map(natural, replicas)),
        tuple(map(natural, isr)),
        rewritten,
        tuple(map(natural, adding)),
        tuple(map(natural, removing)),
        natural(rate),
    )
    is_needed = bool(rewritten.sequence or adding or removing)
    if rewritten.start > rewritten.end or is_needed is not bool(rest):
        raise ValueError(f"{rest!r:.100} were never rewritten")
    _check(state, given)
    return state


def _check(state: ReplicaState, given: object) -> None:
    """Refuse replicas that cannot be.

    Raises:
        ValueError: they cannot.
    """
    lists = (state.replicas, state.isr, state.adding, state.removing)
    is_one = all(len({*each}) == len(each) for each in lists)
    if not is_one or not state.isr or not {*state.isr} | {*state.adding} <= {*state.replicas}:
        raise ValueError(f"{given!r:.100} are no replicas and in-sync replicas")
    if not state.target or {*state.adding} & {*state.removing}:
        raise ValueError(f"{given!r:.100} moves to no replicas")
    if type(state.leader) is not int or state.leader not in {NO_LEADER, *state.isr}:
        raise ValueError(f"{state.leader!r:.100} leads, and is not in sync")
