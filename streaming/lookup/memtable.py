"""Entries in the order of their keys, of each key the newest first: LevelDB's memtable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkalog.streaming.lookup import memtable_kernels as kernels
from kafkalog.streaming.lookup.entry_kernels import BROKEN
from kafkalog.streaming.lookup.wanted_keys import KeySpan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

__all__ = ["MAX_SEQUENCE", "Entries", "MemTable"]

MAX_SEQUENCE: Final = (1 << 56) - 1

_FIRST_ARENA: Final = 4096
_FIRST_LINKS: Final = 512
_BLOCK: Final = 8192
_OVERHEAD: Final = 5 + 8 + 5
"""The bytes of an entry beside its key and value, at most."""

_ALL: Final = KeySpan()


class Entries(NamedTuple):
    """Entries that lie in ``source``, uint8[n]; the columns are int64[m].

    A negative value length is a deletion.
    """

    source: Bytes
    key_starts: Integers
    key_lengths: Integers
    sequences: Integers
    value_starts: Integers
    value_lengths: Integers


class MemTable:
    """Takes entries in any order, and gives them in order. Not shared between threads.

    ``len()`` is the number of entries. Entries that were given lie in the table's own memory, and
    stay as they are.
    """

    def __init__(self, memory: int) -> None:
        """Start without an entry.

        Args:
            memory: bytes at most; a single entry may have more.
        """
        self._memory = memory
        self._arena = np.empty(_FIRST_ARENA, np.uint8)
        self._links = np.zeros(_FIRST_LINKS, np.int64)
        self._state = np.zeros(kernels.STATE_SIZE, np.int64)
        self._state[kernels.LINKED] = 1 + kernels.MOST_LEVELS
        self._state[kernels.LEVELS] = 1
        self._state[kernels.RANDOM] = kernels.FIRST_RANDOM

    def __len__(self) -> int:
        return int(self._state[kernels.ENTRIES])

    @property
    def memory(self) -> int:
        """The bytes that are held."""
        return self._arena.nbytes + self._links.nbytes

    def add(self, entries: Entries) -> int:
        """Add entries; gives how many were taken before there was no more room.

        Raises:
            ValueError: a key has two entries with one sequence number, or one has more than 56
                bits.
        """
        sequences = entries.sequences
        if len(sequences) and not 0 <= sequences.min() <= sequences.max() <= MAX_SEQUENCE:
            raise ValueError("a sequence number has more than 56 bits")
        taken = 0
        while True:
            taken = kernels.add_entries(
                *(entries.source, entries.key_starts, entries.key_lengths),
                *(entries.value_starts, entries.value_lengths, sequences),
                taken,
                *(self._arena, self._links, self._state),
            )
            if taken == kernels.TWICE:
                raise ValueError("a key has two entries with the same sequence number")
            _check(taken)
            if taken == len(sequences) or not self._make_room(
                int(entries.key_lengths[taken]) + max(int(entries.value_lengths[taken]), 0)
            ):
                return taken

    def get(self, key: bytes, sequence: int = MAX_SEQUENCE) -> tuple[int, bytes | None] | None:
        """Return the newest entry of a key up to a sequence number: that number, and the value.

        The value is None if the entry is a deletion. None if there is no entry.
        """
        found = np.zeros(kernels.COLUMNS, np.int64)
        what = (np.frombuffer(key + b"\0", np.uint8), len(key), sequence)
        answer = _check(kernels.look_up(*what, self._arena, self._links, self._state, found))
        if answer == kernels.ABSENT:
            return None
        start, length = int(found[kernels.VALUE_START]), int(found[kernels.VALUE_LENGTH])
        value = self._arena[start : start + length].tobytes() if length >= 0 else None
        return int(found[kernels.SEQUENCE]), value

    def scan(self, span: KeySpan = _ALL, *, newest_only: bool = False) -> Iterator[Entries]:
        """Yield the entries of some keys in order, in blocks.

        Args:
            span: the keys.
            newest_only: of each key the newest entry alone.
        """
        low = np.frombuffer(span.low + b"\0", np.uint8)
        high = np.frombuffer((span.high or b"") + b"\0", np.uint8)
        high_length = -1 if span.high is None else len(span.high)
        table = (self._arena, self._links, self._state)
        cursor = np.array([_check(kernels.seek(low, len(span.low), *table)), 0, -1], np.int64)
        while cursor[0]:
            columns = np.empty((kernels.COLUMNS, _BLOCK), np.int64)
            count = _check(
                kernels.scan(high, high_length, int(newest_only), *table, columns, cursor)
            )
            if count:
                yield Entries(self._arena, *columns[:, :count])

    def _make_room(self, size: int) -> bool:
        """Make room for an entry with ``size`` bytes of key and value; False if there is none."""
        room, links = len(self._arena), len(self._links)
        needed = int(self._state[kernels.USED]) + size + _OVERHEAD
        if needed > room:
            room = max(needed, 2 * room)
        if int(self._state[kernels.LINKED]) + 1 + kernels.MOST_LEVELS > links:
            links *= 2
        grown = room + links * self._links.itemsize
        if self.memory + grown > self._memory and len(self):
            return False
        arena, self._arena = self._arena, np.empty(room, np.uint8)
        self._arena[: len(arena)] = arena
        old, self._links = self._links, np.zeros(links, np.int64)
        self._links[: len(old)] = old
        return True


def _check(answer: int) -> int:
    if answer == BROKEN:
        raise AssertionError("an entry was found outside of its bytes")
    return answer
