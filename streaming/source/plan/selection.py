"""Which rows a query wants, as far as a log can tell before it is read. Knows no Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkalog.streaming.log.intervals import EVERYTHING, Intervals

if TYPE_CHECKING:
    from kafkalog.model import TopicPartition

__all__ = ["Selection"]


@dataclass(slots=True)
class Selection:
    """Sets of partitions, offsets and timestamps; a row that is wanted is in all of them."""

    partitions: Intervals = EVERYTHING
    offsets: Intervals = EVERYTHING
    timestamps: Intervals = EVERYTHING
    """In ms, as records have them."""

    def selects(self, topic_partition: TopicPartition) -> bool:
        """Return whether rows of a partition may be left."""
        return topic_partition.partition in self.partitions
