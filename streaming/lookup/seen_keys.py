"""The keys that were seen while a log is read from its end on: a key's first row is its newest.

Only keys are kept, no rows, in memory of a fixed size. When there is no more room, either no more
keys are taken, and it is told which are not known (:meth:`SeenKeys.unknown`). Or half of the shares
of the keys are given up: their rows so far are told, and the keys of these shares are read once
more, newest first (:attr:`SeenKeys.given_up`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkalog.model import MAX_OFFSET
from kafkalog.streaming.lookup import key_kernels as kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

__all__ = ["KeyRange", "SeenKeys", "share_of"]

_FIRST_SLOTS: Final = 1024
_FIRST_ARENA: Final = 16 << 10


class KeyRange(NamedTuple):
    """The keys of the shares ``[low, high)``, and the rows of them that are wanted still.

    Rows from the offset ``below`` on were told before: only their keys count.
    """

    low: int = 0
    high: int = kernels.SHARES
    below: int = MAX_OFFSET


def share_of(number: int, count: int) -> KeyRange:
    """Return one of ``count`` equal parts of all keys."""
    return KeyRange(number * kernels.SHARES // count, (number + 1) * kernels.SHARES // count)


class SeenKeys:
    """Tells which rows are the newest of their keys. Not shared between threads.

    ``given_up`` are the ranges of keys that have to be read again. ``len()`` is the number of keys.
    ``left`` says how many of the rows of the last :meth:`add`, the first ones, were not looked at.
    """

    def __init__(self, wanted: KeyRange, seed: int, memory: int, *, gives_up: bool = True) -> None:
        """Start without a key.

        Args:
            wanted: the keys and rows to look at.
            seed: of the hash, 62 bits.
            memory: bytes for keys and table at most; a single key may have more.
            gives_up: whether shares of the keys are given up when there is no more room. If not,
                no more keys are taken then.
        """
        self._gives_up = gives_up
        self._is_full = False
        self.left = 0
        self._low, self._high, self._below = wanted
        self._seed = seed
        self._memory = memory
        self._table = np.zeros((_FIRST_SLOTS, kernels.SLOT_FIELDS), np.int64)
        self._arena = np.empty(_FIRST_ARENA, np.uint8)
        self._state = np.zeros(kernels.STATE_SIZE, np.int64)
        self.given_up: list[KeyRange] = []

    def __len__(self) -> int:
        return int(self._state[kernels.ENTRIES])

    @property
    def memory(self) -> int:
        """The bytes that are held."""
        return self._table.nbytes + self._arena.nbytes

    def hashes(self, source: Bytes, key_starts: Integers, key_lengths: Integers) -> Integers:
        """Return the hash of each key, int64[n]; -1 where there is none."""
        hashes = np.empty(len(key_starts), np.int64)
        _check(kernels.hash_keys(source, key_starts, key_lengths, self._seed, hashes))
        return hashes

    def add(
        self,
        source: Bytes,
        key_starts: Integers,
        key_lengths: Integers,
        offsets: Integers,
        hashes: Integers,
    ) -> NDArray[np.bool_]:
        """Return which of the rows are the newest of their keys, and keep their keys.

        Args:
            source: uint8[m], in which the keys lie.
            key_starts: int64[n].
            key_lengths: int64[n].
            offsets: int64[n], ascending, all of them below those of earlier calls.
            hashes: int64[n], see :meth:`hashes`; a row with -1 is passed over.

        Returns:
            bool[n]
        """
        newest = np.zeros(len(offsets), np.uint8)
        left = len(offsets)
        while left and not self._is_full:
            left = _check(
                kernels.add_newest(
                    *(source, key_starts, key_lengths, hashes, offsets),
                    *(self._low, self._high, self._below, left, len(self._table) * 3 // 4),
                    *(self._table, self._arena, self._state, newest),
                )
            )
            if left:
                self._make_room(int(key_lengths[left - 1]), int(offsets[left - 1]))
        self.left = left
        return newest.view(np.bool_)

    def unknown(
        self, source: Bytes, key_starts: Integers, key_lengths: Integers, hashes: Integers
    ) -> Integers:
        """Return which of the first ``left`` rows have keys that were not seen, int64[m]."""
        unknown = np.empty(self.left, np.uint8)
        _check(
            kernels.find_unknown(
                *(source, key_starts, key_lengths, hashes, self._low, self._high, self.left),
                *(self._table, self._arena, self._state, unknown),
            )
        )
        return np.flatnonzero(unknown)

    def forget(self) -> None:
        """Give the memory back, at the end: no more rows can be added."""
        self._is_full = True
        self._table = np.zeros((1, kernels.SLOT_FIELDS), np.int64)
        self._arena = np.empty(1, np.uint8)

    def _make_room(self, length: int, offset: int) -> None:
        """Make room for one more key, at the cost of others if there is too little memory."""
        slots, room = self._larger(length)
        old = self.memory
        new = (slots * self._table.itemsize * kernels.SLOT_FIELDS) + room
        if old + new <= self._memory or not len(self) or self._high - self._low == 1:
            self._rebuild(slots, room)
            return
        if not self._gives_up:
            self._is_full = True
            return
        middle = (self._low + self._high) // 2
        self.given_up.append(KeyRange(middle, self._high, min(self._below, offset + 1)))
        self._high = middle
        self._rebuild(len(self._table), len(self._arena))

    def _larger(self, length: int) -> tuple[int, int]:
        slots, room = len(self._table), len(self._arena)
        needed = int(self._state[kernels.USED]) + kernels.LENGTH_SIZE + length
        if len(self) >= slots * 3 // 4:
            slots *= 2
        if needed > room:
            room = max(needed, 2 * room)
        return slots, room

    def _rebuild(self, slots: int, room: int) -> None:
        table = np.zeros((slots, kernels.SLOT_FIELDS), np.int64)
        arena = np.empty(room, np.uint8)
        _check(
            kernels.take_over(
                *(self._table, self._arena, self._low, self._high), *(table, arena, self._state)
            )
        )
        self._table, self._arena = table, arena


def _check(answer: int) -> int:
    if answer == kernels.BROKEN:
        raise AssertionError("a key was found outside of its bytes")
    return answer
