"""Kafka's ``log.dirs``: the partitions that live in them, of one node or of those of a set.

Source: Kafka ``LogManager`` (``loadLogs``, ``nextLogDirs``).
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import (
    PARTITION_METADATA,
    find_offset_checkpoint,
    read_meta_properties,
    read_topic_id,
)
from kafkalog.checkpoints.commit_state import DeletedTopic, topic_key
from kafkalog.checkpoints.committed import load_committed
from kafkalog.checkpoints.state_file import names_nodes
from kafkalog.checkpoints.voters import find_voters
from kafkalog.errors import CheckpointError, KafkaLogError, LogDirectoryError
from kafkalog.files.paths import as_path, node_of
from kafkalog.files.remote_path import RemotePath
from kafkalog.files.system import once_per_process, remembered, system
from kafkalog.files.timeouts import at
from kafkalog.model import CLUSTER_METADATA_TOPIC, TopicPartition
from kafkalog.streaming.coordinator.cluster_metadata import find_cluster_view, read_partition_counts
from kafkalog.streaming.log.log_dir import (
    FolderListing,
    PartitionDirectory,
    are_same_listings,
    counts_as_partition,
    entries_of,
    folders_by_node,
    join_listings,
    leader_folders,
    list_folders,
    stamps_of,
)
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.store.file_systems import is_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.checkpoints.voters import Voters
    from kafkalog.streaming.coordinator.cluster_metadata import ClusterView

    _Found = dict[TopicPartition, PartitionDirectory]

__all__ = [
    "LivePartitions",
    "LogDirs",
    "TopicOwners",
    "check_no_link",
    "choose_directory",
    "choose_replicas",
    "committed_partitions",
    "is_deleted",
    "live_partitions",
    "log_dirs_of_set",
    "partition_count",
    "partitions_by_node",
    "without_deleted",
]

_LOGGER: Final = logging.getLogger("kafkalog.log")

_RESTS_SECONDS: Final = (0.01, 0.03, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Between listings. A broker makes one rename durable before it does the next."""


_AVOIDED_SECONDS: Final = 30.0
"""How long a node on which a read has failed comes after others."""


def _broker_of(log_dir: Path) -> int | None:
    """Return the number of the broker that lived in a log directory; None without one."""
    try:
        known = read_meta_properties(log_dir) or {}
        return int(known.get("node.id", known.get("broker.id", "")))
    except (CheckpointError, OSError, ValueError):
        return None


def _here(log_dir: Path) -> Path:
    """Return a log directory without the remote tier below it."""
    local = log_dir.local() if isinstance(log_dir, RemotePath) else None
    return log_dir if local is None else local


def choose_replicas(
    by_broker: Mapping[int, Mapping[TopicPartition, PartitionDirectory]],
    cluster: ClusterView | None,
    away: Collection[Path] = (),
) -> tuple[dict[TopicPartition, PartitionDirectory], str]:
    """Choose the replica to read of each partition that copies of brokers' directories hold.

    That is the last leader's, else one that was in sync, else the one whose log reaches furthest;
    those in log directories that are ``away`` come last.

    Args:
        by_broker: what each broker holds.
        cluster: what the metadata log of the cluster says, if there is any.
        away: log directories that could not be read.

    Returns:
        the replicas, and what to say of how those were chosen that were not the only one.
    """
    replicas: dict[TopicPartition, dict[int, PartitionDirectory]] = {}
    for broker, found in by_broker.items():
        for key, folder in found.items():
            replicas.setdefault(key, {})[broker] = folder
    chosen: dict[TopicPartition, PartitionDirectory] = {}
    reasons: Counter[str] = Counter()
    for key, folders in sorted(replicas.items()):
        ranks = {n: _rank_of(n, folder, cluster, away) for n, folder in folders.items()}
        best = min(folders, key=lambda n: (ranks[n], n))
        if len(folders) > 1 and ranks[best][1] == _UNKNOWN:
            best = max(folders, key=lambda n: (-ranks[n][0], _end_of(folders[n]), -n))
        if len(folders) > 1:
            reasons[_REASONS[ranks[best][1]]] += 1
        chosen[key] = folders[best]
    told = ", ".join(f"{count} from {reason}" for reason, count in sorted(reasons.items()))
    return chosen, told


