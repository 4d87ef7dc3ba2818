"""Copy to a replica what it lacks from its leader's log, and what was compacted there; cut it."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.broker import (
    CLEANER_OFFSET,
    LEADER_EPOCHS,
    RECOVERY_POINT,
    read_offset_checkpoint,
    read_topic_id,
    write_offset_checkpoint,
)
from kafkalog.checkpoints.commit_state import Rewritten
from kafkalog.errors import (
    CheckpointError,
    CorruptIndexError,
    CorruptRecordError,
    KafkaLogError,
    LogDirectoryError,
)
from kafkalog.files.atomic import write_atomically
from kafkalog.files.deferred_signals import check_interrupt
from kafkalog.files.open_file import read_at
from kafkalog.files.regular import (
    create_exclusive,
    fsync_directory,
    open_regular,
    read_whole,
    sync,
    write_all,
)
from kafkalog.files.timeouts import at
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.files import (
    CLEANED,
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
)
from kafkalog.streaming.log.recovery import remove_segment
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segments import CLEANED_KINDS, list_base_offsets
from kafkalog.streaming.log.swap import finish_swap, replace_segments
from kafkalog.streaming.log.valid_batches import find_valid_end
from kafkalog.streaming.store.log_dirs import partitions_by_node
from kafkalog.streaming.store.replicas.election import shrunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState, ReplicaState, TopicState
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.replicas.quorum import Quorum

__all__ = [
    "CopyBudget",
    "Copying",
    "LeaderUnreadableError",
    "SeenFiles",
    "copy_bytes",
    "copy_cleaner_offset",
    "distrust_old",
    "drop_recovery_points",
    "end_rewriting",
    "ended",
    "equal_bytes",
    "make_equal",
    "marked",
    "of_leader",
    "own_topic_id",
    "was_away",
]


class SeenFiles:
    """The device and inode of each file by the path under which it was opened last."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[int, int]] = {}

    def note(self, path: Path, descriptor: int) -> None:
        """Take note of a file that is open."""
        self._seen[path] = _identity(os.fstat(descriptor))

    def read(self, path: Path, *, limit: int) -> bytes:
        """Read a small file whole, and take note of it.

        Raises:
            FileNotFoundError: nothing has that name.
            LogDirectoryError: not a regular file, not readable, or longer than ``limit`` bytes.
        """
        descriptor = open_regular(path)
        try:
            self.note(path, descriptor)
            return read_whole(descriptor, path, limit=limit)
        finally:
            os.close(descriptor)

    def check(self) -> None:
        """See that each path names the file that it named.

        Raises:
            LogDirectoryError: one does not.
        """
        for path, seen in self._seen.items():
            try:
                with at(path):
                    found = _identity(path.stat())
            except FileNotFoundError:
                found = None
            if found != seen:
                raise was_away(path)


def was_away(path: Path) -> LogDirectoryError:
    """Say that a file of a partition's folder is not the one that it was."""
    return LogDirectoryError(
        f"{path} is another file than a moment ago, or gone. Was {path.parent.parent} away, or did "
        "somebody replace it? It is compared again by the next write, or if this is run again"
    )


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


# ----------------------------------------------------------------------------------------------

_PIECE_BYTES: Final = 1 << 20
_LARGEST_SMALL_FILE: Final = 1 << 30
_BESIDE: Final = (OFFSET_INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT)
_TORN: Final = "torn"
"""In place of the topic id that a file should have and has not."""


class LeaderUnreadableError(KafkaLogError):
    """The log that is copied cannot be read: it is not the replica's fault."""


class CopyBudget:
    """How many bytes may still be copied, and as many compared.

    A segment that is begun is compared whole, and copied as far as there is room.
    """

    def __init__(self, size: int) -> None:
        self.left = size
        self._to_compare = size

    @property
    def is_used_up(self) -> bool:
        """Whether no other segment is begun."""
        return self.left <= 0 or self._to_compare <= 0

    def take(self, size: int) -> int:
        """Return how many of ``size`` bytes may be copied, which are taken."""
        taken = min(size, self.left)
        self.left -= taken
        return taken

    def compare(self, size: int) -> None:
        """Take note of ``size`` bytes that were compared."""
        self._to_compare -= size


