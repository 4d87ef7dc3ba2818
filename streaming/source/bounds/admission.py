"""How much one micro-batch takes: ``maxOffsetsPerTrigger``, ``minOffsetsPerTrigger``.

Offsets are counted, as in Spark's Kafka source: gaps (control records, compacted offsets) count,
though they give no rows.

Source: Spark ``KafkaMicroBatchStream`` (``rateLimit``, ``delayBatch``).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kafkalog.files.system import system

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.source.offsets import PartitionOffsets

__all__ = ["TriggerGate", "limit_offsets"]


def limit_offsets(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], limit: int
) -> PartitionOffsets:
    """Split ``limit`` offsets over the partitions in proportion to what each has waiting.

    ``start`` has every partition of ``end``. A share below one offset is rounded up, so that no
    partition starves. Any other is rounded down. With many small partitions the sum may exceed the
    limit.
    """
    waiting = {partition: end[partition] - start[partition] for partition in end}
    total = sum(count for count in waiting.values() if count > 0)
    return {
        partition: start[partition] + min(count, _share(limit, count, total))
        if count > 0
        else end[partition]
        for partition, count in waiting.items()
    }


def _share(limit: int, count: int, total: int) -> int:
    # Spark's own order of floating point operations, so that both cut at the same offsets
    share = limit * (count / total)
    return math.ceil(share) if share < 1 else math.floor(share)


class TriggerGate:
    """Holds a batch back until ``minimum`` offsets wait, or ``max_delay_ms`` after the last one.

    The first batch of a run always passes. The time is kept in memory only, and starts again with
    each run.
    """

    def __init__(
        self,
        minimum: int,
        max_delay_ms: int,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._minimum = minimum
        self._max_delay_s = max_delay_ms / 1000
        self._clock = clock or system.monotonic
        self._last_fired = -math.inf

    def opens(self, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> bool:
        """Whether a batch from ``start`` (which holds every partition) to ``end`` may run now."""
        now = self._clock()
        waiting = sum(max(offset - start[partition], 0) for partition, offset in end.items())
        if waiting < self._minimum and now - self._last_fired < self._max_delay_s:
            return False
        self._last_fired = now
        return True
