"""What changes hands: the commit state by what logs hold, the nodes, what their cluster knows."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    META_PROPERTIES,
    RECOVERY_POINT,
    read_meta_properties,
    write_offset_checkpoint,
)
from kafkalog.checkpoints.commit_state import CommitState, TopicState
from kafkalog.checkpoints.voters import find_voters
from kafkalog.errors import KafkaLogError, LogDirectoryError, OptionError
from kafkalog.files.regular import fsync_directory, fsync_file
from kafkalog.model import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS, TopicPartition
from kafkalog.streaming.coordinator.cluster_metadata import (
    read_cluster_topics,
    read_cluster_view,
    read_partition_counts,
)
from kafkalog.streaming.log.retention import Retention
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.store.broker_files import drop_entries_of_missing
from kafkalog.streaming.store.policy import SetPolicy
from kafkalog.streaming.store.recovery.lost_partitions import lost_partitions
from kafkalog.streaming.store.replicas.quorum import Quorum
from kafkalog.streaming.store.session import opened_set

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kafkalog.checkpoints.voters import Voters
    from kafkalog.streaming.coordinator.cluster_metadata import (
        ClusterPartition,
        ClusterTopics,
        ClusterView,
    )
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.recovery.partition_states import PartitionEnd
    from kafkalog.streaming.store.session import Condition

__all__ = [
    "Cluster",
    "advanced",
    "changed_counts",
    "changed_settings",
    "check_all_there",
    "compare_with_cluster",
    "find_nodes",
    "moved_ends",
    "named_metadata",
    "newest_view",
    "opened_nodes",
    "sync_folder",
    "warn_of_broker_retention",
    "with_broker_settings",
    "with_partition_counts",
    "without_lost",
    "write_broker_checkpoints",
]

_LOG: Final = logging.getLogger("kafkalog.sink")

_OURS: Final = frozenset({"message.format"})
"""Settings that no cluster knows."""


def with_broker_settings(state: CommitState, directories: Sequence[Path]) -> CommitState:
    """Give topics the settings that their cluster has given to them.

    Metadata that was read before changes nothing: a setting that was given here since is newer.
    """
    found = _newest(directories)
    if found is None or found.end == state.metadata_end:
        return state
    topics = dict(state.topics)
    for key, topic in state.topics.items():
        if key in found.settings:
            ours = {name: topic.settings[name] for name in _OURS & topic.settings.keys()}
            topics[key] = replace(topic, settings={**found.settings[key], **ours})
    return replace(state, topics=topics, metadata_end=found.end)


def _newest(directories: Sequence[Path]) -> ClusterTopics | None:
    """Read the metadata in the directories; None, with a warning, where it tells nothing."""
    found = []
    for folder in directories:
        try:
            found.append(read_cluster_topics(folder))
        except (KafkaLogError, OSError) as error:
            _LOG.warning(
                "the settings of topics are not taken over, and stay what they are here: the "
                "cluster's metadata cannot be read: %s",
                error,
            )
            return None
    whole = [each for each in found if each is not None]
    if not whole and any((folder / META_PROPERTIES).exists() for folder in directories):
        _LOG.warning(
            "a broker lived in %s, and there is no %s-0 that tells the settings of its topics: "
            "they stay what they are here, and topics without a limit keep everything",
            ", ".join(map(str, directories)),
            CLUSTER_METADATA_TOPIC,
        )
    return max(whole, key=lambda each: each.end, default=None)


def changed_settings(before: CommitState, state: CommitState) -> list[str]:
    """Say which settings of topics are others in one state than in the one before."""
    lines = []
    for key, topic in state.topics.items():
        known = before.topics.get(key)
        was = known.settings if known is not None else {}
        if topic.settings != was:
            lines.append(
                f"{topic.name} has the settings {_text(topic.settings)}, before {_text(was)}"
            )
    return lines


def _text(settings: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(settings.items())) or "none"


# ----------------------------------------------------------------------------------------------
# From a commit state to the one that commits what logs hold, when a set changes hands.


_LOGGER: Final = logging.getLogger("kafkalog.sink")

_SHOWN: Final = 20


def moved_ends(before: CommitState, state: CommitState) -> list[str]:
    """Say which ends move from one state to the next."""
    ends = {
        (key, number): was.log_end
        for key, topic in before.topics.items()
        for number, was in topic.partitions.items()
    }
    return [
        f"{topic.name}-{number} is committed up to offset {now.log_end}, before up to "
        f"{ends.get((key, number), 0)}"
        for key, topic in state.topics.items()
        for number, now in topic.partitions.items()
        if ends.get((key, number)) != now.log_end
    ]


def advanced(
    state: CommitState, partitions: Sequence[PartitionEnd], *, is_renaming: bool = False
) -> CommitState:
    """Return the state that commits what the logs hold.

    A topic of another id begins anew, except where it is given that id now. Leader epochs are those
    that a broker has left. A log starts where it has left the start, or where our state knows it: a
    broker never lowers one, and its checkpoint may be damaged or lost.
    """
    by_name = {topic.name: topic for topic in state.topics.values()}
    topics = dict(state.topics)
    for each in partitions:
        name, number = each.topic_partition
        before = topics.get(each.key)
        renamed = by_name.get(name) if is_renaming else None
        if before is None:
            before = (
                replace(renamed, partitions={}, cluster_epochs={}) if renamed else TopicState(name)
            )
        committed = each.committed
        for earlier in (before, renamed):
            if earlier is not None and number in earlier.partitions:
                committed = committed.starting_at(earlier.partitions[number].log_start)
        known = {**before.partitions, number: committed}
        epochs = before.cluster_epochs
        if not is_renaming:  # what a broker has left is its cluster's
            epochs = {p: epoch for p, epoch in epochs.items() if p != number}
        topics[each.key] = replace(before, partitions=known, cluster_epochs=epochs)
    keys: dict[str, set[str]] = {}
    for each in partitions:
        keys.setdefault(each.topic_partition.topic, set()).add(each.key)
    kept = {key: topic for key, topic in topics.items() if key in keys.get(topic.name, {key})}
    return replace(state, topics=kept)


def without_lost(state: CommitState, log_set: LogSet) -> CommitState:
    """Forget partitions that are gone, of topics that are not."""
    there = log_set.partitions().keys()
    names = {key.topic for key in there}
    topics = dict(state.topics)
    for key, topic in state.topics.items():
        lost = lost_partitions(topic, there) if topic.name in names else []
        for number in lost:
            _LOGGER.warning(
                "%s-%d, committed up to offset %d, is not here any more, and forgotten",
                topic.name,
                number,
                topic.partitions[number].log_end,
            )
        kept = {p: known for p, known in topic.partitions.items() if p not in lost}
        durable = {p: end for p, end in topic.durable_ends.items() if p not in lost}
        epochs = {p: epoch for p, epoch in topic.cluster_epochs.items() if p not in lost}
        topics[key] = replace(
            topic,
            partitions=kept,
            durable_ends=durable,
            cluster_epochs=epochs,
            partition_count=topic.known_count if lost else topic.partition_count,
        )
    return replace(state, topics=topics)


def warn_of_broker_retention(state: CommitState) -> None:
    """Say which topics keep all records here, and would not where a broker has its defaults."""
    kept = sorted(
        topic.name
        for topic in state.topics.values()
        if "retention.ms" not in topic.settings
        and topic.name not in INTERNAL_TOPICS
        and Retention.of(topic.settings).deletes
    )
    if kept:
        more = f" and {len(kept) - _SHOWN} more" if len(kept) > _SHOWN else ""
        _LOGGER.warning(
            "these topics were given no retention.ms, and keep their records: %s%s. A broker "
            "deletes by its own setting, what is older than 7 days by default. Set retention.ms of "
            "the topics in the cluster before it starts here, to -1 to keep everything",
            ", ".join(kept[:_SHOWN]),
            more,
        )


def with_partition_counts(
    state: CommitState, directories: Sequence[Path], asked: Mapping[str, int]
) -> CommitState:
    """Let topics have as many partitions as their cluster knows, or as were asked for by name.

    A broker of several leaves some of them. Keys are placed among all.
    """
    counts = read_partition_counts(directories)
    topics = dict(state.topics)
    for key, topic in state.topics.items():
        count = max(asked.get(topic.name, 0), counts.get(key, 0))
        if count > topic.known_count:
            topics[key] = replace(topic, partition_count=count)
    return replace(state, topics=topics)


def changed_counts(before: CommitState, state: CommitState) -> list[str]:
    """Say which topics have partitions that are not here, where that was not known before."""
    return [
        f"{topic.name} has {topic.known_count} partitions, of which {len(topic.partitions)} are "
        "here: keys are placed among all of them"
        for key, topic in state.topics.items()
        if topic.partition_count > len(topic.partitions)
        and (key not in before.topics or before.topics[key].known_count != topic.known_count)
    ]


# ----------------------------------------------------------------------------------------------
# What a handover of several nodes and the takeover after it have in common.


def find_nodes(
    directories: Sequence[Path], given: Mapping[str, object], metadata: Sequence[str]
) -> Voters | None:
    """Return the nodes of the replicated set that directories are those of; None of any other set.

    ``given`` are options that such a set has no use for, ``metadata`` is one that others have none
    for.

    Raises:
        OptionError: such an option is given.
        LogDirectoryError: they are of different sets.
    """
    voters = find_voters(directories)
    if voters is None:
        if metadata:
            raise OptionError("the cluster's metadata is for a set of several nodes only")
        return None
    if wrong := [name.replace("_", "-") for name, value in given.items() if value is not None]:
        raise OptionError(
            f"{', '.join(wrong)}: not for several nodes. Their brokers are known by the "
            f"{META_PROPERTIES} in each directory, topics by the cluster's metadata"
        )
    return voters


def named_metadata(paths: Sequence[str]) -> list[Path]:
    """Return the directories that hold copies of a cluster's metadata log.

    Raises:
        OptionError: one does not hold any.
    """
    found = [Path(path) for path in paths]
    for folder in found:
        if not (folder / f"{CLUSTER_METADATA_TOPIC}-0").is_dir():
            raise OptionError(f"{folder} has no folder {CLUSTER_METADATA_TOPIC}-0")
    return found


@contextmanager
def opened_nodes(
    directories: Sequence[Path],
    before: Voters,
    look: Condition,
    *,
    holder: str,
    wait_ms: int,
    dry_run: bool,
) -> Iterator[LogSet]:
    """Open a replicated set of which every node is there, in whosever hands it is.

    ``before`` is what was found of it a moment ago.

    Raises:
        LogDirectoryError: a node is not there, or cannot be used; or as
            :func:`~kafkalog.streaming.store.session.opened_set`.
    """
    if before.missing:
        raise LogDirectoryError(f"{holder} needs all nodes, and {before.missing_text}")
    policy = replace(SetPolicy.of_upkeep(wait_ms), accepts_handed_over=True)
    opened = partial(opened_set, directories, policy, look, holder=holder)
    with opened(dry_run=dry_run, copies_all=True) as log_set:
        check_all_there(log_set, holder)
        yield log_set


def check_all_there(log_set: LogSet, holder: str) -> None:
    """See that no node has failed since the set was opened.

    Raises:
        LogDirectoryError: one has.
    """
    nodes = log_set.node
    if isinstance(nodes, Quorum) and not nodes.is_whole(log_set.state):
        missing = sorted({each.node_id for each in log_set.state.nodes} - {*nodes.live})
        why = "; ".join(f"node {n}: {nodes.failed.get(n, 'it is not there')}" for n in missing)
        raise LogDirectoryError(f"{holder} needs all nodes, and {why}. Run it again")


def sync_folder(folder: Path) -> None:
    """Make all files of a partition's folder durable, and their names.

    Raises:
        OSError: one cannot be.
    """
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.is_symlink():
            fsync_file(path)
    fsync_directory(folder)


def write_broker_checkpoints(
    log_dir: Path,
    found: Mapping[TopicPartition, PartitionDirectory],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> None:
    """Let the checkpoint files of a log directory say where its partitions begin and end.

    ``found`` are those that lie in it. Lines of partitions that are gone are dropped.

    Raises:
        CheckpointError, OSError: a checkpoint cannot be read or written.
    """
    drop_entries_of_missing(log_dir)
    there = {key: ends[key] for key in found if key in ends}
    for name in (RECOVERY_POINT, HIGH_WATERMARK):
        write_offset_checkpoint(log_dir, name, there)
    moved = {
        key: starts[key] for key in there if starts[key] > min(list_base_offsets(found[key].path))
    }
    gone = there.keys() - moved.keys()
    write_offset_checkpoint(log_dir, LOG_START_OFFSET, moved, remove=gone)


# ----------------------------------------------------------------------------------------------
# Check that a cluster knows the topics of a replicated set before it gets the nodes.
#
# A KRaft cluster goes by its metadata log: by topic ids, by which brokers hold a partition, and by
# the ids of the log directories in which they have it. A broker that starts on folders of other
# topics puts them aside. Partitions that are said to lie in a directory that no broker has get no
# leader. And the brokers of a cluster choose leaders by what they knew of their own logs before, so
# each node has to have all records. All of that was tried with Kafka 4.1, see docs/replicas.md.
#
# The metadata is read from every copy of it that is there. Topics count by the newest. The leader
# epoch of a partition is the lowest that a copy says: what a copy lacks can only have raised it.
#
# Source: Kafka ``LogManager.isStrayKraftReplica``, ``MetaProperties``, ``DirectoryId``.


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
