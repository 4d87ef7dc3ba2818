"""Sorted runs of rows in files without a name, and their merge.

A run is written in blocks, each a record batch as Arrow's IPC codes it. :data:`FAN` runs of a level
are merged into one of the next level, as LevelDB's levels are, so that a merge reads a bounded
number of blocks at a time. A level has a file of its own. It is freed when its runs are merged.

A merge reads the next block of each run. Up to the smallest of the last keys of these blocks, no
other rows can come. These rows are put in order together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from kafkalog.streaming.table.row_order import place_of, sorted_together
from kafkalog.streaming.table.spill_file import SpillFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["FAN", "SortedRuns"]

FAN: Final = 32


class _Block(NamedTuple):
    position: int
    size: int


class _Level:
    """Runs in one file."""

    def __init__(self) -> None:
        self.file = SpillFile()
        self.runs: list[list[_Block]] = []

    def add(self, blocks: Iterable[pa.RecordBatch]) -> None:
        """Write a run."""
        run = []
        for block in blocks:
            data = np.frombuffer(block.serialize(), np.uint8)
            run.append(_Block(self.file.append(data), len(data)))
        self.runs.append(run)


class SortedRuns:
    """Takes sorted runs, and gives all their rows in order. ``bool()`` tells if there are any.

    Not shared between threads. :meth:`close` frees the files.
    """

    def __init__(self, block: int) -> None:
        """Prepare; a file is made with the first run. ``block``: bytes of a block, about."""
        self._block = block
        self._schema: pa.Schema | None = None
        self._levels: list[_Level | None] = []

    def __bool__(self) -> bool:
        return bool(self._levels)

    def add(self, blocks: Iterable[pa.RecordBatch]) -> None:
        """Write a run; merge runs if there are too many.

        Raises:
            SpillError: files cannot be written or read.
        """
        self._add(0, blocks)

    def merged(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order.

        Raises:
            SpillError: files cannot be read.
        """
        return self._merged([level for level in self._levels if level is not None])

    def close(self) -> None:
        """Free the files."""
        for level in self._levels:
            if level is not None:
                level.file.close()
        self._levels = []

    def _add(self, number: int, blocks: Iterable[pa.RecordBatch]) -> None:
        if number == len(self._levels):
            self._levels.append(None)
        level = self._levels[number]
        if level is None:
            level = self._levels[number] = _Level()
        level.add(self._noting_schema(blocks))
        if len(level.runs) == FAN:
            self._add(number + 1, self._merged([level]))
            level.file.close()
            self._levels[number] = None

    def _noting_schema(self, blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for block in blocks:
            self._schema = block.schema
            yield block

    def _merged(self, levels: list[_Level]) -> Iterator[pa.RecordBatch]:
        heads = [
            _Head(level.file, run, self._schema) for level in levels for run in level.runs if run
        ]
        while heads:
            bound = min(head.last for head in heads)
            parts = [head.take(bound) for head in heads]
            yield from sorted_together([part for part in parts if part.num_rows], self._block)
            heads = [head for head in heads if head.has_more()]


class _Head:
    """Where a merge is in a run: the block ``rows`` from ``_at`` on, whose last place is known."""

    def __init__(self, file: SpillFile, run: list[_Block], schema: pa.Schema | None) -> None:
        self._file = file
        self._schema = schema
        self._rest = run[::-1]
        self._read()

    def _read(self) -> None:
        data = pa.py_buffer(self._file.read(*self._rest.pop()))
        self._rows = pa.ipc.read_record_batch(data, self._schema)
        self._at = 0
        self.last = place_of(self._rows, self._rows.num_rows - 1)

    def take(self, bound: tuple[bytes, int]) -> pa.RecordBatch:
        """Return the next rows of this block up to a place."""
        low, high = self._at, self._rows.num_rows
        while low < high:
            middle = (low + high) // 2
            if place_of(self._rows, middle) <= bound:
                low = middle + 1
            else:
                high = middle
        rows = self._rows.slice(self._at, low - self._at)
        self._at = low
        return rows

    def has_more(self) -> bool:
        """Go on to the next block if this one was taken; False at the end of the run."""
        if self._at < self._rows.num_rows:
            return True
        if not self._rest:
            return False
        self._read()
        return True
