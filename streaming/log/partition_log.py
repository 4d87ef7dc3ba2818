"""The log of one topic partition: its segments in order, its ends, and what lies between.

Source: Kafka ``UnifiedLog``, ``LocalLog``, ``LogSegments``.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np

from kafkalog.errors import CorruptRecordError, DataLossError, OffsetOutOfRangeError
from kafkalog.files.closing import Closing
from kafkalog.files.remote_path import RemotePath
from kafkalog.model import MAX_OFFSET
from kafkalog.streaming.log.log_dir import check_stamp
from kafkalog.streaming.log.read.salvage import Salvage
from kafkalog.streaming.log.read.slice_reader import (
    SegmentSlice,
    open_planned,
    read_slice,
    slice_segment,
    split_slice,
)
from kafkalog.streaming.log.read.timestamps import find_by_timestamp, find_max_timestamp
from kafkalog.streaming.log.read.transactions import StableOffset
from kafkalog.streaming.log.segment import Chunk, LogSegment
from kafkalog.streaming.log.segments import LogSegments, SegmentListing, retrying
from kafkalog.streaming.log.valid_batches import (
    ends_in_zeros,
    find_valid_end,
    is_followed,
    matches_checksum,
    pass_damage,
)
from kafkalog.streaming.records.batch import scan_batches
from kafkalog.streaming.records.compression import DEFAULT_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from kafkalog.files.watch import Stamp
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.indexes import TimestampOffset
    from kafkalog.streaming.log.read.slice_reader import Decoder
    from kafkalog.streaming.records.batch import BatchHeader


__all__ = ["LogEnd", "PartitionLog", "identity_of", "measure_unread"]

_LOGGER: Final = logging.getLogger("kafkalog.log")

_T = TypeVar("_T")


class LogEnd(NamedTuple):
    """Where a log ends: the next offset to write, and the place in the segment that ends there."""

    offset: int
    base_offset: int
    """Of the segment with the end; -1 if there is none."""
    position: int
    """Of the first byte that belongs to no whole batch, in its ``.log`` file."""
    is_damage: bool = False
    """Whether valid batches lie after the bytes there: they are damaged then, and no torn tail.

    Zeros up to the end of a segment are no damage, though segments follow: it was copied earlier.
    """
    is_torn: bool = False
    """Whether there are bytes at all that belong to no whole batch."""


class PartitionLog(Closing):
    """Reads a partition's folder; never writes. Use it as a context manager, or :meth:`close` it.

    Segments are listed when first needed, and again after :meth:`refresh`. Not thread safe.
    """

    def __init__(
        self,
        directory: Path,
        topic_partition: TopicPartition,
        log_start_offset: int | None = None,
        *,
        around_damage: bool = False,
        max_decompressed_bytes: int = DEFAULT_LIMIT,
        may_overlap: bool = False,
        replica: Stamp | None = None,
        listing: SegmentListing | None = None,
    ) -> None:
        """Take a partition's folder; nothing is read yet.

        Args:
            directory: the folder.
            topic_partition: whose log it is.
            log_start_offset: the checkpointed one, if there is one.
            around_damage: whether searches by timestamp pass over damage, with a warning.
            max_decompressed_bytes: what a batch that they look into may decompress to.
            may_overlap: whether segments may be of different moments, so that one that a cleaner
                has joined lies beside some of those that it was joined of; it counts then, as for
                a broker. Costs a look at the end of each segment that is read.
            replica: the stamp of a replica in sync; with another one, nothing that is found counts,
                and what is sliced is not read.
            listing: the folder's, of who opens the same log again and again. It is looked at
                whether that still holds.
        """
        self.directory = directory
        self.topic_partition = topic_partition
        self._checkpointed_start = log_start_offset or 0
        self._around_damage = around_damage
        self._max_decompressed_bytes = max_decompressed_bytes
        self._may_overlap = may_overlap
        self._replica = replica
        self._listing = listing
        self._segments: LogSegments | None = None

    def close(self) -> None:
        """Close the files of all segments."""
        if self._segments is not None:
            self._segments.close()

    def refresh(self) -> None:
        """Forget the listing: segments roll, are swapped and deleted."""
        self.close()
        self._segments = None
        if self._listing is not None:
            self._listing.refresh()

    @property
    def segments(self) -> LogSegments:
        """The segments, in order of their base offsets; the last one is the active one.

        Raises:
            UnknownTopicOrPartitionError: the folder is gone.
        """
        if self._segments is None:
            if self._listing is None:
                self._segments = LogSegments.of(self.directory)
            else:
                self._segments = self._listing.unopened()
        return self._segments

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read: the checkpointed one, or the first segment's base."""
        return self._confirmed(max(self._checkpointed_start, self.segments.start))

    def _confirmed(self, found: _T) -> _T:
        """Return what was found; of a replica, if that was in sync until now.

        Raises:
            LogDirectoryError: it may not have been.
        """
        if self._replica is not None:
            check_stamp(self.directory, self._replica)
        return found

    # The end of the log

    def log_end_offset(
        self, *, verify_from: int | None = None, committed_end: int | None = None
    ) -> int:
        """Find the next offset to write; see :meth:`log_end`."""
        return self.log_end(verify_from=verify_from, committed_end=committed_end).offset

    def log_end(
        self,
        *,
        verify_from: int | None = None,
        committed_end: int | None = None,
        past_damage: bool = False,
    ) -> LogEnd:
        """Walk to the end of the log, as a recovering broker would.

        The walk starts at the last entry of the active segment's offset index, or, if that is
        earlier, at the batch with offset ``verify_from``, and checks lengths and checksums. The
        first bytes that are no valid batch are the end of the log: a torn tail, the zeros of a
        preallocated segment, or damage, after which a recovering broker would keep nothing either.
        With ``past_damage`` the log does not end at a batch that has a valid one right after it:
        that batch is damaged, and whoever reads it finds out.

        ``committed_end`` is the offset below which everything is known to have been whole.

        Raises:
            CorruptRecordError: bytes below ``committed_end`` that are no valid batch.
        """
        return retrying(
            lambda: self._walk_to_end(verify_from, committed_end, past_damage=past_damage),
            self.refresh,
        )

    def _walk_to_end(
        self, verify_from: int | None, committed_end: int | None, *, past_damage: bool
    ) -> LogEnd:
        offset, base, position = self.log_start_offset, -1, 0
        start = MAX_OFFSET if verify_from is None else verify_from
        for segment in self.segments.from_floor(start):
            with segment:
                base = segment.base_offset
                end = find_valid_end(segment, segment.floor_position(start))
                if past_damage:
                    end = pass_damage(segment, end)
                offset, position = max(offset, end.next_offset), end.position
                if end.problem is None:
                    continue
                if committed_end is not None and offset < committed_end:
                    raise end.problem
                is_damage = not ends_in_zeros(segment, position) and (
                    segment is not self.segments.active or is_followed(segment, position)
                )
                return LogEnd(offset, base, position, is_damage, is_torn=True)
        return LogEnd(offset, base, position)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Find where readers of committed records have to stop.

        To ask the same log again and again, keep a ``StableOffset``.

        Raises:
            CorruptRecordError: bytes below the high watermark that are no batch.
            UnknownTopicOrPartitionError: the folder is gone.
        """
        stable = StableOffset(self.directory).find(high_watermark)
        return min(high_watermark, max(stable, self.log_start_offset))

    # Reading

    def slices(self, start: int, end: int, *, leaves_open: bool = False) -> list[SegmentSlice]:
        """Find the bytes of the offsets ``[start, end)``, segment by segment, by the indexes.

        ``end`` is not checked against the end of the log: whoever reads the slices finds out. With
        ``leaves_open`` the first segment stays open until the log is closed: for :meth:`planned`.

        Raises:
            OffsetOutOfRangeError: ``start`` is below the log start offset.
        """
        if start >= end:
            return []
        return retrying(lambda: self._slice(start, end, leaves_open=leaves_open), self.refresh)

    def _slice(self, start: int, end: int, *, leaves_open: bool = False) -> list[SegmentSlice]:
        if start < self.log_start_offset:
            raise OffsetOutOfRangeError(
                f"{self.topic_partition}: offset {start} is below {self.log_start_offset}, where "
                f"the log in {self.directory} starts",
                offset=start,
                log_start_offset=self.log_start_offset,
            )
        found: list[SegmentSlice] = []
        done = start
        # where segments overlap, one far below may hold the offset
        for segment in self.segments if self._may_overlap else self.segments.between(start, end):
            if segment.base_offset >= end:
                break
            with segment if found or not leaves_open or self._may_overlap else nullcontext():
                following = self._following(segment)
                limit = end if following is None else min(end, following)
                first = max(done, segment.base_offset)
                if first >= limit:
                    continue
                sealed = limit == following
                if not sealed or segment.size:
                    piece = slice_segment(segment, first, limit, sealed_end=sealed)
                    is_replica = self._replica is not None
                    found.append(piece._replace(replica=self._replica) if is_replica else piece)
                done = limit
        return found

    def planned(self, piece: SegmentSlice) -> LogSegment | None:
        """Open the file that a slice of this log was planned for; None if there is none any more.

        The segment of the listing most often is that file.
        """
        named = self.segments.from_floor(piece.base_offset, 1)[0]
        with suppress(FileNotFoundError):
            if named.identity == (piece.device, piece.inode):
                return named
        named.close()
        return open_planned(piece)

    def _following(self, segment: LogSegment) -> int | None:
        """Return the first offset after those of a segment; None for the active one."""
        higher = self.segments.higher(segment.base_offset)
        if higher is None:
            return None
        following = higher.base_offset
        if self._may_overlap:
            headers = segment.headers(segment.floor_position(MAX_OFFSET))
            last = next(iter(deque(headers, maxlen=1)), None)
            if last is not None and last.last_offset >= following:
                with self.segments.from_floor(last.last_offset, 1)[0] as other:
                    if other.holds(last.offset, last.last_offset):
                        return last.last_offset + 1
        return following

    def split_slice(self, whole: SegmentSlice, pieces: int) -> list[SegmentSlice]:
        """Cut a slice at batch boundaries; see :mod:`kafkalog.streaming.log.read.slice_reader`."""
        return split_slice(whole, pieces)

    def read_slice(
        self,
        planned: SegmentSlice,
        decoder: Decoder,
        *,
        committed_end: int | None = None,
        committed_only: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Read a slice as Arrow; see :mod:`kafkalog.streaming.log.read.slice_reader`."""
        return read_slice(
            self.topic_partition,
            planned,
            decoder,
            committed_end=committed_end,
            committed_only=committed_only,
        )

    def read(
        self, start: int, end: int, max_bytes: int, *, min_one_message: bool = True
    ) -> Chunk | None:
        """Read whole batches from the first one that reaches ``start``, as Kafka's fetch does.

        Batches that straddle ``start`` or ``end`` are included: the decoder trims them. At most
        ``max_bytes`` are read, except that with ``min_one_message`` the first batch is read however
        large it is. None if there is nothing to read in ``[start, end)``.

        Raises:
            OffsetOutOfRangeError: ``start`` is below the log start offset.
            CorruptRecordError: bytes on the way that are no batch.
        """
        found = retrying(lambda: self._read(start, end, max_bytes, min_one_message), self.refresh)
        return self._confirmed(found)

    def _read(self, start: int, end: int, max_bytes: int, min_one_message: bool) -> Chunk | None:
        for planned in self._slice(start, end) if start < end else ():
            with self.segments.from_floor(planned.base_offset, 1)[0] as segment:
                position = segment.translate_offset(max(start, planned.start_offset))
                if position is not None:
                    return _read_some(segment, position, end, max_bytes, min_one_message)
        return None

    # Timestamps

    def offset_for_timestamp(
        self, timestamp: int, *, end_offset: int = MAX_OFFSET
    ) -> TimestampOffset | None:
        """Find the first record, by offset, with at least this timestamp in ms.

        A record at or above ``end_offset``, the end that the caller may read, counts as none, for
        the caller. What lies there may be torn.

        Returns:
            that record's own timestamp and offset; None if there is none.

        Raises:
            CorruptRecordError: bytes on the way that are no valid batch, unless they are passed
                over; a batch that decompresses to more than it may.
        """
        found = retrying(lambda: self._find_by_timestamp(timestamp, end_offset), self.refresh)
        return self._confirmed(found)

    def _find_by_timestamp(self, timestamp: int, end_offset: int) -> TimestampOffset | None:
        limit = self._max_decompressed_bytes
        salvage = (
            Salvage(self.topic_partition, max_decompressed_bytes=limit)
            if self._around_damage
            else None
        )
        return find_by_timestamp(
            self.segments,
            timestamp,
            self.log_start_offset,
            end_offset,
            max_decompressed_bytes=limit,
            salvage=salvage,
        )

    def max_timestamp(self) -> TimestampOffset | None:
        """Find the first record, by offset, with the greatest timestamp; None without any.

        Raises:
            CorruptRecordError: bytes on the way that are no valid batch.
        """
        limit = self._max_decompressed_bytes
        found = retrying(
            lambda: find_max_timestamp(self.segments, max_decompressed_bytes=limit), self.refresh
        )
        return self._confirmed(found)


