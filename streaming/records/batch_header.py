"""The header of one batch, for callers that look at a few; see ``batch`` for many."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from kafkalog.model import NO_PRODUCER_ID, NO_TIMESTAMP
from kafkalog.streaming.records.batch_layout import (
    CODEC_MASK,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME_MASK,
    MAGIC,
    OVERHEAD,
    PREFIX,
)
from kafkalog.streaming.records.message_sets.layout import (
    ATTRIBUTES_POSITION,
    MESSAGE_OVERHEAD_V0,
    MESSAGE_OVERHEAD_V1,
    TIMESTAMP_POSITION,
)

__all__ = ["BatchHeader", "parse_header"]

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


def _parse_batch(data: bytes, position: int, size: int) -> BatchHeader | None:
    offset, _, _, _, _, attributes, delta, _, timestamp, producer_id, _, _, count = (
        HEADER.unpack_from(data)
    )
    if delta < 0:
        return None
    one_timestamp = bool(attributes & LOG_APPEND_TIME_MASK) or count <= 1
    return BatchHeader(
        *(position, size, offset, offset + delta, timestamp, producer_id, count),
        one_timestamp=one_timestamp,
    )
