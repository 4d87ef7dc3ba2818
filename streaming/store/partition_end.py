"""A partition whose log was brought into order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkalog.checkpoints.commit_state import UNKNOWN_EPOCH, PartitionState

if TYPE_CHECKING:
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory

__all__ = ["PartitionEnd"]


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    """A partition whose log is in order: where it lies, and its offsets ``[start, end)``.

    ``key`` is what the commit state keeps its topic under; ``corrected`` are the index files that
    held something else than their log calls for. ``log_start`` is what Kafka's checkpoint says, 0
    without; ``leader_epoch`` the latest, unknown where nobody looked.
    """

    topic_partition: TopicPartition
    where: PartitionDirectory
    key: str
    start: int
    end: int
    corrected: tuple[str, ...] = ()
    log_start: int = 0
    leader_epoch: int = UNKNOWN_EPOCH

    @property
    def committed(self) -> PartitionState:
        """Where the partition stands once all that its log holds is committed."""
        whole = PartitionState(min(self.start, self.end), self.end, self.end, self.leader_epoch)
        return whole.starting_at(self.log_start)
