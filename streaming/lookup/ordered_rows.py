"""Rows in the order of their keys, however many: LevelDB's memtable, and sorted runs on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from kafkalog.streaming.lookup import memtable_kernels as kernels
from kafkalog.streaming.lookup.memtable_kernels import BROKEN
from kafkalog.streaming.lookup.seen_keys import KeySpan, SpillFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers


__all__ = [
    "FAN",
    "MAX_SEQUENCE",
    "Entries",
    "MemTable",
    "OrderedRows",
    "SortedRuns",
    "entries_of",
    "in_order",
    "place_of",
    "sorted_together",
]


# ----------------------------------------------------------------------------------------------
# Entries in the order of their keys, of each key the newest first: LevelDB's memtable.


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


# ----------------------------------------------------------------------------------------------
# Rows as entries of a memtable, which puts them in the order of their keys and partitions.
#
# An entry has the key of a row, and its value tells which row it is. Its sequence number counts
# the row's partition backwards, so that of one key the lower partition comes first: rows that are
# put in order here are the newest of their keys already, one for each partition.


_ROW_SIZE: Final = 8
_UNBOUNDED: Final = 1 << 62


def entries_of(rows: pa.RecordBatch, first: int) -> Entries:
    """Return the entries of rows, which are numbered from ``first`` on."""
    keys, count = rows.column("key"), rows.num_rows
    _, ends, data = keys.buffers()
    bounds = np.frombuffer(ends, np.int32, count + 1, keys.offset * 4).astype(np.int64)
    low, high = int(bounds[0]), int(bounds[-1])
    source = np.empty(high - low + count * _ROW_SIZE, np.uint8)
    if high > low:
        source[: high - low] = np.frombuffer(data, np.uint8, high - low, low)
    source[high - low :] = np.arange(first, first + count, dtype=np.int64).view(np.uint8)
    _, numbers = rows.column("partition").buffers()
    offset = rows.column("partition").offset
    partitions = np.frombuffer(numbers, np.int32, count, offset * 4).astype(np.int64)
    return Entries(
        *(source, bounds[:-1] - low, np.diff(bounds), MAX_SEQUENCE - partitions),
        *(np.arange(count) * _ROW_SIZE + (high - low), np.full(count, _ROW_SIZE)),
    )


def in_order(
    table: MemTable, batches: list[pa.RecordBatch], block: int
) -> Iterator[pa.RecordBatch]:
    """Yield rows in the order of the table.

    Args:
        table: has their entries.
        batches: the rows, in the order of their numbers.
        block: bytes of a batch that is given, about; a single row may have more.
    """
    if not batches:
        return
    rows = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    at_once = max(1, block * rows.num_rows // max(1, rows.nbytes))
    for entries in table.scan():
        places = entries.value_starts[:, np.newaxis] + np.arange(_ROW_SIZE)
        numbers = entries.source[places].view(np.int64)[:, 0]
        for start in range(0, len(numbers), at_once):
            yield from _taken(rows, numbers[start : start + at_once], 2 * block)


def _taken(rows: pa.RecordBatch, numbers: Integers, most: int) -> Iterator[pa.RecordBatch]:
    """Yield some of the rows, in batches of at most so many bytes, or of one row."""
    # pa.array would import pandas, to look at what it was given
    data = pa.py_buffer(np.ascontiguousarray(numbers))
    taken = rows.take(pa.Array.from_buffers(pa.int64(), len(numbers), [None, data]))
    if len(numbers) == 1 or taken.nbytes <= most:
        yield taken
        return
    half = len(numbers) // 2
    yield from _taken(rows, numbers[:half], most)
    yield from _taken(rows, numbers[half:], most)


def sorted_together(parts: list[pa.RecordBatch], block: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all parts in order; ``block`` as for :func:`in_order`."""
    table, first = MemTable(_UNBOUNDED), 0
    for part in parts:
        table.add(entries_of(part, first))
        first += part.num_rows
    yield from in_order(table, parts, block)


def place_of(rows: pa.RecordBatch, row: int) -> tuple[bytes, int]:
    """Return by what a row is put in order."""
    key: bytes = rows.column("key")[row].as_py()
    partition: int = rows.column("partition")[row].as_py()
    return key, partition


# ----------------------------------------------------------------------------------------------
# Sorted runs of rows in files without a name, and their merge.
#
# A run is written in blocks, each a record batch as Arrow's IPC codes it. :data:`FAN` runs of a
# level are merged into one of the next level, as LevelDB's levels are, so that a merge reads a
# bounded number of blocks at a time. A level has a file of its own. It is freed when its runs are
# merged.
#
# A merge reads the next block of each run. Up to the smallest of the last keys of these blocks,
# no other rows can come. These rows are put in order together.


FAN: Final = 32


class _Block(NamedTuple):
    position: int
    size: int


class _Level:
    """Runs in one file."""

    def __init__(self) -> None:
        self.file = SpillFile()
        self.runs: list[list[_Block]] = []

    def add(self, blocks: Iterable[pa.RecordBatch]) -> None:
        """Write a run."""
        run = []
        for block in blocks:
            data = np.frombuffer(block.serialize(), np.uint8)
            run.append(_Block(self.file.append(data), len(data)))
        self.runs.append(run)


