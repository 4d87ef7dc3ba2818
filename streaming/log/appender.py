"""Append batches to a partition's log: a plan first, then the bytes.

The plan (:mod:`kafkalog.streaming.log.growth`) names every file and position before one is
touched, so that a writer can make its intent durable first. Nothing here is fsynced: the writer
knows when, and the plan says which files.

Source: Kafka ``UnifiedLog.append``, ``LocalLog.roll``.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kafkalog.checkpoints.broker import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    LeaderEpoch,
    read_leader_epochs,
    write_leader_epochs,
    write_topic_id,
)
from kafkalog.errors import LogDirectoryError
from kafkalog.files.regular import (
    create_exclusive,
    make_directory,
    open_known,
    open_regular,
    replace_end,
    write_all,
)
from kafkalog.model import NO_PRODUCER_ID
from kafkalog.streaming.log.files import LOG, OFFSET_INDEX, SNAPSHOT, TIME_INDEX, file_name
from kafkalog.streaming.log.growth import SegmentState, load_segment_state, plan_append
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.producer_state import EMPTY_SNAPSHOT, never_had_producers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.growth import SegmentAppend
    from kafkalog.streaming.options.topic_settings import LogConfig
    from kafkalog.streaming.records.batch import BatchTable


__all__ = ["AppendPlan", "BufferSource", "PartitionAppender", "Source"]


# ----------------------------------------------------------------------------------------------
# Where the bytes of a run are that is appended to a log.


class Source(Protocol):
    """Where the bytes of a run are; positions are those in the run's batch table."""

    def copy(self, position: int, size: int, target: int, target_position: int) -> None:
        """Copy bytes into the open file ``target``."""
        ...

    def link_as(self, path: Path) -> bool:
        """Give the file of the run the name ``path`` too; return False if that cannot be done.

        Raises:
            FileExistsError: there is such a file.
        """
        ...


@dataclass(frozen=True, slots=True)
class BufferSource:
    """A run in memory: uint8[n], whose positions count from its beginning."""

    data: npt.NDArray[np.uint8]

    def copy(self, position: int, size: int, target: int, target_position: int) -> None:
        """Write the bytes."""
        write_all(target, self.data[position : position + size].data, target_position)

    def link_as(self, path: Path) -> bool:
        """Return False: there is no file."""
        del path
        return False


# ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AppendPlan:
    """All that appending some runs to one partition will do to its folder.

    Its offsets are ``[start_offset, end_offset)``. The first of ``segments`` is the active one,
    which may only be sealed. Every other one is created.
    """

    topic_partition: TopicPartition
    directory: Path
    start_offset: int
    end_offset: int
    creates_directory: bool
    starts_leader_epoch: LeaderEpoch | None
    """The epoch that begins with it, in a log that has none yet or was given a new leader."""
    snapshots: tuple[int, ...]
    """Base offsets that get an empty producer snapshot."""
    segments: tuple[SegmentAppend, ...]
    state: SegmentState
    """Of the active segment afterwards."""

    def created_files(self) -> list[Path]:
        """Name the files that do not exist before."""
        names = [
            file_name(segment.base_offset, suffix)
            for segment in self.segments
            if segment.creates
            for suffix in (LOG, OFFSET_INDEX, TIME_INDEX)
        ]
        names += [file_name(offset, SNAPSHOT) for offset in self.snapshots]
        if self.creates_directory:
            names.append(PARTITION_METADATA)
        if self.starts_leader_epoch is not None:
            names.append(LEADER_EPOCHS)
        return [self.directory / name for name in names]

    def log_files(self) -> list[Path]:
        """Name the ``.log`` files that get bytes, in order: what must be durable to commit."""
        return [
            self.directory / file_name(segment.base_offset, LOG)
            for segment in self.segments
            if segment.size or segment.creates
        ]

    def index_files(self, *, sealed: bool) -> list[Path]:
        """Name the indexes of the segments that this plan seals, or of those that stay open."""
        return [
            self.directory / file_name(segment.base_offset, suffix)
            for segment in self.segments
            if segment.seals == sealed
            for suffix in (OFFSET_INDEX, TIME_INDEX)
        ]


