"""Rows as entries of a memtable, which puts them in the order of their keys and partitions.

An entry has the key of a row, and its value tells which row it is. Its sequence number counts the
row's partition backwards, so that of one key the lower partition comes first: rows that are put in
order here are the newest of their keys already, one for each partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from kafkalog.streaming.table.memtable import MAX_SEQUENCE, Entries, MemTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.streaming.records.arrow_buffers import Integers

__all__ = ["entries_of", "in_order", "place_of", "sorted_together"]

_ROW_SIZE: Final = 8
_UNBOUNDED: Final = 1 << 62


def entries_of(rows: pa.RecordBatch, first: int) -> Entries:
    """Return the entries of rows, which are numbered from ``first`` on."""
    keys, count = rows.column("key"), rows.num_rows
    _, ends, data = keys.buffers()
    bounds = np.frombuffer(ends, np.int32, count + 1, keys.offset * 4).astype(np.int64)
    low, high = int(bounds[0]), int(bounds[-1])
    source = np.empty(high - low + count * _ROW_SIZE, np.uint8)
    if high > low:
        source[: high - low] = np.frombuffer(data, np.uint8, high - low, low)
    source[high - low :] = np.arange(first, first + count, dtype=np.int64).view(np.uint8)
    _, numbers = rows.column("partition").buffers()
    offset = rows.column("partition").offset
    partitions = np.frombuffer(numbers, np.int32, count, offset * 4).astype(np.int64)
    return Entries(
        *(source, bounds[:-1] - low, np.diff(bounds), MAX_SEQUENCE - partitions),
        *(np.arange(count) * _ROW_SIZE + (high - low), np.full(count, _ROW_SIZE)),
    )


def in_order(
    table: MemTable, batches: list[pa.RecordBatch], block: int
) -> Iterator[pa.RecordBatch]:
    """Yield rows in the order of the table.

    Args:
        table: has their entries.
        batches: the rows, in the order of their numbers.
        block: bytes of a batch that is given, about; a single row may have more.
    """
    if not batches:
        return
    rows = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    at_once = max(1, block * rows.num_rows // max(1, rows.nbytes))
    for entries in table.scan():
        places = entries.value_starts[:, np.newaxis] + np.arange(_ROW_SIZE)
        numbers = entries.source[places].view(np.int64)[:, 0]
        for start in range(0, len(numbers), at_once):
            yield from _taken(rows, numbers[start : start + at_once], 2 * block)


def _taken(rows: pa.RecordBatch, numbers: Integers, most: int) -> Iterator[pa.RecordBatch]:
    """Yield some of the rows, in batches of at most so many bytes, or of one row."""
    # pa.array would import pandas, to look at what it was given
    data = pa.py_buffer(np.ascontiguousarray(numbers))
    taken = rows.take(pa.Array.from_buffers(pa.int64(), len(numbers), [None, data]))
    if len(numbers) == 1 or taken.nbytes <= most:
        yield taken
        return
    half = len(numbers) // 2
    yield from _taken(rows, numbers[:half], most)
    yield from _taken(rows, numbers[half:], most)


def sorted_together(parts: list[pa.RecordBatch], block: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all parts in order; ``block`` as for :func:`in_order`."""
    table, first = MemTable(_UNBOUNDED), 0
    for part in parts:
        table.add(entries_of(part, first))
        first += part.num_rows
    yield from in_order(table, parts, block)


def place_of(rows: pa.RecordBatch, row: int) -> tuple[bytes, int]:
    """Return by what a row is put in order."""
    key: bytes = rows.column("key")[row].as_py()
    partition: int = rows.column("partition")[row].as_py()
    return key, partition
