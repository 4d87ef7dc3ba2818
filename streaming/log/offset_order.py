"""Which batches have offsets that fit: no checksum covers the base offset of a batch.

Offsets ascend through a log, with gaps where compaction has removed records. A batch is damaged if
its offsets do not follow those before it. It is also damaged if a gap before it or inside of it
leaps over the next batch, which would fit without it. A gap that nothing after it contradicts is a
gap.

How far offsets lie from the segment's base offset is no measure: brokers before 2.0 let segments
span more than 2^31 of them (KAFKA-5413, KAFKA-6264), which their indexes cannot express.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from kafkalog.streaming.records.batch import BatchTable

    Integers = npt.NDArray[np.int64]

__all__ = ["ends_with_gap", "misplaced"]


def ends_with_gap(table: BatchTable, before: int) -> bool:
    """Return whether offsets are missing before the last one of some batches, or inside of it.

    Args:
        table: n > 0 batches.
        before: the last offset before them.
    """
    previous = before if len(table) == 1 else int(table.last_offset[-2])
    base, last = int(table.base_offset[-1]), int(table.last_offset[-1])
    if table.magic[-1] < 2:
        return last != previous + 1
    return base != previous + 1 or last - base + 1 != int(table.count[-1])


def misplaced(table: BatchTable, before: int, after: int) -> npt.NDArray[np.bool_]:
    """Return which batches have offsets that do not fit.

    Args:
        table: n > 0 batches.
        before: the last offset before them.
        after: the first offset after them; ``MAX_OFFSET`` if it is not known.

    Returns:
        bool[n]
    """
    first, last = _first_offsets(table), table.last_offset
    wrong = np.zeros(len(table), np.bool_)
    if last[-1] < after and (first > np.concatenate(([before], last[:-1]))).all():
        return wrong
    following = np.concatenate((first[1:], [after]))
    has_all = _has_all(table)
    for row in range(len(table)):
        has_gap = first[row] != before + 1 or not has_all[row]
        leaps = has_gap and before < following[row] <= last[row]
        wrong[row] = leaps or first[row] <= before
        if not wrong[row]:
            before = int(last[row])
    return wrong


def _has_all(table: BatchTable) -> npt.NDArray[np.bool_]:
    """Return which batches have as many records as offsets; outer messages count as one."""
    has_all: npt.NDArray[np.bool_] = table.last_offset - table.base_offset + 1 == table.count
    return has_all | (table.magic < 2)


def _first_offsets(table: BatchTable) -> Integers:
    """Return the first offset of each batch; of outer messages of magic 0 and 1, the only one."""
    return np.where(table.magic == 2, table.base_offset, table.last_offset)