@dataclass(frozen=True)
class Copying:
    """Files of the leader's log in ``source``, which ends at ``log_end``, and of a replica's."""

    source: Path
    target: Path
    log_end: int
    room: CopyBudget
    seen: SeenFiles = field(default_factory=SeenFiles)

    def copy_log(self, base: int, *, trusted: bool, sealed: bool) -> bool:
        """Let a segment's log be equal as far as there is room; returns whether all of it is.

        One that the replica has ``sealed`` is not cut but recreated: somebody may read it.
        """
        name = file_name(base, LOG)
        with of_leader(self.source):
            reading = open_regular(self.source / name)
        try:
            size = os.fstat(reading).st_size
            self.seen.note(self.source / name, reading)
            writing = _opened_or_made(self.target / name)
            try:
                found = os.fstat(writing).st_size
                self.seen.note(self.target / name, writing)
                if trusted and found == size:
                    return True
                equal = equal_bytes(self.source, reading, writing, min(found, size))
                self.room.compare(equal)
                if equal < size:
                    _check_sound(self.source, base, equal, self.log_end)
                if found > equal and sealed:
                    closing, writing = writing, -1  # never twice, whatever closing it raises
                    os.close(closing)
                    remove_segment(self.target, base)
                    writing, found, equal = create_exclusive(self.target / name), 0, 0
                    self.seen.note(self.target / name, writing)
                if found > equal:
                    os.ftruncate(writing, equal)
                end = equal + self.room.take(size - equal)
                copy_bytes(self.source, reading, writing, equal, end)
                if end == size:
                    _keep_time(reading, writing)
                sync(writing)
                return end == size
            finally:
                if writing >= 0:
                    os.close(writing)
        finally:
            os.close(reading)

    def copy_beside(self, base: int, *, durable: bool) -> None:
        """Copy a segment's indexes and snapshot."""
        for suffix in _BESIDE:
            self.copy_small(file_name(base, suffix), durable=durable)

    def copy_small(self, name: str, *, durable: bool = False) -> None:
        """Copy a small file; one that the leader does not have goes."""
        own = self.target / name
        try:
            with of_leader(self.source):
                data = self.seen.read(self.source / name, limit=_LARGEST_SMALL_FILE)
        except FileNotFoundError:
            own.unlink(missing_ok=True)
            return
        try:
            if self.seen.read(own, limit=_LARGEST_SMALL_FILE) == data:
                return
        except FileNotFoundError:
            pass
        write_atomically(own, data, fsync=durable)  # the folder is synced when all is there
        if self.seen.read(own, limit=_LARGEST_SMALL_FILE) != data:
            raise was_away(own)

    def copy_rest(self, key: TopicPartition) -> None:
        """Let what lies beside the logs be as the leader has it, durably."""
        for path in list(self.target.iterdir()):
            if path.suffix in _BESIDE and not (self.source / path.name).exists():
                path.unlink()
        self.copy_small(LEADER_EPOCHS)
        fsync_directory(self.target)
        copy_cleaner_offset(self.source, self.target, key)

    def check_place(self, bases: Sequence[int], topic_id: str | None) -> None:
        """See that all that was copied lies in one place, and nothing else.

        Raises:
            LogDirectoryError: it does not.
        """
        self.seen.check()
        if list_base_offsets(self.target) != bases or own_topic_id(self.target) != topic_id:
            raise was_away(self.target / file_name(max(bases, default=0), LOG))


def copy_cleaner_offset(source: Path, target: Path, key: TopicPartition) -> None:
    """Durably let the log directory of a replica say how far it is clean, as its leader's does.

    Raises:
        LeaderUnreadableError: that one cannot be read.
        OSError, CheckpointError: the checkpoint cannot be replaced.
    """
    with of_leader(source):
        clean_to = read_offset_checkpoint(source.parent, CLEANER_OFFSET).get(key, 0)
    if read_offset_checkpoint(target.parent, CLEANER_OFFSET).get(key, 0) != clean_to:
        write_offset_checkpoint(target.parent, CLEANER_OFFSET, {key: clean_to})


@contextmanager
def of_leader(path: Path) -> Iterator[None]:
    """Tell what cannot be read of a leader, in ``path``, from what cannot be done on the replica.

    Raises:
        LeaderUnreadableError: for any error but that a file is not there.
    """
    try:
        with at(path):
            yield
    except FileNotFoundError:
        raise
    except (OSError, KafkaLogError) as error:
        raise LeaderUnreadableError(f"{path} cannot be copied: {error}") from error


def own_topic_id(target: Path) -> str | None:
    """Return the id of the topic whose partition lies in a folder; a word if that is torn."""
    try:
        return read_topic_id(target)
    except CheckpointError:
        return _TORN  # by a loss of power