def _read_some(
    segment: LogSegment, position: int, end: int, max_bytes: int, min_one_message: bool
) -> Chunk | None:
    """Read the batches from ``position`` on that start below ``end``, within ``max_bytes``."""
    first = segment.header_at(position)
    if first is None:  # a writer rolled back what it had not committed, after it was found
        segment.refuse_rest(position)
        return None
    length = max(max_bytes, first.size) if min_one_message else max_bytes
    if length < first.size:
        return None
    data = segment.opened.read(position, min(length, segment.size - position))
    scan = scan_batches(data, file_position=position, path=str(segment.path))
    if not len(scan.table) and scan.invalid is not None:
        raise scan.invalid
    table = scan.table
    table = table[: int(np.searchsorted(table.last_offset, end - 1)) + 1]
    return Chunk(data[: int(table.size.sum())], table, position)


# ----------------------------------------------------------------------------------------------
# What tells a log from one that was compacted since: it may lack what took keys away.


def identity_of(log: PartitionLog) -> tuple[object, ...]:
    """Return another value once the log was compacted. Of a log in a store it is always the same.

    A cleaner replaces the segments from the first one on, but for the active one. So who goes on
    with what was read before begins anew where the value is another one.
    """
    if isinstance(log.directory, RemotePath):
        return ()
    return retrying(lambda: _stamp(log), log.refresh)


