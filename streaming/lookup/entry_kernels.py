"""LevelDB's coding of an entry, and the loops that write and read entries one after the other.

::

    varint32  length of key and tag
    bytes     key
    uint64    tag, little-endian: sequence number << 8 | type (0 deletion, 1 value)
    varint32  length of the value
    bytes     value

The sequence number of a record is its offset. A varint32 here is LevelDB's: an unsigned number in
groups of 7 bits, the least significant first, in at most 5 bytes, without zig-zag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.streaming.records.byte_kernels import copy_bytes
from kafkalog.streaming.records.jit.inline import inlined
from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

DELETION: Final = 0
VALUE: Final = 1
TAG_SIZE: Final = 8
SMALLEST_ENTRY: Final = 1 + TAG_SIZE + 1
"""The bytes of an entry without a byte of key and value."""

ANY: Final = 1 << 31
"""A width with which all keys fall into the first bucket."""

BROKEN: Final = -1
"""Bytes that are no entry, or a row outside of its bytes."""

_MASK: Final = 0xFFFFFFFF
_LAST_SHIFT: Final = 28


@inlined
def size_of_varint32(value: int) -> int:
    """Return the bytes that an unsigned number takes."""
    size = 1
    while value >= 0x80:
        size += 1
        value >>= 7
    return size


@inlined
def put_varint32(out: Bytes, position: int, value: int) -> int:
    """Write an unsigned number and return where it ends; the caller has checked the room."""
    while value >= 0x80:
        out[position] = (value & 0x7F) | 0x80
        position += 1
        value >>= 7
    out[position] = value
    return position + 1


@inlined
def read_varint32(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Read a number in ``data[position:end]``; return it and where it ends, or -1 if it does not.

    As in LevelDB, bits of the fifth byte that 32 have no room for are dropped.
    """
    value, shift = np.int64(0), 0
    while position < end and shift <= _LAST_SHIFT:
        byte = np.int64(data[position])
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return int(value) & _MASK, position
        shift += 7
    return 0, -1


@inlined
def put_tag(out: Bytes, position: int, sequence: int, kind: int) -> int:
    """Write a tag and return where it ends; the caller has checked that there is room."""
    out[position] = kind
    for i in range(1, TAG_SIZE):
        out[position + i] = (sequence >> (8 * (i - 1))) & 0xFF
    return position + TAG_SIZE


@inlined
def read_sequence(data: Bytes, position: int) -> int:
    """Read the sequence number of a tag; the caller has checked that it lies inside."""
    sequence = np.int64(0)
    for i in range(1, TAG_SIZE):
        sequence |= np.int64(data[position + i]) << (8 * (i - 1))
    return int(sequence)


@inlined
def size_of_entry(key_length: int, value_length: int) -> int:
    """Return the bytes of an entry."""
    key_size = key_length + TAG_SIZE
    return size_of_varint32(key_size) + key_size + size_of_varint32(value_length) + value_length


@kernel(
    "int64",
    *("const uint8[]", "const int64[]", "const int64[]", "const int64[]"),
    *("const int64[]", "const int64[]", "const int64[]"),
    *("int64", "int64", "int64", "uint8[,]", "int64[]"),
)
def add_to_buckets(
    source: Bytes,
    key_starts: Integers,
    key_lengths: Integers,
    value_lengths: Integers,
    offsets: Integers,
    hashes: Integers,
    rows: Integers,
    left: int,
    low: int,
    width: int,
    buckets: Bytes,
    used: Integers,
) -> int:
    """Write entries without values into the buckets of their keys, the last row first.

    ``rows[:left]`` are taken. The bucket of a key is ``((hash >> 32) - low) // width``. Gives how
    many rows are left, 0 if all were taken: the bucket of the last one that is left has no room.
    Gives BROKEN if a row, key or bucket lies outside of what there is.
    """
    left = min(left, rows.shape[0])
    most = min(
        *(key_starts.shape[0], key_lengths.shape[0], value_lengths.shape[0]),
        *(offsets.shape[0], hashes.shape[0]),
    )
    if width <= 0:
        return BROKEN
    while left > 0:
        row = rows[left - 1]
        if row < 0 or row >= most:
            return BROKEN
        start, length = key_starts[row], key_lengths[row]
        bucket = ((hashes[row] >> 32) - low) // width
        if start < 0 or length < 0 or length > source.shape[0] - start:
            return BROKEN
        if bucket < 0 or bucket >= min(buckets.shape[0], used.shape[0]):
            return BROKEN
        at = used[bucket]
        if at < 0 or size_of_entry(length, 0) > buckets.shape[1] - at:
            return int(left)
        out = buckets[bucket]
        at = put_varint32(out, at, length + TAG_SIZE)
        copy_bytes(out, at, source, start, length)
        at = put_tag(out, at + length, offsets[row], VALUE if value_lengths[row] >= 0 else DELETION)
        used[bucket] = put_varint32(out, at, 0)
        left -= 1
    return 0


@kernel("int64", "const uint8[]", "int64[]", "int64[]", "int64[]", "uint8[]")
def find_entries(
    data: Bytes, key_starts: Integers, key_lengths: Integers, sequences: Integers, kinds: Bytes
) -> int:
    """Find the keys and tags of entries, the last one first; values are passed over.

    The columns are filled from their ends on: what comes first in ``data`` comes last there. Gives
    the number of entries. Gives BROKEN for bytes that are no entries, and for too many of them.
    """
    at, end, found = 0, data.shape[0], 0
    room = min(key_starts.shape[0], key_lengths.shape[0], sequences.shape[0], kinds.shape[0])
    while at < end:
        size, at = read_varint32(data, at, end)
        if at < 0 or size < TAG_SIZE or size > end - at or found >= room:
            return BROKEN
        found += 1
        tag = at + size - TAG_SIZE
        key_starts[key_starts.shape[0] - found] = at
        key_lengths[key_lengths.shape[0] - found] = size - TAG_SIZE
        sequences[sequences.shape[0] - found] = read_sequence(data, tag)
        kinds[kinds.shape[0] - found] = data[tag]
        size, at = read_varint32(data, at + size, end)
        if at < 0 or size > end - at:
            return BROKEN
        at += size
    return found
