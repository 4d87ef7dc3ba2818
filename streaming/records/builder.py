"""Columns in, record batches of magic 2 out: what a producer does, many rows a call.

``RecordColumns`` holds the rows of one Arrow batch; a ``BatchBuilder`` is the open batch of one
partition and takes the rows that go there. A finished batch has base offset 0 and leader epoch -1:
both lie outside its CRC and are given when it is appended (``offsets.assign_offsets``).

Source: Kafka ``MemoryRecordsBuilder``, ``DefaultRecordBatch``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.errors import RecordTooLargeError
from kafkalog.model import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TimestampType
from kafkalog.streaming.records import encode_kernels as kernels
from kafkalog.streaming.records.batch_layout import HEADER_SIZE, LOG_APPEND_TIME_MASK, seal_batch
from kafkalog.streaming.records.compression import Codec, batch_compressor
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
