"""The loop that turns records of magic 2 into Arrow buffers; ``encode_kernels`` has the fields.

It trusts nothing: each length is held against the end of what encloses it before a byte behind it
is read, varints end after 5 (int) or 10 (long) bytes, and a record must fill its length exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.streaming.records.jit import inlined, kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

# The columns of `sections`, int64[m, SECTION_FIELDS]: where each batch's records lie.
START: Final = 0
END: Final = 1
BASE_OFFSET: Final = 2
BASE_TIMESTAMP: Final = 3
STAMP: Final = 4  # the append time, ms
IS_STAMPED: Final = 5  # 1: STAMP is every record's timestamp
COUNT: Final = 6
SECTION_FIELDS: Final = 7

# The cursor, int64[CURSOR_SIZE]: where to go on, and how much of the output is in use.
SECTION: Final = 0
AT: Final = 1  # position in `source`; 0 in front of a section
RECORD: Final = 2  # records of this section that are done
ROWS: Final = 3
KEY_BYTES: Final = 4
VALUE_BYTES: Final = 5
HEADERS: Final = 6
HEADER_KEY_BYTES: Final = 7
HEADER_VALUE_BYTES: Final = 8
REQUIRED: Final = 9  # with NEEDS_*: what that output must have room for
CURSOR_SIZE: Final = 10

# Why `decode_records` stopped.
DONE: Final = 0
FULL: Final = 1  # no room for another row: take what is there and start over at row 0
NEEDS_KEY: Final = 2  # one row alone needs more room: REQUIRED
NEEDS_VALUE: Final = 3
NEEDS_HEADERS: Final = 4
NEEDS_HEADER_KEY: Final = 5
NEEDS_HEADER_VALUE: Final = 6
BAD_VARINT: Final = 7
BAD_RECORD_LENGTH: Final = 8
BAD_KEY_LENGTH: Final = 9
BAD_VALUE_LENGTH: Final = 10
BAD_HEADER: Final = 11
BAD_OFFSET_DELTA: Final = 12
LEFT_OVER_BYTES: Final = 13  # the record, or the batch, is longer than its fields

_MIN_HEADER: Final = 2
_MAX_INT32: Final = 2**31 - 1


@inlined
def _varint(source: Bytes, at: int, end: int, most: int, read: Integers) -> int:
    """Read a zig-zag varint of at most ``most`` bytes; ``read[0]`` becomes what follows, or -1."""
    value = np.int64(0)
    shift = 0
    while at < end and shift < 7 * most:
        byte = np.int64(source[at])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            read[0] = at
            return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1)
        shift += 7
    read[0] = -1
    return 0


@inlined
def _set_valid(bitmap: Bytes, row: int, valid: int) -> None:
    if row & 7 == 0:
        bitmap[row >> 3] = 0
    bitmap[row >> 3] |= np.uint8(valid << (row & 7))


@inlined
def _copy(source: Bytes, start: int, length: int, out: Bytes, at: int) -> None:
    for i in range(length):
        out[at + i] = source[start + i]


@kernel(
    "int64",
    "const uint8[]",
    "const int64[,]",
    "int64",
    "int64",
    "int64",
    "int64",
    "int64",
    "int64[]",
    "int64[]",
    "int64[]",
    "int32[]",
    "int32[]",
    "uint8[]",
    "uint8[]",
    "int32[]",
    "uint8[]",
    "uint8[]",
    "int32[]",
    "int32[]",
    "uint8[]",
    "int32[]",
    "uint8[]",
    "uint8[]",
    "int64[]",
)
def decode_records(
    source: Bytes,
    sections: Integers,
    first_offset: int,
    end_offset: int,
    want_key: int,
    want_value: int,
    want_headers: int,
    cursor: Integers,
    offsets: Integers,
    timestamps: Integers,
    timestamp_types: NDArray[np.int32],
    key_offsets: NDArray[np.int32],
    keys: Bytes,
    key_valid: Bytes,
    value_offsets: NDArray[np.int32],
    values: Bytes,
    value_valid: Bytes,
    header_starts: NDArray[np.int32],
    header_key_offsets: NDArray[np.int32],
    header_keys: Bytes,
    header_value_offsets: NDArray[np.int32],
    header_values: Bytes,
    header_value_valid: Bytes,
    read: Integers,
) -> int:
    """Append rows with ``first_offset <= offset < end_offset`` to the output while there is room.

    The outputs are those of Arrow: ``offsets``, ``timestamps`` (ms) and ``timestamp_types`` have
    room for r rows, ``*_offsets`` for r + 1 (header ones: h + 1), ``*_valid`` are bitmaps.
    ``read`` is int64[1] of scratch. Gives the reason it stopped (``DONE`` to ``LEFT_OVER_BYTES``);
    the cursor then says where, and another call goes on from there.
    """
    section, at, record = cursor[SECTION], cursor[AT], cursor[RECORD]
    rows = cursor[ROWS]
    key_bytes, value_bytes = cursor[KEY_BYTES], cursor[VALUE_BYTES]
    headers = cursor[HEADERS]
    header_key_bytes, header_value_bytes = cursor[HEADER_KEY_BYTES], cursor[HEADER_VALUE_BYTES]
    room = offsets.shape[0]
    reason = DONE
    while section < sections.shape[0] and reason == DONE:
        end = sections[section, END]
        count = sections[section, COUNT]
        base_offset = sections[section, BASE_OFFSET]
        base_timestamp = sections[section, BASE_TIMESTAMP]
        stamped = sections[section, IS_STAMPED]
        if record == 0:
            at = sections[section, START]
        if at < 0 or end > source.shape[0]:
            reason = BAD_RECORD_LENGTH
            break
        while record < count:
            length = _varint(source, at, end, 5, read)
            position = read[0]
            if position < 0:
                reason = BAD_VARINT
                break
            if length < 0 or length > end - position:
                reason = BAD_RECORD_LENGTH
                break
            body_end = position + length
            if length < 1:
                reason = BAD_RECORD_LENGTH
                break
            timestamp_delta = _varint(source, position + 1, body_end, 10, read)
            if read[0] < 0:
                reason = BAD_VARINT
                break
            offset_delta = _varint(source, read[0], body_end, 5, read)
            if read[0] < 0:
                reason = BAD_VARINT
                break
            if offset_delta < 0 or offset_delta > _MAX_INT32:
                reason = BAD_OFFSET_DELTA
                break
            key_length = _varint(source, read[0], body_end, 5, read)
            key_at = read[0]
            if key_at < 0:
                reason = BAD_VARINT
                break
            if key_length < -1 or key_length > body_end - key_at:
                reason = BAD_KEY_LENGTH
                break
            value_length = _varint(source, key_at + max(key_length, 0), body_end, 5, read)
            value_at = read[0]
            if value_at < 0:
                reason = BAD_VARINT
                break
            if value_length < -1 or value_length > body_end - value_at:
                reason = BAD_VALUE_LENGTH
                break
            header_count = _varint(source, value_at + max(value_length, 0), body_end, 5, read)
            headers_at = read[0]
            if headers_at < 0:
                reason = BAD_VARINT
                break
            if header_count < 0 or header_count > (body_end - headers_at) // _MIN_HEADER:
                reason = BAD_HEADER
                break
            # Walk the headers in any case: the record must end where they do.
            position = headers_at
            name_bytes, data_bytes = 0, 0
            for _ in range(header_count):
                name_length = _varint(source, position, body_end, 5, read)
                position = read[0]
                if position < 0 or name_length < 0 or name_length > body_end - position:
                    reason = BAD_HEADER
                    break
                position += name_length
                name_bytes += name_length
                data_length = _varint(source, position, body_end, 5, read)
                position = read[0]
                if position < 0 or data_length < -1 or data_length > body_end - position:
                    reason = BAD_HEADER
                    break
                position += max(data_length, 0)
                data_bytes += max(data_length, 0)
            if reason != DONE:
                break
            if position != body_end:
                reason = LEFT_OVER_BYTES
                break

            offset = base_offset + offset_delta
            if offset >= first_offset and offset < end_offset:
                if rows >= room:
                    reason = FULL
                    break
                needs_key = max(key_length, 0) if want_key != 0 else 0
                needs_value = max(value_length, 0) if want_value != 0 else 0
                needs_headers = header_count if want_headers != 0 else 0
                if want_headers == 0:
                    name_bytes, data_bytes = 0, 0
                if needs_key > keys.shape[0] - key_bytes:
                    reason = NEEDS_KEY
                    cursor[REQUIRED] = needs_key
                elif needs_value > values.shape[0] - value_bytes:
                    reason = NEEDS_VALUE
                    cursor[REQUIRED] = needs_value
                elif needs_headers > header_key_offsets.shape[0] - 1 - headers and want_headers:
                    reason = NEEDS_HEADERS
                    cursor[REQUIRED] = needs_headers
                elif name_bytes > header_keys.shape[0] - header_key_bytes:
                    reason = NEEDS_HEADER_KEY
                    cursor[REQUIRED] = name_bytes
                elif data_bytes > header_values.shape[0] - header_value_bytes:
                    reason = NEEDS_HEADER_VALUE
                    cursor[REQUIRED] = data_bytes
                if reason != DONE:
                    if rows > 0:
                        reason = FULL
                    break
                offsets[rows] = offset
                if stamped != 0:
                    timestamps[rows] = sections[section, STAMP]
                    timestamp_types[rows] = 1
                else:
                    timestamps[rows] = base_timestamp + timestamp_delta
                    timestamp_types[rows] = 0
                if want_key != 0:
                    _set_valid(key_valid, rows, 1 if key_length >= 0 else 0)
                    _copy(source, key_at, needs_key, keys, key_bytes)
                    key_bytes += needs_key
                    key_offsets[rows + 1] = key_bytes
                if want_value != 0:
                    _set_valid(value_valid, rows, 1 if value_length >= 0 else 0)
                    _copy(source, value_at, needs_value, values, value_bytes)
                    value_bytes += needs_value
                    value_offsets[rows + 1] = value_bytes
                if want_headers != 0:
                    position = headers_at
                    for _ in range(header_count):
                        name_length = _varint(source, position, body_end, 5, read)
                        position = read[0]
                        _copy(source, position, name_length, header_keys, header_key_bytes)
                        header_key_bytes += name_length
                        data_length = _varint(source, position + name_length, body_end, 5, read)
                        position = read[0]
                        _set_valid(header_value_valid, headers, 1 if data_length >= 0 else 0)
                        data_length = max(data_length, 0)
                        _copy(source, position, data_length, header_values, header_value_bytes)
                        header_value_bytes += data_length
                        position += data_length
                        headers += 1
                        header_key_offsets[headers] = header_key_bytes
                        header_value_offsets[headers] = header_value_bytes
                    header_starts[rows + 1] = headers
                rows += 1
            record += 1
            at = body_end
        if reason == DONE:
            if at != end:
                reason = LEFT_OVER_BYTES
                break
            section += 1
            record = 0
    cursor[SECTION], cursor[AT], cursor[RECORD] = section, at, record
    cursor[ROWS] = rows
    cursor[KEY_BYTES], cursor[VALUE_BYTES] = key_bytes, value_bytes
    cursor[HEADERS] = headers
    cursor[HEADER_KEY_BYTES], cursor[HEADER_VALUE_BYTES] = header_key_bytes, header_value_bytes
    return reason
