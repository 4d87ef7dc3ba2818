"""The time index of a segment: ``%020d.timeindex``.

Entries of 12 bytes, big-endian:

====  ====  =========  ====================================================================
byte  size  field      meaning
====  ====  =========  ====================================================================
0     8     timestamp  the largest timestamp, in ms, at or before the offset
8     4     offset     relative: last offset of the first batch that reached this timestamp
====  ====  =========  ====================================================================

Timestamps ascend strictly; records without one (-1) never make an entry. The last entry of a closed
segment holds its largest timestamp, which is how a reopened segment knows it.

Only the first entry can have timestamp 0, and not with offset 0 as well. So a written slot is never
all zeros, as the slots after the last entry are.

Source: Kafka ``TimeIndex``.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from kafkalog.model import NO_TIMESTAMP
from kafkalog.streaming.log.index.sparse import SparseIndex

__all__ = ["TIME_ENTRY", "TimeIndex", "TimestampOffset"]

TIME_ENTRY: np.dtype[np.void] = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])


class TimestampOffset(NamedTuple):
    """A timestamp in ms, and the absolute offset that belongs to it."""

    timestamp: int
    offset: int


class TimeIndex(SparseIndex):
    """Maps timestamps to offsets; see :class:`SparseIndex` for opening and closing."""

    ENTRY: ClassVar[np.dtype[np.void]] = TIME_ENTRY
    KEY: ClassVar[str] = "timestamp"

    def _is_written(self, slot: int) -> bool:
        entry = self.read(slot, slot + 1)[0]
        return bool(entry["timestamp"] > 0 or (slot == 0 and entry["offset"] > 0))

    def lookup(self, timestamp: int) -> TimestampOffset:
        """Find the last entry not after ``timestamp``; (-1, base offset) without one.

        Raises:
            CorruptIndexError: the entries read do not ascend, or the file has shrunk.
        """
        slot = self._floor_slot(timestamp, "timestamp")
        return self._none() if slot < 0 else self.entry(slot)

    def last_entry(self) -> TimestampOffset:
        """Return the last entry; (-1, base offset) without one."""
        return self._none() if self._entries == 0 else self.entry(self._entries - 1)

    def count_through(self, offset: int) -> int:
        """Count the entries whose offset is not above ``offset``.

        Raises:
            CorruptIndexError: the entries read do not ascend, or the file has shrunk.
        """
        return self._floor_slot(offset - self.base_offset, "offset") + 1

    def _none(self) -> TimestampOffset:
        return TimestampOffset(NO_TIMESTAMP, self.base_offset)

    def entry(self, slot: int) -> TimestampOffset:
        """Return the entry in a slot below ``len()``."""
        entry = self.read(slot, slot + 1)[0]
        return TimestampOffset(int(entry["timestamp"]), self.base_offset + int(entry["offset"]))
