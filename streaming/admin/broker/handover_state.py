"""What changes hands: the commit state by what logs hold, and the nodes of a set."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    META_PROPERTIES,
    RECOVERY_POINT,
    write_offset_checkpoint,
)
from kafkalog.checkpoints.commit_state import CommitState, TopicState
from kafkalog.checkpoints.voters import find_voters
from kafkalog.errors import KafkaLogError, LogDirectoryError, OptionError
from kafkalog.files.regular import fsync_directory, fsync_file
from kafkalog.model import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS
from kafkalog.streaming.coordinator.cluster_metadata import (
    read_cluster_topics,
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
    from collections.abc import Iterator, Mapping, Sequence

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.coordinator.cluster_metadata import ClusterTopics
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.recovery.partition_states import PartitionEnd
    from kafkalog.streaming.store.session import Condition


__all__ = [
    "advanced",
    "changed_counts",
    "changed_settings",
    "check_all_there",
    "is_replicated",
    "moved_ends",
    "named_metadata",
    "opened_nodes",
    "sync_folder",
    "tell_broker",
    "warn_of_broker_retention",
    "with_broker_settings",
    "with_partition_counts",
    "without_lost",
]


# ----------------------------------------------------------------------------------------------
# The commit state of a set that changes hands: what logs hold, what a cluster set.


# ----------------------------------------------------------------------------------------------
# The settings that a cluster gave to topics, for the commit state that takes them over.
#
# While a broker has the directories, its cluster's settings are the true ones: they take the
# place of those that were kept here, of each topic that the cluster knows by its id. What nobody
# told about a topic stays as it is.


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


def is_replicated(
    directories: Sequence[Path], given: Mapping[str, object], metadata: Sequence[str]
) -> bool:
    """Whether directories are those of a replicated set.

    ``given`` are options that such a set has no use for, ``metadata`` is one that others have none
    for.

    Raises:
        OptionError: such an option is given.
        LogDirectoryError: they are of different sets.
    """
    if find_voters(directories) is None:
        if metadata:
            raise OptionError("the cluster's metadata is for a set of several nodes only")
        return False
    if wrong := [name.replace("_", "-") for name, value in given.items() if value is not None]:
        raise OptionError(
            f"{', '.join(wrong)}: not for several nodes. Their brokers are known by the "
            f"{META_PROPERTIES} in each directory, topics by the cluster's metadata"
        )
    return True


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
    directories: Sequence[Path], look: Condition, *, holder: str, wait_ms: int, dry_run: bool
) -> Iterator[LogSet]:
    """Open a replicated set of which every node is there, in whosever hands it is.

    Raises:
        LogDirectoryError: a node is not there, or cannot be used; or as
            :func:`~kafkalog.streaming.store.session.opened_set`.
    """
    voters = find_voters(directories)
    if voters is not None and voters.missing:
        raise LogDirectoryError(f"{holder} needs all nodes, and {voters.missing_text}")
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


def tell_broker(
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
