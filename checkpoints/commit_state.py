"""What the sink has committed: the state that every log directory keeps in ``kafkalog.commit``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from kafkalog.checkpoints.sealed_file import natural, read_head, text, texts
from kafkalog.errors import CheckpointError
from kafkalog.files.system import system

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from kafkalog.checkpoints.sealed_file import JsonObject


__all__ = [
    "CHANGES_VERSION",
    "DEFAULT_EXPIRATION_MS",
    "FORMAT_VERSION",
    "LOCK_FILE",
    "NODE_FIELDS",
    "NO_LEADER",
    "PREPARED_FILE",
    "REPLICATED_VERSION",
    "SNAPSHOT",
    "STAGED_PREFIX",
    "STATE_FILE",
    "UNFINISHED_FOLDER",
    "UNKNOWN_EPOCH",
    "CommitStamp",
    "CommitState",
    "DeletedTopic",
    "NodeState",
    "PartitionState",
    "ReplicaState",
    "Rewritten",
    "SourcePosition",
    "StateSnapshot",
    "TopicOrigin",
    "TopicState",
    "WriterState",
    "is_majority",
    "load_stamp",
    "majority_of",
    "node_line",
    "parse_nodes",
    "parse_replicas",
    "replica_fields",
    "topic_key",
]


# ----------------------------------------------------------------------------------------------
# Where the replicas of a partition lie, and which of them are in sync, as a commit state keeps
# it.
#
# A node is what one broker's ``log.dirs`` would be. Its members are the log directories that it
# has. A set whose state names no nodes is not replicated.
#
# ::
#
#     in line 2     "nodes":[{"id":0,"members":["…"]},{"id":1,"members":["…"],"witness":true}],
#                   "former":[…],"controller":"…","previous":"…","lentTo":"<cluster id>"
#     in a topic    "replicas":{"0":[1,[1,2,0],[1,2]],"1":[2,[2,0,1],[2,0],[8,100,140]],
#                   "2":[0,[3,0,1],[0,1],[0,0,0],[[3],[1],1048576]]}
#
# ``previous`` is the ``commit`` of the state before. ``former`` are the voters before, in the one
# state that changes them.
#
# ``replicas`` of a partition are its leader, the nodes that hold it in Kafka's order of
# preference, and those of them that are in sync; the leader is -1 where none that lives is in
# sync. A fourth value says that sealed segments were replaced since the partition was made, see
# :class:`Rewritten`. A fifth is there while it moves: the nodes that it is added to, those that
# it is removed from, and how many bytes a second are copied, 0 for as many as go. ``lentTo`` is
# the cluster that has the set, where a handover gave it to one: until a takeover nobody else
# writes.


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


# ----------------------------------------------------------------------------------------------
# Which commit a state is of.
#
# A sequence number is not enough. If one of two writers has lost its locks, both may publish the
# same number, and even the same content. So each commit has a random id, which its intent and its
# state carry.


STATE_FILE: Final = "kafkalog.commit"
PREPARED_FILE: Final = f"{STATE_FILE}.prepared"
"""A state of several nodes that is not decided yet, beside the one in place."""


SNAPSHOT: Final = "kafkalog.snapshot"
"""A file that holds most of a large state; see :mod:`~kafkalog.checkpoints.state_file`."""


class CommitStamp(NamedTuple):
    """The sequence number of a commit, and its id; "" where none was noted."""

    sequence: int
    commit_id: str


def load_stamp(directory: Path) -> CommitStamp | None:
    """Read of which commit the state of a log directory is, and nothing else; None without one.

    Raises:
        CheckpointError: it is no file that a release of kafkalog has written.
        OSError: as the system says.
    """
    path = directory / STATE_FILE
    head = read_head(path)
    if head is None:
        return None
    sequence, commit_id = head.get("sequence"), head.get("commit", "")
    if type(sequence) is not int or not isinstance(commit_id, str):
        raise CheckpointError(
            f"{path} holds what no release of kafkalog has written: {head!r:.200}"
        )
    return CommitStamp(sequence, commit_id)


# ----------------------------------------------------------------------------------------------
# What the sink has committed: the state that every log directory keeps in ``kafkalog.commit``.
#
# One set of log directories has one state. Each directory holds a copy that differs only in the
# name of the member it is; the copy with the highest sequence number is the truth, and the rename
# that puts the first such copy in place is the commit. :mod:`~kafkalog.checkpoints.intent` is the
# other half: what a commit in progress is about to do.
#
# The values are here. :mod:`~kafkalog.checkpoints.state_file` has the bytes,
# :mod:`~kafkalog.checkpoints.committed` says how a reader finds the end of what is committed.

LOCK_FILE: Final = "kafkalog.lock"
UNFINISHED_FOLDER: Final = "kafkalog.unfinished"
"""A folder without a partition's name: a broker refuses to start on a directory that has it."""
STAGED_PREFIX: Final = ".kafkalog.staged."

