"""The loops that turn columns into records of magic 2, and that number batches.

A record (Kafka ``DefaultRecord``; all lengths are zig-zag varints, see ``batch`` for the header)::

    length          varint   bytes after this field
    attributes      int8     0
    timestampDelta  varlong  to the batch's base timestamp
    offsetDelta     varint   to the batch's base offset
    keyLength       varint   -1 = null, then the key
    valueLength     varint   -1 = null, then the value
    headerCount     varint   then per header: keyLength, key, valueLength (-1 = null), value

Every kernel checks that what it reads and writes lies inside its arrays. Offsets into Arrow data
come from Arrow itself, yet a broken producer can hand over any: they are checked as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.streaming.records.jit import inlined, kernel

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

# The open batch's state, int64[STATE_SIZE].
USED: Final = 0  # bytes of `out` in use, the room for the header included
COUNT: Final = 1  # records in the batch
BASE_TIMESTAMP: Final = 2  # ms, the first record's
MAX_TIMESTAMP: Final = 3  # ms
FIRST_OFFSET: Final = 4  # the first record's where offsets are given, else -1
LAST_DELTA: Final = 5  # offset delta of the last record
REQUIRED: Final = 6  # bytes that `out` must have for the next record (GROW)
STATE_SIZE: Final = 7

# Why `append_records` stopped.
DONE: Final = 0  # all rows are in
FULL: Final = 1  # the next row belongs into another batch
GROW: Final = 2  # `out` is too small: see REQUIRED
BAD_COLUMN: Final = 3  # offsets that point outside of their data
BAD_OFFSET: Final = 4  # a given offset that is not above the one before

_MAX_INT32: Final = 2**31 - 1


@inlined
def _varint_size(value: int) -> int:
    zigzag = (value << 1) ^ (value >> 63)
    size = 1
    while (zigzag & ~0x7F) != 0 and size < 10:
        zigzag = (zigzag >> 7) & 0x01FFFFFFFFFFFFFF
        size += 1
    return size


@inlined
def _put_varint(out: Bytes, position: int, value: int) -> int:
    zigzag = (value << 1) ^ (value >> 63)
    count = 1
    while (zigzag & ~0x7F) != 0 and count < 10:
        out[position] = (zigzag & 0x7F) | 0x80
        zigzag = (zigzag >> 7) & 0x01FFFFFFFFFFFFFF
        position += 1
        count += 1
    out[position] = zigzag & 0x7F
    return position + 1


@inlined
def _length(offsets: Integers, data: Bytes, valid: Bytes, row: int) -> int:
    """Give a value's length, -1 for null, -2 for offsets that are no use."""
    if row + 1 >= offsets.shape[0] or (valid.shape[0] > row and valid[row] == 0):
        return -1
    start, end = offsets[row], offsets[row + 1]
    if start < 0 or end < start or end > data.shape[0] or end - start > _MAX_INT32:
        return -2
    return end - start


