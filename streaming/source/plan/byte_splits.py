"""Cut what a batch reads into tasks by bytes, at batch boundaries that the offset indexes know.

Offsets say little about work: records differ in size, and compaction leaves few of them. Bytes are
known from listings and indexes, without a look into a log.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Final

from kafkalog.streaming.log.read.slices import cut_slice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kafkalog.streaming.log.read.slices import SegmentSlice

__all__ = ["LARGEST_BYTES", "SMALLEST_BYTES", "by_bytes", "split_target"]

LARGEST_BYTES: Final = 64 << 20
"""What one task reads at most, about: a second of work, so that a failure costs little."""

SMALLEST_BYTES: Final = 8 << 20
"""What is not divided further to keep more cores busy: ten times what a task costs by itself."""


_NOT_WORTH_A_TASK: Final = 0.1
"""A rest of so much of a part goes to the others: else a partition of 65 MiB would be read in two
halves, by two tasks (as with Hadoop's ``FileInputFormat.SPLIT_SLOP``)."""


def split_target(given: int | None, total: int, *, cores: int | None = None) -> int:
    """Return about how many bytes a task is to read, of ``total`` bytes of a batch.

    ``given`` is what the user wants. Otherwise it is each core's share, within bounds; ``cores``
    are those of this machine, as Spark tells a Python source nothing of its cluster's.
    """
    if given is not None:
        return given
    share = -(-total // (cores or os.cpu_count() or 1))
    return min(LARGEST_BYTES, max(SMALLEST_BYTES, share))


def by_bytes(slices: Sequence[SegmentSlice], target: int) -> Iterator[list[SegmentSlice]]:
    """Group slices, cut where need be, into about equal parts of at most about ``target`` bytes."""
    total = sum(entry.size for entry in slices)
    parts = max(1, math.ceil(total / target - _NOT_WORTH_A_TASK))
    ends = [total * part / parts for part in range(1, parts)]
    group: list[SegmentSlice] = []
    begin, number = 0, 0
    for entry in slices:
        inside = [end - begin for end in ends if begin < end < begin + entry.size]
        for piece in cut_slice(entry, inside):
            middle = begin + (piece.start_position - entry.start_position) + piece.size / 2
            while number < len(ends) and middle >= ends[number]:
                number += 1
                if group:
                    yield group
                    group = []
            group.append(piece)
        begin += entry.size
    if group:
        yield group
