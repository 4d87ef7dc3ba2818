"""A partition whose log was brought into order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory

__all__ = ["PartitionEnd"]


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    """A partition whose log is in order: where it lies, and its offsets ``[start, end)``.

    ``key`` is what the commit state keeps its topic under; ``corrected`` are the index files that
    held something else than their log calls for.
    """

    topic_partition: TopicPartition
    where: PartitionDirectory
    key: str
    start: int
    end: int
    corrected: tuple[str, ...] = ()