_LEADER, _IN_SYNC, _UNKNOWN = range(3)
_REASONS: Final = {
    _LEADER: "the replica that led",
    _IN_SYNC: "one that was in sync",
    _UNKNOWN: "the one whose log reaches furthest, as the cluster's metadata tells of none that "
    "led or was in sync",
}


def _rank_of(
    broker: int, folder: PartitionDirectory, cluster: ClusterView | None, away: Collection[Path]
) -> tuple[bool, int]:
    """Return whether a replica is away, and what the cluster says of it; less is better."""
    is_away = folder.log_dir in away
    if cluster is None:
        return is_away, _UNKNOWN
    topic, number = folder.topic_partition
    topic_id = read_topic_id(folder.path)
    if topic_id is None:
        topic_id = next((key for key, name in cluster.names.items() if name == topic), None)
    known = cluster.partitions.get(topic_id or "", {}).get(number)
    if known is None:  # of a topic that was deleted, or of another one of the name
        return is_away, _UNKNOWN
    if known.leader == broker:
        return is_away, _LEADER
    return is_away, _IN_SYNC if broker in known.isr else _UNKNOWN


def _end_of(folder: PartitionDirectory) -> int:
    try:
        with PartitionLog(folder.path, folder.topic_partition) as log:
            return log.log_end_offset()
    except (KafkaLogError, OSError):
        return -1


def _lives_twice(one: PartitionDirectory, other: PartitionDirectory) -> LogDirectoryError:
    return LogDirectoryError(
        f"{one.topic_partition} lives in {one.path} and in {other.path}: a partition has one "
        "folder. If `kafkalog node reassign` was cut off, `kafkalog recover` keeps the right one. "
        "Copies of several brokers' directories are named with semicolons between them; else move "
        "one of them away"
    )


@once_per_process
def _say_chosen(log_dirs: str, told: str) -> None:
    _LOGGER.warning(
        "%s are of several brokers. Of partitions that several of them hold, these are read: %s",
        log_dirs,
        told,
    )


