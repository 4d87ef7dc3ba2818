"""Log directories and the folders in them: which are partitions, and which replica's counts."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar, cast
from weakref import WeakValueDictionary

from kafkalog.checkpoints.broker import (
    META_PROPERTIES,
    PARTITION_METADATA,
    read_topic_id,
)
from kafkalog.checkpoints.commit_state import NO_LEADER, STATE_FILE, topic_key
from kafkalog.errors import CheckpointError, LogDirectoryError
from kafkalog.files.regular import close_quietly, open_regular
from kafkalog.files.remote_path import RemotePath
from kafkalog.files.system import forgotten_when_forked, remembered, system
from kafkalog.files.timeouts import at
from kafkalog.files.watch import name_changes, stamp_from, watch_names
from kafkalog.model import CLUSTER_METADATA_TOPIC, TopicPartition, listed
from kafkalog.streaming.log.files import (
    LOG,
    parse_base_offset,
    parse_partition_directory,
    parse_retired_directory,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState, ReplicaState
    from kafkalog.files.remote_path import RemoteEntry
    from kafkalog.files.watch import Stamp


__all__ = [
    "FolderListing",
    "PartitionDirectory",
    "are_same_listings",
    "check_stamp",
    "counts_as_partition",
    "entries_of",
    "folders_by_node",
    "is_log_directory",
    "join_listings",
    "leader_folders",
    "list_folders",
    "log_dirs_near",
    "names_beside_partitions",
    "refuse_a_level_above",
    "refuse_file",
    "replica_stamp",
    "stamps_of",
]


# ----------------------------------------------------------------------------------------------
# Which folder of a partition counts, where each of several nodes has one.


_UNREADABLE: Final = (-1, 0, 0, 0, 0)
"""The stamp of no file."""


class _HasPath(Protocol):
    """A folder that was found for a partition."""

    @property
    def path(self) -> Path:
        """Where it is."""


_Folder = TypeVar("_Folder", bound=_HasPath)


def folders_by_node(
    live: Mapping[int, Mapping[str, Path]],
    listed: Callable[[Collection[Path]], dict[TopicPartition, _Folder]],
) -> dict[int, dict[TopicPartition, _Folder]]:
    """List the partitions of each node; one whose directories cannot be listed is left out.

    ``listed`` lists those of some directories.
    """
    found = {}
    for node, members in live.items():
        try:
            with at(next(iter(members.values()))):
                found[node] = listed(members.values())
        except (LogDirectoryError, OSError):
            continue
    return found


def leader_folders(
    state: CommitState,
    by_node: Mapping[int, Mapping[TopicPartition, _Folder]],
    rank: Callable[[int], int] = lambda _: 0,
) -> dict[TopicPartition, _Folder]:
    """Return one folder of each partition: its leader's, or that of another replica in sync.

    ``rank`` of a node tells which are better: the lowest, whoever leads. A partition that no
    replica in sync has here is left out, and so is one that the state does not know: a commit is
    about to make it, or it is left of a topic that was deleted while its node was away.
    """
    chosen: dict[TopicPartition, _Folder] = {}
    for key, topic in state.topics.items():
        for number, replicas in topic.replicas.items():
            name = TopicPartition(topic.name, number)
            able = [node for node in _in_sync(replicas) if node in by_node]
            for node in sorted(able, key=rank):
                found = by_node[node].get(name)
                if found is not None and _is_of(key, name, found):
                    chosen[name] = found
                    break
    return dict(sorted(chosen.items()))


def _in_sync(replicas: ReplicaState) -> list[int]:
    """Return the nodes that have all of a partition: its leader first, then by preference."""
    leader = [] if replicas.leader == NO_LEADER else [replicas.leader]
    return leader + [n for n in replicas.replicas if n in replicas.isr and n not in leader]


def _is_of(key: str, name: TopicPartition, found: _HasPath) -> bool:
    """Whether a folder is of the topic that the state has under ``key``, by the id in the folder.

    One that has lost its id is not: another replica has it.
    """
    try:
        with at(found.path):
            return topic_key(name.topic, read_topic_id(found.path)) == key
    except (CheckpointError, LogDirectoryError, OSError):
        return False


def replica_stamp(folder: Path) -> Stamp | None:
    """Return what tells whether a replica is still the one that a reader was sent to.

    It is that of ``partition.metadata``, which is written again before a replica that lags is
    changed: its segments are those of two moments then, and offsets may be missing between them.
    None without that file, which topics of brokers before 2.8 do not have.

    Raises:
        OSError, LogDirectoryError: that cannot be known.
    """
    with at(folder):
        try:
            # opened, since a client of NFS answers stat() by what it knew seconds ago
            descriptor = open_regular(folder / PARTITION_METADATA)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return stamp_from(os.fstat(descriptor))
        finally:
            close_quietly(descriptor)


def check_stamp(folder: Path, stamp: Stamp | None) -> None:
    """Check that a replica was in sync while it was read. Without a stamp there is none to check.

    Raises:
        LogDirectoryError: it may not have been in sync.
        OSError: that cannot be known.
    """
    if stamp is not None and replica_stamp(folder) != stamp:
        raise LogDirectoryError(
            f"{folder} was not in sync any more while it was read: its node was away, and it is "
            "brought up to date. Read again"
        )


def stamps_of(folders: Iterable[Path]) -> dict[Path, Stamp | None]:
    """Return the stamps of replicas; one that cannot be read gets one that no replica has."""
    found: dict[Path, Stamp | None] = {}
    for folder in folders:
        try:
            found[folder] = replica_stamp(folder)
        except (LogDirectoryError, OSError):
            found[folder] = _UNREADABLE
    return found


# ----------------------------------------------------------------------------------------------
# Log directories: which partitions live in them, and where a new one goes.
#
# Source: Kafka ``LogManager`` (``loadLogs``, ``nextLogDirs``),
# ``LocalLog.parseTopicPartitionName``.


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


class PartitionDirectory(NamedTuple):
    """The folder of a live partition, and the log directory that it lies in.

    ``is_link``: the folder itself is somewhere else. ``stamp`` is that of a replica in sync, see
    :func:`~kafkalog.streaming.log.log_dir.replica_stamp`.
    """

    topic_partition: TopicPartition
    path: Path
    log_dir: Path
    is_link: bool = False
    stamp: Stamp | None = None


@dataclass(slots=True, weakref_slot=True)
class FolderListing:
    """What may be a partition's folder, as names and inodes, and the partitions that are.

    The inode of a link is inverted: a folder that takes the place of one may get its number. What a
    link leads to may come and go, as a disk that is mounted late, and nothing in the path tells: so
    ``has_links`` says whether there are any, and ``leads_nowhere`` whether one led to no folder.
    ``version`` is that of the names of the path when it was listed, see :class:`_Names`. ``joined``
    are the partitions in order, once :func:`join_listings` was asked for these alone.
    """

    folders: Mapping[str, int]
    partitions: Sequence[PartitionDirectory]
    has_links: bool = False
    leads_nowhere: bool = False
    version: object = field(default=None, compare=False)
    joined: dict[TopicPartition, PartitionDirectory] | None = field(default=None, compare=False)


@forgotten_when_forked
class _SharedListings:
    """The newest listing of each path, as long as anybody has it: names are parsed once."""

    def __init__(self) -> None:
        self.by_path: WeakValueDictionary[Path, FolderListing] = WeakValueDictionary()
        self.names: dict[int, _Names] = {}
        """What is known of folders, by the numbers of their watches: two paths may lead to one."""

    def names_at(self, path: Path, is_shared: Callable[[Path], bool]) -> _Names | None:
        """Return what is known of the names at a path; None where the kernel reports no changes."""
        watch = watch_names(str(path))
        found = self.names.get(watch)
        if found is None and watch >= 0 and not is_shared(path):
            found = self.names.setdefault(watch, _Names(watch))
            while len(self.names) > _MOST_WATCHED:
                self.names.pop(next(iter(self.names)), None)
        return found


_MANY_FOLDERS: Final = 500
"""A path with so many is listed again only if the kernel tells of names that have come or gone."""


_MOST_WATCHED: Final = 64


class _Names:
    """What is known of the names in a folder, by what the kernel tells.

    ``version`` is another object once a name has come or gone that may be a partition's.
    ``others`` are all other names; None while they are not known. A thread that has listed says
    what it found unless another one was told of changes meanwhile.
    """

    def __init__(self, watch: int) -> None:
        self.version = object()
        self.others: set[str] | None = None
        self._watch = watch
        self._looks = 0
        self._lock = system.lock()

    def look(self) -> int:
        """Take in what has changed; returns the number of this look."""
        with self._lock:
            changes = name_changes(self._watch)
            if changes is None or any(_may_be_partition(name) for name, _ in changes):
                self.version = object()
            if changes is None:
                self.others = None
            elif self.others is not None:
                for name, has_come in changes:
                    if not _may_be_partition(name):
                        (self.others.add if has_come else self.others.discard)(name)
            self._looks += 1
            return self._looks

    def note(self, look: int, others: set[str]) -> None:
        """Take what was listed after a look."""
        with self._lock:
            if look == self._looks:
                self.others = others


def are_same_listings(
    listed: Mapping[Path, FolderListing], known: Mapping[Path, FolderListing]
) -> bool:
    """Return whether nothing has changed: the listings are the very same objects."""
    return [*map(id, listed.values())] == [*map(id, known.values())]


def join_listings(
    listed: Iterable[FolderListing],
) -> tuple[dict[TopicPartition, PartitionDirectory], tuple[PartitionDirectory, ...]]:
    """Join what several paths hold; also return the two folders of a partition that has two.

    What one path holds is joined once: the very same dictionary comes again.
    """
    first, *others = [*listed] or [FolderListing({}, [])]
    if not others and first.joined is not None:
        return first.joined, ()
    found: dict[TopicPartition, PartitionDirectory] = {}
    for listing in (first, *others):
        for here in listing.partitions:
            other = found.setdefault(here.topic_partition, here)
            if other is not here and not _is_one_folder(other.path, here.path):
                return found, (other, here)
    found = dict(sorted(found.items()))
    if not others:
        first.joined = found
    return found, ()


def _is_one_folder(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except FileNotFoundError:  # moved since it was listed
        return False


def list_folders(
    path: Path, known: FolderListing | None, is_shared: Callable[[Path], bool]
) -> FolderListing:
    """List a path; return ``known`` if the folders are the same, which saves parsing names.

    Without it, the listing that somebody else has. Where there are many, and no other machine
    writes to the path (``is_shared``), it is not listed while nothing has come or gone.
    """
    shared = remembered(_SharedListings)
    if known is None and not isinstance(path, RemotePath):
        known = shared.by_path.get(path)
    itself = _named_itself(path)
    if itself is not None:
        listing = FolderListing({}, [itself])
        return known if known == listing else listing
    many = known is not None and len(known.folders) >= _MANY_FOLDERS
    names = shared.names_at(path, is_shared) if many else None
    if known is None or names is None:
        return _list(path, known)
    look, version = names.look(), names.version
    if known.version is version and not known.has_links:
        return known
    others: set[str] = set()
    listing = _list(path, known, others)
    listing.version = version
    names.note(look, others)
    return listing


def _list(path: Path, known: FolderListing | None, others: set[str] | None = None) -> FolderListing:
    """Do as :func:`list_folders`, which looks at the folder; ``others`` gets all other names."""
    found = entries_of(path)
    entries = [each for each in found if _may_be_partition(each.name)]
    if others is not None:
        others |= {each.name for each in found if not _may_be_partition(each.name)}
    folders = dict(zip([entry.name for entry in entries], _inodes(entries), strict=True))
    if known is not None and known.folders == folders and not known.has_links:
        return known
    named = [
        (entry, PartitionDirectory(topic_partition, path / entry.name, path, _is_link(entry)))
        for entry in entries
        if (topic_partition := parse_partition_directory(entry.name)) is not None
        and topic_partition.topic != CLUSTER_METADATA_TOPIC
    ]
    links = [entry for entry, where in named if where.is_link]
    listing = FolderListing(
        folders,
        [where for entry, where in named if entry.is_dir()],
        has_links=bool(links),
        leads_nowhere=not all(entry.is_dir() for entry in links),
    )
    if listing == known:
        return known
    if not isinstance(path, RemotePath):
        remembered(_SharedListings).by_path[path] = listing
    return listing


def _may_be_partition(name: str) -> bool:
    """Whether a name may be that of a partition's folder: other files come and go beside them."""
    return name[-1].isdecimal() and "-" in name


