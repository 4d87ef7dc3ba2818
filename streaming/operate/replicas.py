"""Which replicas a set of several nodes has: who leads, who is in sync, how far each log goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kafkalog.checkpoints.replica_state import NO_LEADER
from kafkalog.checkpoints.voters import find_voters
from kafkalog.errors import KafkaLogError, LogDirectoryError
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.log_dir import partitions_by_node
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.store.session import named
from kafkalog.streaming.store.topics import check_known

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState, TopicState
    from kafkalog.checkpoints.replica_state import ReplicaState
    from kafkalog.checkpoints.voters import Voters
    from kafkalog.streaming.log.log_dir import PartitionDirectory

__all__ = [
    "NodeView",
    "Replicas",
    "ReplicasView",
    "known_topic",
    "log_end_of",
    "look_at_replicas",
    "replicas_of",
]


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node: its log directories, as far as they were found; ``missing`` says why it is not there.

    ``missing`` is empty of one that is there.
    """

    node: int
    is_witness: bool
    directories: tuple[Path, ...]
    missing: str = ""


@dataclass(frozen=True, slots=True)
class ReplicasView:
    """A partition: nodes by their ids, offsets; a log end is None where it cannot be told.

    ``leader`` is -1 of a partition that has none.
    """

    key: TopicPartition
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader_epoch: int
    high_watermark: int
    log_ends: Mapping[int, int | None]
    missing: Mapping[int, str]
    """Why its nodes are not there, of those that are not."""
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    """Of one that moves, the nodes that it is added to, and those that it goes from."""

    @property
    def is_offline(self) -> bool:
        """Whether no replica in sync is there."""
        return self.leader == NO_LEADER or not {*self.isr} - self.missing.keys()

    @property
    def is_under_replicated(self) -> bool:
        """Whether not all of its replicas are there and in sync."""
        return len(self.isr) < len(self.replicas) or bool(self.missing)


@dataclass(frozen=True, slots=True)
class Replicas:
    """The nodes and partitions of a replicated set, and what a person should know."""

    nodes: tuple[NodeView, ...]
    partitions: tuple[ReplicasView, ...]
    problems: list[str] = field(default_factory=list)


def look_at_replicas(paths: Sequence[str], topic: str | None = None) -> Replicas:
    """Look at the replicas of a set, of one topic if it is named; changes nothing.

    Fewer nodes than a majority are a problem that is named, and looked at all the same.

    Raises:
        LogDirectoryError: the directories are of different sets, or of none that is replicated.
        UnknownTopicOrPartitionError: there is no such topic.
    """
    directories = named(paths)
    voters = find_voters(directories)
    if voters is None:
        raise LogDirectoryError(
            f"{', '.join(map(str, directories))}: this is no replicated set. A path names the "
            "nodes of one with semicolons between them, in quotes on a command line"
        )
    check_known(voters.newest, directories, topic)
    folders = partitions_by_node(voters.live)
    partitions = tuple(
        _view(voters, key, each, folders)
        for key, each in replicas_of(voters.newest)
        if topic in {None, key.topic}
    )
    found = Replicas(tuple(_nodes(voters)), partitions)
    found.problems.extend(filter(None, [voters.too_few_text, voters.strangers_text]))
    try:
        voters.check_one_history()
    except LogDirectoryError as error:
        found.problems.append(str(error))
    return found


def replicas_of(state: CommitState) -> list[tuple[TopicPartition, ReplicaState]]:
    """List the replicas of all partitions that a state knows, in order."""
    return sorted(
        (TopicPartition(topic.name, number), each)
        for topic in state.topics.values()
        for number, each in topic.replicas.items()
    )


def known_topic(state: CommitState, key: TopicPartition) -> tuple[str, TopicState]:
    """Return a topic that is known, and the key under which the state has it."""
    return next((at, topic) for at, topic in state.topics.items() if topic.name == key.topic)


def _nodes(voters: Voters) -> Iterator[NodeView]:
    for node in voters.newest.nodes:
        live = voters.live.get(node.node_id, {})
        missing = voters.missing.get(node.node_id, "")
        yield NodeView(node.node_id, node.is_witness, tuple(live.values()), missing)


def _view(
    voters: Voters,
    key: TopicPartition,
    each: ReplicaState,
    folders: Mapping[int, Mapping[TopicPartition, PartitionDirectory]],
) -> ReplicasView:
    _, topic = known_topic(voters.newest, key)
    where = topic.partitions[key.partition]
    return ReplicasView(
        key,
        each.leader,
        each.replicas,
        each.isr,
        where.leader_epoch,
        where.high_watermark,
        {node: log_end_of(folders.get(node, {}).get(key)) for node in each.replicas},
        {node: voters.missing[node] for node in each.replicas if node in voters.missing},
        each.adding,
        tuple(node for node in each.removing if node in each.replicas),
    )


def log_end_of(where: PartitionDirectory | None) -> int | None:
    """Return where the log in a folder ends, in whole batches; None where that cannot be told."""
    if where is None:
        return None
    try:
        with PartitionLog(where.path, where.topic_partition) as log:
            return log.log_end().offset
    except (KafkaLogError, OSError):
        return None
