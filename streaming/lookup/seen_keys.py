"""The keys seen while a log is read from its end, in memory and then in a file; those wanted."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from kafkalog.errors import OptionError, SpillError
from kafkalog.files.regular import close_quietly, write_all
from kafkalog.files.system import system
from kafkalog.model import MAX_OFFSET
from kafkalog.streaming.lookup import key_kernels as kernels
from kafkalog.streaming.lookup import memtable_kernels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers
    from kafkalog.streaming.records.row_buffers import FoundRecords

__all__ = [
    "KeyRange",
    "KeySpan",
    "Keys",
    "NewestOffsets",
    "SeenKeys",
    "SpillFile",
    "SpilledKeys",
    "WantedKeys",
    "share_of",
    "wanted_keys",
]

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


# ----------------------------------------------------------------------------------------------
# A file for what a task cannot keep in memory. It has no name, so nothing of it is left behind.
#
# It lies in Spark's local directory (``SPARK_LOCAL_DIRS``, which Spark gives its Python workers),
# or where temporary files lie. The system frees its bytes when it is closed or its process dies.


_PREFIX: Final = ".kafkalog-spill-"
_WITHOUT_UNNAMED: Final = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT}
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class SpillFile:
    """Bytes that are appended, and read by their positions. Not shared between threads."""

    def __init__(self) -> None:
        """Make the file in one of the directories.

        Raises:
            SpillError: none of them can be written to.
        """
        self._descriptor, self._folder = _open()
        self.size = 0

    def append(self, data: Bytes) -> int:
        """Write bytes at the end; gives their position.

        Raises:
            SpillError: they cannot be written, as on a full disk.
        """
        position = self.size
        try:
            write_all(self._descriptor, data.data, position)
        except OSError as error:
            raise self._failed("write", len(data), error) from error
        self.size += len(data)
        return position

    def read(self, position: int, size: int) -> Bytes:
        """Return ``size`` bytes, uint8[size].

        Raises:
            SpillError: they cannot be read.
        """
        data = np.empty(size, np.uint8)
        found = 0
        try:
            while found < size:
                count = os.preadv(self._descriptor, [data[found:].data], position + found)
                if not count:
                    break
                found += count
        except OSError as error:
            raise self._failed("read", size, error) from error
        if found < size:
            raise self._failed("read", size, OSError(errno.EIO, "the file has become shorter"))
        return data

    def close(self) -> None:
        """Give the bytes back."""
        descriptor, self._descriptor = self._descriptor, -1  # forgotten before it is closed
        if descriptor >= 0:
            close_quietly(descriptor)

    def _failed(self, action: str, size: int, error: OSError) -> SpillError:
        return SpillError(
            f"{self._folder}: cannot {action} {size} bytes that do not fit table.memory, "
            f"after {self.size} bytes: {error.strerror}; make room there, let SPARK_LOCAL_DIRS "
            "(spark.local.dir) name another directory, or raise table.memory"
        )


def _open() -> tuple[int, str]:
    """Open a file without a name; gives its descriptor and the directory."""
    folders = [name for name in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if name]
    if folders:  # each task begins with another one
        first = system.random_id().int % len(folders)
        folders = folders[first:] + folders[:first]
    reasons = []
    for folder in folders or [tempfile.gettempdir()]:
        try:
            return _open_in(folder), folder
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
    raise SpillError("cannot make a file for what does not fit table.memory: " + "; ".join(reasons))


def _open_in(folder: str) -> int:
    unnamed = getattr(os, "O_TMPFILE", None)
    if unnamed is not None:
        try:
            return os.open(folder, unnamed | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in _WITHOUT_UNNAMED:
                raise
    return _open_and_remove(Path(folder))


def _open_and_remove(folder: Path) -> int:
    """Open a file and remove its name, where a file system knows none without.

    A process that is killed between the two leaves an empty file. The next one removes it, which
    harms nobody: such a name is of no use to its maker either.
    """
    for name in os.listdir(folder):  # noqa: PTH208
        if name.startswith(_PREFIX):
            _remove(folder / name)
    path = folder / f"{_PREFIX}{system.random_id().hex}"
    descriptor = os.open(path, _CREATE, 0o600)
    _remove(path)
    return descriptor


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


# ----------------------------------------------------------------------------------------------
# The keys that a task's memory has no room for: written to a file, and looked through later.
#
# A key is written into the bucket of its hash, with its record's offset, as LevelDB codes an
# entry without a value. A bucket that is full goes to the file. When the log has been read, one
# bucket after the other is read back, newest records first, and its keys are told apart in
# memory: each bucket holds all records of its keys. What comes of it are the offsets of their
# newest records. They are written to the same file, and then taken from it in the order in which
# the log is read.


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
            left = _check_entries(memtable_kernels.add_to_buckets(*records, rows, left, *place))
            if left:
                row = int(rows[left - 1])
                bucket = ((int(hashes[row]) >> 32) - self._low) // self._width
                self._write(self._file, bucket)
                size = int(found.key_lengths[row]) + 2 * memtable_kernels.SMALLEST_ENTRY
                if size > self._shape[1]:
                    self._write_alone(self._file, bucket, records, row, size)
                    left -= 1

    def _write_alone(
        self, file: SpillFile, bucket: int, records: _Records, row: int, size: int
    ) -> None:
        """Write a record that is too large for its bucket, with ``size`` bytes at most."""
        alone, used = np.empty((1, size), np.uint8), np.zeros(1, np.int64)
        _check_entries(
            memtable_kernels.add_to_buckets(
                *records, np.array([row]), 1, 0, memtable_kernels.ANY, alone, used
            )
        )
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
                newest &= entries.kinds == memtable_kernels.VALUE
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
    room = len(data) // memtable_kernels.SMALLEST_ENTRY
    starts, lengths, offsets = np.empty((3, room), np.int64)
    kinds = np.empty(room, np.uint8)
    first = room - _check_entries(
        memtable_kernels.find_entries(data, starts, lengths, offsets, kinds)
    )
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


def _check_entries(answer: int) -> int:
    if answer == memtable_kernels.BROKEN:
        raise AssertionError("a spilled key was found outside of its bytes")
    return answer


# ----------------------------------------------------------------------------------------------
# The keys of a look-up: some of them, or those between two.


class KeySpan(NamedTuple):
    """The keys from ``low`` on and below ``high``, by their bytes; None for no bound."""

    low: bytes = b""
    high: bytes | None = None

    @classmethod
    def with_prefix(cls, prefix: bytes) -> KeySpan:
        """Return the keys that begin with some bytes."""
        stem = prefix.rstrip(b"\xff")
        return cls(prefix, stem[:-1] + bytes([stem[-1] + 1]) if stem else None)

    @classmethod
    def named(cls, prefix: bytes | None, low: bytes | None, high: bytes | None) -> KeySpan:
        """Return the keys with a prefix, or else those between two; without any of them all keys.

        Raises:
            OptionError: a prefix is given with one of the others.
        """
        if prefix is None:
            return cls(low or b"", high)
        if low is not None or high is not None:
            raise OptionError("give prefix, or low and high, and not both")
        return cls.with_prefix(prefix)


Keys = frozenset[bytes] | KeySpan


class WantedKeys(Protocol):
    """Tells the records whose keys are looked for."""

    @property
    def all_found(self) -> bool:
        """Whether the newest record of each key was seen, so that nothing more has to be read."""
        ...

    def mask(self, found: FoundRecords, hashes: Integers) -> NDArray[np.bool_]:
        """Return which records may have one of the keys, bool[n]."""
        ...

    def pick(self, newest: FoundRecords) -> FoundRecords:
        """Leave of the newest records of their keys those that are looked for."""
        ...


def wanted_keys(keys: Keys, seed: int) -> WantedKeys:
    """Make what tells ``keys``; ``seed`` is that of the hashes."""
    return _Between(keys) if isinstance(keys, KeySpan) else _Named(keys, seed)


class _Named:
    def __init__(self, keys: frozenset[bytes], seed: int) -> None:
        self._keys = keys
        self._missing = set(keys)
        lengths = np.array([len(key) for key in keys], np.int64)
        source = np.frombuffer(b"".join(keys) + b"\0", np.uint8)
        self._hashes = np.empty(len(keys), np.int64)
        kernels.hash_keys(source, np.cumsum(lengths) - lengths, lengths, seed, self._hashes)

    @property
    def all_found(self) -> bool:
        return not self._missing

    def mask(self, found: FoundRecords, hashes: Integers) -> NDArray[np.bool_]:
        del found
        if len(self._hashes) == 1:
            same: NDArray[np.bool_] = hashes == self._hashes[0]
            return same
        return np.isin(hashes, self._hashes)

    def pick(self, newest: FoundRecords) -> FoundRecords:
        """Compare bytes: other keys may have the same hash."""
        view = newest.source.data
        spans = zip(newest.key_starts.tolist(), newest.key_lengths.tolist(), strict=True)
        keys = [bytes(view[start : start + length]) for start, length in spans]
        self._missing.difference_update(keys)
        rows = np.array([row for row, key in enumerate(keys) if key in self._keys], np.int64)
        return newest.take(rows)


class _Between:
    all_found = False

    def __init__(self, span: KeySpan) -> None:
        self._bounds = (
            np.frombuffer(span.low + b"\0", np.uint8),
            len(span.low),
            np.frombuffer((span.high or b"") + b"\0", np.uint8),
            -1 if span.high is None else len(span.high),
        )

    def mask(self, found: FoundRecords, hashes: Integers) -> NDArray[np.bool_]:
        del hashes
        inside = np.empty(len(found.offsets), np.uint8)
        arguments = (found.source, found.key_starts, found.key_lengths, *self._bounds, inside)
        if kernels.keys_between(*arguments) == kernels.BROKEN:
            raise AssertionError("a key was found outside of its bytes")
        return inside.view(np.bool_)

    def pick(self, newest: FoundRecords) -> FoundRecords:
        return newest