DEFAULT_EXPIRATION_MS: Final = 7 * 86_400_000
"""How long a writer is remembered that says nothing about it; Kafka's default, too."""

_ORIGIN_EXPIRATION_MS: Final = 90 * 86_400_000

FORMAT_VERSION: Final = 2
"""Of the state and of the intent, as they are written for a set that is not replicated."""

REPLICATED_VERSION: Final = 3
"""The same for one that is: earlier releases refuse it."""

CHANGES_VERSION: Final = 4
"""Of a large state of a set that is not replicated: what has changed since a snapshot of it."""

UNKNOWN_EPOCH: Final = -1
"""The leader epoch where nobody could tell it (Kafka ``NO_PARTITION_LEADER_EPOCH``)."""

_EMPTY: Final[Mapping[Any, Any]] = MappingProxyType({})


def topic_key(topic: str, topic_id: str | None) -> str:
    """Return the key under which the state keeps a topic; ``topic_id`` is None where unknown."""
    return topic_id or f":{topic}"


class PartitionState(NamedTuple):
    """Where a partition stands: ``0 <= log_start <= high_watermark <= log_end``.

    Readers read ``[log_start, high_watermark)``. Writers continue at ``log_end``, with
    ``leader_epoch`` in their batches. With one node ``high_watermark`` and ``log_end`` are equal.
    The first segment may begin above ``log_start``: the log starts there then.
    """

    log_start: int
    high_watermark: int
    log_end: int
    leader_epoch: int

    def starting_at(self, checkpointed: int) -> Self:
        """Return the partition with the larger of its log start and the one in Kafka's checkpoint.

        One above the end of the log is about an earlier topic of that name, and counts as none.
        """
        if not self.log_start < checkpointed <= self.high_watermark:
            return self
        return self._replace(log_start=checkpointed)

    def ended_at(self, end: int, leader_epoch: int) -> Self:
        """Return the partition after its log, all of it committed, came to end at ``end``."""
        return self._replace(
            log_start=min(self.log_start, end),
            high_watermark=end,
            log_end=end,
            leader_epoch=leader_epoch,
        )


class SourcePosition(NamedTuple):
    """How far a partition of a source is copied: the next offset, and the last batch below it.

    The batch is in one word (:class:`~kafkalog.streaming.log.history.LastBatch`), None where none
    was there. It tells a source that was cut, or replaced by a backup, and then written again, from
    one that has grown. ``copy_epoch`` is the leader epoch of the copy's own log then, which a cut
    of the copy raises.
    """

    offset: int
    last_batch: str | None = None
    copy_epoch: int = 0


