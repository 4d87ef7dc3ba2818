"""Cut offset ranges for ``minPartitions`` and ``maxRecordsPerPartition`` as Spark's source does.

Source: Spark ``KafkaOffsetRangeCalculator``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kafkalog.model import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["cut_ranges"]


def cut_ranges(
    ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Cut ranges so that none has more than ``max_records`` and there are ``min_partitions``.

    Empty ranges are dropped. Ranges whose proportional share of ``min_partitions`` is one stay
    whole, the others share the rest, so the result may have a few ranges more or less than asked.
    """
    cut = [entry for entry in ranges if _size(entry) > 0]
    if max_records is not None:
        cut = [piece for entry in cut for piece in _divide(entry, -(-_size(entry) // max_records))]
    if min_partitions is None or min_partitions <= len(cut):
        return cut
    total = sum(map(_size, cut))
    whole = {entry for entry in cut if _part_count(_size(entry), total, min_partitions) == 1}
    divided_total = total - sum(map(_size, whole))
    divided_count = max(min_partitions - len(whole), 1)
    return [
        piece
        for entry in cut
        for piece in _divide(
            entry,
            1 if entry in whole else _part_count(_size(entry), divided_total, divided_count),
        )
    ]


def _size(entry: OffsetRange) -> int:
    return entry.end - entry.start


def _part_count(size: int, total: int, parts: int) -> int:
    # Java's Math.round: half goes up, where Python's round() goes to the even neighbour
    return max(math.floor(size / total * parts + 0.5), 1)


def _divide(entry: OffsetRange, parts: int) -> Iterator[OffsetRange]:
    """Cut a range into pieces of (nearly) equal counts; the last ones take the rounding."""
    parts = min(parts, _size(entry))
    start = entry.start
    for left in range(parts, 0, -1):
        end = start + (entry.end - start) // left
        yield OffsetRange(entry.topic_partition, start, end)
        start = end
