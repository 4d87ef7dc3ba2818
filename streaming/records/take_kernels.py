"""The loops that copy records to Arrow's buffers: those found before, or as they are found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.streaming.records.byte_kernels import copy_bytes, read_varint
from kafkalog.streaming.records.decode_kernels import (
    AT,
    BAD_SECTION,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    COUNT,
    DONE,
    END,
    FULL,
    IS_STAMPED,
    LEFT_OVER_BYTES,
    RECORD,
    SECTION,
    STAMP,
    START,
    walk_record,
)
from kafkalog.streaming.records.jit.inline import inlined
from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers


# ----------------------------------------------------------------------------------------------
# The loops that copy what was found in records to Arrow buffers: keys, values, headers.
#
# What lies where was checked when it was found; it is checked again before it is copied, since
# these kernels cannot know that.


# Found by `measure_headers`, int64[MEASURES].
HEADERS: Final = 0
HEADER_KEY_BYTES: Final = 1
HEADER_VALUE_BYTES: Final = 2
MEASURES: Final = 3

BROKEN: Final = -1
"""What was to be copied lies outside of its bytes, or of the room for it."""


@kernel("int64", "const int64[]", "const int64[]", "const int64[]", "const int64[]", "int64")
def rows_within(
    key_lengths: Integers,
    value_lengths: Integers,
    header_starts: Integers,
    header_ends: Integers,
    most_bytes: int,
) -> int:
    """Return how many rows from the first on have no more than ``most_bytes`` together.

    Columns that do not count are empty; the others, at least one, have one value a row.
    """
    rows = max(key_lengths.shape[0], value_lengths.shape[0], header_ends.shape[0])
    used = 0
    for row in range(rows):
        if row < key_lengths.shape[0]:
            used += max(key_lengths[row], 0)
        if row < value_lengths.shape[0]:
            used += max(value_lengths[row], 0)
        if row < header_ends.shape[0] and row < header_starts.shape[0]:
            used += header_ends[row] - header_starts[row] - 1  # the count, if it is 0
        if used > most_bytes:
            return row
    return rows


@inlined
def _clear_bit(bitmap: Bytes, bit: int) -> None:
    bitmap[bit >> 3] &= 255 ^ (1 << (bit & 7))


@kernel(
    "int64",
    "const uint8[]",
    "const int64[]",
    "const int64[]",
    "int64",
    "int32[]",
    "uint8[]",
    "uint8[]",
)
def append_values(
    source: Bytes,
    starts: Integers,
    lengths: Integers,
    row: int,
    ends: NDArray[np.int32],
    out: Bytes,
    valid: Bytes,
) -> int:
    """Append values to a column that has ``row`` of them; return the number of nulls, or BROKEN.

    ``ends[row]`` is where they start in ``out``. ``valid`` is a bitmap of ones.
    """
    count = min(starts.shape[0], lengths.shape[0])
    if row < 0 or row + count >= ends.shape[0] or row + count > 8 * valid.shape[0]:
        return BROKEN
    nulls = 0
    used = int(ends[row])
    for i in range(count):
        length = lengths[i]
        if length < 0:
            nulls += 1
            _clear_bit(valid, row + i)
        else:
            start = starts[i]
            if start < 0 or length > source.shape[0] - start or length > out.shape[0] - used:
                return BROKEN
            copy_bytes(out, used, source, start, length)
            used += length
        ends[row + i + 1] = used
    return nulls


@kernel("int64", "const uint8[]", "const int64[]", "const int64[]", "int64[]")
def measure_headers(source: Bytes, starts: Integers, ends: Integers, measures: Integers) -> int:
    """Count headers and the bytes of their keys and values, for ``append_headers``; 0 or BROKEN.

    The headers of row i lie in ``source[starts[i]:ends[i]]``, their count first.
    """
    headers, key_bytes, value_bytes = 0, 0, 0
    for row in range(min(starts.shape[0], ends.shape[0])):
        at, end = starts[row], ends[row]
        if at < 0 or end > source.shape[0]:
            return BROKEN
        count, at = read_varint(source, at, end)
        if at < 0 or count > end - at:
            return BROKEN
        for _ in range(count):
            length, at = read_varint(source, at, end)
            if at < 0 or length < 0 or length > end - at:
                return BROKEN
            key_bytes += length
            length, at = read_varint(source, at + length, end)
            if at < 0 or length > end - at:
                return BROKEN
            value_bytes += max(length, 0)
            at += max(length, 0)
        headers += max(count, 0)
    measures[HEADERS] = headers
    measures[HEADER_KEY_BYTES] = key_bytes
    measures[HEADER_VALUE_BYTES] = value_bytes
    return 0


@kernel(
    "int64",
    "const uint8[]",
    "const int64[]",
    "const int64[]",
    "int32[]",
    "int32[]",
    "uint8[]",
    "int32[]",
    "uint8[]",
    "uint8[]",
)
def copy_headers(
    source: Bytes,
    starts: Integers,
    ends: Integers,
    list_ends: NDArray[np.int32],
    key_ends: NDArray[np.int32],
    keys: Bytes,
    value_ends: NDArray[np.int32],
    values: Bytes,
    valid: Bytes,
) -> int:
    """Copy the headers that were measured to a list column of their own; 0 or BROKEN.

    All ``*_ends`` have one value more than there are rows or headers, and are filled from the
    start. ``valid`` is a bitmap of ones, for the values.
    """
    rows = min(starts.shape[0], ends.shape[0])
    room = min(key_ends.shape[0], value_ends.shape[0], 8 * valid.shape[0] + 1) - 1
    if list_ends.shape[0] <= rows or room < 0:
        return BROKEN
    headers, key_bytes, value_bytes = 0, 0, 0
    list_ends[0], key_ends[0], value_ends[0] = 0, 0, 0
    for row in range(rows):
        at, end = starts[row], ends[row]
        if at < 0 or end > source.shape[0]:
            return BROKEN
        count, at = read_varint(source, at, end)
        if at < 0 or count > room - headers:
            return BROKEN
        for _ in range(count):
            length, at = read_varint(source, at, end)
            if at < 0 or length < 0 or length > min(end - at, keys.shape[0] - key_bytes):
                return BROKEN
            copy_bytes(keys, key_bytes, source, at, length)
            key_bytes += length
            length, at = read_varint(source, at + length, end)
            if at < 0 or length > min(end - at, values.shape[0] - value_bytes):
                return BROKEN
            if length < 0:
                _clear_bit(valid, headers)
            else:
                copy_bytes(values, value_bytes, source, at, length)
                value_bytes += length
                at += length
            headers += 1
            key_ends[headers] = key_bytes
            value_ends[headers] = value_bytes
        list_ends[row + 1] = headers
    return 0


# ----------------------------------------------------------------------------------------------
# The loop that finds the records of magic 2 and copies what is wanted of them to Arrow's buffers.
#
# It does in one go, record by record, what ``decode_kernels`` and the loops above do in two
# steps: where keys and values lie is not written down in between. Headers take the two steps.


# What an output batch holds, int64[HELD_SIZE].
ROWS: Final = 0
BYTES: Final = 1  # of wanted keys and values
KEY_NULLS: Final = 2
VALUE_NULLS: Final = 3
LOWEST: Final = 4  # no timestamp that is wanted is lower, in ms
HIGHEST: Final = 5  # nor higher
BEFORE: Final = 6  # from here on the same six, as of the start of the section that is not done yet
BEGINS: Final = 12  # not 0: that section begins in this output batch
NEEDED: Final = 13  # bytes that the column must have room for in all (GROW_KEYS, GROW_VALUES)
HELD_SIZE: Final = 14

# Why `take_records` stopped, beside the reasons of `find_records`.
GROW_KEYS: Final = 20
GROW_VALUES: Final = 21

_SHORT: Final = 16


@inlined
def _copy_short(out: Bytes, position: int, data: Bytes, start: int, length: int) -> None:
    """Copy bytes that both lie inside; a call of ``memcpy`` costs more than to copy a few too many.

    What is written behind them is written again by the next value.
    """
    if length <= _SHORT and start <= data.shape[0] - _SHORT and position <= out.shape[0] - _SHORT:
        copy_bytes(out, position, data, start, _SHORT)
    else:
        copy_bytes(out, position, data, start, length)


@inlined
def _put(
    source: Bytes,
    start: int,
    length: int,
    row: int,
    ends: NDArray[np.int32],
    out: Bytes,
    valid: Bytes,
) -> int:
    """Put a value, for which there is room, into a row of a column; return 1 if it is null."""
    used = int(ends[row])
    if length < 0:
        valid[row >> 3] &= 255 ^ (1 << (row & 7))
        ends[row + 1] = used
        return 1
    _copy_short(out, used, source, start, length)
    ends[row + 1] = used + length
    return 0


@inlined
def _fault_behind(
    source: Bytes, at: int, end: int, record: int, count: int, most: int
) -> tuple[int, int]:
    """Check the records of a section from ``record`` on, ``most`` of them at most.

    Gives what is wrong, or DONE, and with which record.
    """
    while record < count and most > 0:
        reason, _, _, _, _, _, _, _, record_end = walk_record(source, at, end)
        if reason != DONE:
            return reason, record
        at = record_end
        record += 1
        most -= 1
    if record == count and at != end:
        return LEFT_OVER_BYTES, record
    return DONE, record


@inlined
def _forget(valid: Bytes, first: int, end: int) -> None:
    """Let rows that were rolled back not be null."""
    if valid.shape[0] > 0:
        for row in range(first, end):
            valid[row >> 3] |= 1 << (row & 7)


@kernel(
    "int64",
    "const uint8[]",
    "const int64[,]",
    "int64",
    "int64",
    "int64",
    "int64",
    "int64[]",
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
)
def take_records(
    source: Bytes,
    sections: Integers,
    start_offset: int,
    end_offset: int,
    max_rows: int,
    max_bytes: int,
    cursor: Integers,
    held: Integers,
    offsets: Integers,
    timestamps: Integers,
    timestamp_types: NDArray[np.int32],
    key_ends: NDArray[np.int32],
    keys: Bytes,
    key_valid: Bytes,
    value_ends: NDArray[np.int32],
    values: Bytes,
    value_valid: Bytes,
) -> int:
    """Append the records with ``start_offset <= offset < end_offset`` in all sections to columns.

    Sections and cursor are those of ``find_records``. A column that is not wanted is empty, and so
    is all that belongs to it; the others have room for ``max_rows`` rows. ``*_ends[row]`` is where
    the value of a row starts, ``*_valid`` a bitmap of ones. ``held`` says what is there, and is
    brought up to date.

    Stops with FULL before a row beyond ``max_rows``, or one with which keys and values come to more
    than ``max_bytes``, unless it is the first. Stops with GROW_KEYS or GROW_VALUES before one whose
    key or value has no room. Stops with the faults of ``find_records``: then the rows of that
    section that are in this output batch are rolled back, by whichever call they were appended. A
    section that is cut by FULL is checked beyond it, so that one that would fit ``max_rows`` gives
    all of its rows or none.
    """
    section, at, record = cursor[SECTION], cursor[AT], cursor[RECORD]
    rows, held_bytes = held[ROWS], held[BYTES]
    key_nulls, value_nulls = held[KEY_NULLS], held[VALUE_NULLS]
    lowest, highest = held[LOWEST], held[HIGHEST]
    most = max_rows
    if offsets.shape[0] > 0:
        most = min(most, offsets.shape[0])
    if timestamps.shape[0] > 0:
        most = min(most, timestamps.shape[0])
    if timestamp_types.shape[0] > 0:
        most = min(most, timestamp_types.shape[0])
    if key_ends.shape[0] > 0:
        most = min(most, key_ends.shape[0] - 1, 8 * key_valid.shape[0])
    if value_ends.shape[0] > 0:
        most = min(most, value_ends.shape[0] - 1, 8 * value_valid.shape[0])
    reason = DONE
    if rows < 0 or rows > most:
        reason = FULL
    while reason == DONE and section < sections.shape[0]:
        end = sections[section, END]
        if record == 0:
            at = sections[section, START]
            held[BEGINS] = 1
            held[BEFORE + ROWS], held[BEFORE + BYTES] = rows, held_bytes
            held[BEFORE + KEY_NULLS], held[BEFORE + VALUE_NULLS] = key_nulls, value_nulls
            held[BEFORE + LOWEST], held[BEFORE + HIGHEST] = lowest, highest
        if at < 0 or end > source.shape[0]:
            reason = BAD_SECTION
            break
        while record < sections[section, COUNT]:
            (
                reason,
                timestamp_delta,
                offset_delta,
                key_at,
                key_length,
                value_at,
                value_length,
                _,
                record_end,
            ) = walk_record(source, at, end)
            if reason != DONE:
                break
            offset = sections[section, BASE_OFFSET] + offset_delta
            if start_offset <= offset < end_offset:
                size = 0
                if key_ends.shape[0] > 0:
                    size += max(key_length, 0)
                if value_ends.shape[0] > 0:
                    size += max(value_length, 0)
                if rows >= most or (rows > 0 and held_bytes + size > max_bytes):
                    reason = FULL
                    break
                if key_ends.shape[0] > 0 and key_length > keys.shape[0] - int(key_ends[rows]):
                    held[NEEDED] = int(key_ends[rows]) + key_length
                    reason = GROW_KEYS
                    break
                if value_ends.shape[0] > 0 and value_length > values.shape[0] - int(
                    value_ends[rows]
                ):
                    held[NEEDED] = int(value_ends[rows]) + value_length
                    reason = GROW_VALUES
                    break
                if offsets.shape[0] > 0:
                    offsets[rows] = offset
                stamped = sections[section, IS_STAMPED] != 0
                if timestamps.shape[0] > 0:
                    stamp = sections[section, BASE_TIMESTAMP] + timestamp_delta
                    if stamped:
                        stamp = sections[section, STAMP]
                    timestamps[rows] = stamp
                    lowest, highest = min(lowest, stamp), max(highest, stamp)
                if timestamp_types.shape[0] > 0:
                    timestamp_types[rows] = 1 if stamped else 0
                if key_ends.shape[0] > 0:
                    key_nulls += _put(source, key_at, key_length, rows, key_ends, keys, key_valid)
                if value_ends.shape[0] > 0:
                    value_nulls += _put(
                        source, value_at, value_length, rows, value_ends, values, value_valid
                    )
                held_bytes += size
                rows += 1
            at = record_end
            record += 1
        if reason == DONE and at != end:
            reason = LEFT_OVER_BYTES
        if reason != DONE:
            before = held[BEFORE + ROWS]
            if reason == FULL and held[BEGINS] != 0 and rows > before:
                count = sections[section, COUNT]
                fault, faulty = _fault_behind(source, at, end, record, count, max_rows)
                if fault != DONE:
                    reason, record = fault, faulty
            if FULL < reason < GROW_KEYS:
                _forget(key_valid, before, rows)
                _forget(value_valid, before, rows)
                rows, held_bytes = before, held[BEFORE + BYTES]
                key_nulls, value_nulls = held[BEFORE + KEY_NULLS], held[BEFORE + VALUE_NULLS]
                lowest, highest = held[BEFORE + LOWEST], held[BEFORE + HIGHEST]
            break
        section += 1
        record = 0
    cursor[SECTION], cursor[AT], cursor[RECORD] = section, at, record
    held[ROWS], held[BYTES] = rows, held_bytes
    held[KEY_NULLS], held[VALUE_NULLS] = key_nulls, value_nulls
    held[LOWEST], held[HIGHEST] = lowest, highest
    return reason
