"""The output of decoding: Arrow columns that rows are appended to, handed on as record batches."""

from __future__ import annotations

from enum import IntFlag
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from kafkalog.errors import TimestampOutOfRangeError
from kafkalog.streaming.records import take_kernels
from kafkalog.streaming.records import take_kernels as kernels
from kafkalog.streaming.records.decode_kernels import END, FULL, START
from kafkalog.texts import decode_as_java

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from typing import TypeAlias

    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

    Assemble: TypeAlias = Callable[[int, Mapping[str, pa.Array]], pa.RecordBatch]

__all__ = [
    "ALL_COLUMNS",
    "HEADERS_TYPE",
    "BinaryBuilder",
    "Columns",
    "FoundRecords",
    "RowBuffers",
    "RowTaker",
    "check_inside",
    "header_bytes",
    "header_lists",
    "joined_lists",
]


_Number = TypeVar("_Number", bound=np.generic)


# ----------------------------------------------------------------------------------------------
# A column of keys or values while kernels append to it.


class BinaryBuilder:
    """A binary column that grows."""

    def __init__(self, rows: int, room: int, valid: Bytes | None = None) -> None:
        self._ends = np.empty(rows + 1, np.int32)
        self._ends[0] = 0
        self._valid = np.full((rows + 7) // 8, 255, np.uint8) if valid is None else valid
        self.nulls = 0
        self._data = np.empty(room, np.uint8)
        self.used = 0

    @classmethod
    def absent(cls) -> BinaryBuilder:
        """Return what stands for a column that is not wanted: its arrays are all empty."""
        none = cls(0, 0)
        none._ends = none._ends[:0]
        return none

    def following(self) -> BinaryBuilder:
        """Return an empty column for as many rows; this one is only to become Arrow's.

        It has room for the bytes of this one and some more: batches of a log resemble each other.
        """
        unused = None if self.nulls else self._valid  # all ones, and not given to Arrow
        return BinaryBuilder(len(self._ends) - 1, self.used * 9 // 8, unused)

    def arrays(self) -> tuple[NDArray[np.int32], Bytes, Bytes]:
        """Return where values end, their bytes, and the bitmap, to be filled."""
        return self._ends, self._data, self._valid

    def end_at(self, rows: int, nulls: int) -> None:
        """Take what was filled into the arrays."""
        self.used, self.nulls = int(self._ends[rows]), nulls

    def make_room(self, size: int, rows: int) -> None:
        """Let the values have ``size`` bytes in all; those of the first rows are kept."""
        self.used = int(self._ends[rows])
        self._make_room(size)

    def append(self, source: Bytes, starts: Integers, lengths: Integers, row: int) -> int:
        """Copy values after the ``row`` that are there; return how many bytes they have."""
        size = int(np.maximum(lengths, 0).sum())
        self._make_room(self.used + size)
        nulls = kernels.append_values(
            source, starts, lengths, row, self._ends, self._data, self._valid
        )
        check_inside(nulls)
        self.nulls += nulls
        self.used += size
        return size

    def to_arrow(self, rows: int) -> pa.Array:
        """Return the column; nothing more is to be filled in."""
        valid = pa.py_buffer(_filled(self._valid, (rows + 7) // 8)) if self.nulls else None
        ends, data = _filled(self._ends, rows + 1), _filled(self._data, self.used)
        buffers = [valid, pa.py_buffer(ends), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), rows, buffers, self.nulls)

    def _make_room(self, size: int) -> None:
        if size > len(self._data):
            grown = np.empty(max(size, 2 * self.used), np.uint8)
            grown[: self.used] = self._data[: self.used]
            self._data = grown


def _filled(array: NDArray[_Number], count: int) -> NDArray[_Number]:
    """Return what was filled of an array; by itself if that is little: Arrow keeps it all.

    Of ten thousand partitions with two rows each, the room for many rows would take gigabytes.
    """
    filled = array[:count]
    return filled.copy() if filled.nbytes < array.nbytes // 4 else filled


def check_inside(answer: int) -> None:
    """Refuse what a kernel says about values that lie outside of their bytes."""
    if answer == kernels.BROKEN:
        raise AssertionError("a record was found outside of its bytes")


# ----------------------------------------------------------------------------------------------
# UTF-8 as Java reads it: header keys and ids that are not UTF-8 must look as in Kafka.


# ----------------------------------------------------------------------------------------------
# Lists of headers as Arrow, made of where a kernel has found them.


HEADERS_TYPE: Final = pa.list_(
    pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
)


def header_bytes(starts: Integers, ends: Integers) -> int:
    """Return the bytes of headers; the single byte of an empty list counts as none."""
    return int((ends - starts).sum()) - len(ends)


def header_lists(rows: int, source: Bytes, begins: Integers, ends: Integers) -> pa.Array:
    """Return the lists; a record without headers has null, as in Spark's Kafka source.

    Args:
        rows: how many records there are.
        source: uint8[n].
        begins: int64[rows], where each record's headers begin in it, with their count; empty where
            records cannot have any.
        ends: likewise, where they end.
    """
    if not header_bytes(begins, ends):
        return pa.nulls(rows, HEADERS_TYPE)
    where = (source, begins, ends)
    measures = np.zeros(kernels.MEASURES, np.int64)
    check_inside(kernels.measure_headers(*where, measures))
    count, key_bytes, value_bytes = measures.tolist()
    starts, key_ends, value_ends = (np.empty(n + 1, np.int32) for n in (rows, count, count))
    keys, values = np.empty(key_bytes, np.uint8), np.empty(value_bytes, np.uint8)
    valid = np.full((count + 7) // 8, 255, np.uint8)
    check_inside(kernels.copy_headers(*where, starts, key_ends, keys, value_ends, values, valid))
    buffers = [pa.py_buffer(valid), pa.py_buffer(value_ends), pa.py_buffer(values)]
    value_array = pa.Array.from_buffers(pa.binary(), count, buffers)
    entries = pa.StructArray.from_arrays(
        [_text(count, key_ends, keys), value_array], fields=list(HEADERS_TYPE.value_type)
    )
    some = np.packbits(starts[1:] > starts[:-1], bitorder="little")
    buffers = [pa.py_buffer(some), pa.py_buffer(starts)]
    return pa.Array.from_buffers(HEADERS_TYPE, rows, buffers, children=[entries])


def _text(count: int, ends: NDArray[np.int32], data: Bytes) -> pa.Array:
    """Return strings, whose bytes Arrow wants to be UTF-8."""
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    array = pa.Array.from_buffers(pa.string(), count, buffers)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raw = array.view(pa.binary()).to_pylist()
        return pa.array([decode_as_java(one) for one in raw], pa.string())
    return array


def joined_lists(arrays: list[pa.Array]) -> pa.Array:
    """Return lists one behind the other."""
    if not arrays:
        return pa.nulls(0, HEADERS_TYPE)
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


# ----------------------------------------------------------------------------------------------


class Columns(IntFlag):
    """Which columns of a record are wanted; those that are not are never built."""

    KEY = 1
    VALUE = 2
    OFFSET = 4
    TIMESTAMP = 8
    TIMESTAMP_TYPE = 16
    HEADERS = 32
    TIMESTAMP_MS = 64
    """``timestampMs: int64``, the last column: as it is stored, whatever its size."""


ALL_COLUMNS: Final = (
    Columns.KEY
    | Columns.VALUE
    | Columns.OFFSET
    | Columns.TIMESTAMP
    | Columns.TIMESTAMP_TYPE
    | Columns.HEADERS
)

TIMESTAMP_TYPE: Final = pa.timestamp("us", "UTC")

_COLUMNS: Final = {
    Columns.KEY: pa.field("key", pa.binary()),
    Columns.VALUE: pa.field("value", pa.binary()),
    Columns.OFFSET: pa.field("offset", pa.int64()),
    Columns.TIMESTAMP: pa.field("timestamp", TIMESTAMP_TYPE),
    Columns.TIMESTAMP_TYPE: pa.field("timestampType", pa.int32()),
    Columns.HEADERS: pa.field("headers", HEADERS_TYPE),
    Columns.TIMESTAMP_MS: pa.field("timestampMs", pa.int64()),
}

_MIN_MS: Final = -(2**63 // 1000)
_MAX_MS: Final = (2**63 - 1) // 1000
_MAX_COLUMN_BYTES: Final = 2**31 - 1
"""What the int32 offsets of Arrow's binary type can hold."""

_NO_INTEGERS: Final = np.empty(0, np.int64)


class FoundRecords(NamedTuple):
    """Records that a kernel has found in ``source`` (uint8[n]); the columns are [m].

    ``timestamps`` are in ms, ``timestamp_types`` the ids of ``TimestampType``; a negative length is
    null. Headers lie in ``source[header_starts[i]:header_ends[i]]``, their count first; both
    columns are empty where records have no headers.
    """

    source: Bytes
    offsets: Integers
    timestamps: Integers
    timestamp_types: NDArray[np.int32]
    key_starts: Integers
    key_lengths: Integers
    value_starts: Integers
    value_lengths: Integers
    header_starts: Integers = _NO_INTEGERS
    header_ends: Integers = _NO_INTEGERS

    def rows(self, first: int, end: int) -> FoundRecords:
        """Return the records ``[first, end)``; nothing is copied."""
        columns: Any = (column[first:end] for column in self[1:])
        return FoundRecords(self.source, *columns)

    def take(self, rows: Integers) -> FoundRecords:
        """Return some of the records; where they lie is copied, they are not."""
        columns: Any = (column[rows] if len(column) else column for column in self[1:])
        return FoundRecords(self.source, *columns)


class RowTaker(Protocol):
    """What takes the records that a decoder has found: :class:`RowBuffers`, or one like it."""

    rows: int
    """How many are kept for an output batch."""

    def append(self, found: FoundRecords) -> Iterator[pa.RecordBatch]:
        """Take records; their columns are overwritten by the next call, ``source`` is not."""
        ...

    def take(self) -> pa.RecordBatch:
        """Return the rows that are kept, and start over."""
        ...


class RowBuffers:
    """The output batch that is being filled: at most ``max_rows`` rows.

    It holds at most ``max_bytes`` of wanted keys, values and headers, unless a single row has more.
    ``assemble`` makes an output batch of so many rows, whose columns it gets by name; without it,
    one has the wanted columns and no others.
    """

    rows: int
    _bytes: int
    _lowest: int
    _highest: int
    _offsets: Integers
    _timestamps: Integers
    _timestamp_types: NDArray[np.int32]
    _keys: BinaryBuilder
    _values: BinaryBuilder

    def __init__(
        self,
        columns: Columns,
        max_rows: int,
        max_bytes: int,
        *,
        null_bad_timestamps: bool = False,
        assemble: Assemble | None = None,
    ) -> None:
        self._columns = columns
        # asked for once: a look into flags costs as much as a small kernel's call
        self._keeps_keys = Columns.KEY in columns
        self._keeps_values = Columns.VALUE in columns
        self._shows_time = Columns.TIMESTAMP in columns
        self._keeps_times = self._shows_time or Columns.TIMESTAMP_MS in columns
        # which record has a timestamp that nothing can hold is said by its offset
        self._shows_offsets = Columns.OFFSET in columns
        self._keeps_offsets = self._shows_offsets or self._shows_time
        self._keeps_kinds = Columns.TIMESTAMP_TYPE in columns
        self._max_rows = max_rows
        self._max_bytes = min(max_bytes, _MAX_COLUMN_BYTES)
        self._refuses_times = self._shows_time and not null_bad_timestamps
        self._assemble = assemble
        self._held = np.zeros(take_kernels.HELD_SIZE, np.int64)
        self._schema = pa.schema([field for one, field in _COLUMNS.items() if one in columns])
        self._keys, self._values = (
            BinaryBuilder(max_rows, 0) if is_kept else BinaryBuilder.absent()
            for is_kept in (self._keeps_keys, self._keeps_values)
        )
        self._start()

    @property
    def takes_sections(self) -> bool:
        """Whether :meth:`append_sections` builds all that is wanted: all but headers."""
        return not self._columns & Columns.HEADERS

    def append_sections(
        self,
        source: Bytes,
        sections: Integers,
        start_offset: int,
        end_offset: int,
        cursor: Integers,
    ) -> Generator[pa.RecordBatch, None, int]:
        """Copy the records of batches to the output, and yield each output batch that is full.

        The arguments, and the code that it returns, are those of ``decode_kernels.find_records``.
        REQUIRES: ``takes_sections``.

        Raises:
            TimestampOutOfRangeError: a timestamp that an int64 of µs cannot hold. The rows before
                it are kept: :meth:`take` gives them.
        """
        reason = FULL
        while reason == FULL:
            reason = self._take_some(source, sections, start_offset, end_offset, cursor)
            if reason == FULL or self.rows == self._max_rows:
                yield self.take()
        return reason

    def _take_some(
        self,
        source: Bytes,
        sections: Integers,
        start_offset: int,
        end_offset: int,
        cursor: Integers,
    ) -> int:
        """Copy records until the output batch is full or all are there; return the code."""
        begun = cursor.copy() if self._refuses_times else cursor
        reason = self._fill(source, sections, start_offset, end_offset, cursor)
        bad = self._first_overflow()
        if bad is not None:  # once more, up to that record
            cursor[:] = begun
            self._fill(source, sections, start_offset, bad[0], cursor)
        self._keep_filled()
        if bad is not None:
            raise _overflow(*bad)
        return reason

    def _fill(
        self,
        source: Bytes,
        sections: Integers,
        start_offset: int,
        end_offset: int,
        cursor: Integers,
    ) -> int:
        """Let the kernel copy records behind those that are kept; return its code."""
        held = self._held
        keys, values = self._keys, self._values
        now = self.rows, self._bytes, keys.nulls, values.nulls, self._lowest, self._highest
        held[:] = *now, *now, 0, 0
        limits = start_offset, end_offset, self._max_rows, self._max_bytes
        numbers = self._offsets, self._timestamps, self._timestamp_types
        while True:
            reason = take_kernels.take_records(
                *(source, sections, *limits, cursor, held, *numbers),
                *keys.arrays(),
                *values.arrays(),
            )
            if reason not in {take_kernels.GROW_KEYS, take_kernels.GROW_VALUES}:
                return int(reason)
            column = keys if reason == take_kernels.GROW_KEYS else values
            size, rows = int(held[take_kernels.NEEDED]), int(held[take_kernels.ROWS])
            left = int((sections[:, END] - sections[:, START]).sum())
            like_so_far = size * self._max_rows // (rows + 1) * 9 // 8
            column.make_room(max(size, min(like_so_far, size + left, self._max_bytes)), rows)

    def _first_overflow(self) -> tuple[int, int] | None:
        """Return offset and time of the first copied record that is to be refused, if any."""
        held = self._held
        if not self._refuses_times or (
            held[take_kernels.LOWEST] >= _MIN_MS and held[take_kernels.HIGHEST] <= _MAX_MS
        ):
            return None
        times = self._timestamps[self.rows : int(held[take_kernels.ROWS])]
        row = self.rows + int(np.flatnonzero(~_fits(times))[0])
        return int(self._offsets[row]), int(self._timestamps[row])

    def _keep_filled(self) -> None:
        """Count what the kernel has copied as kept."""
        held = self._held.tolist()
        self.rows, self._bytes, key_nulls, value_nulls, self._lowest, self._highest, *_ = held
        if self._keeps_keys:
            self._keys.end_at(self.rows, key_nulls)
        if self._keeps_values:
            self._values.end_at(self.rows, value_nulls)

    def append(self, found: FoundRecords) -> Iterator[pa.RecordBatch]:
        """Copy records to the output, and yield each batch that is full.

        Raises:
            TimestampOutOfRangeError: a timestamp that an int64 of µs cannot hold. The rows before
                it are kept: :meth:`take` gives them.
        """
        bad = np.flatnonzero(~_fits(found.timestamps))[:1] if self._refuses_times else _NO_INTEGERS
        first, count = 0, int(bad[0]) if len(bad) else len(found.offsets)
        while first < count:
            rows = found.rows(first, min(count, first + self._max_rows - self.rows))
            fitting = self._fitting(rows)
            if fitting or not self.rows:
                fitting = max(fitting, 1)  # a row that is too large goes alone
                self._append(rows.rows(0, fitting))
                first += fitting
            if first < count or self.rows == self._max_rows:
                yield self.take()
        if len(bad):
            raise _overflow(int(found.offsets[count]), int(found.timestamps[count]))

    def take(self) -> pa.RecordBatch:
        """Return the rows that are there, possibly none, and start over."""
        rows, columns = self.rows, self._taken()
        self._start()
        if self._assemble is not None:
            return self._assemble(rows, columns)
        if columns:
            return pa.RecordBatch.from_arrays(list(columns.values()), schema=self._schema)
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))

    def _taken(self) -> dict[str, pa.Array]:
        """Return the wanted columns; their arrays are not to be filled any more."""
        rows, wanted = self.rows, self._columns
        columns: dict[str, pa.Array] = {}
        if self._keeps_keys:
            columns["key"] = self._keys.to_arrow(rows)
        if self._keeps_values:
            columns["value"] = self._values.to_arrow(rows)
        if self._shows_offsets:
            columns["offset"] = _numbers(pa.int64(), _filled(self._offsets, rows))
        if self._shows_time:
            columns["timestamp"] = self._micros(rows)
        if self._keeps_kinds:
            columns["timestampType"] = _numbers(pa.int32(), _filled(self._timestamp_types, rows))
        if Columns.HEADERS in wanted:
            columns["headers"] = joined_lists(self._headers)
        if Columns.TIMESTAMP_MS in wanted:
            columns["timestampMs"] = _numbers(pa.int64(), _filled(self._timestamps, rows))
        return columns

    def _start(self) -> None:
        """Take new arrays, of what is wanted: Arrow keeps the old ones."""
        self.rows = self._bytes = 0
        self._lowest = self._highest = 0
        most = self._max_rows
        self._offsets = np.empty(most if self._keeps_offsets else 0, np.int64)
        self._timestamps = np.empty(most if self._keeps_times else 0, np.int64)
        self._timestamp_types = np.empty(most if self._keeps_kinds else 0, np.int32)
        if self._keeps_keys:
            self._keys = self._keys.following()
        if self._keeps_values:
            self._values = self._values.following()
        self._headers: list[pa.Array] = []

    def _fitting(self, found: FoundRecords) -> int:
        wanted = self._columns
        if not wanted & (Columns.KEY | Columns.VALUE | Columns.HEADERS):
            return len(found.offsets)
        return kernels.rows_within(
            found.key_lengths if Columns.KEY in wanted else _NO_INTEGERS,
            found.value_lengths if Columns.VALUE in wanted else _NO_INTEGERS,
            found.header_starts if Columns.HEADERS in wanted else _NO_INTEGERS,
            found.header_ends if Columns.HEADERS in wanted else _NO_INTEGERS,
            self._max_bytes - self._bytes,
        )

    def _append(self, found: FoundRecords) -> None:
        wanted, source = self._columns, found.source
        end = self.rows + len(found.offsets)
        if self._keeps_offsets:
            self._offsets[self.rows : end] = found.offsets
        if self._keeps_times:
            self._timestamps[self.rows : end] = times = found.timestamps
            self._lowest = min(self._lowest, int(times.min()))
            self._highest = max(self._highest, int(times.max()))
        if self._keeps_kinds:
            self._timestamp_types[self.rows : end] = found.timestamp_types
        if self._keeps_keys:
            self._bytes += self._keys.append(source, found.key_starts, found.key_lengths, self.rows)
        if self._keeps_values:
            self._bytes += self._values.append(
                source, found.value_starts, found.value_lengths, self.rows
            )
        if Columns.HEADERS in wanted:
            where = found.header_starts, found.header_ends
            self._headers.append(header_lists(len(found.offsets), source, *where))
            self._bytes += header_bytes(*where)
        self.rows = end

    def _micros(self, rows: int) -> pa.Array:
        millis = self._timestamps[:rows]
        if self._lowest >= _MIN_MS and self._highest <= _MAX_MS:
            return _numbers(TIMESTAMP_TYPE, millis * 1000)
        fits = _fits(millis)  # else it was refused when it came
        valid = np.packbits(fits, bitorder="little")
        return _numbers(TIMESTAMP_TYPE, np.where(fits, millis, 0) * 1000, valid)


def _fits(millis: Integers) -> NDArray[np.bool_]:
    """Whether an int64 of µs can hold each of some times in ms."""
    return (millis >= _MIN_MS) & (millis <= _MAX_MS)


def _overflow(offset: int, time_ms: int) -> TimestampOutOfRangeError:
    return TimestampOutOfRangeError(
        f"the record at offset {offset} has the timestamp {time_ms} ms, beyond what µs in 64 bits "
        "can hold (was it sent in ns?)"
    )


def _numbers(kind: pa.DataType, array: NDArray[Any], valid: Bytes | None = None) -> pa.Array:
    """Return numbers as an array, not by ``pa.array``, which would import pandas."""
    bitmap = None if valid is None else pa.py_buffer(valid)
    return pa.Array.from_buffers(kind, len(array), [bitmap, pa.py_buffer(array)])
