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

from kafkalog.streaming.records.arrow_buffers import binary_column, validity
from kafkalog.streaming.records.murmur2 import murmur2
from kafkalog.streaming.sink.partitioning.kernels import stay_and_move

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Integers

__all__ = ["KeyHashes", "KeylessSpread", "record_sizes"]

STRETCH_BYTES: Final = 16384
"""Kafka's ``batch.size``, which is its producer's stretch."""

_RECORD_OVERHEAD: Final = 7
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

    def __init__(self, keys: pa.Array | None, length: int) -> None:
        self._hashes = np.zeros(length, np.int32) if keys is None else murmur2(keys)
        if keys is None:
            self.has_key = np.zeros(length, np.bool_)
        else:
            valid = validity(keys)
            self.has_key = valid.astype(np.bool_) if len(valid) else np.ones(length, np.bool_)

    def partition(self, rows: Integers, partitions: int) -> NDArray[np.int32]:
        """Return the partitions of rows with keys (Kafka ``Utils.toPositive``: a mask, not abs)."""
        return (self._hashes[rows] & 0x7FFFFFFF) % np.int32(partitions)


def record_sizes(columns: tuple[pa.Array | None, ...], length: int) -> Integers:
    """Return about how many bytes each of the rows takes as a record: int64[length]."""
    sizes = np.full(length, _RECORD_OVERHEAD, np.int64)
    for column in columns:
        offsets = binary_column(column).offsets if column is not None else ()
        if len(offsets):
            sizes += np.diff(offsets)
    return sizes
