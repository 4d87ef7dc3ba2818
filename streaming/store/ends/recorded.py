"""Read what commit states, intents and checkpoints say of ends; ``rule`` decides."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    META_PROPERTIES,
    RECOVERY_POINT,
    read_offset_checkpoint,
)
from kafkalog.checkpoints.commit_state import STATE_FILE
from kafkalog.checkpoints.committed import Committed, load_committed
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.errors import CheckpointError, KafkaLogError
from kafkalog.files.timeouts import at
from kafkalog.files.watch import Watched
from kafkalog.streaming.options.topic_settings import is_remote
from kafkalog.streaming.store.ends.rule import RecordedOffsets
from kafkalog.streaming.store.ends.tiered import TieredStarts, has_remote_indexes
from kafkalog.streaming.store.log_dirs import LogDirs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory

    Offsets = Mapping[TopicPartition, int]

__all__ = ["BrokerMarks", "WatchedMarks"]


# ----------------------------------------------------------------------------------------------
# What a broker, or a commit of ours, left beside partitions, for writers.
#
# Writers hold the locks, so each file is read once. One that cannot be trusted stops them: what
# it says may not be cut off, or written over. Only a damaged log start counts as none, as for a
# broker.
#
# A high watermark above the log's end tells of records that the log lacks: it is a copy from
# before they were written, or they were lost. What forbids to cut a log, see
# :func:`.rule.marks_above`.
#
# Of a replicated set that no broker has, high watermarks and log starts are not asked: its nodes
# have decided on those in the commit state, and a file that is damaged is damaged on one node.


_LOGGER = logging.getLogger("kafkalog.sink")


class _Marks(NamedTuple):
    high_watermarks: dict[TopicPartition, int]
    recovery_points: dict[TopicPartition, int]
    broker_lived: bool


class BrokerMarks:
    """The marks of log directories, each read when first asked for."""

    def __init__(self, state: CommitState | None) -> None:
        """Read nothing yet; ``state`` is the commit state beside the partitions."""
        self._by_state_alone = state is not None and state.knows_all_ends
        self._read: dict[Path, _Marks] = {}
        self._log_starts: dict[Path, dict[TopicPartition, int]] = {}
        self._tiered = TieredStarts()

    def said(
        self, folder: Path, key: TopicPartition, committed: int | None = None
    ) -> RecordedOffsets:
        """Return what is said of the partition in ``folder``, beside what is ``committed`` to it.

        Raises:
            CheckpointError: a file breaks the format.
        """
        marks = self._of(folder)
        return RecordedOffsets(
            committed,
            high_watermark=marks.high_watermarks.get(key),
            recovery_point=marks.recovery_points.get(key),
        )

    def broker_lived(self, folder: Path) -> bool:
        """Return whether a broker ever had the log directory that the partition's folder is in."""
        return self._of(folder).broker_lived

    def log_start(self, where: PartitionDirectory) -> int:
        """Return the log start that is kept for a partition; 0 without one that can be read."""
        if self._by_state_alone:
            return 0
        return self._lines(where.log_dir).get(where.topic_partition, 0)

    def start_of_log(
        self,
        where: PartitionDirectory,
        first: int,
        directories: Iterable[Path],
        settings: Mapping[str, str],
    ) -> int:
        """Return where a log starts, of which the folder has what is from ``first`` on.

        That is below ``first`` where a broker has moved records to a remote tier, see
        :mod:`.tiered`. ``directories`` are those of the broker, ``settings`` the topic's.
        """
        line = self._lines(where.log_dir).get(where.topic_partition)
        is_tiered = is_remote(settings) or has_remote_indexes(directories)
        return self._tiered.start(where, line, first, is_tiered=is_tiered)

    def _lines(self, log_dir: Path) -> dict[TopicPartition, int]:
        if log_dir not in self._log_starts:
            try:
                found = read_offset_checkpoint(log_dir, LOG_START_OFFSET)
            except CheckpointError as error:
                _LOGGER.warning("not used, as if it were missing: %s", error)
                found = {}
            self._log_starts[log_dir] = found
        return self._log_starts[log_dir]

    def _of(self, folder: Path) -> _Marks:
        log_dir = folder.parent
        if log_dir not in self._read:
            with at(log_dir):
                self._read[log_dir] = _Marks(
                    {} if self._by_state_alone else read_offset_checkpoint(log_dir, HIGH_WATERMARK),
                    read_offset_checkpoint(log_dir, RECOVERY_POINT),
                    (log_dir / META_PROPERTIES).exists(),
                )
        return self._read[log_dir]


# ----------------------------------------------------------------------------------------------
# What commit states, intents and a broker's checkpoints say of partitions, for readers.
#
# They are read again when they have changed. What a broker's file cannot tell, since it is
# damaged, counts as not said, with a warning: the broker reads it so, too. Without its high
# watermarks, what a broker has not yet committed would be read: that is an error, but of a
# replicated set that no broker has. Its commit state knows high watermarks and log starts.


_READER_LOGGER = logging.getLogger("kafkalog.source")

_COMMIT_FILES: Final = (INTENT_FILE, STATE_FILE)


