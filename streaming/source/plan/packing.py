"""Which splits share a task.

A task costs Spark some 10 to 15 ms of a core, whatever it reads: a batch of a few rows in each of
many partitions would cost little else. So splits of few bytes are read one after the other.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from kafkalog.streaming.source.plan.byte_splits import SMALLEST_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.streaming.source.plan.planner import LogSplit

__all__ = ["PACKED_BYTES", "pack_batch", "pack_micro_batch", "pack_splits"]

PACKED_BYTES: Final = 256 << 10
"""Bytes of segment files that are not worth another task: a core reads them in 3 ms."""

_TASKS_PER_CORE: Final = 4
"""As many tasks a core even out what splits differ in; more of them only cost."""


def pack_batch(
    splits: Sequence[LogSplit], split_bytes: int | None = None, *, cores: int | None = None
) -> list[tuple[LogSplit, ...]]:
    """Return what each task of a batch read reads.

    While there are few splits for the ``cores`` (this machine's, as for
    ``byte_splits.split_target``), each has a task: users expect a task for each topic partition
    then, as with Spark's Kafka source. ``split_bytes`` is the user's own limit.
    """
    if len(splits) <= _tasks(cores):
        return [(split,) for split in splits]
    return pack_splits(splits, _share(splits, split_bytes, cores))


def pack_micro_batch(
    splits: Sequence[LogSplit], split_bytes: int | None = None, *, cores: int | None = None
) -> list[tuple[LogSplit, ...]]:
    """Return what each task of a micro-batch reads: of a small one a single task reads all."""
    least = min(PACKED_BYTES, split_bytes or PACKED_BYTES)
    return pack_splits(splits, max(least, _share(splits, split_bytes, cores)))


def pack_splits(splits: Sequence[LogSplit], most_bytes: int) -> list[tuple[LogSplit, ...]]:
    """Put splits in a row together as long as they have ``most_bytes``, at least one a task."""
    packs: list[tuple[LogSplit, ...]] = []
    filled = 0
    for split in splits:
        if packs and filled + split.size <= most_bytes:
            packs[-1] = (*packs[-1], split)
            filled += split.size
        else:
            packs.append((split,))
            filled = split.size
    return packs


def _share(splits: Sequence[LogSplit], split_bytes: int | None, cores: int | None) -> int:
    total = sum(split.size for split in splits)
    return min(split_bytes or SMALLEST_BYTES, SMALLEST_BYTES, total // _tasks(cores))


def _tasks(cores: int | None) -> int:
    return _TASKS_PER_CORE * (cores or os.cpu_count() or 1)
