"""The index files of a segment: by offset, by time, and of aborted transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import numpy as np

from kafkalog.errors import CorruptIndexError
from kafkalog.files.closing import Closing
from kafkalog.files.open_file import open_file
from kafkalog.files.remote_path import RemotePath
from kafkalog.model import NO_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    Entries = npt.NDArray[np.int64]

__all__ = [
    "KNOWN_BYTES",
    "OFFSET_ENTRY",
    "PAGE_BYTES",
    "REBUILD",
    "TIME_ENTRY",
    "TXN_ENTRY",
    "WARM_BYTES",
    "AbortedTransaction",
    "OffsetIndex",
    "OffsetPosition",
    "SparseIndex",
    "TimeIndex",
    "TimestampOffset",
    "TxnIndex",
    "known_entries",
]


# ----------------------------------------------------------------------------------------------
# What the offset index and the time index share: ascending entries, and a search that stays warm.
#
# Indexes are read, not mapped: a broker trims a preallocated index when it rolls, and touching a
# mapped page beyond the new end is SIGBUS, which no program survives.
#
# An index file is an array of entries of one size, without header or checksum. A broker
# preallocates the active segment's (10 MiB of zeros by default) and keeps the number of entries
# in memory, so on the disk the entries end at the first slot that was never written.
#
# **Hot-region search.** The first steps of a plain binary search over a large index touch a cold
# page each, whatever the target. Those page faults stall a reader at the tail, which wants the
# last entries only. So, as in Kafka's ``AbstractIndex``, the last 8192 bytes are the *warm
# section*: at most 3 pages, which the writer keeps in memory by appending to them. If the entry
# before them is not above the target, one read of the warm section finds the answer. Only older
# targets are searched for in the rest.
#
# Source: Kafka ``AbstractIndex``.


PAGE_BYTES: Final = 4096
WARM_BYTES: Final = 8192
KNOWN_BYTES: Final = 16 << 10
"""How many bytes of an index lie between two entries of which a store may know without reading."""
_MAX_BYTES: Final = 2**31 - 1
"""``segment.index.bytes`` is an int32."""
REBUILD: Final = "readers do without it, and `python -m kafkalog.jobs.rebuild PATH` makes it anew"


_NO_SLOTS: Final[Entries] = np.empty(0, np.int64)


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

    def __init__(self, path: Path | str, base_offset: int) -> None:
        """Open ``path``, the index of the segment with ``base_offset``.

        Raises:
            FileNotFoundError: there is no such file.
            CorruptIndexError: the last entry lies below the base offset.
            LogDirectoryError: a link, FIFO or device.
        """
        self.path = path
        self.base_offset = base_offset
        self._file = open_file(path)
        self._known: npt.NDArray[np.void] | None = None
        self._known_slots = _NO_SLOTS
        self._whole: npt.NDArray[np.void] | None = None
        try:
            size = self._file.opened_size
            self._check_size(size)
            if isinstance(path, RemotePath):
                self._take_known(path)
            # Until the written ones are counted, so that a file that shrinks meanwhile is told.
            self._entries = size // self.ENTRY.itemsize
            if self._entries and size <= WARM_BYTES:  # what a search reads of it anyway, at once
                data = self._file.read(0, self._entries * self.ENTRY.itemsize)
                self._whole = data[: len(data) // self.ENTRY.itemsize * self.ENTRY.itemsize].view(
                    self.ENTRY
                )
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

    def _take_known(self, path: RemotePath) -> None:
        """Take the entries that the store knows: what lies between two of them is one read."""
        known = path.store.index_entries(path.key)
        slots = _known_slots(self._file.size // self.ENTRY.itemsize, self.ENTRY.itemsize)
        if known and len(known) == len(slots) * self.ENTRY.itemsize:
            self._known, self._known_slots = np.frombuffer(known, self.ENTRY), slots

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
        if self._whole is not None and end <= len(self._whole):
            return self._whole[first:end]
        if self._known is not None and end - first == 1:
            at = int(np.searchsorted(self._known_slots, first))
            if at < len(self._known_slots) and self._known_slots[at] == first:
                return self._known[at : at + 1]
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
        if self._known is not None and self._entries > self._known_slots[-1]:
            return self._known_floor_slot(target, field)
        first_hot = max(0, self._entries - 1 - WARM_BYTES // self.ENTRY.itemsize)
        hot = self._ascending(first_hot, self._entries, field)
        if first_hot == 0 or hot[0] <= target:
            return first_hot + int(np.searchsorted(hot, target, side="right")) - 1
        return self._cold_floor_slot(target, field, first_hot)

    def _known_floor_slot(self, target: int, field: str) -> int:
        """Search between the two known entries around the target: one read."""
        assert self._known is not None  # noqa: S101 - the caller looked
        keys = self._known[field].astype(np.int64)
        at = int(np.searchsorted(keys, target, side="right")) - 1
        if at < 0 or at + 1 == len(keys):
            return -1 if at < 0 else int(self._known_slots[at])
        low, high = int(self._known_slots[at]), int(self._known_slots[at + 1])
        between = self._ascending(low, high, field)
        return low + int(np.searchsorted(between, target, side="right")) - 1

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


def _known_slots(count: int, size: int) -> Entries:
    """Return the slots of which a store knows, of an index of ``count`` entries of a size."""
    if not count:
        return np.empty(0, np.int64)
    return np.append(np.arange(0, count - 1, KNOWN_BYTES // size, dtype=np.int64), count - 1)


def known_entries(index: bytes, size: int) -> bytes:
    """Return the entries of an index that a store is to know; ``size`` is that of an entry.

    Nothing of one that is read whole at once.
    """
    if len(index) <= KNOWN_BYTES:
        return b""
    slots = _known_slots(len(index) // size, size)
    return np.frombuffer(index, np.dtype((np.void, size)))[slots].tobytes()


# ----------------------------------------------------------------------------------------------
# The offset index of a segment: ``%020d.index``.
#
# Entries of 8 bytes, big-endian:
#
# ====  ====  ========  =====================================================================
# byte  size  field     meaning
# ====  ====  ========  =====================================================================
# 0     4     offset    relative: the offset minus the segment's base offset
# 4     4     position  byte position in the ``.log`` file where a batch starts
# ====  ====  ========  =====================================================================
#
# Example: in a segment with base offset 50, the batch at position 4213 that ends at offset 55 is
# stored as ``00000005 00001075``.
#
# Entry (o, p) promises that every batch before position p ends below offset o. So a search for
# any offset from o on may start at p. The batch at p need not hold o: Kafka 4.1 writes the last
# offset of the batch at p as o, earlier releases the last offset of the whole append that begins
# at p.
#
# The first batch of a segment never gets an entry, so position 0 is a slot that was never
# written.
#
# Source: Kafka ``OffsetIndex``.


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


# ----------------------------------------------------------------------------------------------
# The time index of a segment: ``%020d.timeindex``.
#
# Entries of 12 bytes, big-endian:
#
# ====  ====  =========  ====================================================================
# byte  size  field      meaning
# ====  ====  =========  ====================================================================
# 0     8     timestamp  the largest timestamp, in ms, at or before the offset
# 8     4     offset     relative: last offset of the first batch that reached this timestamp
# ====  ====  =========  ====================================================================
#
# Timestamps ascend strictly; records without one (-1) never make an entry. The last entry of a
# closed segment holds its largest timestamp, which is how a reopened segment knows it.
#
# Only the first entry can have timestamp 0, and not with offset 0 as well. So a written slot is
# never all zeros, as the slots after the last entry are.
#
# Source: Kafka ``TimeIndex``.


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


# ----------------------------------------------------------------------------------------------
# The index of aborted transactions of a segment: ``%020d.txnindex``.
#
# Entries of 34 bytes, big-endian, one for each ABORT marker in the segment that ended a
# transaction with records in this partition, in the order of the markers:
#
# ====  ====  ================  ==============================================================
# byte  size  field             meaning
# ====  ====  ================  ==============================================================
# 0     2     version           0
# 2     8     producerId        whose transaction it was
# 10    8     firstOffset       base offset of its first batch; may lie in an earlier segment
# 18    8     lastOffset        of the marker
# 26    8     lastStableOffset  when it was written: the first offset of the oldest other
#                               transaction that was open then, else lastOffset + 1
# ====  ====  ================  ==============================================================
#
# Every transaction that started below an entry's last stable offset had ended when the entry was
# written. So no later entry is about an abort below it.
#
# The file exists only where something was aborted. A file that was lost looks like one that was
# never needed: whoever must be sure reads the log.
#
# Source: Kafka ``TransactionIndex``, ``AbortedTxn``.


TXN_ENTRY: Final[np.dtype[np.void]] = np.dtype(
    [
        ("version", ">i2"),
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),
        ("last_stable_offset", ">i8"),
    ]
)

_BLOCK_ENTRIES: Final = 2048
"""Entries read at once: a segment may have hundreds of thousands."""

_FIELDS: Final = TXN_ENTRY.names[1:] if TXN_ENTRY.names else ()


class AbortedTransaction(NamedTuple):
    """One entry; the order of the fields is that of the columns of :meth:`TxnIndex.blocks`."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TxnIndex(Closing):
    """One open index of aborted transactions; ``len()`` is the number of its entries.

    Entries that a broker adds later are not seen. Not thread safe, not picklable. Use it as a
    context manager, or :meth:`close` it. It does not check that the entries agree with the log.
    """

    def __init__(self, path: Path, base_offset: int) -> None:
        """Open ``path``, the index of the segment with ``base_offset``.

        Raises:
            FileNotFoundError: there is no such file.
            CorruptIndexError: it ends inside an entry.
            LogDirectoryError: a link, FIFO or device.
        """
        self.path = path
        self.base_offset = base_offset
        self._file = open_file(path)
        size = self._file.size
        self._entries, torn = divmod(size, TXN_ENTRY.itemsize)
        if torn:
            self.close()
            raise CorruptIndexError(
                f"{path}: {size} bytes are {self._entries} entries of {TXN_ENTRY.itemsize} bytes "
                f"and {torn} bytes of another: a broker or a copy stopped while writing it"
            )

    def __len__(self) -> int:
        return self._entries

    def close(self) -> None:
        """Close the file; closing twice does no harm."""
        self._file.close()

    def check(self) -> None:
        """Read all entries, to be sure of them before the first one is relied upon.

        Raises:
            CorruptIndexError: see :meth:`blocks`.
        """
        for _ in self.blocks():
            pass

    def blocks(self) -> Iterator[Entries]:
        """Read the entries, some at a time.

        Yields:
            int64[n, 4], the fields of :class:`AbortedTransaction` as columns.

        Raises:
            CorruptIndexError: entries that no broker writes, or the file has become shorter.
        """
        last_offset = self.base_offset - 1
        for slot in range(0, self._entries, _BLOCK_ENTRIES):
            entries = self._read(slot, min(_BLOCK_ENTRIES, self._entries - slot))
            self._check(entries, slot, last_offset)
            block = np.stack([entries[name] for name in _FIELDS], axis=1).astype(np.int64)
            last_offset = int(block[-1, 2])
            yield block

    def __iter__(self) -> Iterator[AbortedTransaction]:
        """Walk over the entries; raises what :meth:`blocks` raises."""
        for block in self.blocks():
            yield from (AbortedTransaction(*row) for row in block.tolist())

    def _read(self, slot: int, count: int) -> npt.NDArray[np.void]:
        size = TXN_ENTRY.itemsize
        data = self._file.read(slot * size, count * size)
        if len(data) < count * size:
            raise CorruptIndexError(
                f"{self.path}: ends inside entry {slot + len(data) // size}, it had "
                f"{self._entries} when it was opened: a broker has truncated it meanwhile"
            )
        return data.view(TXN_ENTRY)

    def _check(self, entries: npt.NDArray[np.void], slot: int, last_offset: int) -> None:
        first, last = entries["first_offset"], entries["last_offset"]
        stable = entries["last_stable_offset"]
        # Comparisons only: adding one to a damaged offset may overflow.
        wrong = (entries["version"] != 0) | (entries["producer_id"] < 0)
        wrong |= (first < 0) | (first >= last) | (stable < 0) | (stable - 1 > last)
        wrong |= last <= np.concatenate(([last_offset], last[:-1]))
        if wrong.any():
            number = int(wrong.argmax())
            shown = ", ".join(f"{name} {entries[number][name]}" for name in TXN_ENTRY.names or ())
            raise CorruptIndexError(
                f"{self.path}: entry {slot + number} is none that a broker writes there: {shown}; "
                f"the segment's base offset is {self.base_offset}, the marker before is at "
                f"{last_offset if number == 0 else last[number - 1]}"
            )
