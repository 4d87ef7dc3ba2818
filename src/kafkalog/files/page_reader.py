"""Read an open file with ``pread``, and count which pages that touched.

Indexes are read, not mapped: a broker trims a preallocated index when it rolls, and touching a
mapped page beyond the new end is SIGBUS, which no program survives. The counts show what the warm
section of an index is for: a reader at the tail of a log keeps to the few pages that the writer
keeps warm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from kafkalog.files.open_file import OpenFile

__all__ = ["PAGE_BYTES", "PageReader"]

PAGE_BYTES: Final = 4096


class PageReader:
    """Positioned reads of one open file; ``pages``, ``bytes_read`` and ``calls`` add up.

    The file belongs to the caller.
    """

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self.calls = 0
        self.bytes_read = 0
        self._pages: set[int] = set()

    @property
    def pages(self) -> int:
        """Distinct pages of 4 KiB touched since the last :meth:`reset`."""
        return len(self._pages)

    def reset(self) -> None:
        """Start counting anew."""
        self.calls = self.bytes_read = 0
        self._pages.clear()

    def read(self, position: int, length: int) -> npt.NDArray[np.uint8]:
        """Read up to ``length`` bytes into a new array; fewer only where the file ends."""
        data = self._file.read(position, length)
        self.calls += 1
        self.bytes_read += len(data)
        if len(data):
            last = position + len(data) - 1
            self._pages.update(range(position // PAGE_BYTES, last // PAGE_BYTES + 1))
        return data
