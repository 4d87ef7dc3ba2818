"""The loop over records of magic 2 that finds where everything lies; nothing is copied here.

The fields of a record stand in ``encode_kernels``. Nothing is trusted. Each length is checked
against the end of what encloses it, before a byte after it is read. Numbers end after 5 or 10
bytes. Records must fill their lengths and their batch exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.streaming.records.byte_kernels import read_varint, read_varlong
from kafkalog.streaming.records.jit.inline import inlined
from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

# The columns of `sections`, int64[m, SECTION_FIELDS]: where each batch's records lie.
START: Final = 0
END: Final = 1
BASE_OFFSET: Final = 2
BASE_TIMESTAMP: Final = 3
STAMP: Final = 4  # the append time, ms
IS_STAMPED: Final = 5  # not 0: STAMP is every record's timestamp
COUNT: Final = 6
SECTION_FIELDS: Final = 7

# The cursor, int64[CURSOR_SIZE]: where to continue.
SECTION: Final = 0
AT: Final = 1  # position in `source`, within a section
RECORD: Final = 2  # records of this section that are done
ROWS: Final = 3  # rows found by this call
CURSOR_SIZE: Final = 4

# Why `find_records` stopped.
DONE: Final = 0
FULL: Final = 1  # the columns are: call again to continue
BAD_VARINT: Final = 2
BAD_RECORD_LENGTH: Final = 3
BAD_KEY_LENGTH: Final = 4
BAD_VALUE_LENGTH: Final = 5
BAD_HEADER: Final = 6
LEFT_OVER_BYTES: Final = 7  # the record, or the batch, is longer than its fields
BAD_SECTION: Final = 8

_MIN_HEADER: Final = 2

# The columns of `measures`, int64[m, MEASURES]: what the records of a batch say themselves.
FAULT: Final = 0  # why the walk stopped, DONE at the end of the bytes
RECORDS: Final = 1  # records before that
LAST_DELTA: Final = 2  # the largest offset delta, -1 without records
LARGEST_TIMESTAMP: Final = 3  # ms; the lowest int64 without records
HAS_BASE: Final = 4  # 1 if a record has the base timestamp
MEASURES: Final = 5

_NO_TIME: Final = -(2**63)


@inlined
def _walk_headers(source: Bytes, at: int, end: int) -> int:
    """Check the headers in ``source[at:end]``, count first; return the code."""
    count, at = read_varint(source, at, end)
    if at < 0:
        return BAD_VARINT
    if count < 0 or count > (end - at) // _MIN_HEADER:
        return BAD_HEADER
    for _ in range(count):
        length, at = read_varint(source, at, end)
        if at < 0 or length < 0 or length > end - at:
            return BAD_HEADER
        length, at = read_varint(source, at + length, end)
        if at < 0 or length > end - at:
            return BAD_HEADER
        at += max(length, 0)
    return DONE if at == end else LEFT_OVER_BYTES


@inlined
def walk_record(
    source: Bytes, at: int, end: int
) -> tuple[int, int, int, int, int, int, int, int, int]:
    """Check the record at ``at``, which must end by ``end``.

    Gives the code, timestamp delta, offset delta, start and length of key and value (a negative
    length is null, whatever it is, as in Java), where the headers start, and where it ends.
    """
    length, at = read_varint(source, at, end)
    if at < 0:
        return BAD_VARINT, 0, 0, 0, 0, 0, 0, 0, 0
    if length < 1 or length > end - at:
        return BAD_RECORD_LENGTH, 0, 0, 0, 0, 0, 0, 0, 0
    end = at + length
    timestamp_delta, at = read_varlong(source, at + 1, end)  # after the attributes
    if at < 0:
        return BAD_VARINT, 0, 0, 0, 0, 0, 0, 0, 0
    offset_delta, at = read_varint(source, at, end)
    if at < 0:
        return BAD_VARINT, 0, 0, 0, 0, 0, 0, 0, 0
    key_length, key_at = read_varint(source, at, end)
    if key_at < 0:
        return BAD_VARINT, 0, 0, 0, 0, 0, 0, 0, 0
    if key_length > end - key_at:
        return BAD_KEY_LENGTH, 0, 0, 0, 0, 0, 0, 0, 0
    value_length, value_at = read_varint(source, key_at + max(key_length, 0), end)
    if value_at < 0:
        return BAD_VARINT, 0, 0, 0, 0, 0, 0, 0, 0
    if value_length > end - value_at:
        return BAD_VALUE_LENGTH, 0, 0, 0, 0, 0, 0, 0, 0
    headers_at = value_at + max(value_length, 0)
    return (
        _walk_headers(source, headers_at, end),
        timestamp_delta,
        offset_delta,
        key_at,
        key_length,
        value_at,
        value_length,
        headers_at,
        end,
    )


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
    "int64[]",
    "int64[]",
)
def find_records(
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
    header_starts: Integers,
    header_ends: Integers,
) -> int:
    """Find the records with ``start_offset <= offset < end_offset`` in all sections.

    Fills the columns, which are equally long, from their start. Lengths are -1 or less for null;
    timestamps are in ms. Headers lie in ``source[header_starts[i]:header_ends[i]]``, their count
    first. The cursor starts with zeros. It says where to continue, or which record of which section
    an error is about. A call that finds an error gives no rows of that section.
    """
    section, at, record = cursor[SECTION], cursor[AT], cursor[RECORD]
    room = min(
        offsets.shape[0],
        timestamps.shape[0],
        timestamp_types.shape[0],
        key_starts.shape[0],
        key_lengths.shape[0],
        value_starts.shape[0],
        value_lengths.shape[0],
        header_starts.shape[0],
        header_ends.shape[0],
    )
    rows, section_rows = 0, 0
    reason = DONE
    while section < sections.shape[0]:
        end = sections[section, END]
        if record == 0:
            at = sections[section, START]
        if at < 0 or end > source.shape[0]:
            reason = BAD_SECTION
            break
        section_rows = rows
        while record < sections[section, COUNT]:
            (
                reason,
                timestamp_delta,
                offset_delta,
                key_at,
                key_length,
                value_at,
                value_length,
                headers_at,
                record_end,
            ) = walk_record(source, at, end)
            if reason != DONE:
                break
            offset = sections[section, BASE_OFFSET] + offset_delta
            if start_offset <= offset < end_offset:
                if rows >= room:
                    reason = FULL
                    break
                offsets[rows] = offset
                if sections[section, IS_STAMPED] != 0:
                    timestamps[rows] = sections[section, STAMP]
                    timestamp_types[rows] = 1
                else:
                    timestamps[rows] = sections[section, BASE_TIMESTAMP] + timestamp_delta
                    timestamp_types[rows] = 0
                key_starts[rows] = key_at
                key_lengths[rows] = key_length
                value_starts[rows] = value_at
                value_lengths[rows] = value_length
                header_starts[rows] = headers_at
                header_ends[rows] = record_end
                rows += 1
            at = record_end
            record += 1
        if reason == DONE and at != end:
            reason = LEFT_OVER_BYTES
        if reason != DONE:
            break
        section += 1
        record = 0
    cursor[SECTION], cursor[AT], cursor[RECORD] = section, at, record
    cursor[ROWS] = section_rows if reason > FULL else rows
    return reason


@kernel("int64", "const uint8[]", "const int64[,]", "int64[,]")
def measure_records(source: Bytes, sections: Integers, measures: Integers) -> int:
    """Walk all records in the bytes of each section, whatever its header says of them.

    Fills a row of ``measures`` for each section; returns in how many the walk did not come to the
    end of the bytes.
    """
    faults = 0
    for section in range(sections.shape[0]):
        at, end = sections[section, START], sections[section, END]
        base = sections[section, BASE_TIMESTAMP]
        reason, records, has_base = DONE, 0, 0
        last_delta, largest = -1, _NO_TIME
        if at < 0 or end > source.shape[0]:
            reason = BAD_SECTION
        while reason == DONE and at < end:
            reason, timestamp_delta, offset_delta, _, _, _, _, _, record_end = walk_record(
                source, at, end
            )
            if reason == DONE:
                records += 1
                last_delta = max(last_delta, offset_delta)
                largest = max(largest, base + timestamp_delta)
                if timestamp_delta == 0:
                    has_base = 1
                at = record_end
        if reason != DONE:
            faults += 1
        measures[section, FAULT] = reason
        measures[section, RECORDS] = records
        measures[section, LAST_DELTA] = last_delta
        measures[section, LARGEST_TIMESTAMP] = largest
        measures[section, HAS_BASE] = has_base
    return faults
