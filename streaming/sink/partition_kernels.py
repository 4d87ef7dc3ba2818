"""The loops that place rows in partitions, and that group them by where they were placed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

# What is carried from batch to batch, int64[2].
PARTITION: Final = 0  # where the next record goes
APPENDED: Final = 1  # bytes that went there since it was chosen


@kernel("void", "const int64[]", "const int64[]", "int64", "int64", "int64[]", "int32[]")
def stay_and_move(
    rows: Integers,
    sizes: Integers,
    partitions: int,
    stretch_bytes: int,
    carried: Integers,
    placed: NDArray[np.int32],
) -> None:
    """Place ``rows``: stay on a partition for ``stretch_bytes``, then take the next one.

    ``placed[row]`` is set for each of ``rows``, whose ``sizes`` are bytes; rows that lie outside of
    ``placed`` are passed over.
    """
    count = min(rows.shape[0], sizes.shape[0])
    if carried.shape[0] < 2 or partitions < 1:
        return
    for i in range(count):
        if carried[APPENDED] >= stretch_bytes:
            carried[PARTITION] = (carried[PARTITION] + 1) % partitions
            carried[APPENDED] = 0
        carried[APPENDED] += sizes[i]
        row = rows[i]
        if 0 <= row < placed.shape[0]:
            placed[row] = carried[PARTITION]


@kernel("int64", "const int64[]", "const int32[]", "const uint8[]", "int64", "int32[]", "int64[]")
def place_by_hash(
    rows: Integers,
    hashes: NDArray[np.int32],
    has_key: Bytes,
    partitions: int,
    placed: NDArray[np.int32],
    left: Integers,
) -> int:
    """Place those of ``rows`` that have a key, and write the others to ``left``; return how many.

    The partition is the hash without its sign, modulo ``partitions`` (Kafka ``Utils.toPositive``: a
    mask, not abs). Rows that lie outside of the columns are passed over.
    """
    count = 0
    most = min(hashes.shape[0], has_key.shape[0], placed.shape[0])
    if partitions < 1:
        return 0
    for i in range(rows.shape[0]):
        row = rows[i]
        if row < 0 or row >= most:
            continue
        if has_key[row] != 0:
            placed[row] = (np.int64(hashes[row]) & 0x7FFFFFFF) % partitions
        elif count < left.shape[0]:
            left[count] = row
            count += 1
    return count


@kernel("int64", "const int64[]", "const int32[]", "int64[]", "int64[]")
def group_rows(rows: Integers, codes: NDArray[np.int32], ends: Integers, grouped: Integers) -> int:
    """Sort ``rows`` by ``codes[row]``, 0 and up, and keep the order of those with the same code.

    ``grouped`` gets the rows; those of code c end at ``ends[c]``. Gives 0, or -1 if a row lies
    outside of the codes, or a code outside of ``ends``.
    """
    if grouped.shape[0] < rows.shape[0]:
        return -1
    for code in range(ends.shape[0]):
        ends[code] = 0
    for i in range(rows.shape[0]):
        row = rows[i]
        if row < 0 or row >= codes.shape[0]:
            return -1
        code = codes[row]
        if code < 0 or code >= ends.shape[0]:
            return -1
        ends[code] += 1
    start = 0
    for code in range(ends.shape[0]):
        size = ends[code]
        ends[code] = start
        start += size
    for i in range(rows.shape[0]):
        code = codes[rows[i]]
        grouped[ends[code]] = rows[i]
        ends[code] += 1
    return 0
