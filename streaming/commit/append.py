"""Append to a partition in a commit: offsets, what the intent says, the bytes, the syncs.

Also :class:`CommitSettings`, the rules that a commit goes by, and the cache of open appenders.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    LEADER_EPOCHS,
    LOG_START_OFFSET,
    PARTITION_METADATA,
    read_topic_id,
)
from kafkalog.checkpoints.commit_state import DEFAULT_EXPIRATION_MS, PartitionState
from kafkalog.checkpoints.intent import (
    IntendedPartition,
    IntendedPiece,
    IntendedSegment,
    StagedFile,
)
from kafkalog.files.regular import fsync_directory, fsync_file
from kafkalog.files.timeouts import at
from kafkalog.streaming.commit.staging.staged_source import LogTables, MessageSource, StagedSource
from kafkalog.streaming.log.files import LOG, OFFSET_INDEX, TIME_INDEX, file_name
from kafkalog.streaming.log.recovery import correct_indexes_of_sound
from kafkalog.streaming.store.file_systems import is_shared
from kafkalog.streaming.store.policy import SetPolicy, TopicPolicy
from kafkalog.streaming.store.recovery.partition_states import LogReach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitStamp, CommitState
    from kafkalog.streaming.commit.staging.staged_run import StagedRun
    from kafkalog.streaming.commit.staging.staged_source import StagedFiles
    from kafkalog.streaming.log.appender import AppendPlan, PartitionAppender, Source
    from kafkalog.streaming.records.batch import BatchTable
    from kafkalog.streaming.store.topics import Topic

__all__ = ["AppenderCache", "AppendersOfSet", "CommitSettings", "PartitionAppend"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSettings:
    """Where a batch is committed, and by which rules.

    ``directories`` are those that staged runs count in. ``planned_ms`` is when the batch was
    planned, by the wall clock. ``expiration_ms``: how long its writer is remembered.
    ``allows_unknown``: a query that the set does not know may begin above batch 0. With
    ``has_nodes`` the directories are those of several nodes. With ``acks_all`` as many replicas
    have to be in sync as ``min.insync.replicas`` says. ``log_id`` is that of the log in an object
    store for which it was planned, where it was.
    """

    directories: tuple[Path, ...]
    planned_ms: int
    policy: SetPolicy = field(default_factory=SetPolicy)
    topics: TopicPolicy = field(default_factory=TopicPolicy)
    expiration_ms: int = DEFAULT_EXPIRATION_MS
    allows_unknown: bool = False
    has_nodes: bool = False
    acks_all: bool = True
    log_id: str | None = None


# ----------------------------------------------------------------------------------------------
# The runs of one partition on their way from staged files into its log.


_LONG_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class PartitionAppend:
    """What a commit does to one partition: planned when made, done by :meth:`apply`."""

    topic: Topic
    appender: PartitionAppender
    plan: AppendPlan
    runs: tuple[StagedRun, ...]
    tables: tuple[BatchTable, ...]
    member_id: str
    is_durable: bool
    """Whether the commit syncs the records too, and what lies before them."""
    log_start: int = 0
    """What Kafka's checkpoint says; 0 without, and where this process knows the log already."""

    @classmethod
    def of(
        cls,
        topic: Topic,
        appender: PartitionAppender,
        runs: Sequence[StagedRun],
        member_id: str,
        files: StagedFiles,
        *,
        durable: bool,
        log_start: int = 0,
    ) -> PartitionAppend:
        """Give the batches of ``runs`` their offsets and plan where they go; touches nothing.

        A log in which offsets are kept is durable whenever it rolls: a gap that the rows have
        between two segments would look like records that a loss of power took.

        Raises:
            RecordTooLargeError: a batch that exceeds ``segment.bytes``.
            CommitError: a staged file of plain messages is gone or changed.
        """
        tables = []
        offset = appender.log_end_offset
        for run in runs:
            table = run.table(offset, appender.leader_epoch)
            offset = int(table.last_offset[-1]) + 1
            tables.append(table)
        adoptable = [slot for slot, run in enumerate(runs) if run.whole_file and run.magic == 2]
        plan = appender.plan(LogTables(files, runs, tables), adoptable=adoptable)
        leaves_gap = len(plan.segments) > 1 and any(run.first_offset >= 0 for run in runs)
        is_durable = durable or leaves_gap
        return cls(
            topic, appender, plan, tuple(runs), tuple(tables), member_id, is_durable, log_start
        )

    def ending(self, before: PartitionState | None) -> PartitionState:
        """Return where the partition stands after this commit; ``before`` is what was known."""
        start = self.plan.start_offset if self.plan.creates_directory else 0
        known = before or PartitionState(start, start, start, 0)
        ended = known.ended_at(self.plan.end_offset, self.appender.leader_epoch)
        return ended.starting_at(self.log_start)

    def intended(self, staged_members: Sequence[str]) -> IntendedPartition:
        """Return what the intent says; runs count in the directories ``staged_members``."""
        return IntendedPartition(
            topic=self.topic.name,
            key=self.topic.key,
            partition=self.plan.topic_partition.partition,
            member_id=self.member_id,
            created=self.plan.creates_directory,
            leader_epoch=self.appender.leader_epoch,
            starts_epoch=self.plan.starts_leader_epoch is not None,
            start_offset=self.plan.start_offset,
            end_offset=self.plan.end_offset,
            snapshots=self.plan.snapshots,
            pieces=tuple(
                IntendedPiece(
                    StagedFile(staged_members[run.directory], run.file),
                    run.position,
                    run.size,
                    run.crc32c,
                    run.records,
                    run.first_offset >= 0,
                )
                for run in self.runs
            ),
            segments=tuple(
                IntendedSegment(
                    segment.base_offset,
                    segment.position,
                    segment.position + segment.size,
                    segment.creates,
                )
                for segment in self.plan.segments
            ),
        )

    @property
    def is_long(self) -> bool:
        """Whether appending takes so long that a thread is worth it: much to copy, a new log."""
        return self.plan.creates_directory or sum(run.size for run in self.runs) > _LONG_BYTES

    def apply(self, files: StagedFiles, finish: Callable[[int], None]) -> None:
        """Append; ``finish`` takes over the descriptors of the ``.log`` files.

        Raises:
            CommitError: a staged file is gone, or its bytes are not what the task wrote.
            OSError: as the system says.
        """
        pairs = zip(self.runs, self.tables, strict=True)
        sources: list[Source] = [
            (StagedSource if run.magic == 2 else MessageSource)(files, run, table)
            for run, table in pairs
        ]
        self.appender.apply(self.plan, sources, finish)

    @property
    def makes_or_seals(self) -> bool:
        """Whether :meth:`sync` is due: of an unsynced log only if it is new."""
        if not self.is_durable:
            return self.plan.creates_directory
        return len(self.plan.segments) > 1 or bool(self.plan.created_files())

    def sync(self) -> None:
        """Make durable what was made beside the ``.log`` files, and the indexes that were sealed.

        Those of the active segment are not, and a loss of power may tear them: what appends next
        mends their ends, readers check what they say, and here, before a segment is sealed for
        good, they are compared with its batches.
        """
        self._correct_sealed_indexes()
        created = self.plan.created_files()
        left = {*self.plan.index_files(sealed=False), *self.plan.log_files()}
        # These were made durable at once.
        left |= {self.plan.directory / PARTITION_METADATA, self.plan.directory / LEADER_EPOCHS}
        files = dict.fromkeys([*created, *self.plan.index_files(sealed=True)])
        for path in files:
            if path not in left:
                fsync_file(path)
        if created:
            fsync_directory(self.plan.directory)

    def note_published(self) -> None:
        """Note, for the next commit, that the log is durable up to its end, if it is."""
        self.appender.synced_end = self.plan.end_offset if self.is_durable else None

    @property
    def may_hold_unsynced(self) -> bool:
        """Whether others may have left unsynced what the log held before a durable commit."""
        is_known = self.appender.synced_end == self.plan.start_offset
        return self.is_durable and not is_known and not self.plan.creates_directory

    @property
    def held_before(self) -> LogReach:
        """What the log held before, which others may have left unsynced."""
        return LogReach(
            self.plan.directory,
            self.plan.topic_partition,
            self.plan.start_offset,
            self.appender.config.index_interval_bytes,
        )

    def _correct_sealed_indexes(self) -> None:
        interval = self.appender.config.index_interval_bytes
        for segment in self.plan.segments:
            if segment.seals and not segment.creates:
                correct_indexes_of_sound(
                    self.plan.directory, segment.base_offset, index_interval_bytes=interval
                )


