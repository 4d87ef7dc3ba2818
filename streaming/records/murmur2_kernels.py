"""Murmur2, the hash by which Kafka's producers choose a key's partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.streaming.records.arrow_buffers import binary_column
from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import BinaryColumn, Bytes, Integers


__all__ = ["murmur2", "murmur2_of"]


# ----------------------------------------------------------------------------------------------
# Kafka's hash of a record key, over a whole column.
#
# Source: Kafka ``Utils.murmur2`` (Austin Appleby's MurmurHash2, 32 bits, little-endian words).
# The seed is ``0x9747b28c``, the multiplier ``0x5bd1e995``, the shift 24; arithmetic is modulo
# 2**32.


_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


@kernel("int64", "const int64[]", "const uint8[]", "const uint8[]", "int32[]")
def murmur2_column(offsets: Integers, data: Bytes, valid: Bytes, hashes: NDArray[np.int32]) -> int:
    """Write the hash of each key, 0 for null; return -1, or the first row with useless offsets."""
    for row in range(hashes.shape[0]):
        hashes[row] = 0
        if row + 1 >= offsets.shape[0] or (valid.shape[0] > row and valid[row] == 0):
            continue
        position, end = offsets[row], offsets[row + 1]
        if position < 0 or end < position or end > data.shape[0]:
            return row
        hashed = (_SEED ^ (end - position)) & _MASK
        while end - position >= 4:
            word = 0
            for i in range(4):
                word |= np.int64(data[position + i]) << (8 * i)
            word = (word * _MULTIPLIER) & _MASK
            word = ((word ^ (word >> 24)) * _MULTIPLIER) & _MASK
            hashed = ((hashed * _MULTIPLIER) & _MASK) ^ word
            position += 4
        if end > position:
            for i in range(end - position):
                hashed ^= np.int64(data[position + i]) << (8 * i)
            hashed = (hashed * _MULTIPLIER) & _MASK
        hashed = ((hashed ^ (hashed >> 13)) * _MULTIPLIER) & _MASK
        hashed ^= hashed >> 15
        hashes[row] = hashed - (1 << 32) if hashed >= (1 << 31) else hashed
    return -1


# ----------------------------------------------------------------------------------------------
# The hash by which Kafka's producers choose a key's partition.


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
