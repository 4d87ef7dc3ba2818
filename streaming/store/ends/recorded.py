"""What commit states, intents and a broker's checkpoints say of partitions, for readers.

They are read again when they have changed. What a broker's file cannot tell, since it is damaged,
counts as not said, with a warning: the broker reads it so, too.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import HIGH_WATERMARK, LOG_START_OFFSET, RECOVERY_POINT
from kafkalog.checkpoints.commit_state import STATE_FILE
from kafkalog.checkpoints.committed import Committed, load_committed
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.errors import KafkaLogError
from kafkalog.files.watch import Watched
from kafkalog.streaming.log.log_dir import LogDirs
from kafkalog.streaming.options.topic_settings import is_remote
from kafkalog.streaming.store.ends.rule import RecordedOffsets
from kafkalog.streaming.store.ends.tiered import TieredStarts, has_remote_indexes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory

    Offsets = Mapping[TopicPartition, int]

__all__ = ["WatchedMarks"]

_LOGGER = logging.getLogger("kafkalog.source")

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
        # Without it, what a broker has not yet committed would be read.
        self._high_watermarks = self._watched(HIGH_WATERMARK, unnamed=0, is_needed=not to_log_end)
        self._recovery_points = self._watched(RECOVERY_POINT)
        files = [folder / name for folder in directories for name in _COMMIT_FILES]
        self._committed = Watched(files, self._load_committed)

    def _watched(
        self, name: str, unnamed: int | None = None, *, is_needed: bool = False
    ) -> Watched[Offsets]:
        def read() -> Offsets:
            partitions = self._partitions().values()
            return LogDirs.checkpoint(name, partitions, unnamed=unnamed, is_needed=is_needed)

        return Watched([directory / name for directory in self._directories], read)

    def _load_log_starts(self) -> Offsets:
        # A broker that begins to tier writes these files again soon after. To ask for each
        # partition would be a call of the system for each directory and partition of a batch.
        self._has_remote_indexes = has_remote_indexes(self._directories)
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
            _LOGGER.warning("reading up to the log end without the commit state: %s", error)
            found = Committed(None, None)
            states = (folder / STATE_FILE for folder in self._directories)
            self._with_state = [state.parent for state in states if _is_there(state)]
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
        """Return what is said of a partition, as of the last refresh."""
        key = where.topic_partition
        return RecordedOffsets(
            self.committed.high_watermark(key.topic, topic_id, key.partition),
            where.log_dir in self._with_state,
            self._begun.get(key),
            self._high_watermarks.value.get(key),
            self._recovery_points.value.get(key) if self._to_log_end else None,
            *self._starts(key, topic_id),
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

    def _starts(self, key: TopicPartition, topic_id: str | None) -> tuple[int, int]:
        """Return the log start offsets that a broker has kept, and the commit state; 0 without."""
        if self._every_batch:
            return 0, 0
        kept = self.committed.log_start(key.topic, topic_id, key.partition)
        return self._log_starts.value.get(key, 0), kept


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