def _opened_or_made(path: Path) -> int:
    try:
        return open_regular(path, os.O_RDWR)
    except FileNotFoundError:
        return create_exclusive(path)


def copy_bytes(source: Path, reading: int, writing: int, start: int, end: int) -> None:
    """Copy the bytes ``[start, end)`` of an open file of a leader, in the folder ``source``.

    Raises:
        LeaderUnreadableError: they cannot be read.
        OSError: they cannot be written.
    """
    for position in range(start, end, _PIECE_BYTES):
        with of_leader(source):
            data = read_at(reading, position, min(_PIECE_BYTES, end - position))
        write_all(writing, data.data, position)


def _keep_time(reading: int, writing: int) -> None:
    """Let a log have the time of the one that it is a copy of.

    Records without timestamps expire by it, as for a broker. Only its owner may set it, and a log
    may be another one's, who writes the set too: then it has the time of the copy.
    """
    found = os.fstat(reading)
    with suppress(PermissionError):
        os.utime(writing, ns=(found.st_atime_ns, found.st_mtime_ns))


def _check_sound(source: Path, base: int, position: int, log_end: int) -> None:
    """Refuse to copy what is damaged below ``log_end``: the replica may have it as it should be.

    Checksums are compared from about ``position`` on, up to the end of the segment.

    Raises:
        CorruptRecordError: a batch is damaged.
    """
    with of_leader(source), LogSegment(source, base) as segment:
        end = find_valid_end(segment, _indexed_before(segment, position))
    if end.problem is not None and end.next_offset < log_end:
        raise CorruptRecordError(
            f"its leader is damaged, and is not copied: {end.problem}. Run `kafkalog recover`"
        ) from end.problem


def _indexed_before(segment: LogSegment, position: int) -> int:
    """Return a position at which a batch begins, up to this one; a loss of power tears indexes."""
    index = segment.offset_index()
    if index is None:
        return 0
    try:
        known = index.between(0, position + 1).tolist()
    except CorruptIndexError:
        return 0
    offset, found = known[-1] if known else (0, 0)
    return found if found and segment.begins_by(offset, found) else 0


def equal_bytes(source: Path, one: int, other: int, size: int) -> int:
    """Return up to which multiple of a piece, or to ``size``, two open files are equal.

    ``one`` is of the leader, in the folder ``source``.

    Raises:
        LeaderUnreadableError: that one cannot be read.
        OSError: the other one cannot be.
    """
    for position in range(0, size, _PIECE_BYTES):
        length = min(_PIECE_BYTES, size - position)
        with of_leader(source):
            data = bytes(read_at(one, position, length))
        if data != bytes(read_at(other, position, length)):
            return position
    return size


# ----------------------------------------------------------------------------------------------
# Carry a compaction from the leader's segments to the replicas in sync.
#
# Example: a log of three replicas is compacted on its leader, and the process is killed after that.
# All three are in sync, since each has all records, but two have them in other segments.
#
# ==========  ======================================================================================
# mark        a state is published that says which offsets may differ (:func:`marked`)
# replace     the leader's segments, then those of each replica in sync, by copies
# end         a state is published that says that this is over (:func:`ended`)
# ==========  ======================================================================================
#
# Whoever opens the set in between copies what differs, before anything else
# (:func:`end_rewriting`). A replica that had no part in it has other bytes in files that may have
# the same sizes. It is known by its node's own state, which is older than the mark, or still has
# it. Nothing is taken for equal in it any more without a look (:func:`distrust_old`).


class _Group(NamedTuple):
    """Base offsets of neighbouring segments: what the leader has in place of what a replica has."""

    leading: list[int]
    own: list[int]


def make_equal(source: Path, target: Path, start: int, end: int, check: Callable[[], None]) -> None:
    """Replace segments of ``[start, end)`` in the folder ``target`` that differ from the source's.

    REQUIRES: the locks of both are held, and no swap is unfinished in the source. ``check`` is
    called once segments are copied, and raises if what was copied does not count.

    Raises:
        LeaderUnreadableError: a file of the source cannot be read.
        LogDirectoryError: the two logs do not have these offsets both; nothing was changed.
        OSError, CorruptRecordError: a file of the target cannot be read or written.
    """
    finish_swap(target)
    for group in _groups(source, target, start, end):
        check_interrupt()
        if group.leading == group.own and _is_same(source, target, group.own[0]):
            continue
        for base in group.leading:
            _copy_as_cleaned(source, target, base)
        fsync_directory(target)
        check()
        replace_segments(target, group.own, group.leading)


