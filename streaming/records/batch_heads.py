"""The fields of a batch of magic 2 that are given when it is appended: offset and leader epoch.

While a batch is staged, its base offset is 0, or the final one if offsets are kept, its leader
epoch is -1, and the length between them is final. ``batch_layout`` says where they are.

They lie outside of the batch's CRC. Where it is known which batches there are, they are written
with arrays, or straight into a file, and nothing has to be walked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.model import NO_EPOCH
from kafkalog.streaming.records.batch_layout import (
    LEADER_EPOCH_POSITION,
    MAGIC_POSITION,
    OFFSET_POSITION,
    OVERHEAD,
    SIZE_POSITION,
)

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers
    from kafkalog.streaming.records.batch import BatchTable

__all__ = ["HEAD_BYTES", "heads_of", "stamp_heads", "unstamp_heads"]

HEAD_BYTES: Final = MAGIC_POSITION

_HEAD: Final = np.dtype([("base_offset", ">i8"), ("length", ">i4"), ("leader_epoch", ">i4")])


def heads_of(table: BatchTable) -> Bytes:
    """Return uint8[n, 16]: the first bytes of the n batches of ``table``, all of magic 2."""
    heads = np.empty(len(table), _HEAD)
    heads["base_offset"] = table.base_offset
    heads["length"] = table.size - OVERHEAD
    heads["leader_epoch"] = table.leader_epoch
    return heads.view(np.uint8).reshape(len(table), HEAD_BYTES)


def stamp_heads(data: Bytes, positions: Integers, heads: Bytes) -> None:
    """Write ``heads`` into the batches at ``positions`` (int64[n]) of a buffer, uint8[m]."""
    data[positions[:, None] + np.arange(HEAD_BYTES)] = heads


def unstamp_heads(data: Bytes, positions: Integers, *, keep_offsets: bool) -> None:
    """Bring batches in a buffer back to how they were staged, whatever was written so far.

    ``keep_offsets`` says that their offsets were final when they were staged.
    """
    if not keep_offsets:
        data[positions[:, None] + np.arange(OFFSET_POSITION, SIZE_POSITION)] = 0
    epoch = np.array([NO_EPOCH], ">i4").view(np.uint8)
    data[positions[:, None] + np.arange(LEADER_EPOCH_POSITION, HEAD_BYTES)] = epoch
