"""The loops that copy what was found in records to Arrow buffers: keys, values, headers.

What lies where was checked when it was found; it is checked again before it is copied, since these
kernels cannot know that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.streaming.records.byte_kernels import copy_bytes, read_varint
from kafkalog.streaming.records.jit.inline import inlined
from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

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
