"""The loops over messages of magic 0 and 1; the format is described in ``layout``.

No length is trusted: ``fault`` checks each length of a message against the bytes that are there,
before anything else of it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.streaming.records.byte_kernels import read_int
from kafkalog.streaming.records.crc_kernels import checksum
from kafkalog.streaming.records.decode_kernels import AT, DONE, FULL, RECORD, ROWS, SECTION
from kafkalog.streaming.records.jit.inline import inlined
from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

# What is wrong with a message; the numbers continue after the reasons of ``decode_kernels``.
SIZE_TOO_SMALL: Final = 20
NOT_WHOLE: Final = 21
MAGIC_UNKNOWN: Final = 22
KEY_TOO_LONG: Final = 23
VALUE_TOO_LONG: Final = 24
COMPRESSED: Final = 25
OFFSET_INVALID: Final = 26
CHECKSUM_WRONG: Final = 27

# What ``survey_messages`` finds, int64[SURVEY_FIELDS].
SURVEY_COUNT: Final = 0
SURVEY_FIRST_OFFSET: Final = 1
SURVEY_LAST_OFFSET: Final = 2
SURVEY_HIGHEST_OFFSET: Final = 3
SURVEY_END: Final = 4
SURVEY_FIELDS: Final = 5

# The columns of ``sections``, int64[m, SECTION_FIELDS]: a message, or those a wrapper holds.
START: Final = 0
END: Final = 1
KIND: Final = 2
BASE: Final = 3  # added to the offsets
STAMP: Final = 4  # the wrapper's timestamp, ms
SECTION_FIELDS: Final = 5

# Kinds of sections.
PLAIN: Final = 0  # no wrapper: the message's own timestamp type counts
WRAPPED_V0: Final = 1
WRAPPED_CREATE_TIME: Final = 2
WRAPPED_APPEND_TIME: Final = 3

_MIN_SIZE_V0: Final = 14
_MIN_SIZE_V1: Final = 22
_MAX_INT64: Final = 2**63 - 1


@inlined
def fault(data: Bytes, at: int, end: int) -> int:
    """Check the message at ``at``, which must end at ``end`` or before; ``DONE`` or what is wrong.

    After it, all fields of the message lie inside ``data[at:end]``.
    """
    if at < 0 or end > len(data) or end - at < 12 + _MIN_SIZE_V0:
        return NOT_WHOLE
    size = read_int(data, at + 8, 4)
    magic = data[at + 16]
    if magic > 1:
        return MAGIC_UNKNOWN
    if size < _MIN_SIZE_V0 or (magic == 1 and size < _MIN_SIZE_V1):
        return SIZE_TOO_SMALL
    if size > end - at - 12:
        return NOT_WHOLE
    if data[at + 17] & 7:
        return COMPRESSED
    if read_int(data, at, 8) < 0:
        return OFFSET_INVALID
    rest = size - (6 if magic == 0 else 14)
    rest -= 4 + max(read_int(data, at + 12 + size - rest, 4), 0)
    if rest < 4:
        return KEY_TOO_LONG
    if read_int(data, at + 12 + size - rest, 4) > rest - 4:
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
    first = last = highest = -1
    at = max(start, 0)
    end = min(end, len(data))
    code = DONE
    while end - at >= 12:
        size = read_int(data, at + 8, 4)
        if size < _MIN_SIZE_V0:
            code = SIZE_TOO_SMALL
            break
        if size > end - at - 12:
            break
        code = fault(data, at, at + 12 + size)
        if code != DONE:
            break
        if len(tables) > 0:
            crc = checksum(data, at + 16, at + 12 + size, tables)
            if crc != read_int(data, at + 12, 4) & 0xFFFFFFFF:
                code = CHECKSUM_WRONG
                break
        last = read_int(data, at, 8)
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
    "int64[]",
    "int64[]",
    "int64[]",
    "int32[]",
    "int64[]",
    "int64[]",
    "int64[]",
    "int64[]",
)
def find_messages(
    source: Bytes,
    sections: Integers,
    start_offset: int,
    end_offset: int,
    cursor: Integers,
    offsets: Integers,
    timestamps: Integers,
    timestamp_types: NDArray[np.int32],
    key_starts: Integers,
    key_lengths: Integers,
    value_starts: Integers,
    value_lengths: Integers,
) -> int:
    """Find the records with ``start_offset <= offset < end_offset`` in all sections.

    Cursor, columns and answers are those of ``decode_kernels.find_records``; ``sections`` are this
    module's.
    """
    section, at, message = cursor[SECTION], cursor[AT], cursor[RECORD]
    room = min(
        offsets.shape[0],
        timestamps.shape[0],
        timestamp_types.shape[0],
        key_starts.shape[0],
        key_lengths.shape[0],
        value_starts.shape[0],
        value_lengths.shape[0],
    )
    rows, section_rows = 0, 0
    reason = DONE
    while section < sections.shape[0]:
        end, kind, base = sections[section, END], sections[section, KIND], sections[section, BASE]
        if message == 0:
            at = sections[section, START]
        section_rows = rows
        while at < end:
            reason = fault(source, at, end)
            if reason != DONE:
                break
            offset = read_int(source, at, 8)
            if base < 0 or offset > _MAX_INT64 - base:
                reason = OFFSET_INVALID
                break
            offset += base
            following = at + 12 + read_int(source, at + 8, 4)
            if start_offset <= offset < end_offset:
                if rows >= room:
                    reason = FULL
                    break
                magic = source[at + 16]
                key_start = at + (22 if magic == 0 else 30)
                key_length = read_int(source, key_start - 4, 4)
                value_start = key_start + max(key_length, 0) + 4
                offsets[rows] = offset
                if magic == 0:
                    timestamps[rows] = -1
                elif kind == WRAPPED_APPEND_TIME:
                    timestamps[rows] = sections[section, STAMP]
                else:
                    timestamps[rows] = read_int(source, at + 18, 8)
                if kind != PLAIN:
                    timestamp_types[rows] = kind - WRAPPED_CREATE_TIME
                elif magic == 0:
                    timestamp_types[rows] = -1
                else:
                    timestamp_types[rows] = (source[at + 17] >> 3) & 1
                key_starts[rows] = key_start
                key_lengths[rows] = key_length
                value_starts[rows] = value_start
                value_lengths[rows] = read_int(source, value_start - 4, 4)
                rows += 1
            at = following
            message += 1
        if reason != DONE:
            break
        section += 1
        message = 0
    cursor[SECTION], cursor[AT], cursor[RECORD] = section, at, message
    cursor[ROWS] = section_rows if reason > FULL else rows
    return reason