@dataclass(frozen=True, slots=True)
class TopicOrigin:
    """A topic of another set that records were copied from, and how far, by its partitions.

    ``set_id`` and ``topic_id`` are None where the source does not tell them. ``time_ms`` is when it
    was noted last; None if it is not to be forgotten.
    """

    set_id: str | None
    topic_id: str | None
    positions: Mapping[int, SourcePosition] = field(default_factory=lambda: _EMPTY)
    time_ms: int | None = None

    def is_expired(self, now_ms: int) -> bool:
        """Whether nobody has continued it for 90 days."""
        return self.time_ms is not None and now_ms - self.time_ms > _ORIGIN_EXPIRATION_MS


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic: its name, its partitions by their numbers, and the settings given to it.

    ``versions`` has the last version that each ``txnAppId`` has written of it, ``last_query`` the
    writer key of the streaming query that has written to it last.
    ``durable_ends`` names the partitions of which something is unsynced.
    ``replicas`` says where the partitions of a replicated set lie.
    ``origins`` are the topics that a mirror or replay has copied into it, by their keys: what is
    copied is published with how far it is, so a run continues where the copy ends.
    ``cluster_epochs`` are the leader epochs of partitions before a cut of ours raised them: a
    handover sets them down to these.
    ``partition_count`` is how many partitions the topic has where a broker's cluster, or what was
    here before, knew of more than are here; 0 where nothing tells of more.
    """

    name: str
    partitions: Mapping[int, PartitionState] = field(default_factory=lambda: _EMPTY)
    settings: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    versions: Mapping[str, WriterState] = field(default_factory=lambda: _EMPTY)
    last_query: str | None = None
    durable_ends: Mapping[int, int] = field(default_factory=lambda: _EMPTY)
    replicas: Mapping[int, ReplicaState] = field(default_factory=lambda: _EMPTY)
    origins: Mapping[str, TopicOrigin] = field(default_factory=lambda: _EMPTY)
    cluster_epochs: Mapping[int, int] = field(default_factory=lambda: _EMPTY)
    partition_count: int = 0

    @property
    def known_count(self) -> int:
        """How many partitions the topic has at least: keys are placed among so many."""
        return max(self.partition_count, max(self.partitions, default=-1) + 1)

    def is_in_sync(self, partition: int, node: int | None) -> bool:
        """Whether a partition on a node has all of its records; one without replicas has."""
        replicas = self.replicas.get(partition)
        return replicas is None or node in replicas.isr


class DeletedTopic(NamedTuple):
    """A topic that is being deleted.

    Once ``is_retired``, none of its folders has a partition's name any more. One that has its id
    then is of a broker that has made the topic again.
    """

    name: str
    is_retired: bool = False


@dataclass(frozen=True, slots=True)
class WriterState:
    """The last batch of one writer.

    ``digest`` identifies the batch's content beyond its number (what the query's checkpoint has
    planned, or its rows), None where nothing told. ``fenced`` are runs that a newer one has
    replaced. It has expired once it is ``expiration_ms`` older than ``time_ms``, by whatever clock;
    ``expired_ms`` is when a commit has found that first.
    """

    run_id: str
    batch_id: int
    digest: str | None
    time_ms: int
    fenced: tuple[str, ...] = ()
    expiration_ms: int = DEFAULT_EXPIRATION_MS
    expired_ms: int | None = None

    def is_expired(self, now_ms: int) -> bool:
        """Whether it has been silent for longer than it asked to be remembered."""
        return now_ms - self.time_ms > self.expiration_ms


@dataclass(frozen=True, slots=True, eq=False)
class StateSnapshot:
    """What a large state held at one commit, kept in a file beside ``kafkalog.commit``.

    Args:
        snapshot_id: drawn at random; part of the file's name.
        crc: of the file's content, as eight hex digits.
        size: of the file, in bytes.
    """

    snapshot_id: str
    crc: str
    size: int
    topics: Mapping[str, TopicState]
    writers: Mapping[str, WriterState]

    @property
    def file(self) -> str:
        """The file's name."""
        return f"{SNAPSHOT}.{self.snapshot_id}"


