"""Log directories: which partitions live in them, and where a new one goes.

Source: Kafka ``LogManager`` (``loadLogs``, ``nextLogDirs``), ``LocalLog.parseTopicPartitionName``.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.broker import META_PROPERTIES, find_offset_checkpoint
from kafkalog.checkpoints.commit_state import STATE_FILE
from kafkalog.checkpoints.state_file import names_nodes
from kafkalog.checkpoints.voters import find_voters
from kafkalog.errors import CheckpointError, LogDirectoryError
from kafkalog.files.paths import NodePlace, as_path
from kafkalog.files.remote_path import RemotePath
from kafkalog.files.system import system
from kafkalog.files.timeouts import at
from kafkalog.model import CLUSTER_METADATA_TOPIC, TopicPartition, listed
from kafkalog.streaming.log.files import (
    LOG,
    parse_base_offset,
    parse_partition_directory,
    parse_retired_directory,
)
from kafkalog.streaming.log.replica_folders import folders_by_node, leader_folders, stamps_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.voters import Voters
    from kafkalog.files.remote_path import RemoteEntry
    from kafkalog.files.watch import Stamp


__all__ = [
    "LogDirs",
    "PartitionDirectory",
    "choose_directory",
    "entries_of",
    "is_log_directory",
    "log_dirs_near",
    "partitions_by_node",
    "refuse_a_level_above",
    "refuse_file",
]


# ----------------------------------------------------------------------------------------------
# The log directories near a folder that was named in place of one: a level too high or too low.


def log_dirs_near(path: Path) -> str:
    """Return the end of a sentence that names what was meant instead of ``path``, or nothing.

    That is the nearest folder above it that is a log directory, or those right below it.
    """
    for above in [path.parent] if isinstance(path, RemotePath) else path.parents:
        names = _names(above)
        if _is_log_dir(above, names):
            which = "Its parent is" if above == path.parent else "It lies in"
            return f". {which} a log directory: {above}"
        if names and above != path.parent:
            break
    found = _log_dirs_in(path)
    return f". Log directories in it: {listed(found)}" if found else ""


def refuse_a_level_above(path: Path) -> None:
    """Refuse to begin a log in a folder that holds log directories: one of these was meant.

    Raises:
        LogDirectoryError: it does, and is none itself.
    """
    if not _is_log_dir(path, _names(path)) and (found := _log_dirs_in(path)):
        raise LogDirectoryError(
            f"{path} is no log directory, and holds some: {listed(found)}. Nothing was written; "
            "name one of these, or a folder of its own"
        )


def is_log_directory(path: Path) -> bool:
    """Whether a broker or a sink has written in a folder: its own files, or a partition's."""
    return _is_log_dir(path, _names(path))


def _log_dirs_in(path: Path) -> list[str]:
    below = [path / name for name in sorted(_names(path))]
    return [str(each) for each in below if _is_log_dir(each, _names(each))]


def _is_log_dir(path: Path, names: frozenset[str]) -> bool:
    if STATE_FILE in names or META_PROPERTIES in names:
        return True
    folders = (path / name for name in names if parse_partition_directory(name) is not None)
    return any(map(_has_segment, folders))


def _has_segment(folder: Path) -> bool:
    return any(parse_base_offset(name, LOG) is not None for name in _names(folder))


def _names(path: Path) -> frozenset[str]:
    """List a folder; nothing where that is not possible."""
    try:
        if isinstance(path, RemotePath):
            return frozenset(entry.name for entry in path.entries())
        return frozenset(os.listdir(path))  # noqa: PTH208 - names are enough
    except OSError:
        return frozenset()


# ----------------------------------------------------------------------------------------------

_LOGGER = logging.getLogger("kafkalog.log")

