"""The loops that turn columns into messages of magic 0 and 1, and that number messages.

The format is described in ``layout``; the state of an open set and the reasons to stop are those of
an open batch in ``encode_kernels``. What is read and written is checked to lie inside its arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.streaming.records.byte_kernels import copy_bytes, read_int
from kafkalog.streaming.records.crc_kernels import checksum
from kafkalog.streaming.records.encode_kernels import (
    BAD_COLUMN,
    BAD_OFFSET,
    BASE_TIMESTAMP,
    COUNT,
    DONE,
    FIRST_OFFSET,
    FULL,
    GROW,
    LAST_DELTA,
    MAX_TIMESTAMP,
    REQUIRED,
    USED,
    column_length,
    fetch_ahead,
)
from kafkalog.streaming.records.jit.inline import inlined
from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

__all__ = ["LARGEST", "STATE_SIZE", "append_messages", "number_messages"]

LARGEST: Final = 7
"""After the state of an open batch: bytes of the largest message."""
STATE_SIZE: Final = 8

_LOG_APPEND_TIME: Final = 0x08
_MAX_INT32: Final = 2**31 - 1
_MAX_INT64: Final = 2**63 - 1


@inlined
def store(data: Bytes, at: int, size: int, value: int) -> None:
    """Write the low ``size`` bytes of an integer, big-endian; the caller has checked the room."""
    for i in range(size):
        data[at + i] = (value >> (8 * (size - 1 - i))) & 0xFF


@inlined
def store_value(
    data: Bytes,
    at: int,
    source: Bytes,
    offsets: Integers,
    row: int,
    length: int,
) -> int:
    """Write a value's length and its bytes, return the position after them."""
    store(data, at, 4, length)
    at += 4
    if length > 0:
        copy_bytes(data, at, source, offsets[row], length)
        at += length
    return at


@kernel(
    "int64",
    "const int64[]",
    "int64",
    "const int64[]",
    "const uint8[]",
    "const uint8[]",
    "const int64[]",
    "const uint8[]",
    "const uint8[]",
    "const int64[]",
    "const int64[]",
    "int64",
    "int64",
    "const uint32[,]",
    "uint8[]",
    "int64",
    "int64[]",
    "int64[]",
)
def append_messages(
    rows: Integers,
    first: int,
    key_offsets: Integers,
    key_data: Bytes,
    key_valid: Bytes,
    value_offsets: Integers,
    value_data: Bytes,
    value_valid: Bytes,
    timestamps: Integers,
    given_offsets: Integers,
    attributes: int,
    stamp: int,
    tables: NDArray[np.uint32],
    out: Bytes,
    limit: int,
    state: Integers,
    stopped: Integers,
) -> int:
    """Append ``rows[first:]`` to the open set until it is full, and return the next row's index.

    Offsets in the set count from its first message. ``attributes`` is -1 for magic 0, which has no
    timestamps, else the attributes of each message of magic 1; with LogAppendTime in them, every
    timestamp is ``stamp`` (ms). ``given_offsets`` is empty or has the offset of each row. ``limit``
    is the size in bytes beyond which a set takes no further message, though it takes one at least;
    its offsets span no more than an int32, as those of a segment must. ``stopped[0]`` becomes the
    reason (``DONE`` to ``BAD_OFFSET``), ``stopped[1]`` the row it is about.
    """
    used, count = state[USED], state[COUNT]
    reason = DONE
    index = first
    header = 26 if attributes >= 0 else 18
    while index < len(rows):
        row = rows[index]
        if row < 0 or row >= len(timestamps):
            reason = BAD_COLUMN
            break
        fetch_ahead(rows, index, key_offsets, key_data, value_offsets, value_data)
        key_length = column_length(key_offsets, key_data, key_valid, row)
        length = column_length(value_offsets, value_data, value_valid, row)
        if key_length == -2 or length == -2:
            reason = BAD_COLUMN
            break
        offset = -1
        delta = state[LAST_DELTA] + 1 if count > 0 else 0
        if len(given_offsets) > 0:
            if row >= len(given_offsets):
                reason = BAD_COLUMN
                break
            offset = given_offsets[row]
            if offset < 0 or (count > 0 and offset <= state[FIRST_OFFSET] + state[LAST_DELTA]):
                reason = BAD_OFFSET
                break
            if count > 0:
                delta = offset - state[FIRST_OFFSET]
        if delta > _MAX_INT32:
            reason = FULL
            break
        size = header + 8 + max(key_length, 0) + max(length, 0)
        if count > 0 and used + size > limit:
            reason = FULL
            break
        if used + size > len(out):
            state[REQUIRED] = used + size
            reason = GROW
            break

        timestamp = timestamps[row] if attributes & _LOG_APPEND_TIME == 0 else stamp
        store(out, used, 8, delta)
        store(out, used + 8, 4, size - 12)
        if attributes < 0:
            timestamp = -1
            out[used + 16] = out[used + 17] = 0
        else:
            out[used + 16], out[used + 17] = 1, attributes
            store(out, used + 18, 8, timestamp)
        at = store_value(out, used + header, key_data, key_offsets, row, key_length)
        at = store_value(out, at, value_data, value_offsets, row, length)
        store(out, used + 12, 4, checksum(out, used + 16, at, tables))

        if count == 0:
            state[FIRST_OFFSET] = offset
            state[BASE_TIMESTAMP] = state[MAX_TIMESTAMP] = timestamp
        state[MAX_TIMESTAMP] = max(state[MAX_TIMESTAMP], timestamp)
        state[LAST_DELTA] = delta
        state[LARGEST] = max(state[LARGEST], size)
        count += 1
        used = at
        index += 1
    state[USED], state[COUNT] = used, count
    stopped[0] = reason
    stopped[1] = rows[index] if index < len(rows) else -1
    return index


@kernel("int64", "uint8[]", "int64")
def number_messages(data: Bytes, first_offset: int) -> int:
    """Give whole messages of magic 0 and 1 their final offsets, which lie outside their checksum.

    Each set in ``data`` counts from 0. Only the first one may be the rest of a set. A new set
    begins at a message whose offset is not above that of the one before it, at a wrapper, and after
    a wrapper. It gets the offsets after the last set's.

    Returns the offset after the last message. Returns ``-1 - position`` of the first entry that is
    no message, or that is a wrapper of magic 0, whose inner offsets are final.
    """
    position = 0
    base = following = first_offset
    last = -1
    while position < len(data):
        room = len(data) - position - 12
        if room < 14:
            return -1 - position
        size = read_int(data, position + 8, 4)
        relative = read_int(data, position, 8)
        magic = data[position + 16]
        compressed = (data[position + 17] & 7) != 0
        if size < 14 or size > room or magic > 1 or (compressed and magic == 0) or relative < 0:
            return -1 - position
        if compressed or relative <= last:
            base = following
        elif position == 0:
            base = first_offset - relative
        if base > _MAX_INT64 - 1 - relative:
            return -1 - position
        store(data, position, 8, base + relative)
        following = base + relative + 1
        last = _MAX_INT64 if compressed else relative
        position += 12 + size
    return following
