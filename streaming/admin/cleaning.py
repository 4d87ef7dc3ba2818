"""Compact one partition: what one task of a job does, and one thread of ``kafkalog compact``.

1. The partition's own lock is taken (:mod:`~kafkalog.streaming.store.locks`).
2. A short session ends what a killed swap has left, and tells how far the log is committed.
3. The log is cleaned into files in the root of its log directory. Nobody waits meanwhile.
4. Sessions put them in place, some groups of segments each, if nothing has changed there. The last
   one notes in ``cleaner-offset-checkpoint`` how far the log is clean.

Cut off before step 4, nothing has changed. In it, the groups that are in place stay, and the next
round cleans the same part again.

Of a replicated set the log of the leader is cleaned. Each session puts copies in place on all
replicas in sync, too.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeGuard

from kafkalog.checkpoints.broker import (
    CLEANER_OFFSET,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from kafkalog.errors import LogDirectoryError, UnknownTopicOrPartitionError
from kafkalog.files.deferred_signals import check_interrupt, shielded
from kafkalog.files.system import system
from kafkalog.model import many
from kafkalog.streaming.admin.old_segments import ManagedLog, OldSegment, opened_logs
from kafkalog.streaming.commit.states import all_durable, make_left_durable
from kafkalog.streaming.log.compaction.cleanable import find_cleanable
from kafkalog.streaming.log.compaction.cleaner import clean_log
from kafkalog.streaming.log.compaction.offset_map import DEFAULT_MEMORY, OffsetMap
from kafkalog.streaming.log.compaction.transactions import LastRecords
from kafkalog.streaming.log.files import LOG, file_name
from kafkalog.streaming.log.segments import retrying
from kafkalog.streaming.log.swap import bring_in, replace_segments
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.store.ends.recorded import BrokerMarks
from kafkalog.streaming.store.locks import CleanerLock
from kafkalog.streaming.store.log_dirs import LogDirs, partitions_by_node
from kafkalog.streaming.store.policy import WAIT_MS
from kafkalog.streaming.store.replicas.copying import (
    copy_cleaner_offset,
    drop_recovery_points,
    end_rewriting,
    marked,
)
from kafkalog.streaming.store.replicas.quorum import Quorum

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from kafkalog.checkpoints.bucket_state import Extent
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.compaction.cleanable import Cleanable, SourceSegment
    from kafkalog.streaming.log.compaction.cleaner import CleanedGroup, CleanedLog
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import LogSet


__all__ = [
    "CleanedPartition",
    "CleaningTask",
    "clean_partition",
    "inspect_state",
    "is_due",
    "keyless_text",
    "replacing_on_all",
]


# ----------------------------------------------------------------------------------------------
# Replace segments of a partition's leader, and then of all its replicas in sync, by copies.
#
# Each replica in sync has all records before, meanwhile and after. Cut off anywhere, whoever
# opens the set next ends it: see :mod:`~kafkalog.streaming.store.replicas.copying`.


@contextmanager
def replacing_on_all(
    log_set: LogSet, log: ManagedLog, span: tuple[int, int] | None
) -> Iterator[None]:
    """Replace segments of the leader's log inside ``with``; its end does so on all in sync.

    ``span`` are the offsets ``[start, end)`` of these segments, at both of which a segment begins;
    None where none is replaced. How far the leader's log is clean is noted on all, too. Of a set of
    one node there is nothing else to do.

    REQUIRES: the locks are held, nothing is unfinished, and ``log`` is in its leader's folder.

    Raises:
        KafkaLogError, OSError: it is not done on all. The next session does the rest.
    """
    nodes = log_set.node
    if not isinstance(nodes, Quorum):
        yield
        return
    leader = log.topic.replicas[log.number].leader
    if nodes.node_at(log.where.log_dir) != leader:
        raise LogDirectoryError(
            f"{log.where.path} is not the folder of the leader, which is on node {leader}: nothing "
            "was changed there. `kafkalog recover` copies the partition back"
        )
    if span is not None:
        _distrust_lagging(log, nodes)
        log_set.publish(marked(log_set.state, log.key, log.number, *span))
    yield
    log_set.state = end_rewriting(log_set.state, nodes, log_set.verify_locks)
    _note_clean(log_set, log, nodes)
    if span is not None:
        log_set.publish(log_set.state.following())


def _distrust_lagging(log: ManagedLog, nodes: Quorum) -> None:
    """Let those replicas be compared anew that are there, and not in sync."""
    each = log.topic.replicas[log.number]
    for node in each.replicas:
        if node in nodes.live and node not in each.isr:
            with nodes.writing(node):
                drop_recovery_points(nodes.by_node[node].values(), log.where.topic_partition)


def _note_clean(log_set: LogSet, log: ManagedLog, nodes: Quorum) -> None:
    key = log.where.topic_partition
    replicas = log_set.state.topics[log.key].replicas[log.number]
    for node, folders in partitions_by_node(nodes.nodes()).items():
        found = folders.get(key)
        if node in replicas.isr and found is not None and found.path != log.where.path:
            with nodes.isolated_at(found.log_dir):
                copy_cleaner_offset(log.where.path, found.path, key)


# ----------------------------------------------------------------------------------------------

_HOLDER: Final = "kafkalog compact"
_GROUPS_AT_ONCE: Final = 8
"""That one session puts in place: a writer waits for some ten calls to sync a folder for each."""


class CleaningTask(NamedTuple):
    """A partition to be cleaned; plain values, that a job may send to another process.

    ``paths`` are all log directories of the set, ``key`` is the topic's in the commit state,
    ``settings`` those that count, ``memory`` is the bytes that the map of offsets may take.
    ``forces``: whatever the dirty ratio, and as often as there is something left to clean.
    """

    paths: tuple[str, ...]
    topic_partition: TopicPartition
    key: str
    settings: Mapping[str, str]
    forces: bool = False
    allows_broker: bool = False
    memory: int = DEFAULT_MEMORY
    wait_ms: int = WAIT_MS


@dataclass(frozen=True, slots=True)
class CleanedPartition:
    """What was done to a partition, in bytes of its logs; after 0 ``rounds`` it was not due.

    ``ratio`` is the dirty one before. ``clean_to`` is the offset below which it is clean now.
    ``keyless`` counts records that went because they had no key.
    """

    topic_partition: TopicPartition
    path: Path
    ratio: float
    clean_to: int
    rounds: int = 0
    segments_before: int = 0
    segments: int = 0
    bytes_before: int = 0
    bytes: int = 0
    keyless: int = 0

    @classmethod
    def of(cls, log: ManagedLog, cleanable: Cleanable | None) -> Self:
        """Begin with a partition of which nothing was cleaned yet."""
        key, path = log.where.topic_partition, log.where.path
        if cleanable is None:
            return cls(key, path, 0.0, log.bounds.log_start)
        return cls(key, path, cleanable.dirty_ratio, cleanable.first_dirty_offset)

    def planned(
        self, cleanable: Cleanable, segments: Iterable[OldSegment | Extent]
    ) -> CleanedPartition:
        """Return what a round would replace. What it would leave, only itself finds out."""
        end = cleanable.end_offset
        old = [each.size for each in segments if each.base_offset < end]
        return replace(
            self, rounds=1, clean_to=end, segments_before=len(old), bytes_before=sum(old)
        )

    def after(self, round_: CleanedLog, count: tuple[int, int]) -> CleanedPartition:
        """Add a round that has replaced segments; ``count`` is how many, and by how many."""
        return replace(
            self,
            clean_to=round_.clean_to,
            rounds=self.rounds + 1,
            segments_before=self.segments_before + count[0],
            segments=self.segments + count[1],
            bytes_before=self.bytes_before + round_.bytes_before,
            bytes=self.bytes + round_.bytes_after,
            keyless=self.keyless + round_.keyless,
        )


def keyless_text(done: CleanedPartition) -> str:
    """Say how many records went because they had no key: nothing has taken their place."""
    return (
        f"{many(done.keyless, 'record')} of {done.topic_partition} had no key, and so no place in "
        "a compacted topic"
    )


def inspect_state(log: ManagedLog, settings: Mapping[str, str], now_ms: int) -> Cleanable | None:
    """Look how far a log is clean, and how far it can be cleaned; no lock is needed.

    Raises:
        KafkaLogError: a checkpoint or the log cannot be read.
    """
    where = log.where
    look = partial(
        find_cleanable,
        where.path,
        LogConfig.of_topic(settings),
        clean_to=read_offset_checkpoint(where.log_dir, CLEANER_OFFSET).get(where.topic_partition),
        log_start=log.bounds.log_start,
        log_end=log.bounds.log_end,
        high_watermark=log.bounds.high_watermark,
        now_ms=now_ms,
    )
    return retrying(look)


def is_due(cleanable: Cleanable | None, config: LogConfig, *, forces: bool) -> TypeGuard[Cleanable]:
    """Tell whether a log is to be cleaned; forced, whenever there is something to clean."""
    if cleanable is None:
        return False
    if forces:
        return cleanable.end_offset > cleanable.first_dirty_offset
    return cleanable.is_due(config.min_cleanable_dirty_ratio)


def clean_partition(
    task: CleaningTask, progress: Callable[[int], object] = lambda _: None
) -> CleanedPartition:
    """Clean a partition if a broker would, once; or, forced, until all is clean that can be.

    ``progress`` is told of the bytes that were read; what it raises ends the cleaning. May run
    beside writers and readers of the same partition, and be killed.

    Raises:
        LockTimeoutError: a writer held the set for too long. ``CleanerBusyError``: another process
            cleans the partition.
        UnknownTopicOrPartitionError: it is gone, or was recreated.
        KafkaLogError, OSError: it cannot be cleaned, or has changed meanwhile.
    """
    directories = LogDirs(task.paths).partitions()
    where = directories.get(task.topic_partition)
    if where is None:
        raise _gone(task)
    with CleanerLock.of(where.log_dir, task.topic_partition, holder=_HOLDER) as lock:
        return _Cleaning(task, lock, where, progress).run()


def _gone(task: CleaningTask) -> UnknownTopicOrPartitionError:
    return UnknownTopicOrPartitionError(
        f"{task.topic_partition} was deleted, moved or recreated before it could be compacted: "
        "nothing was changed there"
    )


class _Cleaning:
    def __init__(
        self,
        task: CleaningTask,
        lock: CleanerLock,
        where: PartitionDirectory,
        progress: Callable[[int], object],
    ) -> None:
        self._task = task
        self._lock = lock
        self._where = where
        self._progress = progress
        self._config = LogConfig.of_topic(task.settings)

    def run(self) -> CleanedPartition:
        """Do one round after the other."""
        done: CleanedPartition | None = None
        while True:
            # Again where retention has deleted a segment that was about to be read.
            log, found, cleaned = retrying(self._round)
            done = done or found
            if cleaned is None:
                return done
            done = done.after(cleaned, self._swap_in(log, cleaned))
            if cleaned.is_complete or not self._task.forces:
                return done

    def _round(self) -> tuple[ManagedLog, CleanedPartition, CleanedLog | None]:
        """Look, and clean what is due; nothing is in place yet."""
        log = self._begin()
        now_ms = system.time_ns() // 1_000_000
        cleanable = inspect_state(log, self._task.settings, now_ms)
        found = CleanedPartition.of(log, cleanable)
        if not is_due(cleanable, self._config, forces=self._task.forces):
            return log, found, None
        return log, found, self._clean(log, cleanable, now_ms)

    def _clean(self, log: ManagedLog, cleanable: Cleanable, now_ms: int) -> CleanedLog:
        if log.number in log.topic.durable_ends:
            self._make_durable()
        folder, end = log.where.path, log.bounds.high_watermark
        return clean_log(
            folder,
            log.where.log_dir,
            cleanable,
            self._config,
            offsets=OffsetMap(self._task.memory),
            last_records=LastRecords.read(folder, end_offset=end, now_ms=now_ms),
            now_ms=now_ms,
            prefix=self._lock.new_prefix(),
            progress=self._progress,
        )

    # Sessions

    def _open(self) -> AbstractContextManager[LogSet]:
        task = self._task
        return opened_logs(
            task.paths,
            f"{_HOLDER} of {task.topic_partition}",
            allows_broker=task.allows_broker,
            dry_run=False,
            wait_ms=task.wait_ms,
        )

    def _known(self, log_set: LogSet) -> ManagedLog:
        """Find the partition, and end what a killed swap has left."""
        where = log_set.partitions().get(self._task.topic_partition)
        marks = BrokerMarks(log_set.state)
        log = None if where is None else ManagedLog.of(log_set.state, where, marks)
        if log is None or log.key != self._task.key:
            raise _gone(self._task)
        if log_set.state.is_replicated and log.where.path != self._where.path:
            raise _gone(self._task)  # it has got another leader
        return log

    @shielded
    def _begin(self) -> ManagedLog:
        with self._open() as log_set:
            log = self._known(log_set)
            log.check_end()
            return log

    @shielded
    def _make_durable(self) -> None:
        """Make the log durable: a gap would look like a lost record."""
        with self._open() as log_set:
            log = self._known(log_set)
            left = make_left_durable(log_set, lambda *each: each == (log.key, log.number))
            log_set.publish(all_durable(log_set.state, left).following())

    def _swap_in(self, log: ManagedLog, cleaned: CleanedLog) -> tuple[int, int]:
        """Put all groups in place; return how many segments were replaced, and by how many."""
        groups = cleaned.groups
        counts = [0, 0]
        for first in range(0, max(1, len(groups)), _GROUPS_AT_ONCE):
            some = groups[first : first + _GROUPS_AT_ONCE]
            is_last = first + _GROUPS_AT_ONCE >= len(groups)
            self._swap_some(log, some, counts, cleaned.clean_to if is_last else None)
        return counts[0], counts[1]

    @shielded
    def _swap_some(
        self,
        log: ManagedLog,
        groups: Sequence[CleanedGroup],
        counts: list[int],
        clean_to: int | None,
    ) -> None:
        with self._open() as log_set:
            now = self._known(log_set)
            if now.where != log.where:
                raise _gone(self._task)
            with replacing_on_all(log_set, now, _span(now, groups)):
                for group in groups:
                    check_interrupt()
                    log_set.check_current()
                    self._lock.verify()
                    if _is_there(now, group.sources):
                        _swap(now.where.path, group)
                        counts[0] += len(group.sources)
                        counts[1] += len(group.segments)
                if clean_to is not None:
                    self._note(log, clean_to)

    def _note(self, log: ManagedLog, clean_to: int) -> None:
        where = log.where
        known = read_offset_checkpoint(where.log_dir, CLEANER_OFFSET)
        if known.get(where.topic_partition) != clean_to:
            offsets = {where.topic_partition: clean_to}
            write_offset_checkpoint(where.log_dir, CLEANER_OFFSET, offsets)


def _span(log: ManagedLog, groups: Sequence[CleanedGroup]) -> tuple[int, int] | None:
    """Return the offsets between which segments are replaced; None where there are none."""
    if not groups:
        return None
    last = groups[-1].sources[-1].base_offset
    after = (each.base_offset for each in log.segments if each.base_offset > last)
    return groups[0].sources[0].base_offset, min(after, default=log.state.log_end)


def _is_there(log: ManagedLog, sources: Sequence[SourceSegment]) -> bool:
    """See that segments are what they were when they were cleaned; tell if retention took some."""
    for source in sources:
        path = log.where.path / file_name(source.base_offset, LOG)
        try:
            found = path.lstat()
        except FileNotFoundError:
            if source.base_offset < log.bounds.log_start:
                return False
            found = None
        known = (*source.identity, source.size, source.modified_ns)
        if found is None or known != _stamp(found):
            raise LogDirectoryError(
                f"{path} was removed or replaced, by a broker or by hand, while the log was "
                "compacted: what was cleaned of it is not used. Nothing is lost; try again"
            )
    return True


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _swap(folder: Path, group: CleanedGroup) -> None:
    bring_in(folder, (path for segment in group.segments for path in segment.files))
    old = [source.base_offset for source in group.sources]
    replace_segments(folder, old, [segment.base_offset for segment in group.segments])
