"""Read a planned slice as Arrow record batches, to its very end or not at all.

Between planning and reading, files change: a cleaner swaps a segment for a compacted one, merges
several, retention unlinks, a recovering broker truncates. The slice's offsets stay what is to be
read. If the file is another one by now, the position is sought again by offset; where the file ends
early, only a following segment proves that no offsets are missing.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kafkalog.errors import (
    CorruptRecordError,
    DataLossError,
    KafkaLogError,
    OffsetOutOfRangeError,
    TimestampOutOfRangeError,
)
from kafkalog.streaming.log.segment import Chunk, LogSegment
from kafkalog.streaming.log.segment_files import list_base_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.slices import SegmentSlice
    from kafkalog.streaming.records.arrow_buffers import Bytes
    from kafkalog.streaming.records.batch import BatchTable

__all__ = ["Decoder", "read_slice"]

_LOGGER = logging.getLogger("kafkalog.log")


class Decoder(Protocol):
    """What turns batches into Arrow: ``records.columns.RecordDecoder``, or one in its manner."""

    def feed(
        self,
        data: Bytes,
        table: BatchTable,
        *,
        file_position: int,
        path: str,
        start_offset: int,
        end_offset: int,
    ) -> Iterator[pa.RecordBatch]:
        """Decode the rows with ``start_offset <= offset < end_offset``; it may keep the last."""
        ...

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Give the rows that were kept."""
        ...


def read_slice(
    topic_partition: TopicPartition,
    planned: SegmentSlice,
    decoder: Decoder,
    *,
    committed_end: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the offsets of ``planned``, in order, as ``decoder`` gives them.

    An error comes after the rows before it.

    Offsets that compaction removed, and those of control batches, are gaps and no loss. From
    ``committed_end`` on, if it is given, the first bytes that are no whole batch are the end of the
    log, said in a warning; below it, and everywhere without it, they are an error.

    Raises:
        OffsetOutOfRangeError: retention has deleted the segment; holds the log start offset.
        DataLossError: the log ends before the slice does.
        CorruptRecordError: bytes that are no batch, a wrong checksum, offsets that do not ascend.
        TimestampOutOfRangeError: a record whose timestamp the decoder cannot give.
    """
    return _SliceReader(topic_partition, planned, decoder, committed_end).batches()


class _SliceReader:
    def __init__(
        self,
        topic_partition: TopicPartition,
        planned: SegmentSlice,
        decoder: Decoder,
        committed_end: int | None,
    ) -> None:
        self._topic_partition = topic_partition
        self._planned = planned
        self._directory = Path(planned.path).parent
        self._decoder = decoder
        self._committed_end = committed_end
        self._next = planned.start_offset
        self._end = planned.end_offset

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._all_batches()
        except TimestampOutOfRangeError as error:
            raise TimestampOutOfRangeError(f"{self._topic_partition}: {error}") from error

    def _all_batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._full_batches()
        except KafkaLogError:
            yield from self._decoder.flush()
            raise
        yield from self._decoder.flush()

    def _full_batches(self) -> Iterator[pa.RecordBatch]:
        segment: LogSegment | None
        segment, position, end_position = self._open_planned()
        while segment is not None:
            with segment:
                yield from self._read_segment(segment, position, end_position)
                if self._next >= self._end:
                    return
                segment = self._following(segment)
                position, end_position = 0, None

    # Finding the segment

    def _open_planned(self) -> tuple[LogSegment, int, int | None]:
        segment = LogSegment(self._directory, self._planned.base_offset)
        try:
            if segment.identity == (self._planned.device, self._planned.inode):
                return segment, self._planned.start_position, self._planned.end_position
        except FileNotFoundError:
            segment = self._floor_segment()
        position = segment.translate_offset(self._next)
        return segment, segment.size if position is None else position, None

    def _floor_segment(self) -> LogSegment:
        """Find where the next offset is now: retention may have deleted it, a cleaner merged it."""
        bases = list_base_offsets(self._directory)
        below = [base for base in bases if base <= self._next]
        if not below:
            start = bases[0] if bases else -1
            raise OffsetOutOfRangeError(
                f"{self._topic_partition}: offset {self._next} is gone from {self._directory}: "
                + (f"the log starts at {start} now" if bases else "it has no segments any more"),
                offset=self._next,
                log_start_offset=start,
            )
        return LogSegment(self._directory, below[-1])

    def _following(self, segment: LogSegment) -> LogSegment | None:
        """Find the segment to go on with after one was read to its end; None if that was all.

        A slice lies in one segment, so that a following one beyond it proves that the offsets
        missing at the end were compacted away.
        """
        bases = [b for b in list_base_offsets(self._directory) if b > segment.base_offset]
        if not bases:
            self._end_of_log(segment)
            return None
        return None if bases[0] >= self._end else LogSegment(self._directory, bases[0])

    def _end_of_log(self, segment: LogSegment) -> None:
        reason = f"{segment.path} ends at position {segment.size} and no segment follows"
        if not self._may_end_here(reason):
            raise DataLossError(
                f"{self._topic_partition}: offsets [{self._next}, {self._end}) are missing: "
                f"{reason}; the log was truncated since it was planned to read them"
            )

    def _may_end_here(self, reason: str) -> bool:
        """Tell whether the log may end at the next offset: then say so, and read no further."""
        if self._committed_end is None or self._next < self._committed_end:
            return False
        _LOGGER.warning(
            "%s: the log ends at offset %d, above the committed end %d and below %d, the end that "
            "was asked for: %s",
            self._topic_partition,
            self._next,
            self._committed_end,
            self._end,
            reason,
        )
        self._next = self._end
        return True

    # Reading one segment

    def _read_segment(
        self, segment: LogSegment, position: int, end_position: int | None
    ) -> Iterator[pa.RecordBatch]:
        """Read on until the slice's last offset or the end of the file."""
        try:
            for bound in dict.fromkeys([end_position, None]):
                for chunk in segment.chunks(position, bound):
                    yield from self._decode(segment, chunk)
                    position = chunk.file_position + len(chunk.data)
                    if self._next >= self._end:
                        return
            segment.refuse_rest(position)
        except CorruptRecordError as error:
            if not self._may_end_here(str(error)):
                raise self._located(error) from error

    def _located(self, error: CorruptRecordError) -> CorruptRecordError:
        return type(error)(
            f"{self._topic_partition}: offsets [{self._next}, {self._end}) cannot be read: {error}",
            path=error.path,
            position=error.position,
            offset=error.offset,
        )

    def _decode(self, segment: LogSegment, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        table = chunk.table
        first = int(np.searchsorted(table.last_offset, self._next))
        # The batches behind the first one that reaches the end have nothing for us.
        end = int(np.searchsorted(table.last_offset, self._end - 1)) + 1
        if first < end:
            yield from self._decoder.feed(
                chunk.data,
                table[first:end],
                file_position=chunk.file_position,
                path=str(segment.path),
                start_offset=self._next,
                end_offset=self._end,
            )
        self._next = max(self._next, int(table.last_offset[-1]) + 1)