# ----------------------------------------------------------------------------------------------
# Appender cache: the ends of the logs written last, for the next commit.
#
# Spark keeps the process in which it commits, and so does a program that appends by itself. What
# was derived for one commit is kept for the next, and believed only if
#
# - the commit state is still that of our last commit;
# - ``log-start-offset-checkpoint`` and ``replication-offset-checkpoint`` of the log directory are
#   the files that our last commit found and wrote; and
# - nothing has changed in the partition's folder: neither the folder itself (no file made, removed
#   or renamed) nor its topic id, the log and the indexes of the active segment, by their ``stat``.
#
# That takes some ``stat`` calls instead of twenty-five calls and a walk over the last batches.
# On file systems that hosts share nothing is kept, since they may show an older ``stat``.


_SETS_KEPT: Final = 8
_PARTITIONS_KEPT: Final = 10_000
"""For each set: a few kilobytes of memory for each of them."""

_CHECKPOINTS: Final = (LOG_START_OFFSET, HIGH_WATERMARK)

_Stamp = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Kept:
    appender: PartitionAppender
    folder: _Stamp
    topic_id: _Stamp
    """Of ``partition.metadata``, which no append writes again."""
    files: tuple[_Stamp, ...]


@dataclass(slots=True)
class _Set:
    stamp: CommitStamp | None = None
    kept: dict[Path, _Kept] = field(default_factory=dict)
    checkpoints: dict[Path, tuple[_Stamp, ...]] = field(default_factory=dict)
    """Of Kafka's checkpoints, by log directory: see ``_CHECKPOINTS``."""

    def has_same_checkpoints(self) -> bool:
        """Whether the checkpoints are the same files as after our last commit."""
        return all(
            tuple(_stamp(f"{log_dir}/{name}") for name in _CHECKPOINTS) == stamps
            for log_dir, stamps in self.checkpoints.items()
        )