def _groups(source: Path, target: Path, start: int, end: int) -> Iterator[_Group]:
    """Split two logs where both begin a segment."""
    with of_leader(source):
        leading = list_base_offsets(source)
    own = list_base_offsets(target)
    theirs, ours = ([base for base in each if start <= base < end] for each in (leading, own))
    is_sealed = max(leading, default=0) >= end and max(own, default=0) >= end
    if theirs[:1] != ours[:1] or (theirs and not is_sealed):
        raise LogDirectoryError(
            f"{target}: its segments of offsets {start} to {end} are not those of {source}"
        )
    common = [base for base in theirs if base in ours]
    for base, following in zip(common, [*common[1:], end], strict=True):
        yield _Group(*([b for b in each if base <= b < following] for each in (theirs, ours)))


def _is_same(source: Path, target: Path, base: int) -> bool:
    names = [file_name(base, kind) for kind in CLEANED_KINDS]
    return all(_is_same_file(source, source / name, target / name) for name in names)


def _is_same_file(source: Path, leading: Path, own: Path) -> bool:
    one, other = _opened(source, leading), -1
    try:
        try:
            other = open_regular(own)
        except FileNotFoundError:
            return one < 0
        if one < 0:
            return False
        size = os.fstat(one).st_size
        if size != os.fstat(other).st_size:
            return False
        return equal_bytes(source, one, other, size) == size
    finally:
        _close(one, other)


def _copy_as_cleaned(source: Path, target: Path, base: int) -> None:
    for kind in CLEANED_KINDS:
        name = file_name(base, kind)
        reading, writing = _opened(source, source / name, is_needed=kind == LOG), -1
        if reading < 0:
            continue
        try:
            found = os.fstat(reading)
            writing = create_exclusive(target / (name + CLEANED))
            copy_bytes(source, reading, writing, 0, found.st_size)
            # Retention goes by it where there are no timestamps.
            os.utime(writing, ns=(found.st_atime_ns, found.st_mtime_ns))
            sync(writing)
        finally:
            _close(reading, writing)


def _opened(source: Path, path: Path, *, is_needed: bool = False) -> int:
    """Open a file of the leader; -1 of one that it does not have."""
    try:
        with of_leader(source):
            return open_regular(path)
    except FileNotFoundError:
        if is_needed:
            raise
        return -1


def _close(*files: int) -> None:
    for file in files:
        if file >= 0:
            os.close(file)


# ----------------------------------------------------------------------------------------------

_LOGGER: Final = logging.getLogger("kafkalog.sink")

_Folders = dict[int, dict[TopicPartition, "PartitionDirectory"]]


class _Rewritten(NamedTuple):
    """A partition, by the topic's key in the state, whose replicas in sync may differ."""

    topic_key: str
    key: TopicPartition
    replicas: ReplicaState


def marked(state: CommitState, topic_key: str, number: int, start: int, end: int) -> CommitState:
    """Return the next state, which says that replicas may differ in ``[start, end)`` from now on.

    With an empty range: those that do not know this state may.
    """
    return _with(state, topic_key, number, Rewritten(state.sequence + 1, start, end)).following()


def ended(state: CommitState, topic_key: str, number: int) -> CommitState:
    """Return a state in which the replicas in sync of a partition are equal again."""
    rewritten = state.topics[topic_key].replicas[number].rewritten
    return _with(state, topic_key, number, rewritten._replace(start=0, end=0))


def _with(state: CommitState, topic_key: str, number: int, rewritten: Rewritten) -> CommitState:
    topic = state.topics[topic_key]
    each = topic.replicas[number]._replace(rewritten=rewritten)
    changed = replace(topic, replicas={**topic.replicas, number: each})
    return replace(state, topics={**state.topics, topic_key: changed})


# Who has no part in it


def drop_recovery_points(log_dirs: Iterable[Path], *keys: TopicPartition) -> None:
    """Durably let nothing of replicas count as equal to their leaders' logs, until it is compared.

    Their recovery points are removed from the checkpoint of each directory. Nobody looks whether
    the replica's folder is there: it may be away just now, and back when it is trusted.

    Raises:
        OSError, CheckpointError: a recovery point cannot be removed.
    """
    for log_dir in log_dirs if keys else ():
        write_offset_checkpoint(log_dir, RECOVERY_POINT, {}, remove=keys)


