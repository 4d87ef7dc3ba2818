"""Columns in, record batches of magic 2 out: what a producer does, many rows a call."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafkalog.errors import CorruptRecordError, RecordTooLargeError, RowError
from kafkalog.model import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TimestampType
from kafkalog.streaming.records import encode_kernels as kernels
from kafkalog.streaming.records.arrow_buffers import ABSENT, BinaryColumn, Integers, binary_column
from kafkalog.streaming.records.batch_layout import (
    HEADER_SIZE,
    LOG_APPEND_TIME_MASK,
    MAGIC,
    MAGIC_POSITION,
    seal_batch,
)
from kafkalog.streaming.records.compression import Codec, compress_pieces
from kafkalog.streaming.records.encode_kernels import number_batches
from kafkalog.streaming.records.message_sets.encode_kernels import number_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kafkalog.streaming.records.arrow_buffers import Bytes
    from kafkalog.streaming.records.compression.codec import Data

__all__ = [
    "DEFAULT_MAX_MESSAGE_BYTES",
    "DEFAULT_TARGET_BYTES",
    "BatchBuilder",
    "EncodedBatch",
    "OpenBatch",
    "RecordColumns",
    "assign_offsets",
    "batch_compressor",
]

_NO_INTEGERS: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """The columns of n records as kernels take them; it keeps the Arrow buffers alive."""

    length: int
    key: BinaryColumn
    value: BinaryColumn
    timestamps: Integers
    header_starts: Integers
    header_keys: BinaryColumn
    header_values: BinaryColumn
    offsets: Integers

    @classmethod
    def from_arrow(
        cls,
        *,
        timestamps: Integers,
        value: pa.Array | pa.ChunkedArray | None = None,
        key: pa.Array | pa.ChunkedArray | None = None,
        headers: pa.Array | pa.ChunkedArray | None = None,
        offsets: Integers | None = None,
    ) -> Self:
        """Take the columns of n records.

        Args:
            timestamps: int64[n], ms; -1 for none.
            value: (large) binary or string, n values; None for all null.
            key: likewise.
            headers: (large) list<struct<key: string, value: binary>>, n lists; a null list is an
                empty one.
            offsets: int64[n] to keep, strictly increasing in the order the rows are appended in;
                None to number them one by one.

        Raises:
            RowError: a header without a key, naming the row.
            TypeError: a column of another type.
            ValueError: columns of different lengths.
        """
        for column in (key, value, headers, offsets):
            if column is not None and len(column) != len(timestamps):
                raise ValueError(f"{len(column)} values for {len(timestamps)} records")
        starts, header_keys, header_values = _headers(headers)
        return cls(
            length=len(timestamps),
            key=ABSENT if key is None else binary_column(key),
            value=ABSENT if value is None else binary_column(value),
            timestamps=np.ascontiguousarray(timestamps, np.int64),
            header_starts=starts,
            header_keys=header_keys,
            header_values=header_values,
            offsets=_NO_INTEGERS if offsets is None else np.ascontiguousarray(offsets, np.int64),
        )


def _headers(
    headers: pa.Array | pa.ChunkedArray | None,
) -> tuple[Integers, BinaryColumn, BinaryColumn]:
    if headers is None or pa.types.is_null(headers.type):
        return _NO_INTEGERS, ABSENT, ABSENT
    if isinstance(headers, pa.ChunkedArray):
        headers = headers.combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
    starts = np.zeros(len(headers) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    entries = headers.flatten()  # leaves out what lies under null lists
    keys, values = entries.flatten()
    if entries.null_count or keys.null_count:
        missing = pc.or_(pc.is_null(entries), pc.is_null(keys)).to_numpy(zero_copy_only=False)
        row = int(np.searchsorted(starts, np.flatnonzero(missing)[0], side="right")) - 1
        raise RowError(f"row {row} has a header whose key is null: Kafka's header keys never are")
    return starts, binary_column(keys), binary_column(values)


# ----------------------------------------------------------------------------------------------
# The open batch of one partition, of whatever magic: rows go in, finished batches come out.


DEFAULT_TARGET_BYTES: Final = 256 * 1024
"""Uncompressed size at which a batch is closed: large enough that the work per batch does not show,
small enough that a seek, which decompresses a whole batch, stays cheap."""

DEFAULT_MAX_MESSAGE_BYTES: Final = 1_048_588
"""Kafka's default of ``max.message.bytes``: the largest batch, its header included."""