_RESTS_SECONDS: Final = (0.01, 0.03, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Between listings. A broker makes one rename durable before it does the next."""

_AVOIDED_SECONDS: Final = 30.0
"""How long a node on which a read has failed comes after others."""


class PartitionDirectory(NamedTuple):
    """The folder of a live partition, and the log directory that it lies in.

    ``is_link``: the folder itself is somewhere else. ``stamp`` is that of a replica in sync, see
    :func:`~kafkalog.streaming.log.replica_folders.replica_stamp`.
    """

    topic_partition: TopicPartition
    path: Path
    log_dir: Path
    is_link: bool = False
    stamp: Stamp | None = None


class LogDirs:
    """Kafka's ``log.dirs``: one or several directories that together hold each partition once.

    A path may also be the folder of one partition, for reading a copy of it. Its log directory is
    then the folder around it. A folder that awaits deletion, moves or belongs nowhere is read if it
    is named itself. What the folder around it says of its partition is about another one by then.
    Every call looks again.

    Where the directories are those of a replicated set, each partition is where its leader has it,
    or another replica in sync if that is away.
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
        self._has_nodes = any(isinstance(place, NodePlace) for place in places)
        self._are_of_one_node = are_of_one_node
        self._prefers = prefers
        self._avoided: dict[Path, float] = {}
        self.paths = [as_path(path) for path in places]
        self._listed: dict[Path, _Listing] = {}
        self._found: dict[TopicPartition, PartitionDirectory] = {}

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
        if self.is_replicated and self._find_of_nodes():
            return self._found
        for rest in (*_RESTS_SECONDS, None):
            listed = self._list(self._listed)
            if _is_same(listed, self._listed):
                break
            agrees = len(listed) == 1 or _is_same(listed, self._list(listed))
            found, twice = _joined(listed.values())
            if rest is not None and (twice or not agrees):
                system.sleep(rest)
                continue
            if twice:
                raise LogDirectoryError(
                    f"{twice[0].topic_partition} lives in {twice[0].path} and in {twice[1].path}: "
                    "a partition has one folder. If `kafkalog reassign` was cut off, `kafkalog "
                    "recover` keeps the right one; else move one of them away"
                )
            self._found, self._listed = found, listed
            break
        return self._found

    @property
    def is_replicated(self) -> bool:
        """Whether the directories are those of the nodes of a replicated set, or some of them."""
        if self._are_of_one_node:
            return False
        return self._has_nodes or any(
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
        return True

    def _find_of_nodes(self) -> bool:
        """Find the folders that count of a replicated set; returns whether this is one."""
        # ENSURES: a stamp is older than the state that says that its replica is in sync, so that it
        # is another one once the replica is not, and is changed.
        stamps = stamps_of(each.path for each in self._found.values())
        while True:
            voters = find_voters(self.paths)
            if voters is None:
                return False
            found = self._chosen(voters)
            new = [each.path for each in found.values() if each.path not in stamps]
            if not new:
                break
            stamps |= stamps_of(new)
        found = {key: each._replace(stamp=stamps[each.path]) for key, each in found.items()}
        if found != self._found:
            self._found = found
        return True

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

    def _list(self, known: Mapping[Path, _Listing]) -> dict[Path, _Listing]:
        return {path: _listing_of(path, known.get(path)) for path in self.paths}

    @staticmethod
    def checkpoint(
        name: str,
        partitions: Iterable[PartitionDirectory],
        *,
        unnamed: int | None = None,
        is_needed: bool = False,
    ) -> dict[TopicPartition, int]:
        """Read an offset checkpoint for the partitions that live beside it, in any directories.

        Lines about partitions that live elsewhere, or nowhere, are leftovers and not returned. An
        unreadable file counts as missing, with a warning, unless it ``is_needed``. A partition that
        the file of its directory does not name gets ``unnamed``, if that is given; without the
        file, nothing.
        KRaft's own log, ``__cluster_metadata``, is in none: its quorum keeps its high watermark.

        Raises:
            CheckpointError: a file that is needed breaks the format.
        """
        offsets: dict[TopicPartition, int] = {}
        by_directory: dict[Path, list[TopicPartition]] = {}
        for partition in partitions:
            by_directory.setdefault(partition.log_dir, []).append(partition.topic_partition)
        for directory, living in by_directory.items():
            try:
                known = find_offset_checkpoint(directory, name)
            except CheckpointError as error:
                if is_needed:
                    raise
                _LOGGER.warning("not used, as if it were missing: %s", error)
                continue
            if known is None:
                continue
            if unnamed is not None:
                served = [key for key in living if key.topic != CLUSTER_METADATA_TOPIC]
                known = dict.fromkeys(served, unnamed) | known
            offsets |= {key: known[key] for key in living if key in known}
        return offsets

    def partition_counts(self) -> dict[Path, int]:
        """Count live and future partitions in each directory, in the order of the paths."""
        counts = dict.fromkeys(self.paths, 0)
        for path in self.paths:
            with at(path):
                counts[path] = sum(
                    entry.is_dir() and _counts_as_partition(entry.name)
                    for entry in entries_of(path)
                )
        return counts


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


class _Listing(NamedTuple):
    """What may be a partition's folder, as names and inodes, and the partitions that are."""

    folders: Mapping[str, int]
    partitions: Sequence[PartitionDirectory]


def _is_same(listed: Mapping[Path, _Listing], known: Mapping[Path, _Listing]) -> bool:
    return [*map(id, listed.values())] == [*map(id, known.values())]


def _joined(
    listed: Iterable[_Listing],
) -> tuple[dict[TopicPartition, PartitionDirectory], tuple[PartitionDirectory, ...]]:
    """Join what several paths hold; also return the two folders of a partition that has two."""
    found: dict[TopicPartition, PartitionDirectory] = {}
    for listing in listed:
        for here in listing.partitions:
            other = found.setdefault(here.topic_partition, here)
            if other is not here and not _is_one_folder(other.path, here.path):
                return found, (other, here)
    return dict(sorted(found.items())), ()


def _is_one_folder(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except FileNotFoundError:  # moved since it was listed
        return False


def _listing_of(path: Path, known: _Listing | None) -> _Listing:
    """List a path; return ``known`` if the folders are the same, which saves parsing names."""
    itself = _named_itself(path)
    if itself is not None:
        listing = _Listing({}, [itself])
        return known if known == listing else listing
    entries = {entry.name: entry for entry in entries_of(path) if _may_be_partition(entry.name)}
    folders = {name: _inode(entry) for name, entry in entries.items()}
    if known is not None and known.folders == folders:
        return known
    found = [
        PartitionDirectory(topic_partition, path / name, path, _is_link(entry))
        for name, entry in entries.items()
        if (topic_partition := parse_partition_directory(name)) is not None
        and topic_partition.topic != CLUSTER_METADATA_TOPIC
        and entry.is_dir()
    ]
    return _Listing(folders, found)


def _named_itself(path: Path) -> PartitionDirectory | None:
    """Take the folder of one partition, if that is what is named."""
    itself = parse_partition_directory(path.name)
    if itself is not None and _has_segments(path):
        return PartitionDirectory(itself, path, path.parent)
    retired = parse_retired_directory(path.name)
    if retired is not None and _has_segments(path):
        return PartitionDirectory(retired, path, path)
    return None


def _may_be_partition(name: str) -> bool:
    """Return whether a name may be a partition's; other files come and go beside partitions."""
    return name[-1].isdecimal() and "-" in name


def _inode(entry: os.DirEntry[str] | RemoteEntry) -> int:
    return entry.inode() if isinstance(entry, os.DirEntry) else 0


def _is_link(entry: os.DirEntry[str] | RemoteEntry) -> bool:
    return isinstance(entry, os.DirEntry) and entry.is_symlink()


def _counts_as_partition(name: str) -> bool:
    live = name.rpartition(".")[0] if name.endswith("-future") else name
    topic_partition = parse_partition_directory(live)
    return topic_partition is not None and topic_partition.topic != CLUSTER_METADATA_TOPIC


def _has_segments(path: Path) -> bool:
    return any(parse_base_offset(entry.name, LOG) is not None for entry in entries_of(path))


def refuse_file(path: Path) -> None:
    """Say that a file is no log directory, and which one was meant.

    Raises:
        LogDirectoryError: it is a file.
    """
    if path.is_file():
        entries_of(path)


def entries_of(path: Path) -> Sequence[os.DirEntry[str] | RemoteEntry]:
    """List a folder.

    Raises:
        LogDirectoryError: it is no folder, or cannot be read.
    """
    try:
        if isinstance(path, RemotePath):
            return path.entries()
        with os.scandir(path) as entries:
            return list(entries)
    except OSError as error:
        near = log_dirs_near(path)
        if isinstance(error, FileNotFoundError) and not isinstance(path, RemotePath):
            raise LogDirectoryError(
                f"log directory {path} does not exist; check its name, and where several machines "
                "work, that it is mounted on each. If nothing was written yet: a first write makes "
                f"it, and a stream with subscribePattern waits for topics in an empty one{near}"
            ) from error
        if isinstance(error, NotADirectoryError) and not isinstance(path, RemotePath):
            raise LogDirectoryError(
                f"{path} is a file: a log directory is a folder with folders such as topic-0 in "
                f"it{near}"
            ) from error
        if near:
            raise LogDirectoryError(
                f"log directory {path} cannot be listed: {error.strerror or error}{near}"
            ) from error
        raise LogDirectoryError(
            f"log directory {path} cannot be listed: {error.strerror or error}; where several "
            "machines work, it must be mounted on each"
        ) from error
