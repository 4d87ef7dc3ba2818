"""Lists of headers as Arrow, made of where a kernel has found them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from kafkalog.streaming.records import gather_kernels as kernels
from kafkalog.streaming.records.binary_builder import check_inside
from kafkalog.streaming.records.java_text import decode_as_java

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

__all__ = ["HEADERS_TYPE", "header_bytes", "header_lists", "joined_lists"]

HEADERS_TYPE: Final = pa.list_(
    pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
)


def header_bytes(starts: Integers, ends: Integers) -> int:
    """Return the bytes of headers; the single byte of an empty list counts as none."""
    return int((ends - starts).sum()) - len(ends)


def header_lists(rows: int, source: Bytes, begins: Integers, ends: Integers) -> pa.Array:
    """Return the lists; a record without headers has null, as in Spark's Kafka source.

    Args:
        rows: how many records there are.
        source: uint8[n].
        begins: int64[rows], where each record's headers begin in it, with their count; empty where
            records cannot have any.
        ends: likewise, where they end.
    """
    if not header_bytes(begins, ends):
        return pa.nulls(rows, HEADERS_TYPE)
    where = (source, begins, ends)
    measures = np.zeros(kernels.MEASURES, np.int64)
    check_inside(kernels.measure_headers(*where, measures))
    count, key_bytes, value_bytes = measures.tolist()
    starts, key_ends, value_ends = (np.empty(n + 1, np.int32) for n in (rows, count, count))
    keys, values = np.empty(key_bytes, np.uint8), np.empty(value_bytes, np.uint8)
    valid = np.full((count + 7) // 8, 255, np.uint8)
    check_inside(kernels.copy_headers(*where, starts, key_ends, keys, value_ends, values, valid))
    buffers = [pa.py_buffer(valid), pa.py_buffer(value_ends), pa.py_buffer(values)]
    value_array = pa.Array.from_buffers(pa.binary(), count, buffers)
    entries = pa.StructArray.from_arrays(
        [_text(count, key_ends, keys), value_array], fields=list(HEADERS_TYPE.value_type)
    )
    some = np.packbits(starts[1:] > starts[:-1], bitorder="little")
    buffers = [pa.py_buffer(some), pa.py_buffer(starts)]
    return pa.Array.from_buffers(HEADERS_TYPE, rows, buffers, children=[entries])


def _text(count: int, ends: NDArray[np.int32], data: Bytes) -> pa.Array:
    """Return strings, whose bytes Arrow wants to be UTF-8."""
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    array = pa.Array.from_buffers(pa.string(), count, buffers)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raw = array.view(pa.binary()).to_pylist()
        return pa.array([decode_as_java(one) for one in raw], pa.string())
    return array


def joined_lists(arrays: list[pa.Array]) -> pa.Array:
    """Return lists one behind the other."""
    if not arrays:
        return pa.nulls(0, HEADERS_TYPE)
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
