"""Place rows without a partition of their own: by the hash of the key, or by turns.

Also :func:`groups_of`, which sorts placed rows by partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.streaming.records.jit.kernel import kernel
from kafkalog.streaming.records.murmur2_kernels import murmur2_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import BinaryColumn, Bytes, Integers


__all__ = ["RECORD_OVERHEAD", "KeyHashes", "KeylessSpread", "groups_of", "record_sizes"]


# ----------------------------------------------------------------------------------------------
# The loops that place rows in partitions, and that group them by where they were placed.


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


# ----------------------------------------------------------------------------------------------
# Which partition a row goes to: its own column, the hash of its key, or a turn.
#
# The order is that of Kafka's producer:
#
# 1. an explicit partition; 2. the murmur2 hash of the key's bytes (an empty key is a key); 3.
# without a key, the same partition for a stretch of bytes, so that batches get full.
#
# Then Kafka draws the next partition at random. Here it is the next in order, and the first one
# follows from the numbers of batch and task. So a task that runs again places its rows as before,
# and small batches do not all go to one partition.
#
# Source: Kafka ``KafkaProducer.partition``, ``BuiltInPartitioner`` (KIP-794),
# ``RoundRobinPartitioner``.


STRETCH_BYTES: Final = 16384
"""Kafka's ``batch.size``, which is its producer's stretch."""

RECORD_OVERHEAD: Final = 7
"""Bytes of a small record that are neither key nor value."""


class KeylessSpread:
    """Places the rows of one topic that have neither partition nor key; kept over a whole task.

    Source: Kafka ``BuiltInPartitioner`` (KIP-794), ``RoundRobinPartitioner``.

    ``first`` is any number: it decides where to start.
    """

    def __init__(self, partitions: int, first: int, *, round_robin: bool) -> None:
        self.partitions = partitions
        self._round_robin = round_robin
        self._carried = np.array([first % partitions, 0], np.int64)

    def place(self, rows: Integers, sizes: Integers, placed: NDArray[np.int32]) -> None:
        """Set ``placed[rows]``; ``rows`` int64[m] ascends, ``sizes`` int64[m] are their bytes."""
        stretch = 1 if self._round_robin else STRETCH_BYTES
        stay_and_move(rows, sizes, self.partitions, stretch, self._carried, placed)


class KeyHashes:
    """The hashes of a column of keys, computed once for all topics of a batch of rows."""

    def __init__(self, keys: BinaryColumn, length: int) -> None:
        self._hashes = murmur2_of(keys, length)
        if not len(keys.offsets):
            self._has_key = np.zeros(length, np.uint8)
        else:
            self._has_key = keys.valid if len(keys.valid) else np.ones(length, np.uint8)

    def place(self, rows: Integers, partitions: int, placed: NDArray[np.int32]) -> Integers:
        """Set ``placed[row]`` for those of ``rows``, int64[m], that have a key; return the rest."""
        left = np.empty(len(rows), np.int64)
        count = place_by_hash(rows, self._hashes, self._has_key, partitions, placed, left)
        return left[:count]


def groups_of(
    rows: Integers, codes: NDArray[np.int32], most: int
) -> Iterator[tuple[int, Integers]]:
    """Yield each code below ``most`` that some of ``rows`` have, with those rows in their order."""
    ends, grouped = np.empty(most, np.int64), np.empty(len(rows), np.int64)
    if group_rows(rows, codes, ends, grouped) < 0:
        raise AssertionError("a row was placed outside of what there is")
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    found = np.flatnonzero(ends > starts)
    bounds = zip(found.tolist(), starts[found].tolist(), ends[found].tolist(), strict=True)
    for code, start, end in bounds:
        yield code, grouped[start:end]


def record_sizes(columns: tuple[BinaryColumn, ...], length: int) -> Integers:
    """Return about how many bytes each of the rows takes as a record: int64[length]."""
    sizes = np.full(length, RECORD_OVERHEAD, np.int64)
    for column in columns:
        if len(column.offsets):
            sizes += np.diff(column.offsets)
    return sizes
