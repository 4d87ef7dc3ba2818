"""A column of keys or values while kernels append to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kafkalog.streaming.records import gather_kernels as kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

__all__ = ["BinaryBuilder", "check_inside"]


class BinaryBuilder:
    """A binary column that grows."""

    def __init__(self, rows: int, room: int, valid: Bytes | None = None) -> None:
        self._ends = np.empty(rows + 1, np.int32)
        self._ends[0] = 0
        self._valid = np.full((rows + 7) // 8, 255, np.uint8) if valid is None else valid
        self.nulls = 0
        self._data = np.empty(room, np.uint8)
        self.used = 0

    @classmethod
    def absent(cls) -> BinaryBuilder:
        """Return what stands for a column that is not wanted: its arrays are all empty."""
        none = cls(0, 0)
        none._ends = none._ends[:0]
        return none

    def following(self) -> BinaryBuilder:
        """Return an empty column for as many rows; this one is only to become Arrow's.

        It has room for the bytes of this one and some more: batches of a log resemble each other.
        """
        unused = None if self.nulls else self._valid  # all ones, and not given to Arrow
        return BinaryBuilder(len(self._ends) - 1, self.used * 9 // 8, unused)

    def arrays(self) -> tuple[NDArray[np.int32], Bytes, Bytes]:
        """Return where values end, their bytes, and the bitmap, to be filled."""
        return self._ends, self._data, self._valid

    def end_at(self, rows: int, nulls: int) -> None:
        """Take what was filled into the arrays."""
        self.used, self.nulls = int(self._ends[rows]), nulls

    def make_room(self, size: int, rows: int) -> None:
        """Let the values have ``size`` bytes in all; those of the first rows are kept."""
        self.used = int(self._ends[rows])
        self._make_room(size)

    def append(self, source: Bytes, starts: Integers, lengths: Integers, row: int) -> int:
        """Copy values after the ``row`` that are there; return how many bytes they have."""
        size = int(np.maximum(lengths, 0).sum())
        self._make_room(self.used + size)
        nulls = kernels.append_values(
            source, starts, lengths, row, self._ends, self._data, self._valid
        )
        check_inside(nulls)
        self.nulls += nulls
        self.used += size
        return size

    def to_arrow(self, rows: int) -> pa.Array:
        """Return the column; nothing more is to be filled in."""
        valid = pa.py_buffer(self._valid) if self.nulls else None
        ends, data = self._ends[: rows + 1], self._data[: self.used]
        buffers = [valid, pa.py_buffer(ends), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), rows, buffers, self.nulls)

    def _make_room(self, size: int) -> None:
        if size > len(self._data):
            grown = np.empty(max(size, 2 * self.used), np.uint8)
            grown[: self.used] = self._data[: self.used]
            self._data = grown


def check_inside(answer: int) -> None:
    """Refuse what a kernel says about values that lie outside of their bytes."""
    if answer == kernels.BROKEN:
        raise AssertionError("a record was found outside of its bytes")
