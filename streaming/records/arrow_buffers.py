"""Arrow binary columns as the plain arrays that kernels take, without copying a value.

A column of ``n`` values is three arrays, whatever its Arrow type (binary or string, with 32-bit or
64-bit offsets, sliced or not):

========  ============  ========================================================================
offsets   int64[n + 1]  value ``i`` is ``data[offsets[i] : offsets[i + 1]]``; empty: all null
data      uint8[...]    the values' bytes, shared with the Arrow buffer and read-only
valid     uint8[n]      0 where the value is null; empty: none is
========  ============  ========================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ABSENT", "BinaryColumn", "Bytes", "Integers", "binary_column", "validity"]

Bytes: TypeAlias = NDArray[np.uint8]
Integers: TypeAlias = NDArray[np.int64]

_NO_BYTES: Final = np.empty(0, np.uint8)
_NO_OFFSETS: Final = np.empty(0, np.int64)


class BinaryColumn(NamedTuple):
    """The arrays of one column; see the module for their shapes."""

    offsets: Integers
    data: Bytes
    valid: Bytes


ABSENT: Final = BinaryColumn(_NO_OFFSETS, _NO_BYTES, _NO_BYTES)
"""A column that is not there: every value is null."""


def binary_column(array: pa.Array | pa.ChunkedArray) -> BinaryColumn:
    """Return the arrays of a (large) binary or string column; chunks are joined first.

    Raises:
        TypeError: the column is of another type.
    """
    if isinstance(array, pa.ChunkedArray):
        array = _joined(array)
    if pa.types.is_null(array.type):
        return ABSENT
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    if not (wide or pa.types.is_binary(array.type) or pa.types.is_string(array.type)):
        raise TypeError(f"a column of {array.type} holds no bytes")
    buffers: Sequence[Any] = array.buffers()
    count = len(array)
    if count == 0 or buffers[1] is None:
        return BinaryColumn(np.zeros(count + 1, np.int64), _NO_BYTES, _NO_BYTES)
    offsets = np.frombuffer(buffers[1], np.int64 if wide else np.int32)
    data = _NO_BYTES if buffers[2] is None else np.frombuffer(buffers[2], np.uint8)
    window = offsets[array.offset : array.offset + count + 1].astype(np.int64, copy=False)
    return BinaryColumn(window, data, validity(array))


def validity(array: pa.Array) -> Bytes:
    """Return uint8[n], 0 where a value is null; empty if none is."""
    if array.null_count == 0:
        return _NO_BYTES
    bitmap = np.frombuffer(array.buffers()[0], np.uint8)
    first = array.offset // 8
    bits = np.unpackbits(bitmap[first : (array.offset + len(array) + 7) // 8], bitorder="little")
    start = array.offset - 8 * first
    return bits[start : start + len(array)]


def _joined(array: pa.ChunkedArray) -> pa.Array:
    if array.num_chunks == 1:
        return array.chunk(0)
    if array.num_chunks == 0:
        return pa.array([], array.type)
    return pa.concat_arrays(array.chunks)
