"""The output of decoding: Arrow buffers that kernels fill, handed on as record batches."""

from __future__ import annotations

from enum import IntFlag
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from kafkalog.errors import TimestampOutOfRangeError
from kafkalog.streaming.records import decode_kernels as kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

__all__ = ["ALL_COLUMNS", "Columns", "RowBuffers"]


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
HEADERS_TYPE: Final = pa.list_(
    pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
)

_MIN_MS: Final = -(2**63) // 1000 + 1
_MAX_MS: Final = (2**63 - 1) // 1000
_NO_BYTES: Final = np.empty(0, np.uint8)
_NO_INT32: Final = np.zeros(1, np.int32)


class RowBuffers:
    """Room for ``rows`` rows and about ``data_bytes`` of keys, values and headers each.

    Kernels fill the arrays and keep count in ``cursor`` (see ``decode_kernels``); ``take`` gives
    what is there as a record batch and starts over with new arrays, since Arrow keeps the old ones.
    """

    def __init__(
        self, columns: Columns, rows: int, data_bytes: int, *, null_bad_timestamps: bool = False
    ) -> None:
        self._columns = columns
        self._rows = rows
        self._data_bytes = data_bytes
        self._null_bad_timestamps = null_bad_timestamps
        self.cursor: Integers = np.zeros(kernels.CURSOR_SIZE, np.int64)
        self._scratch: Integers = np.zeros(1, np.int64)
        self._renew()

    @property
    def rows(self) -> int:
        """Rows that are there."""
        return int(self.cursor[kernels.ROWS])

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The output arguments of a decoding kernel, in its order."""
        return (
            self._offsets,
            self._timestamps,
            self._timestamp_types,
            self._key_offsets,
            self._keys,
            self._key_valid,
            self._value_offsets,
            self._values,
            self._value_valid,
            self._header_starts,
            self._header_key_offsets,
            self._header_keys,
            self._header_value_offsets,
            self._header_values,
            self._header_value_valid,
            self._scratch,
        )

    @property
    def wants(self) -> tuple[int, int, int]:
        """Whether key, value and headers are wanted, as kernels take it."""
        return (
            int(Columns.KEY in self._columns),
            int(Columns.VALUE in self._columns),
            int(Columns.HEADERS in self._columns),
        )

    def grow(self, reason: int) -> None:
        """Make room for the one row that needs more; only when there are no rows yet."""
        required = int(self.cursor[kernels.REQUIRED])
        if reason == kernels.NEEDS_KEY:
            self._keys = np.empty(required, np.uint8)
        elif reason == kernels.NEEDS_VALUE:
            self._values = np.empty(required, np.uint8)
        elif reason == kernels.NEEDS_HEADERS:
            self._header_room(required)
        elif reason == kernels.NEEDS_HEADER_KEY:
            self._header_keys = np.empty(required, np.uint8)
        else:
            self._header_values = np.empty(required, np.uint8)

    def take(self) -> pa.RecordBatch:
        """Give the rows that are there and start over.

        Raises:
            TimestampOutOfRangeError: a timestamp that an int64 of µs cannot hold.
        """
        rows, cursor, wanted = self.rows, self.cursor.tolist(), self._columns
        columns: list[pa.Array] = []
        names: list[str] = []

        def add(name: str, array: pa.Array) -> None:
            names.append(name)
            columns.append(array)

        if Columns.KEY in wanted:
            used = cursor[kernels.KEY_BYTES]
            add("key", _binary(rows, self._key_valid, self._key_offsets, self._keys[:used]))
        if Columns.VALUE in wanted:
            used = cursor[kernels.VALUE_BYTES]
            add("value", _binary(rows, self._value_valid, self._value_offsets, self._values[:used]))
        if Columns.OFFSET in wanted:
            add("offset", pa.array(self._offsets[:rows]))
        if Columns.TIMESTAMP in wanted:
            add("timestamp", self._micros(rows))
        if Columns.TIMESTAMP_TYPE in wanted:
            add("timestampType", pa.array(self._timestamp_types[:rows]))
        if Columns.HEADERS in wanted:
            add("headers", self._headers(rows, cursor))
        if Columns.TIMESTAMP_MS in wanted:
            add("timestampMs", pa.array(self._timestamps[:rows]))
        if not columns:
            batch = pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
        else:
            batch = pa.RecordBatch.from_arrays(columns, names=names)
        self._renew()
        return batch

    def _renew(self) -> None:
        self.cursor[kernels.ROWS :] = 0
        rows, wanted = self._rows, self._columns
        bitmap = (rows + 7) // 8
        self._offsets = np.empty(rows, np.int64)
        self._timestamps = np.empty(rows, np.int64)
        self._timestamp_types = np.empty(rows, np.int32)
        key, value = Columns.KEY in wanted, Columns.VALUE in wanted
        self._key_offsets = _starts(rows) if key else _NO_INT32
        self._keys = self._room() if key else _NO_BYTES
        self._key_valid = np.zeros(bitmap, np.uint8) if key else _NO_BYTES
        self._value_offsets = _starts(rows) if value else _NO_INT32
        self._values = self._room() if value else _NO_BYTES
        self._value_valid = np.zeros(bitmap, np.uint8) if value else _NO_BYTES
        headers = Columns.HEADERS in wanted
        self._header_starts = _starts(rows) if headers else _NO_INT32
        self._header_keys = self._room() if headers else _NO_BYTES
        self._header_values = self._room() if headers else _NO_BYTES
        self._header_room(2 * rows if headers else 0)

    def _room(self) -> Bytes:
        return np.empty(self._data_bytes, np.uint8)

    def _header_room(self, headers: int) -> None:
        self._header_key_offsets = _starts(headers)
        self._header_value_offsets = _starts(headers)
        self._header_value_valid = np.zeros((headers + 7) // 8, np.uint8)

    def _micros(self, rows: int) -> pa.Array:
        millis = self._timestamps[:rows]
        fits = (millis >= _MIN_MS) & (millis <= _MAX_MS)
        if fits.all():
            return pa.array(millis * 1000).cast(TIMESTAMP_TYPE)
        if self._null_bad_timestamps:
            return pa.array(np.where(fits, millis, 0) * 1000, mask=~fits).cast(TIMESTAMP_TYPE)
        row = int(np.flatnonzero(~fits)[0])
        raise TimestampOutOfRangeError(
            f"[KAFKA_MALFORMED_RECORD_TIMESTAMP] the record at offset {self._offsets[row]} has the "
            f"timestamp {millis[row]} ms, beyond what µs in 64 bits can hold (was it sent in ns?)"
        )

    def _headers(self, rows: int, cursor: list[int]) -> pa.Array:
        """Give the lists; a record without headers has null, as in Spark's Kafka source."""
        count = cursor[kernels.HEADERS]
        starts = self._header_starts[: rows + 1]
        keys = _text(
            count, self._header_key_offsets, self._header_keys[: cursor[kernels.HEADER_KEY_BYTES]]
        )
        values = _binary(
            count,
            self._header_value_valid,
            self._header_value_offsets,
            self._header_values[: cursor[kernels.HEADER_VALUE_BYTES]],
        )
        entries = pa.StructArray.from_arrays([keys, values], names=["key", "value"])
        some = np.packbits(starts[1:] > starts[:-1], bitorder="little")
        return pa.ListArray.from_buffers(
            HEADERS_TYPE, rows, [pa.py_buffer(some), pa.py_buffer(starts)], children=[entries]
        )


def _starts(count: int) -> NDArray[np.int32]:
    starts = np.empty(count + 1, np.int32)
    starts[0] = 0
    return starts


def _binary(rows: int, valid: Bytes, offsets: NDArray[np.int32], data: Bytes) -> pa.Array:
    return pa.Array.from_buffers(
        pa.binary(),
        rows,
        [pa.py_buffer(valid), pa.py_buffer(offsets[: rows + 1]), pa.py_buffer(data)],
    )


def _text(rows: int, offsets: NDArray[np.int32], data: Bytes) -> pa.Array:
    """Give strings; bytes that are no UTF-8 become U+FFFD, as Java's ``String`` makes them."""
    array = pa.Array.from_buffers(
        pa.string(), rows, [None, pa.py_buffer(offsets[: rows + 1]), pa.py_buffer(data)]
    )
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raw = array.cast(pa.binary()).to_pylist()
        return pa.array([one.decode("utf-8", "replace") for one in raw], pa.string())
    return array
