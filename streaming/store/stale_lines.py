"""Lines about an earlier topic of the same name in Kafka's offset checkpoints.

Whoever deletes a topic by hand, or a broker that is killed while it does so, leaves them there.
They would count for a topic that is made again: a log start hides its records, and a broker deletes
a log that ends below its log start; a recovery point lets bytes count as durable that are not.

Source: Kafka ``UnifiedLog`` (log start offset above the log end), ``LogManager``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import (
    CLEANER_OFFSET,
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from kafkalog.errors import LogDirectoryError
from kafkalog.streaming.log.log_start import log_start_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory

__all__ = ["check_log_start", "drop_lines", "forget_log_start"]

_CHECKPOINTS: Final = (LOG_START_OFFSET, RECOVERY_POINT, HIGH_WATERMARK, CLEANER_OFFSET)


def drop_lines(directories: Iterable[Path], partitions: Collection[TopicPartition]) -> None:
    """Durably take the lines of partitions that are to be made out of all offset checkpoints.

    Out of those of every directory of the set, since a partition may have lived in another one.
    Before a new partition is published: what is written later would be lost with the process.

    Raises:
        CheckpointError: a checkpoint breaks the format.
        OSError: it cannot be replaced.
    """
    if not partitions:
        return
    for folder in directories:
        for name in _CHECKPOINTS:
            if not read_offset_checkpoint(folder, name).keys().isdisjoint(partitions):
                write_offset_checkpoint(folder, name, {}, remove=partitions)


def check_log_start(where: PartitionDirectory, start: int, end: int) -> None:
    """Refuse to append to a log whose checkpointed ``start`` lies above its ``end``.

    Raises:
        LogDirectoryError: it does.
    """
    if start > end:
        raise LogDirectoryError(log_start_text(where, start, end))


def forget_log_start(where: PartitionDirectory) -> None:
    """Durably remove the line that says where a log starts: it starts with its first segment."""
    write_offset_checkpoint(where.log_dir, LOG_START_OFFSET, {}, remove={where.topic_partition})
