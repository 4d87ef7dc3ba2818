"""Copy log directories while they are written to, so that the copy can be read and written.

A set that our sink writes
    is copied in passes. Under the locks it is only noted how far each log goes: nothing below that
    changes any more. So much is copied while writers continue. The last pass runs under the locks
    and copies what has come since, then the commit state. The copy is the set at that moment.

A replicated set
    is copied likewise, each partition once, into one folder. The copy is a set of one node.

A log in an object store
    is copied as of one commit. What is not sealed there is appended to new logs, as it would have
    been here: the files are those of a local log of the same batches.

A directory that a broker has, or had
    is only read. Its checkpoint files are read first, and written last: every log reaches at least
    as far as its high watermark says. Each partition is of a moment of its own.

The copy has the ids of its original. The two cannot be written as one set, and it can take the
original's place. Until it is whole, the folder ``kafkalog.unfinished`` keeps brokers out, and it
has no commit state.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkalog.checkpoints.broker import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSET,
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    META_PROPERTIES,
    RECOVERY_POINT,
    LeaderEpoch,
    read_offset_checkpoint,
    write_leader_epochs,
    write_offset_checkpoint,
)
from kafkalog.checkpoints.commit_state import STATE_FILE, UNFINISHED_FOLDER
from kafkalog.checkpoints.state_file import load_state, state_bytes
from kafkalog.checkpoints.topic_ids import CHANGED_IDS_FILE, merged_changed_ids
from kafkalog.checkpoints.voters import find_voters
from kafkalog.errors import CheckpointError, DataLossError, KafkaLogError, LogDirectoryError
from kafkalog.files.atomic import TEMPORARY_SUFFIX, write_atomically, write_new
from kafkalog.files.deferred_signals import check_interrupt, shielded
from kafkalog.files.open_file import peek_at
from kafkalog.files.regular import (
    copy_range,
    create_exclusive,
    fsync_directory,
    fsync_file,
    make_directory,
    open_regular,
    read_regular,
    write_all,
)
from kafkalog.files.system import system
from kafkalog.model import TopicPartition, partition_directory_name
from kafkalog.streaming.log.appender import BufferSource, PartitionAppender
from kafkalog.streaming.log.files import (
    DELETED,
    LOG,
    SNAPSHOT,
    file_name,
    parse_base_offset,
    parse_partition_directory,
)
from kafkalog.streaming.log.producer_state import EMPTY_SNAPSHOT
from kafkalog.streaming.objects.bucket_store import bucket_of
from kafkalog.streaming.objects.merging import ExtentReader, segment_pieces
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.records.batch import scan_batches
from kafkalog.streaming.store.ends.tracker import LogEndTracker, say_tiered
from kafkalog.streaming.store.locks import check_no_broker
from kafkalog.streaming.store.log_dirs import partitions_by_node
from kafkalog.streaming.store.nodes import SALVAGE_NOTE, let_brokers_in
from kafkalog.streaming.store.policy import WAIT_MS, SetPolicy
from kafkalog.streaming.store.recovery.lost_partitions import (
    lost_of_living,
    lost_text,
    refuse_mount_points,
)
from kafkalog.streaming.store.session import Session, existing_log_dirs, opened_set

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from kafkalog.checkpoints.bucket_state import Extent
    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.objects.bucket_store import BucketRoot
    from kafkalog.streaming.store.log_set import LogSet


__all__ = ["Backup", "DirectoryBackup", "FolderCopy", "LogSizes", "ReplicatedSetCopy", "back_up"]


# ----------------------------------------------------------------------------------------------
# Copy the partitions of a log directory that is written to meanwhile.
#
# A file is copied once, and again only if it has changed. Logs grow at their ends, so only the
# new part of one that has grown is copied. The last of several passes, for which writers may have
# to wait, has little to do.


LogSizes = dict[tuple[str, str], int]
"""By folder and name of a ``.log`` file: up to where its bytes will not change any more."""

_SETTLED_NS: Final = 1_000_000_000
"""A file that changed so shortly before it was copied may have changed again in one tick."""
_COMPARED_BYTES: Final = 4096


class _Copied(NamedTuple):
    """What a file was when it was copied, and how much of it was."""

    inode: tuple[int, int]
    stamp: tuple[int, int, int]
    size: int


class FolderCopy:
    """The copy of all partitions of one log directory. ``bytes`` counts what was copied."""

    def __init__(self, source: Path, target: Path) -> None:
        self.source = source
        self.target = target
        self.bytes = 0
        self._copied: dict[tuple[str, str], _Copied] = {}
        self._folders: set[str] = set()
        self._only: Container[str] | None = None

    def take_only(self, names: Container[str]) -> None:
        """Copy these folders alone from now on."""
        self._only = names

    @property
    def partitions(self) -> int:
        """How many partitions the copy holds."""
        return len(self._folders)

    def log_sizes(self) -> LogSizes:
        """Return the sizes of all ``.log`` files now; the caller holds the locks."""
        sizes = {}
        for folder, name in self._files():
            if name.endswith(LOG):
                sizes[folder, name] = (self.source / folder / name).lstat().st_size
        return sizes

    def bring_up_to_date(self, sizes: Mapping[tuple[str, str], int] | None = None) -> int:
        """Copy what has changed, and remove what is gone.

        ``sizes`` bounds what is copied of each log. Nothing else of active segments is copied then:
        it is about to change.

        Returns:
            how many files were replaced, or are gone, that had been listed or copied.
        """
        found = list(self._files())
        active = _active_stems(found)
        changed = self._remove_all_but(found)
        for folder, name in found:
            check_interrupt()
            is_log = name.endswith(LOG)
            if sizes is not None:
                is_active = name.partition(".")[0] == active.get(folder)
                if (folder, name) not in sizes if is_log else is_active:
                    continue
            limit = None if sizes is None or not is_log else sizes[folder, name]
            changed += self._copy(folder, name, is_log=is_log, limit=limit)
        return changed

    def sync(self) -> None:
        """Make the copy durable."""
        for folder, name in self._copied:
            fsync_file(self.target / folder / name)
        for folder in sorted(self._folders):
            fsync_directory(self.target / folder)
        fsync_directory(self.target)

    def _files(self) -> Iterator[tuple[str, str]]:
        """List folders of partitions with the names of their files, logs in order of offsets."""
        for path in sorted(self.source.iterdir()):
            folder = path.name
            if parse_partition_directory(folder) is None or not path.is_dir():
                continue
            if self._only is not None and folder not in self._only:
                continue
            try:
                entries = sorted(os.scandir(path), key=lambda entry: entry.name)
            except FileNotFoundError:
                continue  # deleted meanwhile
            if folder not in self._folders:
                make_directory(self.target / folder)
                self._folders.add(folder)
            for entry in entries:
                is_left_out = entry.name.endswith((DELETED, TEMPORARY_SUFFIX))
                if not is_left_out and not entry.is_dir(follow_symlinks=False):
                    yield folder, entry.name

    def _remove_all_but(self, found: list[tuple[str, str]]) -> int:
        gone = self._copied.keys() - set(found)
        for folder, name in gone:
            (self.target / folder / name).unlink()
            del self._copied[folder, name]
        for folder in sorted(self._folders - {folder for folder, _ in found}):
            if not (self.source / folder).is_dir():
                (self.target / folder).rmdir()
                self._folders.remove(folder)
        return len(gone)

    def _copy(self, folder: str, name: str, *, is_log: bool, limit: int | None) -> bool:
        """Copy one file if it has changed; tell whether it replaces another."""
        known = self._copied.get((folder, name))
        now_ns = system.time_ns()
        try:
            descriptor = open_regular(self.source / folder / name)
        except FileNotFoundError:
            return True  # the next listing tells
        try:
            status = os.fstat(descriptor)
            stamp = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            if known is not None and known.stamp == stamp:
                return False
            end = status.st_size if limit is None else min(limit, status.st_size)
            path = self.target / folder / name
            inode = (status.st_dev, status.st_ino)
            grows = is_log and known is not None and known.inode == inode and known.size <= end
            start = 0
            if known is not None and grows and _ends_alike(path, descriptor, known.size):
                start = known.size
            copied = _write(path, descriptor, start, end)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(descriptor)
        if copied < status.st_size or status.st_ctime_ns > now_ns - _SETTLED_NS:
            stamp = (-1, -1, -1)
        self.bytes += copied - start
        self._copied[folder, name] = _Copied(inode, stamp, copied)
        return known is not None and known.inode != inode


def _active_stems(files: list[tuple[str, str]]) -> dict[str, str]:
    """Give, by folder, what the names of the active segment's files begin with."""
    return {
        folder: name.partition(".")[0]
        for folder, name in files
        if parse_base_offset(name, LOG) is not None
    }


