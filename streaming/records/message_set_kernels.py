"""The loops over messages of magic 0 and 1; the format stands in ``message_set``.

Bytes come in, columns of numbers go out: where each key and value lies, offsets, timestamps. No
kernel trusts a length: every access is checked against the end of the messages it was given. A
kernel answers with one of the codes below, and leaves in its state where it stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.streaming.records.jit import inlined, kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

# Answers of the kernels.
DONE: Final = 0
FULL: Final = 1
"""The columns are full, or hold as many bytes as asked for: call again to go on."""

SIZE_TOO_SMALL: Final = -1
NOT_WHOLE: Final = -2
MAGIC_UNKNOWN: Final = -3
KEY_TOO_LONG: Final = -4
VALUE_TOO_LONG: Final = -5
COMPRESSED: Final = -6
OFFSET_INVALID: Final = -7
CHECKSUM_WRONG: Final = -8

# What ``survey_messages`` finds: int64[SURVEY_FIELDS].
SURVEY_COUNT: Final = 0
SURVEY_FIRST_OFFSET: Final = 1
SURVEY_LAST_OFFSET: Final = 2
SURVEY_HIGHEST_OFFSET: Final = 3
SURVEY_END: Final = 4
SURVEY_FIELDS: Final = 5

# A section is a stretch of messages that are read alike: int64[n, SECTION_FIELDS].
SECTION_START: Final = 0
SECTION_END: Final = 1
SECTION_KIND: Final = 2
SECTION_BASE: Final = 3
SECTION_TIMESTAMP: Final = 4
SECTION_FIELDS: Final = 5

# Kinds of sections.
PLAIN: Final = 0
"""Messages that no wrapper holds: each has its own offset and timestamp type."""
WRAPPED_V0: Final = 1
WRAPPED_CREATE_TIME: Final = 2
WRAPPED_APPEND_TIME: Final = 3

# Where ``index_messages`` stands: int64[STATE_FIELDS].
STATE_SECTION: Final = 0
STATE_POSITION: Final = 1
STATE_ROWS: Final = 2
STATE_FIELDS: Final = 3

_MIN_SIZE_V0: Final = 14
_MIN_SIZE_V1: Final = 22
_MAX_INT64: Final = 2**63 - 1


def _crc_tables() -> NDArray[np.uint32]:
    """Compute the tables of CRC-32 (reflected polynomial EDB88320) for eight bytes at a time."""
    tables = np.zeros((8, 256), np.uint32)
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = (crc >> np.uint32(1)) ^ np.where(crc & 1, np.uint32(0xEDB88320), np.uint32(0))
    tables[0] = crc
    for step in range(1, 8):
        before = tables[step - 1]
        tables[step] = (before >> np.uint32(8)) ^ crc[before & np.uint32(0xFF)]
    tables.flags.writeable = False
    return tables


CRC_TABLES: Final = _crc_tables()
"""uint32[8, 256] for ``message_checksums`` and the writing kernels."""


@inlined
def load_int32(data: Bytes, at: int | np.int64) -> np.int64:
    """Read a signed big-endian int32; the caller has checked that it lies inside."""
    value = (
        (np.int64(data[at]) << 24)
        | (np.int64(data[at + 1]) << 16)
        | (np.int64(data[at + 2]) << 8)
        | np.int64(data[at + 3])
    )
    return value - ((value >> 31) << 32)


@inlined
def load_int64(data: Bytes, at: int | np.int64) -> np.int64:
    """Read a signed big-endian int64; the caller has checked that it lies inside."""
    return (load_int32(data, at) << 32) | (load_int32(data, at + 4) & 0xFFFFFFFF)


@inlined
def crc32(
    data: Bytes, start: int | np.int64, end: int | np.int64, tables: NDArray[np.uint32]
) -> np.uint32:
    """Compute CRC-32 of ``data[start:end]``, eight bytes at a time."""
    crc = np.uint32(0xFFFFFFFF)
    at = start
    while at + 8 <= end:
        low = crc ^ (
            np.uint32(data[at])
            | (np.uint32(data[at + 1]) << np.uint32(8))
            | (np.uint32(data[at + 2]) << np.uint32(16))
            | (np.uint32(data[at + 3]) << np.uint32(24))
        )
        crc = (
            tables[7, low & np.uint32(0xFF)]
            ^ tables[6, (low >> np.uint32(8)) & np.uint32(0xFF)]
            ^ tables[5, (low >> np.uint32(16)) & np.uint32(0xFF)]
            ^ tables[4, low >> np.uint32(24)]
            ^ tables[3, data[at + 4]]
            ^ tables[2, data[at + 5]]
            ^ tables[1, data[at + 6]]
            ^ tables[0, data[at + 7]]
        )
        at += 8
    while at < end:
        crc = (crc >> np.uint32(8)) ^ tables[0, (crc ^ data[at]) & np.uint32(0xFF)]
        at += 1
    return crc ^ np.uint32(0xFFFFFFFF)


@kernel("void", "const uint8[]", "const int64[]", "const int64[]", "const uint32[,]", "uint32[]")
def message_checksums(
    data: Bytes,
    starts: Integers,
    ends: Integers,
    tables: NDArray[np.uint32],
    checksums: NDArray[np.uint32],
) -> None:
    """Compute the CRC-32 of every ``data[starts[i]:ends[i]]``; bounds that lie outside give 0."""
    for i in range(len(checksums)):
        start, end = starts[i], ends[i]
        if 0 <= start <= end <= len(data):
            checksums[i] = crc32(data, start, end, tables)
        else:
            checksums[i] = np.uint32(0)


@inlined
def fault(data: Bytes, at: int | np.int64, end: int | np.int64) -> int:
    """Check the message at ``at``, which must end at ``end`` or before; ``DONE`` or what is wrong.

    After it, all fields of the message lie inside ``data[at:end]``.
    """
    if at < 0 or end > len(data) or end - at < 12 + _MIN_SIZE_V0:
        return NOT_WHOLE
    size = load_int32(data, at + 8)
    magic = data[at + 16]
    if magic > 1:
        return MAGIC_UNKNOWN
    if size < _MIN_SIZE_V0 or (magic == 1 and size < _MIN_SIZE_V1):
        return SIZE_TOO_SMALL
    if size > end - at - 12:
        return NOT_WHOLE
    if data[at + 17] & 7:
        return COMPRESSED
    if load_int64(data, at) < 0:
        return OFFSET_INVALID
    rest = size - (6 if magic == 0 else 14)
    rest -= 4 + max(load_int32(data, at + 12 + size - rest), np.int64(0))
    if rest < 4:
        return KEY_TOO_LONG
    if load_int32(data, at + 12 + size - rest) > rest - 4:
        return VALUE_TOO_LONG
    return DONE


@kernel("int64", "const uint8[]", "int64", "int64", "const uint32[,]", "int64[]")
def survey_messages(
    data: Bytes, start: int, end: int, tables: NDArray[np.uint32], found: Integers
) -> int:
    """Check the messages in ``data[start:end]``, which a wrapper held.

    Leaves in ``found`` how many are whole, the offset fields of the first and last, the highest
    one, and where the last one ends: what follows is a torn tail, which Kafka drops too. With
    ``tables`` (uint32[8, 256]; else uint32[0, 256]) checksums are checked. Answers ``DONE``, or
    what is wrong with the message at ``found[SURVEY_END]``.
    """
    count = 0
    first = last = highest = np.int64(-1)
    at = np.int64(max(start, 0))
    end = min(end, len(data))
    code = DONE
    while end - at >= 12:
        size = load_int32(data, at + 8)
        if size < _MIN_SIZE_V0:
            code = SIZE_TOO_SMALL
            break
        if size > end - at - 12:
            break
        code = fault(data, at, at + 12 + size)
        if code != DONE:
            break
        if len(tables) > 0:
            crc = np.int64(crc32(data, at + 16, at + 12 + size, tables))
            if crc != load_int32(data, at + 12) & 0xFFFFFFFF:
                code = CHECKSUM_WRONG
                break
        last = load_int64(data, at)
        highest = max(highest, last)
        if count == 0:
            first = last
        count += 1
        at += 12 + size
    found[SURVEY_COUNT] = count
    found[SURVEY_FIRST_OFFSET] = first
    found[SURVEY_LAST_OFFSET] = last
    found[SURVEY_HIGHEST_OFFSET] = highest
    found[SURVEY_END] = at
    return code


@kernel(
    "int64",
    "const uint8[]",
    "const int64[,]",
    "int64",
    "int64",
    "int64",
    "int64[]",
    "int64[]",
    "int64[]",
    "int32[]",
    "int64[]",
    "int64[]",
    "int64[]",
    "int64[]",
)
def index_messages(
    data: Bytes,
    sections: Integers,
    start_offset: int,
    end_offset: int,
    max_bytes: int,
    state: Integers,
    offsets: Integers,
    timestamps: Integers,
    types: NDArray[np.int32],
    key_starts: Integers,
    key_lengths: Integers,
    value_starts: Integers,
    value_lengths: Integers,
) -> int:
    """Find the records with ``start_offset <= offset < end_offset`` in all sections.

    Fills the columns, which are equally long, from their start, until they are full or the keys
    and values would have more than ``max_bytes`` (one record always fits). A null has length -1.
    ``state`` says where to go on, or where the message lies that an error code is about.
    """
    rows = 0
    used = np.int64(0)
    capacity = len(offsets)
    section = state[STATE_SECTION]
    at = state[STATE_POSITION]
    code = DONE
    while section < len(sections):
        end = sections[section, SECTION_END]
        kind = sections[section, SECTION_KIND]
        base = sections[section, SECTION_BASE]
        at = max(at, sections[section, SECTION_START])
        while at < end:
            code = fault(data, at, end)
            if code != DONE:
                break
            offset = load_int64(data, at)
            if offset > _MAX_INT64 - base:
                code = OFFSET_INVALID
                break
            offset += base
            following = at + 12 + load_int32(data, at + 8)
            if start_offset <= offset < end_offset:
                magic = data[at + 16]
                key_start = at + (22 if magic == 0 else 30)
                key_length = max(load_int32(data, key_start - 4), np.int64(-1))
                value_start = key_start + max(key_length, np.int64(0)) + 4
                value_length = max(load_int32(data, value_start - 4), np.int64(-1))
                record_bytes = max(key_length, np.int64(0)) + max(value_length, np.int64(0))
                if rows == capacity or (rows > 0 and used + record_bytes > max_bytes):
                    code = FULL
                    break
                used += record_bytes
                offsets[rows] = offset
                if magic == 0:
                    timestamps[rows] = -1
                elif kind == WRAPPED_APPEND_TIME:
                    timestamps[rows] = sections[section, SECTION_TIMESTAMP]
                else:
                    timestamps[rows] = load_int64(data, at + 18)
                if kind == PLAIN:
                    types[rows] = -1 if magic == 0 else (data[at + 17] >> 3) & 1
                else:
                    types[rows] = kind - WRAPPED_CREATE_TIME
                key_starts[rows] = key_start
                key_lengths[rows] = key_length
                value_starts[rows] = value_start
                value_lengths[rows] = value_length
                rows += 1
            at = following
        if code != DONE:
            break
        section += 1
    state[STATE_SECTION] = section
    state[STATE_POSITION] = at
    state[STATE_ROWS] = rows
    return code