def distrust_old(
    node: int, log_dirs: Iterable[Path], state: CommitState, own: CommitState | None
) -> None:
    """Do so with those replicas of a node that was away which may have other bytes.

    ``own`` is the state that the node has in place.

    Raises:
        OSError, CheckpointError: a recovery point cannot be written.
    """
    old = [
        TopicPartition(name, number)
        for key, name, number, each in _replicas(state)
        if node in each.replicas and each.rewritten.sequence and not _knows(own, key, number, each)
    ]
    drop_recovery_points(log_dirs, *old)


def _knows(own: CommitState | None, key: str, number: int, each: ReplicaState) -> bool:
    """Whether a node that has a state in place had a part in what that of its partition says."""
    topic: TopicState | None = None if own is None else own.topics.get(key)
    known = None if topic is None else topic.replicas.get(number)
    if own is None or known is None or known.rewritten.is_under_way:
        return False
    return own.sequence >= each.rewritten.sequence


def _replicas(state: CommitState) -> Iterator[tuple[str, str, int, ReplicaState]]:
    for key, topic in state.topics.items():
        for number, each in topic.replicas.items():
            yield key, topic.name, number, each


# Who was cut off in it


def end_rewriting(
    state: CommitState, nodes: Quorum, verify_locks: Callable[[], None]
) -> CommitState:
    """Let the replicas in sync be equal where somebody was cut off who replaced segments.

    Return the state that says so, for whoever publishes the next one. REQUIRES: the locks are held.
    ``verify_locks`` takes out the nodes that have lost theirs: what a leader has counts only as
    long as its directory is the one that was locked. An older copy may lie in its place by now.

    Raises:
        NotEnoughReplicasError: fewer than a majority of the nodes are left.
    """
    found = [
        _Rewritten(key, TopicPartition(name, number), each)
        for key, name, number, each in _replicas(state)
        if each.rewritten.is_under_way and each.leader in nodes.live
    ]
    if not found:
        return state
    folders = partitions_by_node(nodes.nodes())
    lagging: list[tuple[int, TopicPartition]] = []
    for each in found:
        if _is_swapped(each, nodes, folders):
            work = _Work(each, nodes, folders, verify_locks)
            behind = [n for n in each.replicas.isr if not work.follows(n)]
            lagging += [(node, each.key) for node in behind]
            if each.replicas.leader in nodes.live:
                state = ended(state, each.topic_key, each.key.partition)
    return shrunk(state, nodes.live, lagging)


def _is_swapped(each: _Rewritten, nodes: Quorum, folders: _Folders) -> bool:
    """End a swap in the leader's folder; returns whether others may have what is there."""
    leader = each.replicas.leader
    source = folders.get(leader, {}).get(each.key)
    if source is None or leader in nodes.failed:
        return False
    with nodes.isolated_at(source.log_dir):
        finish_swap(source.path)
    return leader in nodes.live


class _Work(NamedTuple):
    """Lets the replicas in sync of a partition have the leader's segments."""

    what: _Rewritten
    nodes: Quorum
    folders: _Folders
    verify_locks: Callable[[], None]

    @property
    def _leader(self) -> int:
        return self.what.replicas.leader

    def follows(self, node: int) -> bool:
        """Let a replica have them; returns whether it is in sync still."""
        key, nodes = self.what.key, self.nodes
        if node == self._leader or node not in nodes.live:
            return True
        source, target = self.folders[self._leader][key], self.folders.get(node, {}).get(key)
        if target is None or self._leader in nodes.failed:
            return target is not None
        _, start, end = self.what.replicas.rewritten
        try:
            with nodes.at(node):
                make_equal(source.path, target.path, start, end, self._check_leader)
        except LeaderUnreadableError as error:
            nodes.fail(self._leader, error)
        except OSError as error:
            nodes.fail(node, error)
        except KafkaLogError as error:
            return self._is_not_to_blame(node, target, error)
        return True

    def _check_leader(self) -> None:
        """See that what was read is of the directory that was locked."""
        self.verify_locks()
        if self._leader in self.nodes.failed:
            raise LeaderUnreadableError(self.nodes.failed[self._leader])

    def _is_not_to_blame(self, node: int, target: PartitionDirectory, error: KafkaLogError) -> bool:
        """Whether a replica stays in sync that cannot get what there is in its leader's place."""
        self.verify_locks()
        if self._leader in self.nodes.failed:
            return True
        text = "the replica of %s on node %d is not in sync any more: %s"
        _LOGGER.warning(text, self.what.key, node, error)
        with self.nodes.isolated_at(target.log_dir):
            drop_recovery_points([target.log_dir], self.what.key)
        return False