def _ends_alike(path: Path, source: int, size: int) -> bool:
    """Return whether what was copied is still there, by its end: a log that was cut differs."""
    start = max(0, size - _COMPARED_BYTES)
    copy = open_regular(path)
    try:
        return peek_at(copy, start, size - start) == peek_at(source, start, size - start)
    finally:
        os.close(copy)


def _write(path: Path, source: int, start: int, end: int) -> int:
    """Bring the bytes ``[start, end)`` into a file that has those before; return where it ends."""
    if start == 0:
        path.unlink(missing_ok=True)
        target = create_exclusive(path)
    else:
        target = open_regular(path, os.O_RDWR)
    try:
        position = start
        for data_start, data_end in _data(source, start, end):
            check_interrupt()
            size = data_end - data_start
            copied = copy_range(source, data_start, size, target, data_start)
            position = data_start + copied
            if copied < size:  # it was cut meanwhile
                end = position
        os.ftruncate(target, end)
        return end
    finally:
        os.close(target)


def _data(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a file that are no holes: a broker's preallocated indexes are many."""
    while start < end:
        try:
            found = os.lseek(descriptor, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            yield start, end
            return
        hole = end
        with suppress(OSError):
            hole = os.lseek(descriptor, found, os.SEEK_HOLE)
        if found < end:
            yield found, min(hole, end)
        start = max(hole, found + 1)


# ----------------------------------------------------------------------------------------------
# Copy a replicated set into one folder, which is a set of one node then.
#
# Each partition is copied once, from a replica in sync. The copy can be read and written as it
# is. Or it becomes the first of several nodes, whose others are empty, and is copied to these by
# the next writes (:mod:`~kafkalog.streaming.store.open_set`).
#
# It is copied in passes, as a set of one node is. A partition is copied from where it was found
# first, as long as that is in sync.


_CHECKPOINTS: Final = (CLEANER_OFFSET, LOG_START_OFFSET, RECOVERY_POINT, HIGH_WATERMARK)
"""In the order in which they are written."""


class ReplicatedSetCopy:
    """The copy of the nodes' log directories ``sources`` in the folder ``target``.

    ``copies`` are its parts, each from one log directory.
    """

    def __init__(self, sources: Sequence[Path], target: Path, policy: SetPolicy) -> None:
        self._sources = sources
        self._target = target
        self._policy = policy
        self._from: dict[TopicPartition, PartitionDirectory] = {}
        self._copies: dict[Path, FolderCopy] = {}
        self._offsets: dict[str, dict[TopicPartition, int]] = {}

    @property
    def copies(self) -> list[FolderCopy]:
        """The copies of log directories from which something was taken."""
        return list(self._copies.values())

    @property
    def copied_bytes(self) -> int:
        """How many bytes were copied."""
        return sum(copy.bytes for copy in self.copies)

    def bring_up_to_date(self) -> None:
        """Copy what is there now, while writers continue.

        Raises:
            KafkaLogError, OSError: it cannot be read, or not be written.
        """
        with self._opened() as log_set:
            self._choose(log_set)
            sizes: dict[Path, LogSizes] = {
                folder: copy.log_sizes() for folder, copy in self._copies.items()
            }
        for folder, copy in self._copies.items():
            copy.bring_up_to_date(sizes[folder])

    def end(self) -> dict[str, bytes]:
        """Copy the rest while writers wait; return the files of the copy's root by their names.

        Raises:
            KafkaLogError, OSError: as :meth:`bring_up_to_date`; or the locks are lost.
        """
        with self._opened() as log_set:
            self._choose(log_set)
            for copy in self.copies:
                copy.bring_up_to_date()
            self._note_offsets()
            state = _of_one_node(log_set.state)
            changed = merged_changed_ids(log_set.directories)
            log_set.check_current()
        files = {} if changed is None else {CHANGED_IDS_FILE: changed}
        return {**files, STATE_FILE: state_bytes(state)}

    def write_checkpoints(self) -> None:
        """Write Kafka's offset checkpoints into the copy."""
        for name, offsets in self._offsets.items():
            write_offset_checkpoint(self._target, name, offsets)

    def _opened(self) -> AbstractContextManager[LogSet]:
        return opened_set(self._sources, self._policy, holder="kafkalog backup")

    def _choose(self, log_set: LogSet) -> None:
        """Choose from where each partition is copied; what was chosen before stays."""
        found = log_set.partitions()
        in_sync = {where.path for where in _in_sync(log_set)}
        for key in _keys(log_set.state):
            where = self._from.setdefault(key, found[key]) if key in found else None
            if where is None or where.path not in in_sync:
                raise LogDirectoryError(
                    f"{key} has no replica in sync that is there, or the node that it was copied "
                    "from has gone meanwhile. `kafkalog node list` shows the nodes: bring it back, "
                    "remove what is left of this copy, and try again"
                )
        self._from = {key: self._from[key] for key in _keys(log_set.state)}
        by_folder: dict[Path, set[str]] = {folder: set() for folder in self._copies}
        for key, where in self._from.items():
            by_folder.setdefault(where.log_dir, set()).add(partition_directory_name(*key))
        for folder, names in by_folder.items():
            copy = self._copies.setdefault(folder, FolderCopy(folder, self._target))
            copy.take_only(names)

    def _note_offsets(self) -> None:
        for name in _CHECKPOINTS:
            known = {folder: read_offset_checkpoint(folder, name) for folder in self._copies}
            self._offsets[name] = {
                key: known[where.log_dir][key]
                for key, where in self._from.items()
                if key in known[where.log_dir]
            }


def _keys(state: CommitState) -> Iterator[TopicPartition]:
    for topic in state.topics.values():
        for number in topic.partitions:
            yield TopicPartition(topic.name, number)


def _in_sync(log_set: LogSet) -> Iterator[PartitionDirectory]:
    folders = partitions_by_node(log_set.node.nodes())
    for topic in log_set.state.topics.values():
        for number, each in topic.replicas.items():
            for node in each.isr:
                found = folders.get(node, {}).get(TopicPartition(topic.name, number))
                if found is not None:
                    yield found


def _of_one_node(state: CommitState) -> CommitState:
    """Return the state of a set that has one directory, and no nodes."""
    member = system.random_id().hex
    topics = {key: replace(topic, replicas={}) for key, topic in state.topics.items()}
    return replace(
        state,
        member_id=member,
        member_ids=(member,),
        nodes=(),
        topics=topics,
        controller="",
        controller_epoch=0,
        previous="",
    )


# ----------------------------------------------------------------------------------------------

_HOLDER: Final = "kafkalog backup"
_PASSES: Final = 5
_SMALL_BYTES: Final = 64 << 20
"""So much is copied while writers wait."""
_LISTINGS: Final = 20
_SMALL_FILE: Final = 1 << 30

_BOOTSTRAP: Final = "bootstrap.checkpoint"
"""Of a broker that is a controller too."""
_ROOT_FILES: Final = (
    META_PROPERTIES,
    _BOOTSTRAP,
    CHANGED_IDS_FILE,
    CLEANER_OFFSET,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    HIGH_WATERMARK,
    SALVAGE_NOTE,
    STATE_FILE,
)
"""In the order in which they are written."""

_RootFiles = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class DirectoryBackup:
    """A log directory and its copy: how many partitions, and how many bytes of their files."""

    source: Path
    target: Path
    partitions: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Backup:
    """What was copied. ``at_one_moment``: all of it as of one commit, not by a broker's files.

    ``problems`` say what was committed and is not in the copy: it is not in its original, either.
    """

    directories: tuple[DirectoryBackup, ...]
    at_one_moment: bool
    problems: tuple[str, ...] = ()


@shielded
def back_up(paths: Sequence[str], target: str, *, wait_ms: int = WAIT_MS) -> Backup:
    """Copy log directories into ``target``, which is made, or empty.

    The copy of one log directory is ``target`` itself; of several they are its folders ``1``,
    ``2``, …, in the order of ``paths``. Of a replicated set it is ``target`` itself. An unfinished
    commit is rolled back first, as the next writer would. Staged files are left out, as is what a
    salvage has kept.

    Args:
        paths: all log directories of the set; or the URI of a log in an object store.
        target: a local folder.
        wait_ms: how long to wait for a writer of ours.

    Raises:
        LogDirectoryError: a path is no log directory, or ``target`` is not empty or lies in one.
        KafkaLogError: the directories are no whole set, or their state cannot be trusted.
        OSError: the copy could not be written.
    """
    policy = SetPolicy.of_upkeep(wait_ms)
    if (bucket := bucket_of(paths)) is not None:
        return _BucketBackup(bucket, target).run()
    sources = [Path(os.path.realpath(path)) for path in existing_log_dirs(paths)]
    if find_voters(sources) is not None:
        return _back_up_nodes(sources, target, policy)
    is_ours = _is_ours(sources, policy)
    if is_ours:
        with _session(sources, policy) as session:
            session.open(rolls_back=False)
    copies = [FolderCopy(*pair) for pair in zip(sources, _targets(sources, target), strict=True)]
    problems: list[str] = []
    files = _copy_set(copies, policy, problems) if is_ours else _copy_as_it_runs(copies, problems)
    for copy, contents in zip(copies, files, strict=True):
        _finish(copy, contents)
    with suppress(KafkaLogError, OSError):  # what cannot be read is copied too
        say_tiered(LogEndTracker(sources))
    done = (
        DirectoryBackup(each.source, each.target, each.partitions, each.bytes) for each in copies
    )
    return Backup(tuple(done), is_ours, tuple(problems))


def _back_up_nodes(sources: Sequence[Path], target: str, policy: SetPolicy) -> Backup:
    with opened_set(sources, policy, holder=_HOLDER):
        pass  # else nothing is made
    (root,) = _targets(sources, target, is_one=True)
    copy = ReplicatedSetCopy(sources, root, policy)
    for _ in range(_PASSES):
        before = copy.copied_bytes
        copy.bring_up_to_date()
        if copy.copied_bytes - before < _SMALL_BYTES:
            break
    files = copy.end()
    for each in copy.copies:
        each.sync()
    copy.write_checkpoints()
    _open_to_all(root, files)
    parts = sorted(copy.copies, key=lambda each: each.source)
    done = (DirectoryBackup(each.source, root, each.partitions, each.bytes) for each in parts)
    return Backup(tuple(done), at_one_moment=True)


def _targets(sources: Sequence[Path], target: str, *, is_one: bool = False) -> list[Path]:
    """Make the folders for the copies: one for each source, or for all of them."""
    root = Path(os.path.realpath(target))
    for source in sources:
        if root.is_relative_to(source) or source.is_relative_to(root):
            raise LogDirectoryError(f"{root}: a copy of {source} cannot lie in it, nor around it")
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise LogDirectoryError(
            f"{root} is not empty: name a new folder for the copy, or remove what is left there of "
            "one that was cut off"
        )
    if not root.exists():
        if not root.parent.is_dir():
            raise LogDirectoryError(f"{root.parent}: there is no such folder")
        make_directory(root)
        fsync_directory(root.parent)
    if is_one or len(sources) == 1:
        targets = [root]
    else:
        targets = [root / str(number) for number in range(1, len(sources) + 1)]
        for folder in targets:
            make_directory(folder)
        fsync_directory(root)
    for folder in targets:
        make_directory(folder / UNFINISHED_FOLDER)
        fsync_directory(folder)  # a loss of power may leave any part of what comes
    return targets


def _is_ours(sources: Sequence[Path], policy: SetPolicy) -> bool:
    """Return whether the directories are a set of ours that no broker has open."""
    without = [folder for folder in sources if load_state(folder) is None]
    if len(without) == len(sources) or any(
        _broker_holds(folder, policy.wait_ms) for folder in sources
    ):
        return False
    if without:
        refuse_mount_points(sources)
        raise LogDirectoryError(
            f"{without[0]} has no {STATE_FILE}, and {len(sources) - len(without)} of the other log "
            "directories have one: they are not one set"
        )
    return True


def _session(sources: Sequence[Path], policy: SetPolicy) -> Session:
    return Session(sources, policy, holder=_HOLDER)


def _broker_holds(folder: Path, wait_ms: int) -> bool:
    try:
        check_no_broker(folder, timeout_ms=wait_ms)
    except LogDirectoryError:
        return True
    return False


def _copy_set(
    copies: Sequence[FolderCopy], policy: SetPolicy, problems: list[str]
) -> list[_RootFiles]:
    """Copy a set of ours; writers wait only for what came during the pass before."""
    sources = [copy.source for copy in copies]
    for _ in range(_PASSES):
        with _session(sources, policy) as session:
            session.open()
            sizes = [copy.log_sizes() for copy in copies]
        before = sum(copy.bytes for copy in copies)
        for copy, noted in zip(copies, sizes, strict=True):
            copy.bring_up_to_date(noted)
        if sum(copy.bytes for copy in copies) - before < _SMALL_BYTES:
            break
    with _session(sources, policy) as session:
        problems += _missing(session.open())
        for copy in copies:
            copy.bring_up_to_date()
        files = [_root_files(folder, CLEAN_SHUTDOWN, *_ROOT_FILES) for folder in sources]
        session.verify()
    return files


def _missing(log_set: LogSet) -> Iterator[str]:
    """Say what the copy lacks: partitions without a folder, and links to what is not mounted."""
    for topic, lost in lost_of_living(log_set.state, log_set.partitions()):
        yield lost_text(topic, lost)
    yield from _dead_links(log_set.directories)


def _dead_links(folders: Iterable[Path]) -> Iterator[str]:
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if parse_partition_directory(path.name) and path.is_symlink() and not path.exists():
                yield f"{path} is a link that leads nowhere: a disk may not be mounted there"


def _copy_as_it_runs(copies: Sequence[FolderCopy], problems: list[str]) -> list[_RootFiles]:
    """Copy what others write, until nothing that was copied has been replaced meanwhile."""
    files = [_root_files(copy.source, *_ROOT_FILES) for copy in copies]
    for copy in copies:
        for _ in range(_LISTINGS):
            before = copy.partitions
            if copy.bring_up_to_date() == 0 and before:
                break
            if not copy.partitions:
                break
        else:
            raise LogDirectoryError(
                f"{copy.source} changes so fast that in {_LISTINGS} passes some of its files were "
                "always replaced while they were copied; try again"
            )
    problems += _dead_links(copy.source for copy in copies)
    return files


def _root_files(folder: Path, *names: str) -> _RootFiles:
    found = {}
    for name in names:
        with suppress(FileNotFoundError):
            found[name] = read_regular(folder / name, limit=_SMALL_FILE)
    with suppress(CheckpointError):  # it is copied as it is then
        state = load_state(folder) if STATE_FILE in found else None
        if state is not None and state.snapshot is not None:
            found[STATE_FILE] = state_bytes(state)  # whole: its snapshot lies in another file
    return found


def _finish(copy: FolderCopy, files: _RootFiles) -> None:
    """Make the copy durable, then let it be used."""
    copy.sync()
    _open_to_all(copy.target, files)


def _open_to_all(target: Path, files: _RootFiles) -> None:
    for name, content in files.items():
        write_atomically(target / name, content)
    let_brokers_in(target)
    fsync_directory(target)


# ----------------------------------------------------------------------------------------------
# The log in an object store, as of one commit. Its objects stay for a day at least, whatever
# others do meanwhile.


class _BucketBackup:
    """Copies a log in an object store into a folder."""

    def __init__(self, bucket: BucketRoot, target: str) -> None:
        committed = bucket.open_store().committed()  # else a log would be made where there is none
        (self._target,) = _targets((), target, is_one=True)
        with bucket.writing() as log:
            state = log.follow()
            self._objects, self._log_id = log.objects, state.log_id
            self._reader = ExtentReader(log.objects, state.log_id)
            self._topics = dict(state.topics)
            self._extents = {place: tuple(some) for place, some in state.extents.items()}
            self._clean = dict(state.clean)
            member = system.random_id().hex
            self._state = replace(
                committed,
                sequence=state.number,
                commit_id=state.commit_id,
                topics=self._topics,
                writers=dict(state.writers),
                member_id=member,
                member_ids=(member,),
            )
        self._bucket = bucket
        self._now_ms = system.time_ns() // 1_000_000
        self._bytes = 0

    def run(self) -> Backup:
        """Copy it, then let it be used.

        Raises:
            DataLossError: an object that it is to have is gone.
        """
        count = 0
        for topic_id, topic in self._topics.items():
            for number, partition in topic.partitions.items():
                check_interrupt()
                key = TopicPartition(topic.name, number)
                try:
                    self._copy(topic_id, key, LogConfig.of_topic(topic.settings), partition.log_end)
                except DataLossError as error:
                    raise DataLossError(
                        f"{error}. What the log does not name any more is kept for "
                        f"storage.deleteDelay: if the copy took longer, remove {self._target} and "
                        "try again"
                    ) from error
                count += 1
        self._write_checkpoints()
        _open_to_all(self._target, {STATE_FILE: state_bytes(self._state)})
        source = self._bucket.open_log()
        copied = DirectoryBackup(source, self._target, count, self._bytes)
        return Backup((copied,), at_one_moment=True)

    def _copy(self, topic_id: str, key: TopicPartition, config: LogConfig, log_end: int) -> None:
        extents = self._extents.get((topic_id, key.partition), ())
        sealed = [extent for extent in extents if extent.sealed is not None]
        tail = extents[len(sealed) :]
        folder = self._target / partition_directory_name(*key)
        end = sealed[-1].end_offset if sealed else log_end
        appender = PartitionAppender(
            folder,
            key,
            config,
            now_ms=self._now_ms,
            topic_id=topic_id,
            first_offset=tail[0].base_offset if tail else end,
        )
        appender.apply(appender.plan([]), [])
        self._append(appender, tail)
        for extent in sealed:
            self._copy_segment(folder, extent)
        bases = [extent.base_offset for extent in (*sealed, *tail[:1])]
        for base in bases[1:] if sealed else ():
            write_new(folder / file_name(base, SNAPSHOT), EMPTY_SNAPSHOT)
        if extents:
            write_leader_epochs(folder, _leader_epochs(extents), fsync=False)
        for path in sorted(folder.iterdir()):
            fsync_file(path)
            self._bytes += path.stat().st_size
        fsync_directory(folder)

    def _append(self, appender: PartitionAppender, tail: Sequence[Extent]) -> None:
        for extent, data in self._reader.in_order(tail):
            check_interrupt()
            array = np.frombuffer(data, np.uint8)
            table = scan_batches(array).table
            appender.lead(extent.leader_epoch)
            plan = appender.plan([table], adoptable=[0] if extent.alone else [])
            appender.apply(plan, [BufferSource(array)])

    def _copy_segment(self, folder: Path, extent: Extent) -> None:
        for suffix, pieces in segment_pieces(self._objects, self._log_id, extent):
            descriptor = create_exclusive(folder / file_name(extent.base_offset, suffix))
            try:
                position = 0
                for piece in pieces:
                    check_interrupt()
                    write_all(descriptor, piece, position)
                    position += len(piece)
            finally:
                os.close(descriptor)

    def _write_checkpoints(self) -> None:
        ends, starts, clean = {}, {}, {}
        for topic_id, topic in self._topics.items():
            for number, partition in topic.partitions.items():
                key = TopicPartition(topic.name, number)
                ends[key] = partition.log_end
                if partition.log_start:
                    starts[key] = partition.log_start
                if (topic_id, number) in self._clean:
                    clean[key] = self._clean[topic_id, number]
        for name, offsets in (
            (RECOVERY_POINT, ends),
            (HIGH_WATERMARK, ends),
            (LOG_START_OFFSET, starts),
            (CLEANER_OFFSET, clean),
        ):
            if offsets:
                write_offset_checkpoint(self._target, name, offsets)


def _leader_epochs(extents: Sequence[Extent]) -> list[LeaderEpoch]:
    """Return where the leader epochs of a log begin."""
    found: list[LeaderEpoch] = []
    for extent in extents:
        if not found or extent.leader_epoch > found[-1].epoch:
            found.append(LeaderEpoch(extent.leader_epoch, extent.base_offset))
    return found
