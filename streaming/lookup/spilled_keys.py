"""The keys that a task's memory has no room for: written to a file, and looked through later.

A key is written into the bucket of its hash, with its record's offset, as LevelDB codes an entry
without a value. A bucket that is full goes to the file. When the log has been read, one bucket
after the other is read back, newest records first, and its keys are told apart in memory: each
bucket holds all records of its keys. What comes of it are the offsets of their newest records.
They are written to the same file, and then taken from it in the order in which the log is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkalog.errors import SpillError
from kafkalog.streaming.lookup import entry_kernels as kernels
from kafkalog.streaming.lookup.seen_keys import KeyRange, SeenKeys
from kafkalog.streaming.lookup.spill_file import SpillFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers
    from kafkalog.streaming.records.row_buffers import FoundRecords

__all__ = ["NewestOffsets", "SpilledKeys"]

_MOST_BUCKETS: Final = 64
_FEWEST_BUCKETS: Final = 4
_SMALLEST_BUCKET: Final = 4096
_OFFSET_SIZE: Final = 8
_MAX_OFFSET: Final = (1 << 56) - 1  # as large as a sequence number of LevelDB's
_AT_ONCE: Final = 1024


class SpilledKeys:
    """Takes records from the newest to the oldest. ``bool()`` tells whether any were taken.

    Not shared between threads. :meth:`close` gives the file back.
    """

    def __init__(self, keys: KeyRange, memory: int) -> None:
        """Prepare; a file is made with the first record.

        Args:
            keys: what keys there are.
            memory: bytes of all buckets, about.
        """
        count = min(_MOST_BUCKETS, max(_FEWEST_BUCKETS, memory // _SMALLEST_BUCKET))
        self._low = keys.low
        self._width = -(-(keys.high - keys.low) // count)
        self._shape = count, max(_SMALLEST_BUCKET, memory // count)
        self._buckets = np.empty((0, 0), np.uint8)
        self._used = np.zeros(count, np.int64)
        self._extents: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        self._file: SpillFile | None = None

    def __bool__(self) -> bool:
        return self._file is not None

    def add(self, found: FoundRecords, hashes: Integers, rows: Integers) -> None:
        """Take some of the records.

        Args:
            found: records in the order of the log, all of them before those of earlier calls.
            hashes: int64[n], of their keys.
            rows: int64[m], ascending: which are taken.

        Raises:
            SpillError: they cannot be written, or their offsets are too large to be.
        """
        if not len(rows):
            return
        if int(found.offsets[rows[-1]]) > _MAX_OFFSET:
            raise SpillError(
                f"offset {found.offsets[rows[-1]]} is beyond {_MAX_OFFSET}, the largest of which "
                "keys can go to disk; raise table.memory so that none has to"
            )
        if self._file is None:
            self._file = SpillFile()
            self._buckets = np.empty(self._shape, np.uint8)
        records = _Records(
            *(found.source, found.key_starts, found.key_lengths, found.value_lengths),
            *(found.offsets, hashes),
        )
        left = len(rows)
        while left:
            place = (self._low, self._width, self._buckets, self._used)
            left = _check(kernels.add_to_buckets(*records, rows, left, *place))
            if left:
                row = int(rows[left - 1])
                bucket = ((int(hashes[row]) >> 32) - self._low) // self._width
                self._write(self._file, bucket)
                size = int(found.key_lengths[row]) + 2 * kernels.SMALLEST_ENTRY
                if size > self._shape[1]:
                    self._write_alone(self._file, bucket, records, row, size)
                    left -= 1

    def _write_alone(
        self, file: SpillFile, bucket: int, records: _Records, row: int, size: int
    ) -> None:
        """Write a record that is too large for its bucket, with ``size`` bytes at most."""
        alone, used = np.empty((1, size), np.uint8), np.zeros(1, np.int64)
        _check(kernels.add_to_buckets(*records, np.array([row]), 1, 0, kernels.ANY, alone, used))
        self._extents[bucket].append((file.append(alone[0, : int(used[0])]), int(used[0])))

    def _write(self, file: SpillFile, bucket: int) -> None:
        size = int(self._used[bucket])
        if size:
            position = file.append(self._buckets[bucket, :size])
            self._extents[bucket].append((position, size))
            self._used[bucket] = 0

    def newest(self, seed: int, memory: int, *, tombstones: bool) -> NewestOffsets:
        """Tell the offsets of the newest records of all keys that were taken.

        Args:
            seed: of the hashes.
            memory: bytes for keys at most. A bucket with more is read several times.
            tombstones: whether those whose value is null count too.

        Raises:
            SpillError: they cannot be written or read.
        """
        if self._file is None:
            raise AssertionError("no key was spilled")
        for bucket in range(len(self._extents)):
            self._write(self._file, bucket)
        self._buckets = np.empty((0, 0), np.uint8)
        runs = []
        for bucket in range(len(self._extents)):
            low = self._low + bucket * self._width
            pending = [KeyRange(low, low + self._width)]
            while pending:
                seen = SeenKeys(pending.pop(), seed, memory)
                start = self._file.size
                for offsets in self._newest_of(self._file, bucket, seen, tombstones=tombstones):
                    self._file.append(offsets.view(np.uint8))
                runs.append(_Run(start, self._file.size))
                pending += seen.given_up
        return NewestOffsets(self._file, runs, memory)

    def _newest_of(
        self, file: SpillFile, bucket: int, seen: SeenKeys, *, tombstones: bool
    ) -> Iterator[Integers]:
        """Yield offsets, from the largest to the smallest."""
        for position, size in self._extents[bucket]:
            entries = _entries(file.read(position, size))
            newest = seen.add(*entries.where, entries.offsets, seen.hashes(*entries.where))
            if not tombstones:
                newest &= entries.kinds == kernels.VALUE
            yield np.ascontiguousarray(entries.offsets[newest][::-1])

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()


class _Records(NamedTuple):
    """Records, as the kernel takes them."""

    source: Bytes
    key_starts: Integers
    key_lengths: Integers
    value_lengths: Integers
    offsets: Integers
    hashes: Integers


class _Entries(NamedTuple):
    """Entries in the order of their offsets."""

    where: tuple[Bytes, Integers, Integers]
    offsets: Integers
    kinds: Bytes


def _entries(data: Bytes) -> _Entries:
    room = len(data) // kernels.SMALLEST_ENTRY
    starts, lengths, offsets = np.empty((3, room), np.int64)
    kinds = np.empty(room, np.uint8)
    first = room - _check(kernels.find_entries(data, starts, lengths, offsets, kinds))
    return _Entries((data, starts[first:], lengths[first:]), offsets[first:], kinds[first:])


class _Run(NamedTuple):
    """Where offsets lie in the file, from the largest to the smallest."""

    start: int
    end: int


class NewestOffsets:
    """Offsets in a file, taken from the largest to the smallest. ``taken`` counts them.

    ``memory`` bounds what is kept of them at once, about.
    """

    def __init__(self, file: SpillFile, runs: list[_Run], memory: int) -> None:
        self._file = file
        self._rest = [run for run in runs if run.end > run.start]
        self._at_once = max(_AT_ONCE, memory // _OFFSET_SIZE // max(1, len(self._rest)))
        self._read = [self._next(number) for number in range(len(self._rest))]
        self._largest = np.array([int(offsets[0]) for offsets in self._read], np.int64)
        self.taken = 0

    def take(self, low: int) -> Integers:
        """Return the offsets from ``low`` on that were not taken yet, ascending; int64[n]."""
        parts = []
        for number in np.flatnonzero(self._largest >= low).tolist():
            offsets = self._read[number]
            while len(offsets) and offsets[-1] >= low:
                parts.append(offsets)
                offsets = self._next(number)
            count = int(np.searchsorted(-offsets, -low, side="right"))
            parts.append(offsets[:count])
            self._read[number] = offsets[count:]
            self._largest[number] = offsets[count] if count < len(offsets) else -1
        found = np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)
        self.taken += len(found)
        return found

    def _next(self, number: int) -> Integers:
        """Read some more of a run; none at its end."""
        start, end = self._rest[number]
        size = min(end - start, self._at_once * _OFFSET_SIZE)
        self._rest[number] = _Run(start + size, end)
        return self._file.read(start, size).view(np.int64)


def _check(answer: int) -> int:
    if answer == kernels.BROKEN:
        raise AssertionError("a spilled key was found outside of its bytes")
    return answer
