"""The loops that turn columns into records of magic 2, and that number batches.

A record (Kafka ``DefaultRecord``; all lengths are zig-zag varints, see ``batch_layout`` for the
header)::

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

from kafkalog.streaming.records.batch_layout import (
    HEADER_SIZE,
    LAST_OFFSET_DELTA_POSITION,
    LEADER_EPOCH_POSITION,
    MAGIC,
    MAGIC_POSITION,
    OFFSET_POSITION,
    OVERHEAD,
    SIZE_POSITION,
)
from kafkalog.streaming.records.byte_kernels import (
    copy_bytes,
    prefetch,
    put_varint,
    read_int,
    varint_size,
)
from kafkalog.streaming.records.jit.inline import inlined
from kafkalog.streaming.records.jit.kernel import kernel

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

# The rows of a partition lie apart, so that the processor does not see what comes next.
_AHEAD: Final = 16
_LINE: Final = 64
_FETCHED_LINES: Final = 4


@inlined
def column_length(offsets: Integers, data: Bytes, valid: Bytes, row: int) -> int:
    """Return a value's length, -1 for null, -2 for offsets that cannot be right."""
    if row + 1 >= offsets.shape[0] or (valid.shape[0] > row and valid[row] == 0):
        return -1
    start, end = offsets[row], offsets[row + 1]
    if start < 0 or end < start or end > data.shape[0] or end - start > _MAX_INT32:
        return -2
    return end - start


@inlined
def fetch_ahead(
    rows: Integers,
    index: int,
    key_offsets: Integers,
    key_data: Bytes,
    value_offsets: Integers,
    value_data: Bytes,
) -> None:
    """Let the bytes of a row come into the cache that is appended some rows after ``index``."""
    if index + _AHEAD < rows.shape[0]:
        coming = rows[index + _AHEAD]
        _fetch_value(key_offsets, key_data, coming)
        _fetch_value(value_offsets, value_data, coming)


@inlined
def _fetch_value(offsets: Integers, data: Bytes, row: int) -> None:
    """Let the bytes of a value come into the cache, as many as a few cache lines."""
    if 0 <= row and row + 1 < offsets.shape[0]:
        start, end = offsets[row], offsets[row + 1]
        for line in range(_FETCHED_LINES):
            if start + line * _LINE < end:
                prefetch(data, start + line * _LINE)
        prefetch(data, end - 1)


@inlined
def _value_size(length: int) -> int:
    return varint_size(length) + max(length, 0)


@inlined
def _put_value(
    out: Bytes, position: int, data: Bytes, offsets: Integers, row: int, length: int
) -> int:
    position = put_varint(out, position, length)
    if length > 0:
        copy_bytes(out, position, data, offsets[row], length)
        position += length
    return position


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
    """Append ``rows[first:]`` to the open batch until it is full, and return the next row's index.

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
        fetch_ahead(rows, index, key_offsets, key_data, value_offsets, value_data)
        key_length = column_length(key_offsets, key_data, key_valid, row)
        value_length = column_length(value_offsets, value_data, value_valid, row)
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

        body = 1 + varint_size(timestamp_delta) + varint_size(offset_delta)
        body += _value_size(key_length) + _value_size(value_length)
        header, header_end = 0, 0
        if row + 1 < header_starts.shape[0]:
            header, header_end = header_starts[row], header_starts[row + 1]
            if header < 0 or header_end < header:
                reason = BAD_COLUMN
                break
        body += varint_size(header_end - header)
        for i in range(header, header_end):
            name_length = column_length(header_key_offsets, header_key_data, header_key_data[:0], i)
            data_length = column_length(
                header_value_offsets, header_value_data, header_value_valid, i
            )
            if name_length < 0 or data_length == -2:
                reason = BAD_COLUMN
                break
            body += _value_size(name_length) + _value_size(data_length)
        if reason != DONE:
            break
        size = varint_size(body) + body
        if count > 0 and used + size > limit:
            reason = FULL
            break
        if used + size > out.shape[0]:
            state[REQUIRED] = used + size
            reason = GROW
            break

        position = put_varint(out, used, body)
        out[position] = 0
        position = put_varint(out, position + 1, timestamp_delta)
        position = put_varint(out, position, offset_delta)
        position = _put_value(out, position, key_data, key_offsets, row, key_length)
        position = _put_value(out, position, value_data, value_offsets, row, value_length)
        position = put_varint(out, position, header_end - header)
        for i in range(header, header_end):
            name_length = header_key_offsets[i + 1] - header_key_offsets[i]
            position = _put_value(
                out, position, header_key_data, header_key_offsets, i, name_length
            )
            data_length = column_length(
                header_value_offsets, header_value_data, header_value_valid, i
            )
            position = _put_value(
                out, position, header_value_data, header_value_offsets, i, data_length
            )

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
        if data.shape[0] - position < HEADER_SIZE or data[position + MAGIC_POSITION] != MAGIC:
            return -1 - position
        length = read_int(data, position + SIZE_POSITION, 4)
        delta = read_int(data, position + LAST_OFFSET_DELTA_POSITION, 4)
        size = OVERHEAD + length
        if size < HEADER_SIZE or size > data.shape[0] - position or delta < 0:
            return -1 - position
        for i in range(8):
            data[position + OFFSET_POSITION + i] = (offset >> (56 - 8 * i)) & 0xFF
        for i in range(4):
            data[position + LEADER_EPOCH_POSITION + i] = (leader_epoch >> (24 - 8 * i)) & 0xFF
        offset += delta + 1
        position += size
    return offset
