"""Rows in the order of their keys, however many there are: a memtable, and sorted runs on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from kafkalog.streaming.table.memtable import MemTable
from kafkalog.streaming.table.row_order import entries_of, in_order
from kafkalog.streaming.table.sorted_runs import FAN, SortedRuns

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["OrderedRows"]

_SMALLEST_BLOCK: Final = 16 << 10


class OrderedRows:
    """Takes rows in any order, and gives them by key and partition. ``spilled``: whether on disk.

    No two rows have both in common. Not shared between threads. :meth:`close` frees the files.
    """

    def __init__(self, memory: int) -> None:
        """Start without a row.

        Args:
            memory: bytes at most, about: half for keys, a quarter for rows, and a quarter for a
                copy of them when they are written or given. A single row may have more.
        """
        self._memory = memory
        self._block = max(_SMALLEST_BLOCK, memory // (4 * FAN))
        self._runs = SortedRuns(self._block)
        self._start()

    def _start(self) -> None:
        self._table = MemTable(self._memory // 2)
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0

    @property
    def spilled(self) -> bool:
        """Whether memory did not do."""
        return bool(self._runs)

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows with the columns ``key``, without null, and ``partition``, among others.

        Raises:
            SpillError: they do not fit memory, and cannot be written to disk.
        """
        rows = _compact(rows)
        while rows.num_rows:
            taken = self._table.add(entries_of(rows, len(self._table)))
            self._batches.append(rows.slice(0, taken))
            self._bytes += self._batches[-1].nbytes
            rows = rows.slice(taken)
            if rows.num_rows or self._bytes > self._memory // 4:
                self._runs.add(in_order(self._table, self._batches, self._block))
                self._start()

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order, once.

        Raises:
            SpillError: they cannot be written to disk or read from it.
        """
        last = in_order(self._table, self._batches, self._block)
        if self._runs:
            if self._batches:
                self._runs.add(last)
                self._start()
            last = self._runs.merged()
        yield from last

    def close(self) -> None:
        """Free the files."""
        self._runs.close()


def _compact(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows in buffers of their size, if theirs are much larger."""
    if rows.get_total_buffer_size() <= 2 * rows.nbytes:
        return rows
    numbers = pa.py_buffer(np.arange(rows.num_rows))
    return rows.take(pa.Array.from_buffers(pa.int64(), rows.num_rows, [None, numbers]))
