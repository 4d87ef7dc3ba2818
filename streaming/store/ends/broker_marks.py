"""What a broker, or a commit of ours, left beside partitions, for writers.

Writers hold the locks, so each file is read once. One that cannot be trusted stops them: what it
says may not be cut off, or written over. Only a damaged log start counts as none, as for a broker.

A high watermark above the log's end tells of records that the log lacks: it is a copy from before
they were written, or they were lost. What forbids to cut a log, see :func:`.rule.marks_above`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    META_PROPERTIES,
    RECOVERY_POINT,
    read_offset_checkpoint,
)
from kafkalog.errors import CheckpointError
from kafkalog.files.timeouts import at
from kafkalog.streaming.options.topic_settings import is_remote
from kafkalog.streaming.store.ends.rule import RecordedOffsets
from kafkalog.streaming.store.ends.tiered import TieredStarts, has_remote_indexes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory

__all__ = ["BrokerMarks"]

_LOGGER = logging.getLogger("kafkalog.sink")


class _Marks(NamedTuple):
    high_watermarks: dict[TopicPartition, int]
    recovery_points: dict[TopicPartition, int]
    broker_lived: bool


class BrokerMarks:
    """The marks of log directories, each read when first asked for."""

    def __init__(self) -> None:
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
                    read_offset_checkpoint(log_dir, HIGH_WATERMARK),
                    read_offset_checkpoint(log_dir, RECOVERY_POINT),
                    (log_dir / META_PROPERTIES).exists(),
                )
        return self._read[log_dir]
