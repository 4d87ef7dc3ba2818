"""Which folders in a log directory are partitions of the set: deleted and foreign ones are not."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from kafkalog.checkpoints.broker import PARTITION_METADATA, read_topic_id
from kafkalog.checkpoints.commit_state import DeletedTopic, topic_key
from kafkalog.checkpoints.committed import load_committed
from kafkalog.errors import CheckpointError, KafkaLogError, LogDirectoryError
from kafkalog.streaming.coordinator.cluster_metadata import read_partition_counts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_dirs import LogDirs


__all__ = [
    "LivePartitions",
    "TopicOwners",
    "check_no_link",
    "committed_partitions",
    "is_deleted",
    "live_partitions",
    "partition_count",
    "without_deleted",
]


# ----------------------------------------------------------------------------------------------
# Which folders are left of topics that are being deleted, for whoever lists partitions.
#
# The commit state says so before the first folder is renamed: see
# :mod:`~kafkalog.streaming.store.folder_changes`. And which of them a commit is about to make:
# its intent says so before the first one is there.


def without_deleted(
    partitions: Mapping[TopicPartition, PartitionDirectory], state: CommitState | None
) -> Mapping[TopicPartition, PartitionDirectory]:
    """Leave out the folders of topics that are being deleted; the very same value without any."""
    if state is None or not state.deleted:
        return partitions
    return {key: where for key, where in partitions.items() if not is_deleted(state, where)}


def live_partitions(log_dirs: LogDirs) -> Mapping[TopicPartition, PartitionDirectory]:
    """Find the partitions; those of topics that are being deleted are gone, if that can be told."""
    there = log_dirs.partitions()
    with suppress(KafkaLogError):
        return without_deleted(there, load_committed(log_dirs.paths).state)
    return there


def committed_partitions(log_dirs: LogDirs) -> Mapping[TopicPartition, PartitionDirectory]:
    """Find the live partitions but for those that a commit is about to make, if that can be told.

    How many a topic has tells where a key lies: so those do not count before they are published.
    """
    there = log_dirs.partitions()
    with suppress(KafkaLogError):  # what is committed is looked at after the folders
        committed = load_committed(log_dirs.paths)
        live = without_deleted(there, committed.state)
        return {key: where for key, where in live.items() if key not in committed.being_made}
    return there


def partition_count(
    log_dirs: LogDirs, topic: str, there: Mapping[TopicPartition, PartitionDirectory]
) -> int | None:
    """Return how many partitions a topic has of which some are ``there``.

    The cluster of a broker that had them, or the commit state, may know of more. None where nothing
    tells: a broker of several may have left some.
    """
    folders = {key.partition: where for key, where in there.items() if key.topic == topic}
    found = max(folders) + 1
    topic_id = read_topic_id(folders[found - 1].path)
    told = known = 0
    with suppress(KafkaLogError):
        state = load_committed(log_dirs.paths).state
        named = None if state is None else state.topic(topic, topic_id)
        if named is not None:
            known = named.known_count
            told = known if len(named.partitions) == known else named.partition_count
    if topic_id is not None:
        directories = sorted({where.log_dir for where in folders.values()})
        told = max(told, read_partition_counts(directories).get(topic_id, 0))
    if told >= max(found, known):
        return told
    return found if len(folders) == max(found, known) else None


class LivePartitions:
    """What was listed and is not being deleted; ``value`` is the same until that changes."""

    def __init__(self) -> None:
        self.value: Mapping[TopicPartition, PartitionDirectory] = {}
        self._told_by: tuple[object, object] = (None, None)

    def take(
        self,
        listed: Mapping[TopicPartition, PartitionDirectory],
        state: CommitState | None,
    ) -> bool:
        """Take a listing and a commit state; returns whether other partitions are left."""
        known, self._told_by = self._told_by, (listed, state)
        if known[0] is listed and known[1] is state:
            return False
        before, self.value = self.value, without_deleted(listed, state)
        return self.value.keys() != before.keys()


def is_deleted(state: CommitState, where: PartitionDirectory) -> bool:
    """Whether a folder is of a topic that is being deleted."""
    topic = where.topic_partition.topic
    if DeletedTopic(topic) not in state.deleted.values():
        return False
    try:
        return state.is_deleted(topic, read_topic_id(where.path))
    except CheckpointError:
        return False  # who reads or writes it says so


# ----------------------------------------------------------------------------------------------
# Folders of partitions that lie in a log directory and are not its own.
#
# Such folders are read, as a broker reads them, and never written:
#
# - A folder that is a link may lead into another set. Nobody here holds the locks of that set, and
#   its commit state would not know of an append.
# - Two topics with one topic id, as after ``cp -r a-0 b-0``, are one topic to the commit state.
#   What is committed of one would be taken for the other's, and one would be forgotten.


def check_no_link(where: PartitionDirectory) -> None:
    """Refuse to write to a partition whose folder is a link.

    Raises:
        LogDirectoryError: it is one.
    """
    if where.is_link:
        raise LogDirectoryError(
            f"{where.path} is a link to {where.path.resolve()}, which may belong to other log "
            "directories, with locks and a commit state of their own. It can be read "
            "(readUpTo=logEnd) and not written: move the folder itself here, or name the log "
            "directory around it"
        )


class TopicOwners:
    """Which topic each topic id belongs to: the one in the state, else the first that has it."""

    def __init__(self, state: CommitState | None) -> None:
        topics = state.topics if state else {}
        self._names = {key: topic.name for key, topic in topics.items()}

    def check(self, topic: str, topic_id: str | None) -> None:
        """Refuse a topic that carries the id of another one.

        Raises:
            LogDirectoryError: it does.
        """
        owner = self._names.setdefault(topic_key(topic, topic_id), topic)
        if owner != topic:
            raise LogDirectoryError(
                f"topic {topic!r} carries the topic id of topic {owner!r}, {topic_id}: its folders "
                "are copies. It can be read (readUpTo=logEnd) and not written. To make it a topic "
                f"of its own, remove {PARTITION_METADATA} from its folders and run "
                "`kafkalog broker takeover`"
            )

    def check_folder(self, where: PartitionDirectory) -> None:
        """Refuse to write to a partition's folder that is a link, or carries another topic's id.

        Raises:
            LogDirectoryError: it is, or does.
            CheckpointError: its topic id cannot be read.
        """
        check_no_link(where)
        self.check(where.topic_partition.topic, read_topic_id(where.path))