_FIRST_ROOM: Final = 8 * 1024
_MAX_BATCH_BYTES: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A complete record batch, or message set of magic 0 or 1, that has no offsets yet.

    ``first_offset`` is -1, or the offset its first record is to keep. Timestamps are in ms.
    """

    data: bytes
    count: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    first_offset: int = -1


class OpenBatch(ABC):
    """The open batch of one partition. Not shared between threads, not picklable.

    A batch takes rows until it would exceed its limit, and one row at least.
    """

    def __init__(self, limit: int, *, header_size: int, state_size: int) -> None:
        """Open an empty batch.

        Args:
            limit: size, uncompressed and with header, that closes a batch.
            header_size: bytes to leave free before the records.
            state_size: how many numbers the kernel keeps about the open batch.
        """
        self._limit = limit
        self._header_size = header_size
        self._out = self._first_room()
        self._state: Integers = np.zeros(state_size, np.int64)
        self._state[kernels.USED] = header_size
        self._stopped: Integers = np.zeros(2, np.int64)

    @property
    def open_bytes(self) -> int:
        """Bytes of memory that the open batch holds."""
        return len(self._out)

    @property
    def count(self) -> int:
        """Records in the open batch."""
        return int(self._state[kernels.COUNT])

    def append(self, records: RecordColumns, rows: Integers) -> list[EncodedBatch]:
        """Append the given rows in the given order; return the batches that got full.

        Args:
            records: the columns.
            rows: int64[m], indexes into them.

        Raises:
            RecordTooLargeError: a record does not fit ``max_message_bytes`` even alone.
            RowError: offsets to keep that do not increase; a column that contradicts itself; a row
                that this magic cannot hold.
        """
        full: list[EncodedBatch] = []
        done = 0
        while done < len(rows):
            done = self._append_some(records, rows, done)
            reason, row = (int(number) for number in self._stopped)
            if reason == kernels.FULL:
                full.append(self._close())
            elif reason == kernels.GROW:
                self._grow(int(self._state[kernels.REQUIRED]))
            elif reason == kernels.BAD_OFFSET:
                raise RowError(
                    f"row {row} is to keep offset {records.offsets[row]}, which does not lie above "
                    "the offset before it in its partition: sort by offset first"
                )
            elif reason == kernels.BAD_COLUMN:
                raise RowError(f"row {row} lies outside of its column's data")
        return full

    def finish(self) -> EncodedBatch | None:
        """Close the open batch and return it, or None if it is empty.

        The builder gives up its memory. It can be used again.

        Raises:
            RecordTooLargeError: a record does not fit ``max_message_bytes`` even alone.
        """
        last = self._close() if self.count else None
        self._out = self._first_room()
        return last

    def _first_room(self) -> Bytes:
        return np.empty(min(_FIRST_ROOM, self._limit), np.uint8)

    @abstractmethod
    def _append_some(self, records: RecordColumns, rows: Integers, first: int) -> int:
        """Let the kernel append from ``rows[first]`` on; return the first one that is not in."""

    @abstractmethod
    def _seal(self, records: memoryview, state: list[int]) -> bytes:
        """Make a batch of the encoded records; ``state`` is what the kernel kept."""

    def _close(self) -> EncodedBatch:
        state = self._state.tolist()
        data = self._seal(self._out.data[self._header_size : state[kernels.USED]], state)
        batch = EncodedBatch(
            data=data,
            count=state[kernels.COUNT],
            last_offset_delta=state[kernels.LAST_DELTA],
            base_timestamp=state[kernels.BASE_TIMESTAMP],
            max_timestamp=state[kernels.MAX_TIMESTAMP],
            first_offset=state[kernels.FIRST_OFFSET],
        )
        self._state[:] = 0
        self._state[kernels.USED] = self._header_size
        if len(self._out) > self._limit:
            self._out = np.empty(self._limit, np.uint8)
        return batch

    def _grow(self, required: int) -> None:
        if required > _MAX_BATCH_BYTES:
            raise RecordTooLargeError(
                f"a record of about {required} bytes fits no batch: its size is an int32"
            )
        doubled = min(2 * len(self._out), self._limit)
        grown = np.empty(max(required, doubled), np.uint8)
        used = int(self._state[kernels.USED])
        grown[:used] = self._out[:used]
        self._out = grown


# ----------------------------------------------------------------------------------------------
# Columns in, record batches of magic 2 out: what a producer does, many rows a call.
#
# ``RecordColumns`` holds the rows of one Arrow batch; a ``BatchBuilder`` is the open batch of one
# partition and takes the rows that go there. A finished batch has base offset 0 and leader epoch
# -1: both lie outside its CRC and are given when it is appended (``assign_offsets``).
#
# Source: Kafka ``MemoryRecordsBuilder``, ``DefaultRecordBatch``.


class BatchBuilder(OpenBatch):
    """The open batch of magic 2; it takes rows until it exceeds ``target_bytes`` uncompressed."""

    def __init__(
        self,
        codec: Codec,
        *,
        level: int | None = None,
        timestamp_type: TimestampType = TimestampType.CREATE_TIME,
        log_append_time_ms: int | None = None,
        target_bytes: int = DEFAULT_TARGET_BYTES,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        """Open an empty batch.

        Args:
            codec: how the records are compressed.
            level: the codec's level; None for its default.
            timestamp_type: CREATE_TIME, or LOG_APPEND_TIME to stamp all with one time.
            log_append_time_ms: that time, needed with LOG_APPEND_TIME.
            target_bytes: size of the records, uncompressed, that closes a batch.
            max_message_bytes: largest batch, compressed, its 61 bytes of header included.
        """
        if timestamp_type is TimestampType.LOG_APPEND_TIME and log_append_time_ms is None:
            raise ValueError("LogAppendTime needs the time to stamp")
        self._codec = codec
        self._compress = batch_compressor(codec, level)
        self._stamp = (
            log_append_time_ms if timestamp_type is TimestampType.LOG_APPEND_TIME else None
        )
        self._max_message_bytes = max_message_bytes
        limit = max(HEADER_SIZE, min(target_bytes + HEADER_SIZE, max_message_bytes))
        super().__init__(limit, header_size=HEADER_SIZE, state_size=kernels.STATE_SIZE)

    def _append_some(self, records: RecordColumns, rows: Integers, first: int) -> int:
        return kernels.append_records(
            rows,
            first,
            *records.key,
            *records.value,
            records.header_starts,
            records.header_keys.offsets,
            records.header_keys.data,
            *records.header_values,
            records.timestamps,
            records.offsets,
            self._out,
            self._limit,
            self._state,
            self._stopped,
        )

    def _seal(self, records: memoryview, state: list[int]) -> bytes:
        codec, pieces = self._compressed(records)
        size = HEADER_SIZE + sum(map(len, pieces))
        if size > self._max_message_bytes:
            raise RecordTooLargeError(
                f"a record of {len(records)} bytes makes a batch of {size} bytes "
                f"({codec.name.lower()}), more than {self._max_message_bytes} bytes"
            )
        if self._stamp is not None:
            state[kernels.MAX_TIMESTAMP] = self._stamp
        return seal_batch(
            pieces,
            base_offset=0,
            leader_epoch=NO_EPOCH,
            attributes=int(codec) | (0 if self._stamp is None else LOG_APPEND_TIME_MASK),
            last_offset_delta=state[kernels.LAST_DELTA],
            base_timestamp=state[kernels.BASE_TIMESTAMP],
            max_timestamp=state[kernels.MAX_TIMESTAMP],
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_EPOCH,
            base_sequence=NO_SEQUENCE,
            count=state[kernels.COUNT],
        )

    def _compressed(self, records: memoryview) -> tuple[Codec, Sequence[Data]]:
        """Compress, unless that only makes the batch too large."""
        pieces = self._compress(records)
        too_large = HEADER_SIZE + sum(map(len, pieces)) > self._max_message_bytes
        if too_large and HEADER_SIZE + len(records) <= self._max_message_bytes:
            return Codec.NONE, [records]
        return self._codec, pieces


# ----------------------------------------------------------------------------------------------
# Give encoded batches their offsets: the work of a commit, per batch and not per row.


def assign_offsets(data: Bytes, first_offset: int, leader_epoch: int) -> int:
    """Write offsets and leader epoch into everything that was encoded in ``data``, in place.

    They lie outside of the checksums (Kafka ``DefaultRecordBatch.setLastOffset``,
    ``AbstractLegacyRecordBatch.setLastOffset``), so nothing else changes. Sets of magic 0 and 1 are
    numbered message by message, wrappers of magic 1 as a whole; they know no leader epoch.

    Args:
        data: uint8[n], writable, whole batches or message sets of one magic, back to back. The
            first set may be the rest of one.
        first_offset: offset of the first record.
        leader_epoch: int32, >= 0 for a broker to take a batch of magic 2.

    Returns:
        The offset after the last record.

    Raises:
        CorruptRecordError: something in ``data`` is no whole batch or message, or is a wrapper of
            magic 0, whose offsets lie under its checksum; ``position`` says where in ``data``. What
            lies before it is numbered already.
    """
    if len(data) > MAGIC_POSITION and data[MAGIC_POSITION] < MAGIC:
        end = number_messages(data, first_offset)
    else:
        end = number_batches(data, first_offset, leader_epoch)
    if end < 0:
        position = -1 - end
        raise CorruptRecordError(
            f"no whole batch or message without offset at byte {position} of {len(data)} staged "
            "bytes",
            position=position,
        )
    return end


# ----------------------------------------------------------------------------------------------
# What compresses the batches of a writer, one after the other.


def batch_compressor(codec: Codec, level: int | None = None) -> Callable[[Data], Sequence[Data]]:
    """Return what compresses batches of magic 2, one after the other, like ``compress_pieces``.

    It may go by what those before were like: one for each kind of rows, not shared by threads.
    """
    if codec is Codec.LZ4:
        from kafkalog.streaming.records.compression import lz4_codec  # noqa: PLC0415 - if used

        if lz4_codec.is_fast(level):
            return lz4_codec.BatchCompressor()
    return functools.partial(compress_pieces, codec, level=level)