class PartitionAppender:
    """The end of one partition's log, as a writer sees it.

    The caller holds the locks of the log directory from before this is made until the last
    :meth:`apply`; it has recovered what an earlier writer left. Not thread safe, though different
    partitions may be appended to from different threads.
    """

    def __init__(
        self,
        directory: Path,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        now_ms: int,
        topic_id: str | None = None,
        first_offset: int = 0,
        may_be_replaced: bool = False,
    ) -> None:
        """Look at the folder, which may not exist yet, and change nothing.

        With ``may_be_replaced`` another host may put a new file in the place of the active
        segment's, if it was given our locks: only the file that is there now is appended to.
        ``topic_id`` and ``first_offset`` are for a partition that is to be made. ``now_ms`` is the
        wall clock, which counts for the age of segments without timestamps only.

        Raises:
            CorruptRecordError: the log does not end with a valid batch: recover it first.
        """
        self.directory = directory
        self.topic_partition = topic_partition
        self.config = config
        self.synced_end: int | None = None
        """Up to which offset this process has made the log durable; None where it has not."""
        self._now_ms = now_ms
        self._topic_id = topic_id
        self._exists = directory.is_dir()
        self._log = PartitionLog(directory, topic_partition)
        self._epochs = read_leader_epochs(directory) if self._exists else []
        self._elected_epoch = 0
        self._state = SegmentState.empty(first_offset, now_ms)
        self._looked_at: os.stat_result | None = None
        self._has_segment = self._exists and bool(self._log.segments)
        if self._has_segment:
            with self._log.segments[-1] as active:
                self._state = load_segment_state(active, config.index_interval_bytes)
                self._looked_at = active.path.stat() if may_be_replaced else None

    def resume(self, config: LogConfig, *, now_ms: int) -> None:
        """Continue after :meth:`apply`, with settings and a time as at the start."""
        self.config = config
        self._now_ms = now_ms

    @property
    def now_ms(self) -> int:
        """The time that it goes by."""
        return self._now_ms

    @property
    def makes_directory(self) -> bool:
        """Whether the folder was not there, so that what is appended first makes it."""
        return not self._exists

    @property
    def topic_id(self) -> str | None:
        """The topic id it was given."""
        return self._topic_id

    @property
    def active_base_offset(self) -> int:
        """The base offset of the segment that the log ends in."""
        return self._state.base_offset

    @property
    def log_end_offset(self) -> int:
        """The next offset to write."""
        return self._state.next_offset

    @property
    def leader_epoch(self) -> int:
        """The epoch to stamp on batches: the partition's latest, 0 in a new one; never invented."""
        return max(self._last_epoch, self._elected_epoch)

    @property
    def _last_epoch(self) -> int:
        return self._epochs[-1].epoch if self._epochs else 0

    def lead(self, epoch: int) -> None:
        """Append under the leader epoch that an election has given, if the log has not come to it.

        The file that lists the epochs names it once something is appended.
        """
        self._elected_epoch = epoch

    def plan(self, runs: Sequence[BatchTable], *, adoptable: Collection[int] = ()) -> AppendPlan:
        """Place runs of batches, whose offsets are final, after the log's end. Touches nothing.

        ``adoptable`` are the runs that are alone in a file, which may become a segment.

        Raises:
            RecordTooLargeError: a batch that exceeds ``segment.bytes`` alone.
        """
        segments, state = plan_append(
            self.topic_partition,
            self.config,
            self._state,
            runs,
            creates=not self._has_segment,
            adoptable=adoptable,
            now_ms=self._now_ms,
        )
        # Message sets have no epochs: a broker drops what it finds of them, with a warning.
        is_new = not self._epochs or self.leader_epoch > self._last_epoch
        starts_epoch = is_new and self.config.magic >= 2
        epoch = LeaderEpoch(self.leader_epoch, self.log_end_offset) if starts_epoch else None
        return AppendPlan(
            topic_partition=self.topic_partition,
            directory=self.directory,
            start_offset=self.log_end_offset,
            end_offset=state.next_offset,
            creates_directory=self.makes_directory,
            starts_leader_epoch=epoch,
            snapshots=self._snapshots([s.base_offset for s in segments[1:]], runs),
            segments=tuple(segments),
            state=state,
        )

    def _snapshots(self, bases: list[int], runs: Sequence[BatchTable]) -> tuple[int, ...]:
        """Choose which of the new segments' bases get an empty producer snapshot."""
        if not bases or any((run.producer_id != NO_PRODUCER_ID).any() for run in runs):
            return ()
        if self._has_segment and not never_had_producers(self.directory, self._log.segments):
            return ()
        return tuple(b for b in bases if not (self.directory / file_name(b, SNAPSHOT)).exists())

    def apply(
        self,
        plan: AppendPlan,
        sources: Sequence[Source],
        finish: Callable[[int], None] = os.close,
    ) -> None:
        """Do what ``plan``, the last one that :meth:`plan` gave, says; ``sources[i]`` is run i.

        ``finish`` takes over the descriptor of each ``.log`` file that got bytes or was made.

        Raises:
            OSError: as the system says; the caller undoes the plan.
            LogDirectoryError: a file in the way, or a staged run shorter than planned.
        """
        if plan.creates_directory:
            self._make_directory()
        if plan.starts_leader_epoch is not None:
            # An epoch under which nothing was appended has no entry (Kafka's truncateFromEnd).
            start = plan.starts_leader_epoch.start_offset
            before = [each for each in self._epochs if each.start_offset < start]
            self._epochs = [*before, plan.starts_leader_epoch]
            write_leader_epochs(self.directory, self._epochs, fsync=False)
        for segment in plan.segments:
            self._apply_log(segment, sources, finish)
            self._apply_index(segment, OFFSET_INDEX, segment.index_position, segment.index_entries)
            self._apply_index(
                segment, TIME_INDEX, segment.time_index_position, segment.time_index_entries
            )
        for offset in plan.snapshots:
            with _closing(_create(self.directory / file_name(offset, SNAPSHOT))) as target:
                write_all(target, EMPTY_SNAPSHOT, 0)
        self._state, self._exists, self._has_segment = plan.state, True, True
        self._looked_at = None
        self._log.refresh()

    def append(self, data: npt.NDArray[np.uint8], table: BatchTable) -> AppendPlan:
        """Plan and apply one run in memory, whose positions count from its beginning."""
        plan = self.plan([table])
        self.apply(plan, [BufferSource(data)])
        return plan

    def _make_directory(self) -> None:
        if self._topic_id is None:
            raise LogDirectoryError(
                f"{self.directory}: {self.topic_partition} is new and needs a topic id"
            )
        make_directory(self.directory)
        # Nobody may find a torn one, and readers of a whole log directory look into each. One that
        # is there is another writer's, who was given our locks and has made the folder again.
        write_topic_id(self.directory, self._topic_id, replaces=False)

    def _apply_log(
        self, segment: SegmentAppend, sources: Sequence[Source], finish: Callable[[int], None]
    ) -> None:
        path, parts, position = self._file(segment, LOG), segment.parts, segment.position
        if segment.creates and _size_of(path) is None:
            # Kafka removes them too: without a log they are nobody's.
            for suffix in (OFFSET_INDEX, TIME_INDEX):
                self._file(segment, suffix).unlink(missing_ok=True)
        creates = segment.creates
        if segment.adopts is not None and _adopt(sources[segment.adopts], path):
            parts, position, creates = parts[1:], position + parts[0].size, False
        elif not parts and not creates:
            return
        target, found = (_create(path), None) if creates else open_known(path, os.O_RDWR)
        try:
            if found is not None:
                _check_end(path, found, position, self._looked_at)
            for part in parts:
                sources[part.run].copy(part.source_position, part.size, target, position)
                position += part.size
        except BaseException:
            os.close(target)
            raise
        finish(target)

    def _apply_index(
        self, segment: SegmentAppend, suffix: str, position: int, entries: bytes
    ) -> None:
        path = self._file(segment, suffix)
        size = _size_of(path)
        if size == position and not entries and not segment.creates:
            return
        is_new = segment.creates or size is None
        with _closing(_create(path) if is_new else _open(path)) as target:
            replace_end(target, position, entries)

    def _file(self, segment: SegmentAppend, suffix: str) -> Path:
        return self.directory / file_name(segment.base_offset, suffix)


@contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    return open_regular(path, os.O_RDWR)


def _size_of(path: Path) -> int | None:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return None


def _create(path: Path) -> int:
    try:
        return create_exclusive(path)
    except FileExistsError as error:
        raise _in_the_way(path) from error


def _check_end(
    path: Path, found: os.stat_result, position: int, looked_at: os.stat_result | None
) -> None:
    """Refuse a log that does not end where the plan begins: another writer appended or cut it.

    If the file that was ``looked_at`` is known, refuse another one of its name, too.
    """
    if found.st_size != position:
        raise LogDirectoryError(
            f"{path}: has {found.st_size} bytes, and had {position} when the append was planned: "
            "another writer has changed it. Nothing was written to it"
        )
    if looked_at is not None and not os.path.samestat(looked_at, found):
        raise LogDirectoryError(
            f"{path}: is another file than when the append was planned: another host was given "
            "the locks, and has recovered the log. Nothing was written to it"
        )


def _adopt(source: Source, path: Path) -> bool:
    try:
        return source.link_as(path)
    except FileExistsError as error:
        raise _in_the_way(path) from error


def _in_the_way(path: Path) -> LogDirectoryError:
    return LogDirectoryError(f"{path}: already exists, where a new file is to begin")
