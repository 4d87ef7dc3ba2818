"""How the batches of a topic are made: its message format, codec and limits together.

What the formats leave open until the commit differs, and so does what a task stages:

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
Plain messages are staged in *stretches* (see ``segment_growth``), so that what a commit has to know
of them is not a row for each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.model import NO_EPOCH
from kafkalog.streaming.records.batch import scan_batches
from kafkalog.streaming.records.builder import BatchBuilder, EncodedBatch
from kafkalog.streaming.records.compression import Codec
from kafkalog.streaming.records.message_set_builder import MessageSetBuilder, wrap_messages
from kafkalog.streaming.records.offsets import assign_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.streaming.log.config import LogConfig
    from kafkalog.streaming.records.arrow_buffers import Integers
    from kafkalog.streaming.records.batch import BatchTable
    from kafkalog.streaming.records.open_batch import OpenBatch

__all__ = ["BatchFormat"]

_PARTS_OF_A_SEGMENT: Final = 8


class BatchFormat:
    """Makes the batches of one topic, by its settings."""

    def __init__(self, config: LogConfig) -> None:
        self.magic = config.magic
        self.codec = _codec(config)
        self.max_message_bytes = min(config.max_message_bytes, config.segment_bytes)
        self._config = config
        self._level = _level(self.codec, config)

    @property
    def compresses_late(self) -> bool:
        """Whether staged messages are compressed when they have their offsets."""
        return self.magic == 0 and self.codec is not Codec.NONE

    def builder(self, append_time_ms: int) -> OpenBatch:
        """Open a batch; records of a topic with LogAppendTime get ``append_time_ms``."""
        if self.magic == 2:
            return BatchBuilder(
                self.codec,
                level=self._level,
                timestamp_type=self._config.message_timestamp_type,
                log_append_time_ms=append_time_ms,
                max_message_bytes=self.max_message_bytes,
            )
        return MessageSetBuilder(
            self.magic,
            self.codec,
            level=self._level,
            timestamp_type=self._config.message_timestamp_type,
            log_append_time_ms=append_time_ms,
            max_message_bytes=self.max_message_bytes,
        )

    def staged(self, batch: EncodedBatch) -> Iterator[EncodedBatch]:
        """Give what is staged of a finished batch, in pieces that a commit treats as batches."""
        if batch.first_offset >= 0:
            yield from self.with_offsets(batch, batch.first_offset)
        elif self.magic == 2 or self.compresses_late:
            yield batch
        else:
            yield from self._stretches(batch, keeps_offsets=False)

    def with_offsets(self, batch: EncodedBatch, first_offset: int) -> Iterator[EncodedBatch]:
        """Give a batch its final offsets, and compress it if it had to wait for that.

        Raises:
            RecordTooLargeError: a message that fits ``max.message.bytes`` neither compressed nor
                plain.
        """
        data = np.frombuffer(bytearray(batch.data), np.uint8)
        assign_offsets(data, first_offset, NO_EPOCH)
        final = data.tobytes()
        if self.compresses_late:
            final = wrap_messages(
                data,
                self.codec,
                level=self._level,
                target_bytes=len(data),
                max_message_bytes=self.max_message_bytes,
            )
        numbered = replace(batch, data=final, first_offset=first_offset)
        if self.magic == 2:
            yield numbered
        else:
            yield from self._stretches(numbered, keeps_offsets=True)

    def _stretches(self, batch: EncodedBatch, *, keeps_offsets: bool) -> Iterator[EncodedBatch]:
        """Cut plain messages into stretches no longer than what lies between two index entries.

        A wrapper stays as it is.
        """
        table = scan_batches(np.frombuffer(batch.data, np.uint8)).table
        if table.codec[0] != Codec.NONE:
            yield batch
            return
        longest = min(
            self._config.index_interval_bytes, self._config.segment_bytes // _PARTS_OF_A_SEGMENT
        )
        first = _first_rows(table, longest)
        counts = np.diff(first, append=len(table))
        last = first + counts - 1
        offsets = table.last_offset
        pieces = zip(
            table.position[first].tolist(),
            table.end_position[last].tolist(),
            counts.tolist(),
            offsets[first].tolist(),
            offsets[last].tolist(),
            table.max_timestamp[first].tolist(),
            np.maximum.reduceat(table.max_timestamp, first).tolist(),
            strict=True,
        )
        for start, end, count, base_offset, last_offset, base_timestamp, max_timestamp in pieces:
            yield EncodedBatch(
                data=batch.data[start:end],
                count=count,
                last_offset_delta=last_offset - base_offset,
                base_timestamp=base_timestamp,
                max_timestamp=max_timestamp,
                first_offset=base_offset if keeps_offsets else -1,
            )


def _first_rows(table: BatchTable, longest: int) -> Integers:
    """Give the rows of a table of plain messages at which a stretch of them begins.

    Each message whose position is the first beyond a multiple of ``longest`` is a stretch of its
    own, which an index entry may name. What follows it is cut behind the first message with a
    timestamp that is greater than all before it, so that a time index entry names that message.
    """
    if longest == 0 or (np.diff(table.last_offset) != 1).any():
        return np.arange(len(table))
    begins = np.flatnonzero(np.diff(table.position // longest, prepend=-1))
    times = table.max_timestamp
    peaks = np.maximum.reduceat(times, begins)
    rising = peaks > times[begins]
    ends = np.append(begins[1:], len(table))
    behind_peaks = [
        begin + int(times[begin:end].argmax()) + 1
        for begin, end in zip(begins[rising].tolist(), ends[rising].tolist(), strict=True)
    ]
    rows = np.unique(np.concatenate((begins, begins + 1, np.array(behind_peaks, np.int64))))
    return rows[rows < len(table)]


def _codec(config: LogConfig) -> Codec:
    """Take ``producer``, the default, for what producers do by default: nothing."""
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
