"""What a broker, or a commit of ours, left beside partitions: which records must not be cut off.

Below the high watermark records were acknowledged, and readers may have seen them. Below the
recovery point they were on the disk. A broker that recovers cuts a damaged batch all the same, and
fetches it again from another replica. Here there is none, so nothing below the two is ever cut.

A high watermark above the log's end tells of records that the log lacks: it is a copy from before
they were written, or they were lost. A recovery point above the log's end tells nothing: it may be
of an earlier topic with the same name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    META_PROPERTIES,
    RECOVERY_POINT,
    read_offset_checkpoint,
)

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.model import TopicPartition

__all__ = ["BrokerMarks"]


class _Marks(NamedTuple):
    high_watermarks: dict[TopicPartition, int]
    recovery_points: dict[TopicPartition, int]
    broker_lived: bool


class BrokerMarks:
    """The marks of log directories, each read once, when first asked for."""

    def __init__(self) -> None:
        self._read: dict[Path, _Marks] = {}

    def high_watermark(self, folder: Path, key: TopicPartition) -> int:
        """Give the high watermark of the partition in ``folder``; 0 where none is known.

        Raises:
            CheckpointError: the file breaks the format.
        """
        return self._of(folder).high_watermarks.get(key, 0)

    def recovery_point(self, folder: Path, key: TopicPartition) -> int:
        """Give the recovery point of the partition in ``folder``; 0 where none is known.

        Raises:
            CheckpointError: the file breaks the format.
        """
        return self._of(folder).recovery_points.get(key, 0)

    def broker_lived(self, folder: Path) -> bool:
        """Tell whether a broker ever had the log directory that the partition's folder lies in."""
        return self._of(folder).broker_lived

    def _of(self, folder: Path) -> _Marks:
        log_dir = folder.parent
        if log_dir not in self._read:
            self._read[log_dir] = _Marks(
                read_offset_checkpoint(log_dir, HIGH_WATERMARK),
                read_offset_checkpoint(log_dir, RECOVERY_POINT),
                (log_dir / META_PROPERTIES).exists(),
            )
        return self._read[log_dir]