def names_beside_partitions(path: Path, is_shared: Callable[[Path], bool]) -> Collection[str]:
    """Return the names in a log directory that cannot be those of partitions.

    ``is_shared`` is as for :func:`list_folders`.
    """
    shared = remembered(_SharedListings)
    names = shared.names_at(path, is_shared) if shared.names else None
    if names is not None:
        names.look()
        if (others := names.others) is not None:
            return frozenset(others)
    return [name for name in os.listdir(path) if not _may_be_partition(name)]  # noqa: PTH208


def _named_itself(path: Path) -> PartitionDirectory | None:
    """Take the folder of one partition, if that is what is named."""
    itself = parse_partition_directory(path.name)
    if itself is not None and _has_segments(path):
        return PartitionDirectory(itself, path, path.parent)
    retired = parse_retired_directory(path.name)
    if retired is not None and _has_segments(path):
        return PartitionDirectory(retired, path, path)
    return None


def _inodes(entries: Sequence[os.DirEntry[str] | RemoteEntry]) -> Iterable[int]:
    """Return the inodes of a folder's entries, those of links inverted; a store has none."""
    if entries and isinstance(entries[0], os.DirEntry):
        local = cast("Sequence[os.DirEntry[str]]", entries)
        return [~each.inode() if each.is_symlink() else each.inode() for each in local]
    return [0] * len(entries)


def _is_link(entry: os.DirEntry[str] | RemoteEntry) -> bool:
    return isinstance(entry, os.DirEntry) and entry.is_symlink()


def counts_as_partition(name: str) -> bool:
    """Return whether a folder's name is that of a live or a future partition."""
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
        if isinstance(error, FileNotFoundError) and isinstance(path, RemotePath):
            raise LogDirectoryError(
                f"nothing is stored below {path}: check the names of the bucket and of the folder "
                "in it. If nothing was written yet: make the bucket, and a first write makes the "
                f"log{near}"
            ) from error
        if isinstance(error, FileNotFoundError):
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
