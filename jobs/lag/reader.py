"""One that reads topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkalog.streaming.source.offsets import PartitionOffsets

__all__ = ["Reader"]


@dataclass(frozen=True, slots=True)
class Reader:
    """One that reads: its name, and the next offset that it reads of each partition.

    Of ``topics`` it reads all partitions. One that it has no offset of counts from its log start.
    """

    name: str
    positions: PartitionOffsets
    topics: frozenset[str] = frozenset()