class LogDirs:
    """Kafka's ``log.dirs``: one or several directories that together hold each partition once.

    A path may also be the folder of one partition, for reading a copy of it. Its log directory is
    then the folder around it. A folder that awaits deletion, moves or belongs nowhere is read if it
    is named itself. What the folder around it says of its partition is about another one by then.
    Every call looks again.

    Where the directories are those of a replicated set, each partition is where its leader has it,
    or another replica in sync if that is away. The same goes for copies of several brokers'
    directories, which are named as nodes: there the metadata log of their cluster tells.
    """

    def __init__(
        self,
        paths: Iterable[str | Path],
        *,
        are_of_one_node: bool = False,
        prefers: Callable[[Path], bool] = lambda _: True,
    ) -> None:
        """List nothing yet.

        ``are_of_one_node``: all partitions count that lie there, in sync or not. Of the nodes of a
        replicated set those come first whose directories ``prefers`` takes.
        """
        places = list(paths)
        self._are_of_one_node = are_of_one_node
        self._prefers = prefers
        self._avoided: dict[Path, float] = {}
        self.paths = [as_path(path) for path in places]
        self._nodes = {
            as_path(place): node for place in places if (node := node_of(place)) is not None
        }
        # Listings and what follows from them are one value: threads may share this.
        self._seen: tuple[dict[Path, FolderListing], _Found] = ({}, {})
        self._of_nodes: _Found = {}

    def partitions(self) -> dict[TopicPartition, PartitionDirectory]:
        """Find the live partitions, in order.

        Left out: what awaits deletion (``-delete``), moves between directories (``-future``) or
        belongs nowhere (``-stray``), KRaft's own log, and every folder that is no partition's.

        A broker that moves a replica renames first the folder in the new directory and then that in
        the old one: several directories are listed until two listings agree, and for some seconds
        as long as a partition has two folders.

        Raises:
            LogDirectoryError: a path that is no folder or cannot be read, or a partition that lives
                in two of them.

        Returns:
            their folders. The very same dictionary comes again as long as these are the same.
        """
        if self.is_replicated and (of_nodes := self._find_of_nodes()) is not None:
            return of_nodes
        return self.local_partitions()

    def local_partitions(self) -> dict[TopicPartition, PartitionDirectory]:
        """Find the live partitions of directories that are known not to be of a replicated set.

        Raises:
            LogDirectoryError: as :meth:`partitions`.
        """
        for rest in (*_RESTS_SECONDS, None):
            known, found = self._seen
            listed = self._list(known)
            if are_same_listings(listed, known):
                break
            agrees = len(listed) == 1 or are_same_listings(listed, self._list(listed))
            found, twice = self._join(listed)
            if rest is not None and (twice or not agrees):
                system.sleep(rest)
                continue
            if twice:
                raise _lives_twice(*twice)
            self._seen = listed, found
            break
        return found

    @property
    def leads_nowhere(self) -> bool:
        """Whether a link had the name of a partition and led to no folder, when last listed."""
        return any(listing.leads_nowhere for listing in self._seen[0].values())

    @property
    def is_replicated(self) -> bool:
        """Whether the directories are those of the nodes of a replicated set, or some of them."""
        if self._are_of_one_node:
            return False
        return bool(self._nodes) or any(
            names_nodes(path) for path in self.paths if not isinstance(path, RemotePath)
        )

    def avoid(self, folder: Path) -> bool:
        """Take other replicas than those in the log directory ``folder``, which failed.

        Returns whether that may help: not where nothing is replicated, nor while ``folder`` is
        avoided already, and was taken since there is no other one.
        """
        now = system.monotonic()
        if now < self._avoided.get(folder, now) or not self.is_replicated:
            return False
        self._avoided[folder] = now + _AVOIDED_SECONDS
        self._seen = ({}, {})
        return True

    def _join(
        self, listed: Mapping[Path, FolderListing]
    ) -> tuple[_Found, tuple[PartitionDirectory, ...]]:
        """Join what the paths hold, by one replica of each partition; else return two of one."""
        found, twice = join_listings(listed.values())
        of_brokers = self._of_brokers(listed) if twice and self._nodes else None
        return (found, twice) if of_brokers is None else (of_brokers, ())

    def _of_brokers(self, listed: Mapping[Path, FolderListing]) -> _Found | None:
        """Choose among the replicas of several brokers; None if these are no brokers' directories.

        One broker may hold a partition once only. What is of no broker has the partitions that
        none of them has: a remote tier.
        """
        by_node: dict[int, list[Path]] = {}
        for path in listed:
            by_node.setdefault(self._nodes.get(path, -1), []).append(path)
        others, _ = join_listings(listed[path] for path in by_node.pop(-1, ()))
        by_broker: dict[int, _Found] = {}
        for paths in by_node.values():
            found, twice = join_listings(listed[path] for path in paths)
            broker = next((n for n in map(_broker_of, paths) if n is not None), None)
            if twice or (found and (broker is None or broker in by_broker)):
                return None
            if broker is not None:
                by_broker[broker] = found
        now = system.monotonic()
        away = {folder for folder, until in self._avoided.items() if now < until}
        chosen, told = choose_replicas(by_broker, find_cluster_view(map(_here, listed)), away)
        _say_chosen(", ".join(map(str, self.paths)), told)
        return dict(sorted({**others, **chosen}.items()))

    def _find_of_nodes(self) -> _Found | None:
        """Find the folders that count of a replicated set; None of any other set."""
        # ENSURES: a stamp is older than the state that says that its replica is in sync, so that it
        # is another one once the replica is not, and is changed.
        known = self._of_nodes
        stamps = stamps_of(each.path for each in known.values())
        while True:
            voters = find_voters(self.paths)
            if voters is None:
                return None
            found = self._chosen(voters)
            new = [each.path for each in found.values() if each.path not in stamps]
            if not new:
                break
            stamps |= stamps_of(new)
        found = {key: each._replace(stamp=stamps[each.path]) for key, each in found.items()}
        if found == known:
            return known
        self._of_nodes = found
        return found

    def _chosen(self, voters: Voters) -> dict[TopicPartition, PartitionDirectory]:
        by_node = partitions_by_node(voters.live)
        return leader_folders(voters.newest, by_node, lambda node: self._rank(voters, node))

    def _rank(self, voters: Voters, node: int) -> int:
        """Return how much worse a node is: one whose state is old may have been away."""
        now, folders = system.monotonic(), voters.live[node].values()
        return (
            4 * any(now < self._avoided.get(folder, now) for folder in folders)
            + 2 * (voters.sequence_of(node) < voters.newest.sequence)
            + (not all(self._prefers(folder) for folder in folders))
        )

    def _list(self, known: Mapping[Path, FolderListing]) -> dict[Path, FolderListing]:
        return {path: list_folders(path, known.get(path), is_shared) for path in self.paths}

    @staticmethod
    def checkpoint(
        name: str,
        partitions: Iterable[PartitionDirectory],
        *,
        unnamed: int | None = None,
        unreadable: dict[Path, KafkaLogError] | None = None,
    ) -> dict[TopicPartition, int]:
        """Read an offset checkpoint for the partitions that live beside it, in any directories.

        Lines about partitions that live elsewhere, or nowhere, are leftovers and not returned. A
        file that breaks the format counts as missing, with a warning. A partition that the file of
        its directory does not name gets ``unnamed``, if that is given; without the file, nothing.
        KRaft's own log, ``__cluster_metadata``, is in none: its quorum keeps its high watermark.

        ``unreadable`` is set to the directories whose file cannot be read, and why. Then there is
        no warning, and nothing is raised.

        Raises:
            LogDirectoryError: something else is in the file's place, or it may not be read.
        """
        if unreadable is not None:
            unreadable.clear()
        offsets: dict[TopicPartition, int] = {}
        for directory, living in _by_log_dir(partitions).items():
            try:
                known = find_offset_checkpoint(directory, name)
            except (CheckpointError, LogDirectoryError) as error:
                if unreadable is not None:
                    unreadable[directory] = error
                elif isinstance(error, CheckpointError):
                    _LOGGER.warning("not used, as if it were missing: %s", error)
                else:
                    raise
                continue
            if known is not None and unnamed is not None:
                served = [key for key in living if key.topic != CLUSTER_METADATA_TOPIC]
                known = dict.fromkeys(served, unnamed) | known
            offsets |= {key: known[key] for key in living if known and key in known}
        return offsets

    def partition_counts(self) -> dict[Path, int]:
        """Count live and future partitions in each directory, in the order of the paths."""
        counts = dict.fromkeys(self.paths, 0)
        for path in self.paths:
            with at(path):
                counts[path] = sum(
                    entry.is_dir() and counts_as_partition(entry.name) for entry in entries_of(path)
                )
        return counts