class WatchedMarks:
    """Reads these files of some directories again when they have changed, and joins what they say.

    ``partitions`` returns those that live there now. ``to_log_end`` says that a damaged commit
    state does not matter, ``every_batch`` that log starts do not, ``needs_majority`` that fewer
    nodes of a replicated set are not enough.
    """

    def __init__(
        self,
        directories: Sequence[Path],
        partitions: Callable[[], Mapping[TopicPartition, PartitionDirectory]],
        *,
        to_log_end: bool,
        every_batch: bool,
        needs_majority: bool = True,
    ) -> None:
        self._directories = directories
        self._partitions = partitions
        self._to_log_end = to_log_end
        self._every_batch = every_batch
        self._needs_majority = needs_majority
        self._with_state: Collection[Path] = ()
        self._begun: Offsets = {}
        self._tiered = TieredStarts()
        self._has_remote_indexes = False
        starts = [folder / LOG_START_OFFSET for folder in directories]
        self._log_starts = Watched(starts, self._load_log_starts)
        self._by_state_alone = False
        self._unreadable: dict[Path, KafkaLogError] = {}
        """Directories whose high watermarks cannot be read, and why."""
        unreadable = None if to_log_end else self._unreadable
        self._high_watermarks = self._watched(HIGH_WATERMARK, 0, unreadable)
        self._recovery_points = self._watched(RECOVERY_POINT)
        files = [folder / name for folder in directories for name in _COMMIT_FILES]
        self._committed = Watched(files, self._load_committed)

    def _watched(
        self,
        name: str,
        unnamed: int | None = None,
        unreadable: dict[Path, KafkaLogError] | None = None,
    ) -> Watched[Offsets]:
        def read() -> Offsets:
            partitions = self._partitions().values()
            return LogDirs.checkpoint(name, partitions, unnamed=unnamed, unreadable=unreadable)

        return Watched([directory / name for directory in self._directories], read)

    def _load_log_starts(self) -> Offsets:
        # A broker that begins to tier writes these files again soon after. To ask for each
        # partition would be a call of the system for each directory and partition of a batch.
        self._has_remote_indexes = has_remote_indexes(self._directories)
        if self._by_state_alone:
            return {}
        return LogDirs.checkpoint(LOG_START_OFFSET, self._partitions().values())

    def _load_committed(self) -> Committed:
        try:
            found = load_committed(
                self._directories, for_reader=True, needs_majority=self._needs_majority
            )
            self._with_state = found.members
        except KafkaLogError as error:
            if not self._to_log_end:
                raise
            _READER_LOGGER.warning("reading up to the log end without the commit state: %s", error)
            found = Committed(None, None)
            states = (folder / STATE_FILE for folder in self._directories)
            self._with_state = [state.parent for state in states if _is_there(state)]
        by_state_alone = found.state is not None and found.state.knows_all_ends
        if by_state_alone != self._by_state_alone:
            self._by_state_alone = by_state_alone
            self._log_starts.forget()
        partitions = () if found.unfinished is None else found.unfinished.partitions
        self._begun = {
            each.topic_partition: 0 if each.created else each.start_offset for each in partitions
        }
        return found

    def refresh(self) -> bool:
        """Read what tells where partitions end; returns whether any of it may be new."""
        news = self._high_watermarks.refresh()
        if self._to_log_end:
            self._recovery_points.refresh()
        return self.refresh_committed() or news

    def refresh_committed(self) -> bool:
        """Read the commit state and the intent; returns whether they may be new."""
        return self._committed.refresh()

    def refresh_log_starts(self) -> bool:
        """Read where logs start; returns whether any of it may be new."""
        return self._log_starts.refresh()

    def forget_checkpoints(self) -> None:
        """Have them read again: partitions live in other directories than before."""
        for watched in (self._log_starts, self._high_watermarks, self._recovery_points):
            watched.forget()

    @property
    def committed(self) -> Committed:
        """The commit state, and what is in progress."""
        return self._committed.value

    @property
    def sequence(self) -> tuple[int, int]:
        """The sequence numbers of the newest commit, and of the one in progress; -1 without."""
        state, intent = self.committed.state, self.committed.unfinished
        return (
            -1 if state is None else state.sequence,
            -1 if intent is None else intent.sequence,
        )

    def said(self, where: PartitionDirectory, topic_id: str | None) -> RecordedOffsets:
        """Return what is said of a partition, as of the last refresh.

        Raises:
            CheckpointError, LogDirectoryError: what a broker has committed cannot be read.
        """
        key, log_dir = where.topic_partition, where.log_dir
        known = self.committed.partition(key.topic, topic_id, key.partition)
        if self._by_state_alone:
            high_watermark = None
        elif log_dir in self._unreadable:
            raise self._unreadable[log_dir]
        else:
            high_watermark = self._high_watermarks.value.get(key)
        return RecordedOffsets(
            None if known is None else known.high_watermark,
            log_dir in self._with_state,
            self._begun.get(key),
            high_watermark,
            self._recovery_points.value.get(key) if self._to_log_end else None,
            0 if self._every_batch else self._log_starts.value.get(key, 0),
            0 if self._every_batch or known is None else known.log_start,
        )

    def start_of_log(self, where: PartitionDirectory, topic_id: str | None, first: int) -> int:
        """Return where a log starts, of which the folder has what is from ``first`` on.

        That is below ``first`` where a broker has moved records to a remote tier.
        """
        key = where.topic_partition
        line = self._log_starts.value.get(key)
        kept = self.committed.log_start(key.topic, topic_id, key.partition)
        if kept >= first:  # whatever the line says, of which a takeover has seen that it is old
            return first
        state = self.committed.state
        known = None if state is None else state.topic(key.topic, topic_id)
        is_tiered = self._has_remote_indexes or (known is not None and is_remote(known.settings))
        start = self._tiered.start(where, line, first, is_tiered=is_tiered)
        return min(first, max(start, kept))


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
