"""Count which pages of an index lookups read."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from kafkalog.streaming.log.indexes import PAGE_BYTES, SparseIndex

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

__all__ = ["PageCounter", "counted_pages"]


class PageCounter:
    """What was read since the last :meth:`reset`: calls, bytes, and distinct pages of 4 KiB."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again at nothing."""
        self.calls = self.bytes_read = 0
        self._pages: set[int] = set()

    @property
    def pages(self) -> int:
        """Distinct pages of 4 KiB."""
        return len(self._pages)

    def add(self, position: int, size: int) -> None:
        """Count a read."""
        self.calls += 1
        self.bytes_read += size
        if size:
            self._pages.update(
                range(position // PAGE_BYTES, (position + size - 1) // PAGE_BYTES + 1)
            )


@contextmanager
def counted_pages() -> Iterator[PageCounter]:
    """Count what is read of offset and time indexes meanwhile, in this process."""
    counter = PageCounter()
    read = SparseIndex.read

    def counting(index: SparseIndex, first: int, end: int) -> npt.NDArray[np.void]:
        entries = read(index, first, end)
        counter.add(first * entries.itemsize, entries.nbytes)
        return entries

    SparseIndex.read = counting  # type: ignore[method-assign]
    try:
        yield counter
    finally:
        SparseIndex.read = read  # type: ignore[method-assign]