def _stamp(log: PartitionLog) -> tuple[object, ...]:
    found = [log.directory.stat(), *(each.path.stat() for each in log.segments[:1])]
    changed_ns = found[-1].st_ctime_ns if len(log.segments) > 1 else 0
    return *((each.st_dev, each.st_ino) for each in found), changed_ns


# ----------------------------------------------------------------------------------------------
# What lies between a reader's position and the end.


def measure_unread(log: PartitionLog, start: int, end: int) -> tuple[int, int | None]:
    """Return the bytes between two offsets, and the time of the first record there, in ms.

    The bytes are of whole batches; where ``end`` is below the log's, an index interval more at
    most. The time is None where there is no record, or it has none.
    """
    slices = log.slices(max(start, log.log_start_offset), end, leaves_open=True)
    size = sum(each.size for each in slices)
    segment = log.planned(slices[0]) if slices else None
    if segment is not None:
        with segment, suppress(CorruptRecordError):  # said where the next record is looked for
            first = _first_batch(segment, slices[0])
            if first is None:
                size -= slices[0].size
            else:
                size -= max(0, first.position - slices[0].start_position)
                if (stamp := _timestamp_in_header(segment, first, slices[0])) is not None:
                    return size, stamp if stamp >= 0 else None
    return size, _next_timestamp(log, slices, end)


