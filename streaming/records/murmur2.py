"""The hash by which Kafka's producers choose a key's partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kafkalog.streaming.records.arrow_buffers import binary_column
from kafkalog.streaming.records.murmur2_kernels import murmur2_column

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import BinaryColumn

__all__ = ["murmur2", "murmur2_of"]


def murmur2(keys: pa.Array | pa.ChunkedArray) -> NDArray[np.int32]:
    """Hash a column of keys as Kafka's ``Utils.murmur2`` does.

    Args:
        keys: (large) binary or string, n values.

    Returns:
        int32[n]; 0 where the key is null. The partition is ``(hash & 0x7fffffff) % partitions``.

    Raises:
        TypeError: the column holds no bytes.
        ValueError: the column's offsets point outside of its data.
    """
    return murmur2_of(binary_column(keys), len(keys))


def murmur2_of(keys: BinaryColumn, length: int) -> NDArray[np.int32]:
    """Hash ``length`` keys like :func:`murmur2`."""
    hashes = np.empty(length, np.int32)
    row = murmur2_column(*keys, hashes)
    if row >= 0:
        raise ValueError(f"the key in row {row} lies outside of its column's data")
    return hashes
