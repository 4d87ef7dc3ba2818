"""Which splits of a micro-batch share a task.

A task costs Spark some 15 ms of a core, whatever it reads: a micro-batch with a few rows in each of
many partitions would cost little else. So splits of few bytes are read one behind the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.streaming.source.planner import LogSplit

__all__ = ["PACKED_BYTES", "pack_splits"]

PACKED_BYTES: Final = 256 << 10
"""Bytes of segment files that are not worth another task: a core reads them in 3 ms."""


def pack_splits(
    splits: Sequence[LogSplit], most_bytes: int = PACKED_BYTES
) -> list[tuple[LogSplit, ...]]:
    """Give what each task reads: as many splits in a row as have ``most_bytes``, at least one."""
    packs: list[tuple[LogSplit, ...]] = []
    filled = 0
    for split in splits:
        size = sum(piece.size for piece in split.slices)
        if packs and filled + size <= most_bytes:
            packs[-1] = (*packs[-1], split)
            filled += size
        else:
            packs.append((split,))
            filled = size
    return packs
