"""The last offset of each key in a part of a log, in memory of a fixed size.

Keys are kept by their MD5, 24 bytes each, whatever their length. As in Kafka, two keys with one MD5
would count as one.

Source: Kafka ``SkimpyOffsetMap``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.streaming.log.compaction import map_kernels as kernels
from kafkalog.streaming.log.compaction import map_kernels as md5_kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

__all__ = ["BYTES_PER_ENTRY", "OffsetMap"]

BYTES_PER_ENTRY: Final = 24
DEFAULT_MEMORY: Final = 128 << 20
DEFAULT_LOAD_FACTOR: Final = 0.9
"""Kafka's ``log.cleaner.dedupe.buffer.size`` and ``log.cleaner.io.buffer.load.factor``."""

_WINDOW: Final = 1 << 22
_DENSE: Final = 16
"""Offsets to a record for which a window pays, which looks at the whole table."""
_NOTHING: Final = (2**63 - 1, -1)


class OffsetMap:
    """Maps keys to offsets. Not shared between threads.

    ``latest_offset`` is how far the log was looked at, -1 at first; ``len()`` is the number of
    keys.
    """

    def __init__(
        self, memory: int = DEFAULT_MEMORY, load_factor: float = DEFAULT_LOAD_FACTOR
    ) -> None:
        """Take memory for an empty map.

        Args:
            memory: bytes, of which the system gives those that are used.
            load_factor: the part of the slots that may be taken, above 0 and below 1.

        Raises:
            ValueError: there would be room for less than two keys.
        """
        slots = min(memory // BYTES_PER_ENTRY, kernels.MOST_SLOTS)
        self.capacity = int(slots * load_factor)
        """The number of keys that the map takes."""
        if self.capacity < 1 or slots * load_factor <= 1 or load_factor >= 1:
            raise ValueError(
                f"{memory} bytes with a load factor of {load_factor} are too small a map of "
                f"offsets: a key takes {BYTES_PER_ENTRY} bytes, and nothing could be cleaned"
            )
        self._table = np.zeros((slots, kernels.SLOT_FIELDS), np.int64)
        self._digester = _Digester()
        self._state = np.zeros(kernels.STATE_SIZE, np.int64)
        self._state[kernels.LATEST_OFFSET] = -1
        self._first_offset = -1
        self._untold = _NOTHING
        self._marks = np.zeros(_WINDOW, np.uint8)
        self._marks_first = -1  # no window was looked at

    def __len__(self) -> int:
        return int(self._state[kernels.ENTRIES])

    @property
    def latest_offset(self) -> int:
        """The last offset that was put or passed."""
        return int(self._state[kernels.LATEST_OFFSET])

    def pass_to(self, offset: int) -> None:
        """Say that the log was looked at up to an offset, which has no key of its own."""
        self._state[kernels.LATEST_OFFSET] = offset

    def clear(self) -> None:
        """Forget all keys."""
        if len(self):
            self._table.fill(0)
        self._state[:] = (0, -1, 0)
        self._first_offset = self._marks_first = -1
        self._untold = _NOTHING

    def put(
        self, source: Bytes, key_starts: Integers, key_lengths: Integers, offsets: Integers
    ) -> int:
        """Note the offsets of keys in order; a later one replaces an earlier one.

        Args:
            source: uint8[m], in which the keys lie.
            key_starts: int64[n].
            key_lengths: int64[n], negative for a record without a key, which is passed over.
            offsets: int64[n].

        Returns:
            how many records were taken, less than n if the map was full before one with a key,
            even one it has; ``latest_offset`` is that of the last key it took.
        """
        digests = self._digester.digest(source, key_starts, key_lengths)
        taken: int = kernels.put_keys(
            *(digests, key_lengths, offsets, self.capacity, self._table, self._state)
        )
        self._marks_first = -1
        if self._first_offset < 0 and len(self):
            self._first_offset = int(offsets[np.argmax(key_lengths >= 0)])
        return taken

    def find(self, source: Bytes, key_starts: Integers, key_lengths: Integers) -> Integers:
        """Return the offset of each key, int64[n]; -1 for one that is not in the map."""
        found = np.empty(len(key_starts), np.int64)
        digests = self._digester.digest(source, key_starts, key_lengths)
        kernels.find_keys(digests, key_lengths, self._table, found, self._state)
        return found

    def has_put(self, offsets: Integers) -> bool:
        """Return whether all records with keys at some offsets were put, if no caller skipped one.

        So :meth:`are_last` can tell of them without their keys. False too where that is not worth
        it, for offsets that are far apart.
        """
        if not len(offsets) or self._first_offset < 0:
            return False
        first, last = int(offsets[0]), int(offsets[-1])
        if not self._first_offset <= first <= last <= self.latest_offset:
            return False
        return last - first < _DENSE * len(offsets) and bool((np.diff(offsets) > 0).all())

    def leave_to_keys(self, first: int, last: int) -> None:
        """Say that of records from one offset to another :meth:`have_no_last` is not to tell."""
        low, high = self._untold
        self._untold = (min(low, first), max(high, last))

    def have_no_last(self, firsts: Integers, lasts: Integers, records: int) -> NDArray[np.bool_]:
        """Return which ranges of offsets have no last one of a key, as far as that is known.

        Args:
            firsts: int64[n], where each begins; they ascend, and no range meets the next one.
            lasts: int64[n], the last offset of each.
            records: how many there are in all of them.

        Returns:
            bool[n]; False too where not all records with keys were put, see :meth:`has_put`, where
            a caller said so, and where it is not worth it.
        """
        if not len(firsts) or self._first_offset < 0:
            return np.zeros(len(firsts), np.bool_)
        told = (firsts >= self._first_offset) & (lasts <= self.latest_offset)
        told &= (firsts > self._untold[1]) | (lasts < self._untold[0])
        rows = np.flatnonzero(told)
        if not len(rows) or int(lasts[rows[-1]] - firsts[rows[0]]) >= _DENSE * records:
            return np.zeros(len(firsts), np.bool_)
        self._look_from(int(firsts[rows[0]]))
        starts = firsts - self._marks_first
        unmarked = np.empty(len(firsts), np.uint8)
        kernels.find_unmarked(self._marks, starts, lasts - self._marks_first + 1, unmarked)
        return told & unmarked.view(np.bool_)

    def are_last(self, offsets: Integers) -> NDArray[np.bool_]:
        """Return which offsets are the last ones of a key, bool[n]; they ascend."""
        found = np.empty(len(offsets), np.bool_)
        done = 0
        while done < len(offsets):
            self._look_from(int(offsets[done]))
            end = int(np.searchsorted(offsets, self._marks_first + _WINDOW))
            found[done:end] = self._marks[offsets[done:end] - self._marks_first]
            done = end
        return found

    def _look_from(self, offset: int) -> None:
        """Have the last offsets of keys in a window that an offset lies in."""
        if self._marks_first < 0 or not 0 <= offset - self._marks_first < _WINDOW:
            self._marks.fill(0)
            self._marks_first = offset
            kernels.mark_last_offsets(self._table, offset, self._marks)


class _Digester:
    """Digests keys in memory that is used again."""

    def __init__(self) -> None:
        self._work = np.zeros(md5_kernels.WORK_SIZE, np.uint32)
        self._lanes = np.zeros((md5_kernels.LANES, md5_kernels.LANE_FIELDS), np.int64)
        self._digests = np.zeros((0, md5_kernels.DIGEST_FIELDS), np.int64)

    def digest(self, source: Bytes, starts: Integers, lengths: Integers) -> Integers:
        """Return the MD5 of each key, int64[n, 2]; it lasts until the next call."""
        rows = len(starts)
        if rows > len(self._digests):
            self._digests = np.zeros((2 * rows, md5_kernels.DIGEST_FIELDS), np.int64)
        digests = self._digests[:rows]
        arguments = (source, starts, lengths, self._work, self._lanes, digests)
        if md5_kernels.digest_keys(*arguments) == md5_kernels.BROKEN:
            raise AssertionError("a key was found outside of its bytes")
        return digests
