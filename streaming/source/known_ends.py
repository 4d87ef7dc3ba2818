"""What commit states and a broker's checkpoints say of where partitions start and end.

The order in which the files are read is explained at
:class:`kafkalog.checkpoints.commit_state.Committed`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import HIGH_WATERMARK, LOG_START_OFFSET, RECOVERY_POINT
from kafkalog.checkpoints.commit_state import INTENT_FILE, STATE_FILE, Committed, load_committed
from kafkalog.errors import KafkaLogError
from kafkalog.files.watch import Watched

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.source.offsets import PartitionOffsets

__all__ = ["KnownEnds"]

_LOGGER = logging.getLogger("kafkalog.source")

_COMMIT_FILES: Final = (INTENT_FILE, STATE_FILE)


class KnownEnds:
    """Reads these files of some directories again when they have changed, and joins what they say.

    ``checkpoint`` reads the one of that name in all directories; it gives partitions that are not
    named there the offset that it is given. ``to_log_end`` says that a damaged commit state does
    not matter, ``every_batch`` that log starts do not.
    """

    def __init__(
        self,
        directories: Sequence[Path],
        checkpoint: Callable[[str, int | None], PartitionOffsets],
        *,
        to_log_end: bool,
        every_batch: bool,
    ) -> None:
        self._directories = directories
        self._checkpoint = checkpoint
        self._to_log_end = to_log_end
        self._every_batch = every_batch
        self._with_state: frozenset[Path] = frozenset()
        self._log_starts = self._watched(LOG_START_OFFSET)
        self._high_watermarks = self._watched(HIGH_WATERMARK, unnamed=0)
        self._recovery_points = self._watched(RECOVERY_POINT)
        files = [folder / name for folder in directories for name in _COMMIT_FILES]
        self._committed = Watched(files, self._load_committed)

    def _watched(self, name: str, unnamed: int | None = None) -> Watched[PartitionOffsets]:
        files = [directory / name for directory in self._directories]
        return Watched(files, lambda: self._checkpoint(name, unnamed))

    def _load_committed(self) -> Committed:
        self._with_state = frozenset(
            folder for folder in self._directories if _is_there(folder / STATE_FILE)
        )
        try:
            return load_committed(self._directories)
        except KafkaLogError as error:
            if not self._to_log_end:
                raise
            _LOGGER.warning("reading up to the log end without the commit state: %s", error)
            return Committed(None, None)

    def refresh(self) -> bool:
        """Read what tells where partitions end; gives whether any of it may be new."""
        news = self._high_watermarks.refresh()
        if self._to_log_end:
            self._recovery_points.refresh()
        return self.refresh_committed() or news

    def refresh_committed(self) -> bool:
        """Read the commit state and the intent; gives whether they may be new."""
        return self._committed.refresh()

    def refresh_log_starts(self) -> bool:
        """Read where logs start; gives whether any of it may be new."""
        return self._log_starts.refresh()

    def forget_checkpoints(self) -> None:
        """Have them read again: partitions live in other directories than before."""
        for watched in (self._log_starts, self._high_watermarks, self._recovery_points):
            watched.forget()

    @property
    def committed(self) -> Committed:
        """The commit state, and what is in progress."""
        return self._committed.value

    def has_state(self, log_dir: Path) -> bool:
        """Tell whether a log directory holds a commit state."""
        _ = self.committed
        return log_dir in self._with_state

    @property
    def sequence(self) -> tuple[int, int]:
        """The sequence numbers of the newest commit, and of the one in progress; -1 without."""
        state, intent = self.committed.state, self.committed.unfinished
        return (
            -1 if state is None else state.sequence,
            -1 if intent is None else intent.sequence,
        )

    def log_start(self, topic_partition: TopicPartition) -> int:
        """Give the log start offset that a broker has kept, 0 without."""
        return 0 if self._every_batch else self._log_starts.value.get(topic_partition, 0)

    def recovery_point(self, topic_partition: TopicPartition) -> int | None:
        """Give the offset up to which a broker had flushed a log; None where it does not say."""
        return self._recovery_points.value.get(topic_partition)

    def committed_end(self, topic_partition: TopicPartition, topic_id: str | None) -> int | None:
        """Give the end that the commit state or a broker's checkpoint knows, as far as it says."""
        ours = self.our_end(topic_partition, topic_id)
        brokers = self._high_watermarks.value.get(topic_partition)
        if self.committed.in_progress(*topic_partition):
            before = self.end_before_commit(topic_partition)
            # What a broker has appended since our last commit stays seen while the next one runs.
            brokers = brokers if brokers is None else min(brokers, before)
            ours = before if ours is None and brokers is None else ours
        if ours is None or brokers is None:
            return brokers if ours is None else ours
        return max(ours, brokers)

    def our_end(self, topic_partition: TopicPartition, topic_id: str | None) -> int | None:
        """Give the end that the commit state knows."""
        topic, number = topic_partition
        return self.committed.high_watermark(topic, topic_id, number)

    def end_before_commit(self, topic_partition: TopicPartition) -> int:
        """Give where a partition ended that our first commit to it, still unfinished, found."""
        intent = self.committed.unfinished
        partitions = intent.partitions if intent is not None else ()
        return next(
            (
                intended.start_offset
                for intended in partitions
                if intended.topic_partition == topic_partition and not intended.created
            ),
            0,
        )


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
