"""How much one micro-batch takes, by all options that say so, in the order in which they count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from kafkalog.streaming.source.bounds.admission import TriggerGate, limit_offsets
from kafkalog.streaming.source.bounds.byte_limit import ByteLimit

if TYPE_CHECKING:
    from kafkalog.streaming.source.followed_logs import FollowedLogs
    from kafkalog.streaming.source.offsets import PartitionOffsets
    from kafkalog.streaming.source.read_options import ReadOptions

__all__ = ["BatchLimits"]


class BatchLimits:
    """The limits of one query; when it last ran and who was served are kept in memory only."""

    def __init__(
        self, gate: TriggerGate | None, most_offsets: int | None, byte_limit: ByteLimit | None
    ) -> None:
        self._gate = gate
        self._most_offsets = most_offsets
        self._byte_limit = byte_limit

    @classmethod
    def of(cls, options: ReadOptions) -> Self:
        """Take the limits that a query was given."""
        minimum, most_bytes = options.min_offsets_per_trigger, options.max_bytes_per_trigger
        return cls(
            None if minimum is None else TriggerGate(minimum, options.max_trigger_delay_ms),
            options.max_offsets_per_trigger,
            None if most_bytes is None else ByteLimit(most_bytes),
        )

    @property
    def may_hold_back(self) -> bool:
        """Whether a batch may have to wait though there is something to read."""
        return self._gate is not None

    def cut(
        self,
        begin: PartitionOffsets,
        ends: PartitionOffsets,
        logs: FollowedLogs,
        *,
        may_hold_back: bool,
    ) -> PartitionOffsets | None:
        """Return the ends of a batch from ``begin``, which has every partition, up to ``ends``.

        None if the batch is to wait, as ``may_hold_back`` lets it.
        """
        if may_hold_back and self._gate is not None and not self._gate.opens(begin, ends):
            return None
        if self._most_offsets is not None:
            ends = limit_offsets(begin, ends, self._most_offsets)
        return ends if self._byte_limit is None else self._byte_limit.cut(begin, ends, logs)