@inlined
def _put_bytes(out: Bytes, position: int, data: Bytes, start: int, length: int) -> int:
    position = _put_varint(out, position, length)
    for i in range(length):
        out[position + i] = data[start + i]
    return position + max(length, 0)


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
    "const uint8[]",
    "const int64[]",
    "const uint8[]",
    "const uint8[]",
    "const int64[]",
    "const int64[]",
    "uint8[]",
    "int64",
    "int64[]",
    "int64[]",
)
def append_records(
    rows: Integers,
    first: int,
    key_offsets: Integers,
    key_data: Bytes,
    key_valid: Bytes,
    value_offsets: Integers,
    value_data: Bytes,
    value_valid: Bytes,
    header_starts: Integers,
    header_key_offsets: Integers,
    header_key_data: Bytes,
    header_value_offsets: Integers,
    header_value_data: Bytes,
    header_value_valid: Bytes,
    timestamps: Integers,
    given_offsets: Integers,
    out: Bytes,
    limit: int,
    state: Integers,
    stopped: Integers,
) -> int:
    """Append ``rows[first:]`` to the open batch until it is full, and give the next row's index.

    ``header_starts`` is int64[n + 1] into the header columns, or empty: no headers. ``timestamps``
    (ms) has a value per row; ``given_offsets`` is empty, or has the offset of each row. ``limit``
    is the size in bytes beyond which a batch takes no further record, though it takes one at
    least. ``state`` is the open batch, ``stopped[0]`` becomes the reason (``DONE`` to
    ``BAD_OFFSET``), ``stopped[1]`` the row it is about.
    """
    used, count = state[USED], state[COUNT]
    base_timestamp, max_timestamp = state[BASE_TIMESTAMP], state[MAX_TIMESTAMP]
    first_offset, last_delta = state[FIRST_OFFSET], state[LAST_DELTA]
    reason = DONE
    index = first
    while index < rows.shape[0]:
        row = rows[index]
        if row < 0 or row >= timestamps.shape[0]:
            reason = BAD_COLUMN
            break
        key_length = _length(key_offsets, key_data, key_valid, row)
        value_length = _length(value_offsets, value_data, value_valid, row)
        if key_length == -2 or value_length == -2:
            reason = BAD_COLUMN
            break
        timestamp = timestamps[row]
        timestamp_delta = timestamp - base_timestamp if count > 0 else 0
        offset_delta = last_delta + 1 if count > 0 else 0
        offset = -1
        if given_offsets.shape[0] > 0:
            if row >= given_offsets.shape[0]:
                reason = BAD_COLUMN
                break
            offset = given_offsets[row]
            if offset < 0 or (count > 0 and offset <= first_offset + last_delta):
                reason = BAD_OFFSET
                break
            offset_delta = offset - first_offset if count > 0 else 0
        if offset_delta > _MAX_INT32 or count >= _MAX_INT32:
            reason = FULL
            break

        body = 1 + _varint_size(timestamp_delta) + _varint_size(offset_delta)
        body += _varint_size(key_length) + max(key_length, 0)
        body += _varint_size(value_length) + max(value_length, 0)
        header, header_end = 0, 0
        if row + 1 < header_starts.shape[0]:
            header, header_end = header_starts[row], header_starts[row + 1]
            if header < 0 or header_end < header:
                reason = BAD_COLUMN
                break
        body += _varint_size(header_end - header)
        for i in range(header, header_end):
            name_length = _length(header_key_offsets, header_key_data, header_key_data[:0], i)
            data_length = _length(header_value_offsets, header_value_data, header_value_valid, i)
            if name_length < 0 or data_length == -2:
                reason = BAD_COLUMN
                break
            body += _varint_size(name_length) + name_length
            body += _varint_size(data_length) + max(data_length, 0)
        if reason != DONE:
            break
        size = _varint_size(body) + body
        if count > 0 and used + size > limit:
            reason = FULL
            break
        if used + size > out.shape[0]:
            state[REQUIRED] = used + size
            reason = GROW
            break

        position = _put_varint(out, used, body)
        out[position] = 0
        position = _put_varint(out, position + 1, timestamp_delta)
        position = _put_varint(out, position, offset_delta)
        start = key_offsets[row] if key_length > 0 else 0
        position = _put_bytes(out, position, key_data, start, key_length)
        start = value_offsets[row] if value_length > 0 else 0
        position = _put_bytes(out, position, value_data, start, value_length)
        position = _put_varint(out, position, header_end - header)
        for i in range(header, header_end):
            start = header_key_offsets[i]
            length = header_key_offsets[i + 1] - start
            position = _put_bytes(out, position, header_key_data, start, length)
            length = _length(header_value_offsets, header_value_data, header_value_valid, i)
            start = header_value_offsets[i] if length > 0 else 0
            position = _put_bytes(out, position, header_value_data, start, length)

        if count == 0:
            base_timestamp, max_timestamp = timestamp, timestamp
            first_offset = offset
        max_timestamp = max(max_timestamp, timestamp)
        last_delta = offset_delta
        count += 1
        used = position
        index += 1
    state[USED], state[COUNT] = used, count
    state[BASE_TIMESTAMP], state[MAX_TIMESTAMP] = base_timestamp, max_timestamp
    state[FIRST_OFFSET], state[LAST_DELTA] = first_offset, last_delta
    stopped[0] = reason
    stopped[1] = rows[index] if index < rows.shape[0] else -1
    return index


@kernel("int64", "uint8[]", "int64", "int64")
def number_batches(data: Bytes, first_offset: int, leader_epoch: int) -> int:
    """Write base offset and leader epoch into each batch of magic 2, both outside its checksum.

    Gives the offset after the last one, or ``-1 - position`` of the first entry that is none.
    """
    position, offset = 0, first_offset
    while position < data.shape[0]:
        if data.shape[0] - position < 61 or data[position + 16] != 2:
            return -1 - position
        length, delta = 0, 0
        for i in range(4):
            length = (length << 8) | np.int64(data[position + 8 + i])
            delta = (delta << 8) | np.int64(data[position + 23 + i])
        if length < 49 or length > data.shape[0] - position - 12 or delta > _MAX_INT32:
            return -1 - position
        for i in range(8):
            data[position + i] = (offset >> (56 - 8 * i)) & 0xFF
        for i in range(4):
            data[position + 12 + i] = (leader_epoch >> (24 - 8 * i)) & 0xFF
        offset += delta + 1
        position += 12 + length
    return offset
