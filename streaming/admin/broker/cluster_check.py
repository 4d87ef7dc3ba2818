"""Check that a cluster knows the topics of a replicated set before it gets the nodes.

A KRaft cluster goes by its metadata log: by topic ids, by which brokers hold a partition, and by
the ids of the log directories in which they have it. A broker that starts on folders of other
topics puts them aside. Partitions that are said to lie in a directory that no broker has get no
leader. And the brokers of a cluster choose leaders by what they knew of their own logs before, so
each node has to have all records. All of that was tried with Kafka 4.1, see docs/replicas.md.

The metadata is read from every copy of it that is there. Topics count by the newest. The leader
epoch of a partition is the lowest that a copy says: what a copy lacks can only have raised it.

Source: Kafka ``LogManager.isStrayKraftReplica``, ``MetaProperties``, ``DirectoryId``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import META_PROPERTIES, read_meta_properties
from kafkalog.model import CLUSTER_METADATA_TOPIC, TopicPartition
from kafkalog.streaming.coordinator.cluster_metadata import read_cluster_view

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState, TopicState
    from kafkalog.streaming.coordinator.cluster_metadata import ClusterPartition, ClusterView

__all__ = ["Cluster", "compare_with_cluster", "newest_view"]

_RESERVED: Final = frozenset({"A" * 22, "A" * 21 + "Q", "A" * 21 + "g"})
"""What stands for a directory that the cluster does not know (yet): zero, one and two."""


@dataclass(slots=True)
class Cluster:
    """The cluster that gets a set, and what a person has to see to first.

    ``brokers`` are the ids of brokers by node. ``topic_ids`` are by name. ``epochs`` are the
    cluster's leader epochs, ``broker_epochs`` those of registrations by broker id.
    ``directory_ids`` are those of the log directories of a node.
    """

    cluster_id: str = ""
    brokers: dict[int, int] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    epochs: dict[TopicPartition, int] = field(default_factory=dict)
    broker_epochs: dict[int, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    directory_ids: dict[int, set[str]] = field(default_factory=dict)

    def broker_epoch_of(self, node: int) -> int:
        """Return under which epoch the broker of a node was registered last; -1 if it never was."""
        return self.broker_epochs.get(self.brokers[node], -1)


def compare_with_cluster(
    state: CommitState, nodes: Mapping[int, Mapping[str, Path]], metadata: Sequence[Path]
) -> Cluster:
    """Compare a state with what its nodes' brokers and their cluster know; changes nothing.

    Args:
        state: of the set.
        nodes: the log directories of each node, by member id.
        metadata: directories with copies of the cluster's metadata log, beside those of the nodes.

    Raises:
        CheckpointError: a ``meta.properties`` cannot be read.
        CorruptRecordError, UnsupportedFormatError, LogDirectoryError: a metadata log cannot.
    """
    cluster = Cluster()
    for node in state.nodes:
        if not node.is_witness:
            _identify(cluster, node.node_id, list(nodes[node.node_id].values()))
    views = _views([f for each in nodes.values() for f in each.values()], metadata)
    if not views:
        cluster.problems.append(
            f"there is no copy of {CLUSTER_METADATA_TOPIC}-0 in the log directories: name the "
            "folder around it, which is metadata.log.dir of a broker, with --cluster-metadata"
        )
    if cluster.problems:
        return cluster
    for view in views:
        for broker, epoch in view.broker_epochs.items():
            cluster.broker_epochs[broker] = max(epoch, cluster.broker_epochs.get(broker, -1))
    for topic in state.topics.values():
        _compare(cluster, topic, views)
    return cluster


def newest_view(directories: Iterable[Path], metadata: Iterable[Path]) -> ClusterView | None:
    """Return what the newest copy of a cluster's metadata says; None where there is none.

    Raises:
        CorruptRecordError, UnsupportedFormatError, LogDirectoryError: one cannot be read.
    """
    views = _views(directories, metadata)
    return views[-1] if views else None


def _views(directories: Iterable[Path], metadata: Iterable[Path]) -> list[ClusterView]:
    found = (read_cluster_view(folder) for folder in [*directories, *metadata])
    return sorted((view for view in found if view is not None), key=lambda view: view.end)


def _identify(cluster: Cluster, node: int, folders: Sequence[Path]) -> None:
    """Find out which broker a node is of, by the files that the broker has formatted."""
    for folder in folders:
        found = read_meta_properties(folder)
        needed = {"cluster.id", "node.id", "directory.id"}
        if found is None or not needed <= found.keys() or not found["node.id"].isdecimal():
            cluster.problems.append(
                f"{folder} of node {node} has no {META_PROPERTIES} with the ids of cluster, broker "
                "and directory: copy that of the log directory which the broker had when the "
                "topics were created"
            )
            continue
        broker = int(found["node.id"])
        known = cluster.brokers.setdefault(node, broker)
        others = [n for n, each in cluster.brokers.items() if each == broker and n != node]
        cluster.cluster_id = cluster.cluster_id or found["cluster.id"]
        if known != broker or others or found["cluster.id"] != cluster.cluster_id:
            cluster.problems.append(
                f"{folder / META_PROPERTIES} is of broker {broker} of cluster "
                f"{found['cluster.id']}: a node is one broker's, and all are of one cluster "
                f"({cluster.cluster_id})"
            )
        cluster.directory_ids.setdefault(node, set()).add(found["directory.id"])


def _compare(cluster: Cluster, topic: TopicState, views: Sequence[ClusterView]) -> None:
    """Note the id of a topic and the epochs of its partitions, or what is wrong with it."""
    newest = views[-1]
    topic_id = next((key for key, name in newest.names.items() if name == topic.name), None)
    if topic_id is None:
        cluster.problems.append(
            f"cluster {cluster.cluster_id} has no topic {topic.name!r}: create it with the "
            f"replica assignment {_assignment(cluster, topic)}"
        )
        return
    known = newest.partitions.get(topic_id, {})
    wanted = {n: _brokers_of(cluster, topic, n) for n in topic.partitions}
    if {n: {*each.replicas} for n, each in known.items()} != {n: {*e} for n, e in wanted.items()}:
        found = ",".join(":".join(map(str, each.replicas)) for _, each in sorted(known.items()))
        cluster.problems.append(
            f"topic {topic.name!r} has the replicas {found} in cluster {cluster.cluster_id}, and "
            f"{_assignment(cluster, topic)} here"
        )
        return
    cluster.topic_ids[topic.name] = topic_id
    for number, each in known.items():
        key = TopicPartition(topic.name, number)
        copies = (view.partitions.get(topic_id, {}).get(number) for view in views)
        cluster.epochs[key] = min(copy.leader_epoch for copy in copies if copy is not None)
        cluster.problems += _other_directories(cluster, key, each)


def _other_directories(cluster: Cluster, key: TopicPartition, known: ClusterPartition) -> list[str]:
    """Say of which brokers the cluster has a partition in a directory that their node is not."""
    node_of = {broker: node for node, broker in cluster.brokers.items()}
    return [
        f"{key} lies in the directory {directory} of broker {broker} by the cluster's metadata, "
        f"and no {META_PROPERTIES} of node {node_of[broker]} has that id: no leader would be found"
        for broker, directory in zip(known.replicas, known.directories, strict=False)
        if directory not in _RESERVED | cluster.directory_ids[node_of[broker]]
    ]


def _brokers_of(cluster: Cluster, topic: TopicState, number: int) -> tuple[int, ...]:
    return tuple(cluster.brokers[node] for node in topic.replicas[number].replicas)


def _assignment(cluster: Cluster, topic: TopicState) -> str:
    """Return the brokers of each partition as ``kafka-topics --replica-assignment`` takes them."""
    return ",".join(
        ":".join(map(str, _brokers_of(cluster, topic, n))) for n in sorted(topic.partitions)
    )
