"""The header of one batch, for callers that look at a few; see ``batch`` for many."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkalog.model import NO_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP
from kafkalog.streaming.records.batch_layout import (
    CODEC_MASK,
    HEADER,
    HEADER_SIZE,
    LEADER_EPOCH_POSITION,
    LOG_APPEND_TIME_MASK,
    MAGIC,
    MAGIC_POSITION,
    OFFSET_POSITION,
    OVERHEAD,
    PREFIX,
    SIZE_POSITION,
)
from kafkalog.streaming.records.message_sets.layout import (
    ATTRIBUTES_POSITION,
    MESSAGE_OVERHEAD_V0,
    MESSAGE_OVERHEAD_V1,
    TIMESTAMP_POSITION,
)

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers
    from kafkalog.streaming.records.batch import BatchTable


__all__ = ["HEAD_BYTES", "BatchHeader", "heads_of", "parse_header", "stamp_heads", "unstamp_heads"]

_SMALLEST: Final = {0: MESSAGE_OVERHEAD_V0, 1: MESSAGE_OVERHEAD_V1, MAGIC: HEADER_SIZE}
"""Bytes of the smallest entry of each magic."""

_V1_TIMESTAMP: Final = struct.Struct(">q")


class BatchHeader(NamedTuple):
    """The first bytes of a batch, or of an outer message of magic 0 or 1."""

    position: int
    size: int
    offset: int
    """The base offset in magic 2, the last offset before."""
    last_offset: int
    max_timestamp: int = NO_TIMESTAMP
    producer_id: int = NO_PRODUCER_ID
    record_count: int = -1
    """Records that are there; -1 below magic 2."""
    is_wrapper: bool = False
    """Whether it is a compressed message of magic 0 or 1."""
    one_timestamp: bool = True
    """Whether it says of every record in it, by ``max_timestamp``, which timestamp that has."""

    @property
    def is_emptied(self) -> bool:
        """Whether a cleaner has left nothing but the header, which keeps its timestamp."""
        return self.record_count == 0


def parse_header(data: bytes, position: int, remaining: int) -> BatchHeader | None:
    """Parse the header of the entry at ``position``.

    Args:
        data: the first `HEADER_SIZE` bytes from there, or all that there are.
        position: where in the file it starts.
        remaining: bytes of the file from there on.

    Returns:
        None if no whole entry can be there.
    """
    if len(data) < PREFIX.size:
        return None
    offset, length, magic = PREFIX.unpack_from(data)
    size = OVERHEAD + length
    smallest = _SMALLEST.get(magic, remaining + 1)
    if not smallest <= size <= remaining or len(data) < smallest:
        return None
    if magic == MAGIC:
        return _parse_batch(data, position, size)
    attributes = data[ATTRIBUTES_POSITION]
    is_wrapper = bool(attributes & CODEC_MASK)
    if magic == 0:
        return BatchHeader(position, size, offset, offset, is_wrapper=is_wrapper)
    (timestamp,) = _V1_TIMESTAMP.unpack_from(data, TIMESTAMP_POSITION)
    one_timestamp = bool(attributes & LOG_APPEND_TIME_MASK) or not is_wrapper
    return BatchHeader(
        *(position, size, offset, offset, timestamp),
        is_wrapper=is_wrapper,
        one_timestamp=one_timestamp,
    )


def _parse_batch(data: bytes, position: int, size: int) -> BatchHeader:
    """Parse a whole batch. One with a negative delta cannot be read, and passed over it can be."""
    offset, _, _, _, _, attributes, delta, _, timestamp, producer_id, _, _, count = (
        HEADER.unpack_from(data)
    )
    one_timestamp = bool(attributes & LOG_APPEND_TIME_MASK) or count <= 1
    return BatchHeader(
        *(position, size, offset, offset + max(delta, 0), timestamp, producer_id, count),
        one_timestamp=one_timestamp,
    )


# ----------------------------------------------------------------------------------------------
# The fields of a batch of magic 2 that are given when it is appended: offset and leader epoch.
#
# While a batch is staged, its base offset is 0, or the final one if offsets are kept, its leader
# epoch is -1, and the length between them is final. ``batch_layout`` says where they are.
#
# They lie outside of the batch's CRC. Where it is known which batches there are, they are written
# with arrays, or straight into a file, and nothing has to be walked.


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
