"""What the offset index and the time index share: ascending entries, and a search that stays warm.

Indexes are read, not mapped: a broker trims a preallocated index when it rolls, and touching a
mapped page beyond the new end is SIGBUS, which no program survives.

An index file is an array of entries of one size, without header or checksum. A broker preallocates
the active segment's (10 MiB of zeros by default) and keeps the number of entries in memory, so on
the disk the entries end at the first slot that was never written.

**Hot-region search.** The first steps of a plain binary search over a large index touch a cold page
each, whatever the target. Those page faults stall a reader at the tail, which wants the last
entries only. So, as in Kafka's ``AbstractIndex``, the last 8192 bytes are the *warm section*: at
most 3 pages, which the writer keeps in memory by appending to them. If the entry before them is not
above the target, one read of the warm section finds the answer. Only older targets are searched for
in the rest.

Source: Kafka ``AbstractIndex``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from kafkalog.errors import CorruptIndexError
from kafkalog.files.closing import Closing
from kafkalog.files.opening import open_file

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

__all__ = ["PAGE_BYTES", "REBUILD", "WARM_BYTES", "SparseIndex"]

PAGE_BYTES: Final = 4096
WARM_BYTES: Final = 8192
_MAX_BYTES: Final = 2**31 - 1
"""``segment.index.bytes`` is an int32."""
REBUILD: Final = "readers do without it, and `python -m kafkalog.jobs.rebuild PATH` makes it anew"


class SparseIndex(Closing):
    """One open index file of a segment; ``len()`` is the number of its written entries.

    The number is taken once, on opening: entries that a writer adds later are not seen. Not thread
    safe, not picklable. Use it as a context manager, or :meth:`close` it.

    It does not check that entries agree with the log: whoever follows an entry verifies the batch
    there. It checks the order of those entries only that a lookup reads.
    """

    ENTRY: ClassVar[np.dtype[np.void]]
    KEY: ClassVar[str]
    """The field that lookups search by."""

    def __init__(self, path: Path, base_offset: int) -> None:
        """Open ``path``, the index of the segment with ``base_offset``.

        Raises:
            FileNotFoundError: there is no such file.
            CorruptIndexError: the last entry lies below the base offset.
            LogDirectoryError: a link, FIFO or device.
        """
        self.path = path
        self.base_offset = base_offset
        self._file = open_file(path)
        try:
            self._check_size(self._file.size)
            # Until the written ones are counted, so that a file that shrinks meanwhile is told.
            self._entries = self._file.size // self.ENTRY.itemsize
            self._entries = self._count_written(self._entries)
            self._check_last()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return self._entries

    def close(self) -> None:
        """Close the file; closing twice does no harm."""
        self._file.close()

    def _check_size(self, size: int) -> None:
        """Refuse a file with a hole behind its entries that no broker would open."""
        if size > _MAX_BYTES:
            raise CorruptIndexError(
                f"{self.path}: has {size} bytes, and an index has at most {_MAX_BYTES}; {REBUILD}"
            )

    def _is_written(self, slot: int) -> bool:
        raise NotImplementedError

    def _count_written(self, slots: int) -> int:
        """Find the first unwritten slot: written ones are followed by zeros to the end."""
        if slots == 0 or self._is_written(slots - 1):
            return slots
        low, high = 0, slots - 1
        while low < high:
            middle = (low + high) // 2
            if self._is_written(middle):
                low = middle + 1
            else:
                high = middle
        return low

    def _check_last(self) -> None:
        """Check what Kafka's ``sanityCheck`` does, but not the first entry: its page is cold."""
        if self._entries == 0:
            return
        last = self.read(self._entries - 1, self._entries)[0]
        if min(int(last[name]) for name in self.ENTRY.names or ()) < 0:
            shown = ", ".join(f"{name} {last[name]}" for name in self.ENTRY.names or ())
            raise CorruptIndexError(
                f"{self.path}: the last of {self._entries} entries is {shown}: none can be "
                f"negative; {REBUILD}"
            )

    def read(self, first: int, end: int) -> npt.NDArray[np.void]:
        """Read the entries ``[first, end)`` as they are stored, big-endian (``ENTRY[n]``).

        Raises:
            CorruptIndexError: the file has become shorter since it was opened.
        """
        size = self.ENTRY.itemsize
        data = self._file.read(first * size, (end - first) * size)
        if len(data) < (end - first) * size:
            raise CorruptIndexError(
                f"{self.path}: ends inside entry {first + len(data) // size}, it had "
                f"{self._entries} when it was opened: a broker has truncated it meanwhile"
            )
        return data.view(self.ENTRY)

    def _floor_slot(self, target: int, field: str) -> int:
        """Find the last slot whose ``field`` is not above ``target``; -1 if there is none.

        Raises:
            CorruptIndexError: the entries read do not ascend.
        """
        if self._entries == 0:
            return -1
        first_hot = max(0, self._entries - 1 - WARM_BYTES // self.ENTRY.itemsize)
        hot = self._ascending(first_hot, self._entries, field)
        if first_hot == 0 or hot[0] <= target:
            return first_hot + int(np.searchsorted(hot, target, side="right")) - 1
        return self._cold_floor_slot(target, field, first_hot)

    def _cold_floor_slot(self, target: int, field: str, end: int) -> int:
        """Search slots ``[0, end)``: by single entries, and the last page's worth in one read."""
        low, high = 0, end
        while (high - low) * self.ENTRY.itemsize > PAGE_BYTES:
            middle = (low + high) // 2
            if self.read(middle, middle + 1)[0][field] <= target:
                low = middle
            else:
                high = middle
        keys = self._ascending(low, high, field)
        return low + int(np.searchsorted(keys, target, side="right")) - 1

    def _ascending(self, first: int, end: int, field: str) -> npt.NDArray[np.int64]:
        keys: npt.NDArray[np.int64] = self.read(first, end)[field].astype(np.int64)
        steps: npt.NDArray[Any] = np.flatnonzero(keys[1:] <= keys[:-1])
        if len(steps):
            slot = first + int(steps[0]) + 1
            raise CorruptIndexError(
                f"{self.path}: {field} {keys[steps[0] + 1]} of entry {slot} does not follow "
                f"{keys[steps[0]]} of the one before; {REBUILD}"
            )
        return keys
