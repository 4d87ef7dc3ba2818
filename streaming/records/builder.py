"""Columns in, record batches of magic 2 out: what a producer does, many rows a call.

``RecordColumns`` holds the rows of one Arrow batch; a ``BatchBuilder`` is the open batch of one
partition and takes the rows that go there. A finished batch has base offset 0 and leader epoch -1:
both lie outside its CRC and are given when it is appended (``offsets.assign_offsets``).

Source: Kafka ``MemoryRecordsBuilder``, ``DefaultRecordBatch``.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import crc32c

from kafkalog.errors import RecordTooLargeError
from kafkalog.model import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TimestampType
from kafkalog.streaming.records import encode_kernels as kernels
from kafkalog.streaming.records.compression import Codec, compress_pieces
from kafkalog.streaming.records.open_batch import (
    DEFAULT_MAX_MESSAGE_BYTES,
    DEFAULT_TARGET_BYTES,
    EncodedBatch,
    OpenBatch,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.streaming.records.arrow_buffers import (
        Integers,
    )
    from kafkalog.streaming.records.compression.codec import Data
    from kafkalog.streaming.records.record_columns import RecordColumns

__all__ = ["DEFAULT_TARGET_BYTES", "BatchBuilder", "EncodedBatch"]

# baseOffset, batchLength, partitionLeaderEpoch, magic, crc, attributes, lastOffsetDelta,
# baseTimestamp, maxTimestamp, producerId, producerEpoch, baseSequence, recordsCount: see `batch`.
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CRC: Final = struct.Struct(">I")
_CRC_POSITION: Final = 17
_CRC_START: Final = 21
_MAGIC: Final = 2
_LOG_APPEND_TIME_BIT: Final = 0x08


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
        self._level = level
        self._stamp = (
            log_append_time_ms if timestamp_type is TimestampType.LOG_APPEND_TIME else None
        )
        self._max_message_bytes = max_message_bytes
        limit = max(_HEADER.size, min(target_bytes + _HEADER.size, max_message_bytes))
        super().__init__(limit, header_size=_HEADER.size, state_size=kernels.STATE_SIZE)

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
        size = _HEADER.size + sum(map(len, pieces))
        if size > self._max_message_bytes:
            raise RecordTooLargeError(
                f"a record of {len(records)} bytes makes a batch of {size} bytes "
                f"({codec.name.lower()}), more than max.message.bytes={self._max_message_bytes}"
            )
        if self._stamp is not None:
            state[kernels.MAX_TIMESTAMP] = self._stamp
        header = bytearray(
            _HEADER.pack(
                0,
                size - 12,
                NO_EPOCH,
                _MAGIC,
                0,
                int(codec) | (0 if self._stamp is None else _LOG_APPEND_TIME_BIT),
                state[kernels.LAST_DELTA],
                state[kernels.BASE_TIMESTAMP],
                state[kernels.MAX_TIMESTAMP],
                NO_PRODUCER_ID,
                NO_EPOCH,
                NO_SEQUENCE,
                state[kernels.COUNT],
            )
        )
        crc = crc32c.crc32c(memoryview(header)[_CRC_START:])
        for piece in pieces:
            crc = crc32c.crc32c(piece, crc)
        _CRC.pack_into(header, _CRC_POSITION, crc)
        return b"".join((header, *pieces))

    def _compressed(self, records: memoryview) -> tuple[Codec, Sequence[Data]]:
        """Compress, unless that only makes the batch too large."""
        pieces = compress_pieces(self._codec, records, self._level)
        too_large = _HEADER.size + sum(map(len, pieces)) > self._max_message_bytes
        if too_large and _HEADER.size + len(records) <= self._max_message_bytes:
            return Codec.NONE, [records]
        return self._codec, pieces
