"""The offset index of a segment: ``%020d.index``.

Entries of 8 bytes, big-endian:

====  ====  ========  =====================================================================
byte  size  field     meaning
====  ====  ========  =====================================================================
0     4     offset    relative: the offset minus the segment's base offset
4     4     position  byte position in the ``.log`` file where a batch starts
====  ====  ========  =====================================================================

Example: in a segment with base offset 50, the batch at position 4213 that ends at offset 55 is
stored as ``00000005 00001075``.

Entry (o, p) promises that every batch before position p ends below offset o. So a search for any
offset from o on may start at p. The batch at p need not hold o: Kafka 4.1 writes the last offset of
the batch at p as o, earlier releases the last offset of the whole append that begins at p.

The first batch of a segment never gets an entry, so position 0 is a slot that was never written.

Source: Kafka ``OffsetIndex``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from kafkalog.streaming.log.index.sparse import SparseIndex

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["OFFSET_ENTRY", "OffsetIndex", "OffsetPosition"]

OFFSET_ENTRY: np.dtype[np.void] = np.dtype([("offset", ">i4"), ("position", ">i4")])


class OffsetPosition(NamedTuple):
    """An absolute offset, and the byte position from which it is found by reading on."""

    offset: int
    position: int


class OffsetIndex(SparseIndex):
    """Maps offsets to positions; see :class:`SparseIndex` for opening and closing."""

    ENTRY: ClassVar[np.dtype[np.void]] = OFFSET_ENTRY
    KEY: ClassVar[str] = "offset"

    def _is_written(self, slot: int) -> bool:
        return bool(self.read(slot, slot + 1)[0]["position"] != 0)

    def limit(self, log_size: int) -> None:
        """Forget the entries that point to or beyond the end of the log.

        A copy of a growing log has them if the index was copied last.

        Raises:
            CorruptIndexError: positions do not ascend.
        """
        if self._entries and self._entry(self._entries - 1).position >= log_size:
            self._entries = self._floor_slot(log_size - 1, "position") + 1

    def lookup(self, offset: int) -> OffsetPosition:
        """Find the last entry whose offset is not above ``offset``; (base offset, 0) without one.

        Raises:
            CorruptIndexError: the entries read do not ascend, or the file has shrunk.
        """
        slot = self._floor_slot(offset - self.base_offset, "offset")
        return OffsetPosition(self.base_offset, 0) if slot < 0 else self._entry(slot)

    def end_position(self, offset: int) -> int | None:
        """Find a position from which on all offsets are at or above ``offset``; None if unknown.

        The batches that follow those of entry k start above its offset, and the entry after it
        points to one of them.

        Raises:
            CorruptIndexError: the entries read do not ascend, or the file has shrunk.
        """
        slot = self._floor_slot(offset - 2 - self.base_offset, "offset") + 2
        return None if slot >= self._entries else self._entry(slot).position

    def last_entry(self) -> OffsetPosition:
        """Return the last entry; (base offset, 0) without one."""
        if self._entries == 0:
            return OffsetPosition(self.base_offset, 0)
        return self._entry(self._entries - 1)

    def between(self, start_position: int, end_position: int) -> npt.NDArray[np.int64]:
        """Return the entries with ``start_position < position < end_position``.

        Returns:
            int64[n, 2]: absolute offset and position, ascending.

        Raises:
            CorruptIndexError: the entries read do not ascend, or the file has shrunk.
        """
        first = self._floor_slot(start_position, "position") + 1
        end = max(first, self._floor_slot(end_position - 1, "position") + 1)
        entries = self.read(first, end)
        found = np.empty((len(entries), 2), np.int64)
        found[:, 0] = entries["offset"]
        found[:, 0] += self.base_offset
        found[:, 1] = entries["position"]
        return found

    def _entry(self, slot: int) -> OffsetPosition:
        entry = self.read(slot, slot + 1)[0]
        return OffsetPosition(self.base_offset + int(entry["offset"]), int(entry["position"]))