def _first_batch(segment: LogSegment, planned: SegmentSlice) -> BatchHeader | None:
    """Return the batch of the first offset of a slice: an index leads near it, or before."""
    near = segment.header_at(planned.start_position)
    if near is not None and near.last_offset >= planned.start_offset:
        return near
    position = segment.translate_offset(planned.start_offset)
    return None if position is None else segment.header_at(position)


def _timestamp_in_header(
    segment: LogSegment, first: BatchHeader, planned: SegmentSlice
) -> int | None:
    """Return the time of the first record of a slice, if the header of a sound batch tells it."""
    is_whole = planned.start_offset <= first.offset < planned.end_offset
    return first.first_timestamp if is_whole and matches_checksum(segment, first) else None


def _next_timestamp(log: PartitionLog, slices: Sequence[SegmentSlice], end: int) -> int | None:
    """Return the time of the first record, in ms; None without one, or if it has none."""
    from kafkalog.streaming.records.columns import (  # noqa: PLC0415 - who plans decodes nothing
        Columns,
        RecordDecoder,
    )

    decoder = RecordDecoder(Columns.TIMESTAMP_MS, max_rows=1)
    try:
        for planned in slices:
            for batch in log.read_slice(planned, decoder, committed_end=end):
                for stamp in batch.column(0).to_pylist():
                    return stamp if stamp >= 0 else None
    except (CorruptRecordError, DataLossError) as error:
        _LOGGER.warning("%s: the next record cannot be read: %s", log.topic_partition, error)
    return None
