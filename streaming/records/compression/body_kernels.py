"""Bounds of what is decompressed, asked by each kernel before a library sees a length.

Compiled into the kernels that call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kafkalog.streaming.records.jit.inline import inlined

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes

__all__ = ["room_for"]


@inlined
def room_for(data: Bytes, start: int, size: int, wanted: int, free: int, limit: int) -> int:
    """Return how many bytes ``data[start : start + size]`` may hold, decompressed.

    That is ``limit``, or what is ``free`` in the output if that is less; -1 if it is not ``wanted``
    (0), does not lie inside, or nothing is left of the output.
    """
    if wanted == 0 or start < 0 or size < 0 or start > data.shape[0] - size or free < 0:
        return np.int64(-1)
    return min(free, limit)