class SortedRuns:
    """Takes sorted runs, and gives all their rows in order. ``bool()`` tells if there are any.

    Not shared between threads. :meth:`close` frees the files.
    """

    def __init__(self, block: int) -> None:
        """Prepare; a file is made with the first run. ``block``: bytes of a block, about."""
        self._block = block
        self._schema: pa.Schema | None = None
        self._levels: list[_Level | None] = []

    def __bool__(self) -> bool:
        return bool(self._levels)

    def add(self, blocks: Iterable[pa.RecordBatch]) -> None:
        """Write a run; merge runs if there are too many.

        Raises:
            SpillError: files cannot be written or read.
        """
        self._add(0, blocks)

    def merged(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order.

        Raises:
            SpillError: files cannot be read.
        """
        return self._merged([level for level in self._levels if level is not None])

    def close(self) -> None:
        """Free the files."""
        for level in self._levels:
            if level is not None:
                level.file.close()
        self._levels = []

    def _add(self, number: int, blocks: Iterable[pa.RecordBatch]) -> None:
        if number == len(self._levels):
            self._levels.append(None)
        level = self._levels[number]
        if level is None:
            level = self._levels[number] = _Level()
        level.add(self._noting_schema(blocks))
        if len(level.runs) == FAN:
            self._add(number + 1, self._merged([level]))
            level.file.close()
            self._levels[number] = None

    def _noting_schema(self, blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for block in blocks:
            self._schema = block.schema
            yield block

    def _merged(self, levels: list[_Level]) -> Iterator[pa.RecordBatch]:
        heads = [
            _Head(level.file, run, self._schema) for level in levels for run in level.runs if run
        ]
        while heads:
            bound = min(head.last for head in heads)
            parts = [head.take(bound) for head in heads]
            yield from sorted_together([part for part in parts if part.num_rows], self._block)
            heads = [head for head in heads if head.has_more()]


class _Head:
    """Where a merge is in a run: the block ``rows`` from ``_at`` on, whose last place is known."""

    def __init__(self, file: SpillFile, run: list[_Block], schema: pa.Schema | None) -> None:
        self._file = file
        self._schema = schema
        self._rest = run[::-1]
        self._read()

    def _read(self) -> None:
        data = pa.py_buffer(self._file.read(*self._rest.pop()))
        self._rows = pa.ipc.read_record_batch(data, self._schema)
        self._at = 0
        self.last = place_of(self._rows, self._rows.num_rows - 1)

    def take(self, bound: tuple[bytes, int]) -> pa.RecordBatch:
        """Return the next rows of this block up to a place."""
        low, high = self._at, self._rows.num_rows
        while low < high:
            middle = (low + high) // 2
            if place_of(self._rows, middle) <= bound:
                low = middle + 1
            else:
                high = middle
        rows = self._rows.slice(self._at, low - self._at)
        self._at = low
        return rows

    def has_more(self) -> bool:
        """Go on to the next block if this one was taken; False at the end of the run."""
        if self._at < self._rows.num_rows:
            return True
        if not self._rest:
            return False
        self._read()
        return True


# ----------------------------------------------------------------------------------------------
# Rows in the order of their keys, however many there are: a memtable, and sorted runs on disk.

_SMALLEST_BLOCK: Final = 16 << 10


class OrderedRows:
    """Takes rows in any order, and gives them by key and partition. ``spilled``: whether on disk.

    No two rows have both in common. Not shared between threads. :meth:`close` frees the files.
    """

    def __init__(self, memory: int) -> None:
        """Start without a row.

        Args:
            memory: bytes at most, about: half for keys, a quarter for rows, and a quarter for a
                copy of them when they are written or given. A single row may have more.
        """
        self._memory = memory
        self._block = max(_SMALLEST_BLOCK, memory // (4 * FAN))
        self._runs = SortedRuns(self._block)
        self._start()

    def _start(self) -> None:
        self._table = MemTable(self._memory // 2)
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0

    @property
    def spilled(self) -> bool:
        """Whether memory did not do."""
        return bool(self._runs)

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows with the columns ``key``, without null, and ``partition``, among others.

        Raises:
            SpillError: they do not fit memory, and cannot be written to disk.
        """
        rows = _compact(rows)
        while rows.num_rows:
            taken = self._table.add(entries_of(rows, len(self._table)))
            self._batches.append(rows.slice(0, taken))
            self._bytes += self._batches[-1].nbytes
            rows = rows.slice(taken)
            if rows.num_rows or self._bytes > self._memory // 4:
                self._runs.add(in_order(self._table, self._batches, self._block))
                self._start()

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order, once.

        Raises:
            SpillError: they cannot be written to disk or read from it.
        """
        last = in_order(self._table, self._batches, self._block)
        if self._runs:
            if self._batches:
                self._runs.add(last)
                self._start()
            last = self._runs.merged()
        yield from last

    def close(self) -> None:
        """Free the files."""
        self._runs.close()


def _compact(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows in buffers of their size, if theirs are much larger."""
    if rows.get_total_buffer_size() <= 2 * rows.nbytes:
        return rows
    numbers = pa.py_buffer(np.arange(rows.num_rows))
    return rows.take(pa.Array.from_buffers(pa.int64(), rows.num_rows, [None, numbers]))