@dataclass(frozen=True)
class CommitState:
    """One published state; ``topics`` by topic key, ``writers`` by writer key.

    ``deleted`` are the topics, by topic key, that are being deleted: folders may be left of them.
    ``commit_id`` is that of the commit that published it, "" where none was noted. ``boot`` is the
    run of the machine to which records were left that are not durable, None where all are or it is
    not known. ``nodes`` are the voters of a replicated set, ``former`` those before in a state that
    changes them; without any ``controller_epoch`` is 0. ``controller`` names the process that has
    published it. ``previous`` is the ``commit_id`` before, kept of a replicated set: it tells nodes
    that have made another commit in its place. ``metadata_end`` is where a cluster's metadata ended
    when the settings of topics were taken from it. ``handed_to`` is the cluster that a replicated
    set was handed over to, "" of one that is ours. ``snapshot`` is the one that it was read with,
    None of a state that one file holds.
    """

    sequence: int
    set_id: str
    member_id: str
    member_ids: tuple[str, ...]
    topics: Mapping[str, TopicState] = field(default_factory=lambda: _EMPTY)
    writers: Mapping[str, WriterState] = field(default_factory=lambda: _EMPTY)
    commit_id: str = ""
    boot: str | None = None
    controller_epoch: int = 0
    metadata_end: int | None = None
    deleted: Mapping[str, DeletedTopic] = field(default_factory=lambda: _EMPTY)
    nodes: tuple[NodeState, ...] = ()
    former: tuple[NodeState, ...] = ()
    controller: str = ""
    previous: str = ""
    handed_to: str = ""
    snapshot: StateSnapshot | None = field(default=None, compare=False, repr=False)

    @property
    def stamp(self) -> CommitStamp:
        """What tells it from every other state of its set."""
        return CommitStamp(self.sequence, self.commit_id)

    @property
    def is_replicated(self) -> bool:
        """Whether it is the state of several nodes."""
        return bool(self.nodes)

    @property
    def knows_all_ends(self) -> bool:
        """Whether a broker's files cannot tell more of partitions than it does.

        That holds of a replicated set that is ours: its nodes decide together what is committed,
        and a checkpoint file of one node is that node's alone.
        """
        return self.is_replicated and not self.handed_to

    @property
    def voters(self) -> tuple[frozenset[int], ...]:
        """The nodes of which a majority decides on this state; each of them, where they change.

        A majority of the new voters need not have a node in common with one of the old ones.
        """
        groups = (self.nodes, self.former) if self.former else (self.nodes,)
        return tuple(frozenset(node.node_id for node in each) for each in groups)

    @cached_property
    def node_of_member(self) -> Mapping[str, int]:
        """The ids of nodes by the member ids of their directories."""
        return {member: node.node_id for node in self.nodes for member in node.member_ids}

    @property
    def rank(self) -> tuple[int, int, int]:
        """What the newest of several copies has most of.

        Of those with one sequence number, a controller may have written one again, under its own
        epoch; one with more members is a copy that invites a directory into the set.
        """
        return self.sequence, self.controller_epoch, -len(self.member_ids)

    def following(
        self,
        *,
        topics: Mapping[str, TopicState] | None = None,
        writers: Mapping[str, WriterState] | None = None,
    ) -> Self:
        """Return the state that a commit publishes after this one; what is not given stays."""
        return replace(
            self,
            sequence=self.sequence + 1,
            commit_id=system.random_id().hex,
            previous=self.commit_id if self.is_replicated else "",
            topics=self.topics if topics is None else topics,
            writers=self.writers if writers is None else writers,
            former=(),
        ).with_boot(self.boot)

    @property
    def has_unsynced(self) -> bool:
        """Whether there are records that ``flush=os`` has left unsynced."""
        return any(topic.durable_ends for topic in self.topics.values())

    def with_boot(self, boot: str | None) -> Self:
        """Return this state with the run of the machine that the rest was left to, if any was."""
        return replace(self, boot=boot if self.has_unsynced else None)

    def key_of(self, topic: str, topic_id: str | None) -> str:
        """Return the key under which a topic is kept here, or would be.

        A folder that has lost its id is of the topic that has its name: what is committed to that
        one does not become unknown with a small file.
        """
        key = topic_key(topic, topic_id)
        if topic_id is not None or key in self.topics:
            return key
        return self._keys_by_name.get(topic, key)

    @cached_property
    def _keys_by_name(self) -> dict[str, str]:
        return {topic.name: key for key, topic in self.topics.items()}

    def topic(self, topic: str, topic_id: str | None) -> TopicState | None:
        """Return what is known of a topic; see :meth:`key_of`."""
        # the key is the id, where there is one; this is asked of 10,000 partitions at a time
        key = topic_id or self.key_of(topic, topic_id)
        known = self.topics.get(key)
        # A folder that was copied under another name carries an id that is not its topic's.
        return known if known is not None and known.name == topic else None

    def is_deleted(self, topic: str, topic_id: str | None) -> bool:
        """Whether a folder with a topic's name and id is left of one that is being deleted.

        So is one that has lost its id: its topic has had no other folders for as long.
        """
        if not self.deleted:
            return False
        if topic_id is None and DeletedTopic(topic) in self.deleted.values():
            return topic not in self._keys_by_name
        key = topic_key(topic, topic_id)
        return self.deleted.get(key) == DeletedTopic(topic) and key not in self.topics

    def partition(self, topic: str, topic_id: str | None, partition: int) -> PartitionState | None:
        """Return where a partition stands, None if the state does not know it."""
        known = self.topic(topic, topic_id)
        return None if known is None else known.partitions.get(partition)

    def log_end(self, topic: str, topic_id: str | None, partition: int) -> int | None:
        """Return where a writer continues, None if the state does not know the partition."""
        known = self.partition(topic, topic_id, partition)
        return None if known is None else known.log_end

    def of_member(self, member_id: str) -> Self:
        """Return the copy of this state for another directory of the set."""
        return replace(self, member_id=member_id)
