"""Columns in, message sets of magic 0 and 1 out, as producers and brokers before 0.11 wrote them.

A finished set counts its offsets from 0. In magic 1 the offset of a message, and of a wrapper, lies
outside of its checksum, and the offsets inside of a wrapper are relative: ``assign_offsets`` makes
it final. In magic 0 the offsets inside of a wrapper are absolute and under its checksum: such sets
stay plain until they have their offsets, and are compressed then (``wrap_messages``).

Source: Kafka ``MemoryRecordsBuilder.writeLegacyCompressedWrapperHeader``, ``LegacyRecord.write``.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.errors import CorruptRecordError, RecordTooLargeError, RowError
from kafkalog.model import NO_TIMESTAMP, TimestampType
from kafkalog.streaming.records.batch import scan_batches
from kafkalog.streaming.records.builder import (
    DEFAULT_MAX_MESSAGE_BYTES,
    DEFAULT_TARGET_BYTES,
    EncodedBatch,
    OpenBatch,
)
from kafkalog.streaming.records.compression import Codec, compress
from kafkalog.streaming.records.crc_kernels import CRC32_TABLES
from kafkalog.streaming.records.encode_kernels import LAST_DELTA, MAX_TIMESTAMP
from kafkalog.streaming.records.message_sets import encode_kernels as kernels
from kafkalog.streaming.records.message_sets.layout import (
    CRC_POSITION,
    CRC_START,
    LOG_APPEND_TIME_MASK,
    SIZE_POSITION,
)

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers
    from kafkalog.streaming.records.batch import BatchTable
    from kafkalog.streaming.records.builder import RecordColumns

__all__ = ["MessageSetBuilder", "wrap_messages"]

# offset, size, crc, magic, attributes, (timestamp,) key length, value length: see `layout`.
_WRAPPER_V0: Final = struct.Struct(">qiIbbii")
_WRAPPER_V1: Final = struct.Struct(">qiIbbqii")
_CRC: Final = struct.Struct(">I")
_ENTRY_OVERHEAD: Final = SIZE_POSITION + 4


@dataclass(frozen=True, slots=True)
class _Wrapping:
    """How messages are put into a wrapper."""

    magic: int
    codec: Codec
    level: int | None
    attributes: int
    max_message_bytes: int

    def wrap(self, messages: memoryview, largest: int, offset: int, timestamp: int) -> bytes:
        """Return one wrapper; or the messages, without a codec or if the wrapper is too large.

        Args:
            messages: whole messages with their offsets.
            largest: bytes of the largest of them.
            offset: the last one's.
            timestamp: their greatest, or the append time, ms.

        Raises:
            RecordTooLargeError: neither wrapper nor messages fit ``max_message_bytes``.
        """
        smallest = largest
        if self.codec is not Codec.NONE:
            wrapper = self._wrapper(messages, offset, timestamp)
            if len(wrapper) <= self.max_message_bytes:
                return wrapper
            smallest = min(largest, len(wrapper))
        if largest > self.max_message_bytes:
            raise RecordTooLargeError(
                f"a record makes a message of {smallest} bytes ({self.codec.name.lower()}), more "
                f"than {self.max_message_bytes} bytes"
            )
        return bytes(messages)

    def _wrapper(self, messages: memoryview, offset: int, timestamp: int) -> bytes:
        body = compress(self.codec, messages, self.level, magic=self.magic)
        attributes = self.attributes | int(self.codec)
        header = bytearray((_WRAPPER_V1 if self.magic else _WRAPPER_V0).size)
        size = len(header) + len(body) - _ENTRY_OVERHEAD
        if self.magic:
            _WRAPPER_V1.pack_into(
                header, 0, offset, size, 0, self.magic, attributes, timestamp, -1, len(body)
            )
        else:
            _WRAPPER_V0.pack_into(header, 0, offset, size, 0, self.magic, attributes, -1, len(body))
        crc = zlib.crc32(body, zlib.crc32(memoryview(header)[CRC_START:]))
        _CRC.pack_into(header, CRC_POSITION, crc)
        return b"".join((header, body))


class MessageSetBuilder(OpenBatch):
    """The open message set of one partition: ``BatchBuilder`` for magic 0 and 1.

    With a codec, a set of magic 1 becomes one wrapper. A set of magic 0 is returned plain, and
    becomes a wrapper later: ``max_message_bytes`` applies to that wrapper.
    """

    def __init__(
        self,
        magic: int,
        codec: Codec,
        *,
        level: int | None = None,
        timestamp_type: TimestampType = TimestampType.CREATE_TIME,
        log_append_time_ms: int | None = None,
        target_bytes: int = DEFAULT_TARGET_BYTES,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        """Open an empty set.

        Args:
            magic: 0 or 1.
            codec: none to lz4.
            level: the codec's level; None for its default.
            timestamp_type: CREATE_TIME, or LOG_APPEND_TIME to stamp all with one time. Magic 0 has
                no timestamps and ignores it.
            log_append_time_ms: that time, needed with LOG_APPEND_TIME.
            target_bytes: size of the messages, uncompressed, that closes a set.
            max_message_bytes: largest message or wrapper.
        """
        _check_codec(codec)
        stamped = timestamp_type is TimestampType.LOG_APPEND_TIME
        if stamped and log_append_time_ms is None:
            raise ValueError("LogAppendTime needs the time to stamp")
        attributes = LOG_APPEND_TIME_MASK if stamped and magic else 0
        self._wrapping = _Wrapping(magic, codec, level, attributes, max_message_bytes)
        self._stamp = NO_TIMESTAMP if log_append_time_ms is None else log_append_time_ms
        limit = min(target_bytes, max_message_bytes)
        super().__init__(limit, header_size=0, state_size=kernels.STATE_SIZE)

    def append(self, records: RecordColumns, rows: Integers) -> list[EncodedBatch]:
        """Append like ``OpenBatch.append``; a row with headers is a ``RowError`` too."""
        _refuse_headers(records, rows, self._wrapping.magic)
        return super().append(records, rows)

    def _append_some(self, records: RecordColumns, rows: Integers, first: int) -> int:
        return kernels.append_messages(
            rows,
            first,
            *records.key,
            *records.value,
            records.timestamps,
            records.offsets,
            self._wrapping.attributes if self._wrapping.magic else -1,
            self._stamp,
            CRC32_TABLES,
            self._out,
            self._limit,
            self._state,
            self._stopped,
        )

    def _seal(self, records: memoryview, state: list[int]) -> bytes:
        largest = state[kernels.LARGEST]
        stays_plain = self._wrapping.magic == 0
        if stays_plain and largest <= self._wrapping.max_message_bytes:
            return bytes(records)
        wrapped = self._wrapping.wrap(records, largest, state[LAST_DELTA], state[MAX_TIMESTAMP])
        return bytes(records) if stays_plain else wrapped


def wrap_messages(
    data: Bytes,
    codec: Codec,
    *,
    level: int | None = None,
    target_bytes: int = DEFAULT_TARGET_BYTES,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
) -> bytes:
    """Compress plain messages of magic 0 that have their final offsets.

    Args:
        data: uint8[n], whole messages.
        codec: gzip to lz4.
        level: the codec's level; None for its default.
        target_bytes: size of the messages, uncompressed, that closes a wrapper.
        max_message_bytes: largest wrapper; messages that it would not fit stay uncompressed.

    Returns:
        Wrappers that hold the same messages, back to back.

    Raises:
        CorruptRecordError: something in ``data`` is no whole plain message of magic 0.
        RecordTooLargeError: a message does not fit ``max_message_bytes``, compressed or not.
    """
    _check_codec(codec)
    scan = scan_batches(data)
    table = scan.table
    plain = (table.magic == 0) & (table.codec == Codec.NONE)
    if scan.consumed < len(data) or not plain.all():
        raise CorruptRecordError("only plain messages of magic 0 can be put into wrappers of it")
    target_bytes = min(target_bytes, max_message_bytes)
    return _wrapped(data, table, _Wrapping(0, codec, level, 0, max_message_bytes), target_bytes)


def _wrapped(data: Bytes, table: BatchTable, wrapping: _Wrapping, target_bytes: int) -> bytes:
    ends = np.cumsum(table.size)
    wrapped = []
    first, start = 0, 0
    while first < len(table):
        last = max(first + 1, int(np.searchsorted(ends, start + target_bytes, side="right")))
        end = int(ends[last - 1])
        wrapped.append(
            wrapping.wrap(
                data.data[start:end],
                int(table.size[first:last].max()),
                int(table.last_offset[last - 1]),
                NO_TIMESTAMP,
            )
        )
        first, start = last, end
    return b"".join(wrapped)


def _check_codec(codec: Codec) -> None:
    if not codec.is_in(magic=1):
        raise ValueError(f"{codec.name.lower()} needs message format v2 (magic 2)")


def _refuse_headers(records: RecordColumns, rows: Integers, magic: int) -> None:
    starts = records.header_starts
    if not len(starts):
        return
    some = starts[rows + 1] > starts[rows]
    if some.any():
        row = int(rows[np.flatnonzero(some)[0]])
        raise RowError(
            f"row {row} has headers, which message.format=v{magic} cannot hold: leave the headers "
            "out or write v2"
        )
