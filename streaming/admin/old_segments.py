"""Delete the oldest segments of partitions: what retention and DeleteRecords share.

:class:`ManagedLog` is a partition's log with its state under the locks. It rolls an active segment
that is to go, and cuts what is torn at its end then. Below, the snapshots of producers that a
deletion needs.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkalog.checkpoints.broker import CLEAN_SHUTDOWN, META_PROPERTIES, read_topic_id
from kafkalog.checkpoints.commit_state import topic_key
from kafkalog.errors import CheckpointError, CorruptRecordError, KafkaLogError, LogDirectoryError
from kafkalog.files.atomic import write_atomically, write_new
from kafkalog.files.deferred_signals import check_interrupt
from kafkalog.files.regular import fsync_directory
from kafkalog.model import INTERNAL_TOPICS, MAX_OFFSET, NO_PRODUCER_ID
from kafkalog.streaming.log.files import OFFSET_INDEX, SNAPSHOT, TIME_INDEX, file_name
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.producer_state import (
    EMPTY_SNAPSHOT,
    PRODUCER_ENTRY,
    list_snapshots,
    never_had_producers,
    read_snapshot,
    snapshot_bytes,
)
from kafkalog.streaming.log.read.salvage import walk_batches
from kafkalog.streaming.log.read.timestamps import largest_timestamp
from kafkalog.streaming.log.recovery import cut_segment, start_segment
from kafkalog.streaming.log.retention import Expired, LogBounds
from kafkalog.streaming.log.segments import LogSegments
from kafkalog.streaming.log.swap import finish_swap, retire_below
from kafkalog.streaming.options.topic_settings import REMOTE_STORAGE, LogConfig, is_remote
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.records.control import as_data_batches, coordinator_epoch
from kafkalog.streaming.store.broker_files import check_log_start
from kafkalog.streaming.store.ends.recorded import BrokerMarks
from kafkalog.streaming.store.ends.rule import RecordedOffsets, recorded_log_start
from kafkalog.streaming.store.log_dirs import check_no_link
from kafkalog.streaming.store.policy import BY_FLAG, SetPolicy
from kafkalog.streaming.store.recovery.unsynced_tail import refuse_lost_tail
from kafkalog.streaming.store.session import existing_log_dirs, opened_set, require_commit_state

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState, PartitionState, TopicState
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.log.segment import Chunk, LogSegment
    from kafkalog.streaming.records.batch import BatchTable
    from kafkalog.streaming.store.log_set import LogSet


__all__ = [
    "ManagedLog",
    "OldSegment",
    "logs_of_ours",
    "opened_after_broker",
    "opened_logs",
    "refuse_broker_directory",
    "snapshot_at",
]


# ----------------------------------------------------------------------------------------------
# The state of producers at an offset: the newest snapshot below it, and the batches since.
#
# A broker keeps it in memory, and writes it when it rolls a segment. Here it is found in the log
# when the snapshot that tells it is about to be deleted.
#
# Source: Kafka ``ProducerStateManager.update``, ``ProducerAppendInfo``, ``ProducerStateEntry``.


_LOGGER: Final = logging.getLogger("kafkalog.log")

_SEQUENCES: Final = 1 << 31
"""How many there are: after the largest one comes 0."""


def snapshot_at(directory: Path, offset: int, *, since: int | None = None) -> bytes | None:
    """Return the snapshot that a broker would have written when its log ended at ``offset``.

    The batches from ``since`` on are read where there is no snapshot. None without either.

    Raises:
        CorruptRecordError: bytes that are no batch.
    """
    known, begin = _newest(directory, offset, since)
    if begin is None:
        return None
    if begin < offset:
        for segment, chunk in walk_batches(directory, begin):
            _take(known, chunk, offset, str(segment.path))
            if int(chunk.table.last_offset[-1]) + 1 >= offset:
                break
    rows = [tuple(entry.values()) for entry in known.values()]
    return snapshot_bytes(np.array(rows, PRODUCER_ENTRY))


def _newest(
    directory: Path, offset: int, since: int | None
) -> tuple[dict[int, dict[str, int]], int | None]:
    """Return what the newest snapshot says that can be read, and its offset."""
    for each in reversed(list_snapshots(directory)):
        if each > offset:
            continue
        try:
            entries = read_snapshot(directory / file_name(each, SNAPSHOT))
        except (CheckpointError, LogDirectoryError) as error:
            _LOGGER.warning("not used, the log is looked at instead: %s", error)
            continue
        names = PRODUCER_ENTRY.names or ()
        rows = zip(*(entries[name].tolist() for name in names), strict=True)
        return {row[0]: dict(zip(names, row, strict=True)) for row in rows}, each
    return {}, since


def _take(known: dict[int, dict[str, int]], chunk: Chunk, end_offset: int, path: str) -> None:
    table = chunk.table[chunk.table.last_offset < end_offset]
    # The cleaner leaves control batches without their record, which say nothing.
    table = table[(table.producer_id != NO_PRODUCER_ID) & (~table.is_control | (table.count > 0))]
    coordinators = _coordinator_epochs(chunk, table[table.is_control], path)
    columns = (
        *(table.producer_id, table.producer_epoch, table.base_sequence, table.base_offset),
        *(table.last_offset, table.max_timestamp, table.is_control, table.is_transactional),
    )
    for row in zip(*(column.tolist() for column in columns), strict=True):
        producer, epoch, sequence, base, last, timestamp, is_control, is_transactional = row
        entry = known.setdefault(producer, _new(producer, epoch))
        if entry["epoch"] != epoch:
            entry |= {"epoch": epoch, **_NO_BATCH}
        entry["timestamp"] = timestamp
        if is_control:
            entry |= {"coordinator_epoch": coordinators[last], "txn_first_offset": -1}
            continue
        delta = last - base
        entry |= {
            "last_sequence": (sequence + delta) % _SEQUENCES,
            "last_offset": last,
            "offset_delta": delta,
        }
        if is_transactional and entry["txn_first_offset"] < 0:
            entry["txn_first_offset"] = base


_NO_BATCH: Final = {"last_sequence": -1, "last_offset": -1, "offset_delta": 0}


def _new(producer: int, epoch: int) -> dict[str, int]:
    """Return an entry in the order of its fields."""
    return {
        "producer_id": producer,
        "epoch": epoch,
        **_NO_BATCH,
        "timestamp": -1,
        "coordinator_epoch": -1,
        "txn_first_offset": -1,
    }


def _coordinator_epochs(chunk: Chunk, markers: BatchTable, path: str) -> dict[int, int]:
    """Return the epoch of the coordinator by the offset of its marker."""
    if not len(markers):
        return {}
    decoder = RecordDecoder(Columns.VALUE | Columns.OFFSET, max_rows=1024)
    batches = decoder.decode(
        chunk.data, as_data_batches(markers), file_position=chunk.file_position, path=path
    )
    return {
        offset: coordinator_epoch(value)
        for batch in batches
        for offset, value in zip(
            batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True
        )
    }


# ----------------------------------------------------------------------------------------------
# The segments of partitions, for whoever deletes the oldest of them: retention, DeleteRecords.
#
# A log is left alone, with a reason, where what is there is not what the commit state says: a
# folder that is a link, or has another topic's id; a log that does not end where the state says,
# since a broker has appended to it, or it was damaged.


class OldSegment:
    """A segment as :mod:`kafkalog.streaming.log.retention` asks for it; read when asked."""

    def __init__(self, segment: LogSegment, *, log_end: int | None = None) -> None:
        """Take a segment; ``log_end`` is that of its log if it is the active one."""
        self.base_offset = segment.base_offset
        self._segment = segment
        self._log_end = log_end

    @cached_property
    def _stat(self) -> os.stat_result:
        return self._segment.path.lstat()

    @property
    def size(self) -> int:
        """Bytes in its log."""
        return self._stat.st_size

    @cached_property
    def largest_timestamp(self) -> int:
        """The largest timestamp of its records, ms; when its file was last changed, without any.

        Raises:
            CorruptRecordError: its batches cannot be read.
        """
        with self._segment as segment:
            is_active = self._log_end is not None
            end = MAX_OFFSET if self._log_end is None else self._log_end
            latest = largest_timestamp(segment, end, active=is_active).timestamp
        return latest if latest >= 0 else self._stat.st_mtime_ns // 1_000_000


class _End(NamedTuple):
    base_offset: int
    position: int


@dataclass(frozen=True, slots=True)
class ManagedLog:
    """The log of a partition that the commit state knows, under ``key``."""

    where: PartitionDirectory
    key: str
    topic: TopicState
    state: PartitionState
    bounds: LogBounds
    segments: tuple[OldSegment, ...]

    @classmethod
    def of(
        cls,
        state: CommitState,
        where: PartitionDirectory,
        marks: BrokerMarks,
        *,
        ends_swap: bool = True,
    ) -> ManagedLog | None:
        """Look at a partition's folder; None of one that the state does not know.

        REQUIRES: the locks are held, unless it is only a look. Otherwise a compaction that was cut
        off is ended first (``ends_swap``).

        Raises:
            KafkaLogError: what is there cannot be trusted: nothing is to be deleted.
        """
        name, number = where.topic_partition
        key = topic_key(name, read_topic_id(where.path))
        topic = state.topics.get(key)
        if topic is None or topic.name != name or number not in topic.partitions:
            return None
        check_no_link(where)
        known = topic.partitions[number]
        if ends_swap:
            finish_swap(where.path)
        listed = LogSegments.of(where.path)
        bases = [segment.base_offset for segment in listed]
        checkpointed = marks.log_start(where)
        check_log_start(where, checkpointed, known.log_end)
        start = recorded_log_start(
            RecordedOffsets(log_start=checkpointed, kept_start=known.log_start), known.log_end
        )
        segments = [OldSegment(segment) for segment in listed[:-1]]
        segments += [OldSegment(segment, log_end=known.log_end) for segment in listed[-1:]]
        bounds = LogBounds(max([start, *bases[:1]]), known.high_watermark, known.log_end)
        return cls(where, key, topic, known, bounds, tuple(segments))

    @property
    def number(self) -> int:
        """The number of the partition."""
        return self.where.topic_partition.partition

    def check_end(self) -> None:
        """See that the log ends where the commit state says.

        Raises:
            LogDirectoryError: it does not.
            CorruptRecordError: its last batches cannot be read.
        """
        self._find_end()

    def _find_end(self) -> _End:
        key, end = self.where.topic_partition, self.state.log_end
        with PartitionLog(self.where.path, key) as log:
            found = log.log_end()
        mended = (
            "`kafkalog recover` copies it from another replica"
            if self.topic.replicas
            else "`kafkalog salvage` shows what is lost, and does without it"
        )
        if found.is_damage:
            raise CorruptRecordError(
                f"{self.where.path}: damaged at byte {found.position} of segment "
                f"{found.base_offset}: nothing was deleted there. {mended}"
            )
        if found.offset != end:
            taken = "If a broker has appended since, run `kafkalog broker takeover`"
            way_out = taken if found.offset > end and not self.topic.replicas else mended
            raise LogDirectoryError(
                f"{self.where.path}: the log ends at offset {found.offset}, and at {end} by the "
                f"commit state, so nothing was deleted there. {way_out}"
            )
        return _End(found.base_offset, found.position)

    def roll(self) -> None:
        """Durably let the log continue in a new segment at its end.

        Raises:
            LogDirectoryError, CorruptRecordError: as :meth:`check_end`.
        """
        folder, end = self.where.path, self.state.log_end
        found = self._find_end()
        config = LogConfig.of_topic(self.topic.settings)
        with PartitionLog(folder, self.where.topic_partition) as log:
            needs_snapshot = never_had_producers(folder, log.segments)
        # The former one is a sealed segment until it is gone, should this be cut off.
        interval = config.index_interval_bytes
        cut_segment(folder, found.base_offset, found.position, index_interval_bytes=interval)
        if needs_snapshot:
            snapshot = folder / file_name(end, SNAPSHOT)
            snapshot.unlink(missing_ok=True)
            write_new(snapshot, EMPTY_SNAPSHOT)
        start_segment(folder, end)
        fsync_directory(folder)

    def without_active(self, gone: Expired) -> Expired:
        """Return what has expired if the active segment stays, though all of it has expired."""
        active = self.segments[-1].base_offset
        return Expired(gone.segments - 1, max(self.bounds.log_start, active))

    def keep_producers(self, gone: Expired) -> None:
        """Write the snapshot of producers that a broker would have, if the newest is to go.

        REQUIRES: the log has rolled, if it is to.

        Raises:
            OSError: it cannot be written.
        """
        folder, first = self.where.path, self._first_left(gone)
        snapshots = list_snapshots(folder)
        if not gone.segments or any(offset >= first for offset in snapshots):
            return
        is_one = len(self.segments) == 1
        if not snapshots and not is_one:
            return
        since = self.segments[0].base_offset if is_one else None
        try:
            data = snapshot_at(folder, first, since=since)
        except CorruptRecordError as error:
            _LOGGER.warning("a broker will not know earlier producers of this log: %s", error)
            return
        if data is not None:
            write_atomically(folder / file_name(first, SNAPSHOT), data)

    def drop_indexes(self, gone: Expired) -> None:
        """Unlink the indexes of what has expired, to make room: readers do without."""
        for segment in self.segments[: gone.segments]:
            for kind in (OFFSET_INDEX, TIME_INDEX):
                path = self.where.path / file_name(segment.base_offset, kind)
                path.unlink(missing_ok=True)

    def _first_left(self, gone: Expired) -> int:
        if gone.rolls or not self.segments:
            return self.state.log_end
        return self.segments[gone.segments].base_offset

    def shared(self, other: ManagedLog, gone: Expired) -> int:
        """Return how many segments of another replica go where ``gone`` has expired of this one.

        It deletes the segments that end at or below the first one that is left here. Its active
        segment goes only if both replicas roll.
        """
        if not gone.segments:
            return 0
        first, bases = self._first_left(gone), [each.base_offset for each in other.segments]
        ends = [*bases[1:], self.state.log_end] if gone.rolls else bases[1:]
        return sum(end <= first for end in ends)

    def retire(self, gone: Expired) -> None:
        """Rename the files of what has expired. REQUIRES: the log start above it is published."""
        if self.segments:
            retire_below(self.where.path, self._first_left(gone))


def logs_of_ours(
    log_set: LogSet,
    concerns: Callable[[TopicPartition], bool],
    left_alone: dict[str, str],
    problems: list[str],
    *,
    ends_swaps: bool,
    internal: Collection[str] = (),
) -> Iterator[ManagedLog]:
    """Yield the logs of topics that are ours to shorten or to compact.

    ``left_alone`` gets why the others are not, by topic, and ``problems`` what a person has to
    decide on. For ``ends_swaps`` see :meth:`ManagedLog.of`. Of Kafka's own topics only those count
    that are named as ``internal``.
    """
    marks = BrokerMarks(log_set.state)
    for key, where in log_set.partitions().items():
        check_interrupt()
        if not concerns(key):
            continue
        if key.topic in INTERNAL_TOPICS and key.topic not in internal:
            left_alone[key.topic] = "a topic of Kafka's own"
            continue
        try:
            log = ManagedLog.of(log_set.state, where, marks, ends_swap=ends_swaps)
        except (KafkaLogError, OSError) as error:
            problems.append(str(error))
            continue
        if log is None:
            left_alone[key.topic] = "the commit state does not know it"
        elif is_remote(log.topic.settings):
            left_alone[key.topic] = f"{REMOTE_STORAGE} is true"
        else:
            yield log


def refuse_broker_directory(log_dir: Path, permit: str = f"; {BY_FLAG}") -> None:
    """Refuse a directory that a broker had last, by its mark of a clean shutdown.

    Raises:
        LogDirectoryError: it is one; ``permit`` is added to the sentence.
    """
    if (log_dir / META_PROPERTIES).exists() and (log_dir / CLEAN_SHUTDOWN).exists():
        raise LogDirectoryError(
            f"log directory {log_dir} was given to a broker, or a broker had it last: it deletes "
            f"by its own settings. Run `kafkalog broker takeover` first{permit}"
        )


def opened_logs(
    paths: Sequence[str],
    holder: str,
    *,
    allows_broker: bool,
    dry_run: bool,
    wait_ms: int,
) -> AbstractContextManager[LogSet]:
    """Open a set that our sink wrote, for whoever deletes or compacts by the settings of topics.

    Raises:
        LogDirectoryError: a broker has, or had, one of the directories; or they are no whole set.
        KafkaLogError: see :func:`~kafkalog.streaming.store.session.opened_set`.
    """
    directories = existing_log_dirs(paths)
    require_commit_state(directories)
    policy = SetPolicy.of_upkeep(wait_ms)
    return opened_after_broker(
        directories,
        policy,
        holder,
        allows_broker=allows_broker,
        dry_run=dry_run,
    )


def opened_after_broker(
    directories: Sequence[Path],
    policy: SetPolicy,
    holder: str,
    *,
    allows_broker: bool,
    dry_run: bool,
    deletes: str | None = None,
) -> AbstractContextManager[LogSet]:
    """Open a set that no broker had last, unless that is allowed; a loss of power is told first.

    ``deletes`` is a topic that goes next.

    Raises:
        LogDirectoryError: a broker had one of the directories.
        KafkaLogError: see :func:`~kafkalog.streaming.store.session.opened_set`.
    """
    for folder in () if allows_broker else directories:
        refuse_broker_directory(folder)

    def look(log_set: LogSet) -> None:
        refuse_lost_tail(log_set, mends=not dry_run)

    return opened_set(
        directories,
        policy,
        look,
        holder=holder,
        dry_run=dry_run,
        deletes=deletes,
    )