def _by_log_dir(partitions: Iterable[PartitionDirectory]) -> dict[Path, list[TopicPartition]]:
    found: dict[Path, list[TopicPartition]] = {}
    for each in partitions:
        found.setdefault(each.log_dir, []).append(each.topic_partition)
    return found


def log_dirs_of_set(*directories: Path) -> LogDirs:
    """Return the log directories of a set that this process writes to again and again.

    They are listed for each commit. Names that were there before are not parsed again.
    """
    return remembered(_LogDirsOfSets).of(*directories)


class _LogDirsOfSets:
    """The log directories of the sets that a process has written to last."""

    def __init__(self) -> None:
        # by type, too: a NodePlace equals the text of its path
        self.of = lru_cache(maxsize=8, typed=True)(lambda *directories: LogDirs(directories))


def partitions_by_node(
    nodes: Mapping[int, Mapping[str, Path]],
) -> dict[int, dict[TopicPartition, PartitionDirectory]]:
    """Find the partitions of each node; one whose directories cannot be listed is left out."""
    return folders_by_node(nodes, _partitions_of_one_node)


def _partitions_of_one_node(folders: Collection[Path]) -> dict[TopicPartition, PartitionDirectory]:
    return LogDirs(folders, are_of_one_node=True).partitions()


def choose_directory(counts: Mapping[Path, int]) -> Path:
    """Choose where a new partition goes: to the fewest partitions, to the first one among equals.

    ``counts`` is what :meth:`LogDirs.partition_counts` gave, with what was placed since added.
    """
    return min(counts, key=counts.__getitem__)


# ----------------------------------------------------------------------------------------------
# Which folders in a log directory are partitions of the set: deleted and foreign ones are not.


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
