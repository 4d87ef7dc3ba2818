"""One that reads topics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.history import LastBatch
    from kafkalog.streaming.source.offsets import PartitionOffsets

__all__ = ["Reader"]


@dataclass(frozen=True, slots=True)
class Reader:
    """One that reads: its name, and the next offset that it reads of each partition.

    Of ``topics`` it reads all partitions. One that it has no offset of counts from its log start.
    ``batches`` are the last ones below its offsets, where it has kept them.
    """

    name: str
    positions: PartitionOffsets
    topics: frozenset[str] = frozenset()
    batches: Mapping[TopicPartition, LastBatch] = field(default_factory=dict)