class AppenderCache:
    """The appenders of one process; who uses those of a set holds the locks of its directories."""

    def __init__(self) -> None:
        self._sets: dict[str, _Set] = {}

    def begin(self, state: CommitState) -> AppendersOfSet:
        """Return what is known of a set; nothing if somebody else has changed it since."""
        known = self._sets.pop(state.set_id, None)
        if known is None or known.stamp != state.stamp or not known.has_same_checkpoints():
            known = _Set()
        self._sets[state.set_id] = known
        while len(self._sets) > _SETS_KEPT:
            self._sets.pop(next(iter(self._sets)))
        return AppendersOfSet(known)


class AppendersOfSet:
    """What is known of one set during one commit."""

    def __init__(self, known: _Set) -> None:
        self._known = known
        self._unchanged: dict[Path, _Kept | None] = {}
        """What is kept of folders that were looked at, if they have not changed."""

    def take(self, folder: Path) -> PartitionAppender | None:
        """Take the appender of a partition's folder, if nothing has changed there.

        It is forgotten: :meth:`keep` it again once what it did is committed.
        """
        kept = self._unchanged[folder] if folder in self._unchanged else self._look(folder)
        self._known.kept.pop(folder, None)
        if kept is None:
            return None
        with at(folder):
            return kept.appender if _stamps(kept.appender) == kept.files else None

    def topic_id(self, folder: Path) -> str | None:
        """Return the topic id in a partition's folder, reading it only if it may have changed."""
        kept = self._look(folder)
        return read_topic_id(folder) if kept is None else kept.appender.topic_id

    def _look(self, folder: Path) -> _Kept | None:
        """Return what is kept of a folder, if it and its topic id have not changed.

        Its log is opened right after its topic was found: :meth:`take` does not look once more.
        """
        kept = self._known.kept.get(folder)
        with at(folder):
            is_same = (
                kept is not None
                and kept.folder == _stamp(folder)
                and kept.topic_id == _stamp(f"{folder}/{PARTITION_METADATA}")
            )
        self._unchanged[folder] = kept if is_same else None
        return self._unchanged[folder]

    def keep(
        self,
        state: CommitState,
        appenders: Iterable[PartitionAppender],
        is_shared: Callable[[Path], bool] = is_shared,
    ) -> None:
        """Keep what has just been published with ``state``, for the next commit.

        The checkpoints of the log directories say so by now. ``is_shared`` tells of a directory.
        """
        self._known.stamp = state.stamp
        local = [each for each in appenders if not is_shared(each.directory.parent)]
        for appender in local[: _PARTITIONS_KEPT - len(self._known.kept)]:
            folder, before = appender.directory, self._unchanged.get(appender.directory)
            with at(folder):
                self._known.kept[folder] = _Kept(
                    appender,
                    _stamp(folder),
                    before.topic_id if before else _stamp(f"{folder}/{PARTITION_METADATA}"),
                    _stamps(appender),
                )
        for log_dir in {appender.directory.parent for appender in local}:
            found = self._known.checkpoints.get(log_dir)
            with at(log_dir):  # an append writes the second one alone
                start = found[0] if found else _stamp(f"{log_dir}/{LOG_START_OFFSET}")
                self._known.checkpoints[log_dir] = start, _stamp(f"{log_dir}/{HIGH_WATERMARK}")


def _stamps(appender: PartitionAppender) -> tuple[_Stamp, ...]:
    """Return the stamps of the files that an appender knows."""
    folder, base = str(appender.directory), appender.active_base_offset
    kinds = (LOG, OFFSET_INDEX, TIME_INDEX)
    return tuple(_stamp(f"{folder}/{file_name(base, kind)}") for kind in kinds)


def _stamp(path: Path | str) -> _Stamp:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return ()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
