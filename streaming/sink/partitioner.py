"""Which partition a row goes to: its own column, the hash of its key, or a turn.

The order is that of Kafka's producer:

1. an explicit partition;
2. the murmur2 hash of the key's bytes (an empty key is a key);
3. without a key, the same partition for a stretch of bytes, so that batches get full.

Then Kafka draws the next partition at random. Here it is the next in order, and the first one
follows from the numbers of batch and task. So a task that runs again places its rows as before, and
small batches do not all go to one partition.

Source: Kafka ``KafkaProducer.partition``, ``BuiltInPartitioner`` (KIP-794),
``RoundRobinPartitioner``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.streaming.records.murmur2 import murmur2_of
from kafkalog.streaming.sink.partition_kernels import group_rows, place_by_hash, stay_and_move

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import BinaryColumn, Integers

__all__ = ["RECORD_OVERHEAD", "KeyHashes", "KeylessSpread", "groups_of", "record_sizes"]

STRETCH_BYTES: Final = 16384
"""Kafka's ``batch.size``, which is its producer's stretch."""

RECORD_OVERHEAD: Final = 7
"""Bytes of a small record that are neither key nor value."""


class KeylessSpread:
    """Places the rows of one topic that have neither partition nor key; kept over a whole task.

    ``first`` is any number: it decides where to start.
    """

    def __init__(self, partitions: int, first: int, *, round_robin: bool) -> None:
        self._partitions = partitions
        self._round_robin = round_robin
        self._carried = np.array([first % partitions, 0], np.int64)

    def place(self, rows: Integers, sizes: Integers, placed: NDArray[np.int32]) -> None:
        """Set ``placed[rows]``; ``rows`` int64[m] ascends, ``sizes`` int64[m] are their bytes."""
        stretch = 1 if self._round_robin else STRETCH_BYTES
        stay_and_move(rows, sizes, self._partitions, stretch, self._carried, placed)


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
