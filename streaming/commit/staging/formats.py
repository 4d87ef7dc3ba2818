"""The format in which a topic's batches are encoded: message format, codec and limits.

What is left for the commit depends on the format, and so does what a task stages:

========  ============  ==========================================================================
format    codec         staged
========  ============  ==========================================================================
v2        any           record batches; base offset and leader epoch are given at commit
v1        none          messages; each one's offset is given at commit
v1        gzip to lz4   wrappers, whose inner offsets are relative; the wrapper's is given at commit
v0        none          messages; each one's offset is given at commit
v0        gzip to lz4   messages: the offsets inside of a wrapper are absolute and under its
                        checksum, so they are compressed at commit
========  ============  ==========================================================================

With ``preserveOffsets`` offsets are known from the start, and everything is staged as it will be.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kafkalog.model import NO_EPOCH
from kafkalog.streaming.records.builder import BatchBuilder, assign_offsets
from kafkalog.streaming.records.compression import Codec
from kafkalog.streaming.records.message_sets.builder import MessageSetBuilder, wrap_messages

if TYPE_CHECKING:
    from kafkalog.model import TimestampType
    from kafkalog.streaming.options.topic_settings import LogConfig
    from kafkalog.streaming.records.builder import EncodedBatch, OpenBatch

__all__ = ["BatchFormat"]


class BatchFormat:
    """Makes the batches of one topic, by its settings."""

    def __init__(self, config: LogConfig) -> None:
        self.magic = config.magic
        self.codec = _codec(config)
        self.max_message_bytes = min(config.max_message_bytes, config.segment_bytes)
        is_of_segment = config.segment_bytes < config.max_message_bytes
        self.limit = "segment.bytes" if is_of_segment else "max.message.bytes"
        """Which setting says ``max_message_bytes``: a batch lies in one segment."""
        self._config = config
        self._level = _level(self.codec, config)

    @property
    def compresses_late(self) -> bool:
        """Whether staged messages are compressed when they have their offsets."""
        return self.magic == 0 and self.codec is not Codec.NONE

    def builder(
        self, append_time_ms: int, timestamp_type: TimestampType | None = None
    ) -> OpenBatch:
        """Open a batch; records with LogAppendTime get ``append_time_ms``.

        Without a timestamp type it is the topic's.
        """
        if timestamp_type is None:
            timestamp_type = self._config.message_timestamp_type
        if self.magic == 2:
            return BatchBuilder(
                self.codec,
                level=self._level,
                timestamp_type=timestamp_type,
                log_append_time_ms=append_time_ms,
                max_message_bytes=self.max_message_bytes,
            )
        return MessageSetBuilder(
            self.magic,
            self.codec,
            level=self._level,
            timestamp_type=timestamp_type,
            log_append_time_ms=append_time_ms,
            max_message_bytes=self.max_message_bytes,
        )

    def staged(self, batch: EncodedBatch) -> EncodedBatch:
        """Return what is staged of a finished batch."""
        return batch if batch.first_offset < 0 else self.with_offsets(batch, batch.first_offset)

    def with_offsets(self, batch: EncodedBatch, first_offset: int) -> EncodedBatch:
        """Return a batch with its final offsets; compress it if it had to wait for them.

        Raises:
            RecordTooLargeError: a message that fits ``max.message.bytes`` neither compressed nor
                plain.
        """
        data = np.frombuffer(bytearray(batch.data), np.uint8)
        assign_offsets(data, first_offset, NO_EPOCH)
        if not self.compresses_late:
            return replace(batch, data=data.tobytes(), first_offset=first_offset)
        wrapped = wrap_messages(
            data,
            self.codec,
            level=self._level,
            target_bytes=len(data),
            max_message_bytes=self.max_message_bytes,
        )
        return replace(batch, data=wrapped, first_offset=first_offset)


def _codec(config: LogConfig) -> Codec:
    """Return the codec; ``producer``, the default, means what producers do by default: none."""
    name = config.compression_type
    return Codec.NONE if name == "producer" else Codec.from_name(name)


def _level(codec: Codec, config: LogConfig) -> int | None:
    match codec:
        case Codec.GZIP:
            return config.compression_gzip_level
        case Codec.LZ4:
            return config.compression_lz4_level
        case Codec.ZSTD:
            return config.compression_zstd_level
        case _:
            return None
