"""How many bytes of a partition wait to be read, and where a number of them ends.

For limits in bytes. Sizes come from listings and offset indexes. Batch headers are read only if an
index is missing, or if less is wanted than lies between two of its entries; and no further than the
bytes that are wanted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kafkalog.errors import CorruptIndexError
from kafkalog.streaming.log.read.slices import open_planned

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kafkalog.streaming.log.partition_log import PartitionLog
    from kafkalog.streaming.log.read.slices import SegmentSlice
    from kafkalog.streaming.log.segment import LogSegment

__all__ = ["Backlog", "Cut", "find_backlog"]


class Cut(NamedTuple):
    """A place between two batches: the next offset, and the bytes of the backlog before it."""

    offset: int
    size: int


class Backlog:
    """The slices that hold a range of offsets of one partition, in order."""

    def __init__(self, slices: Sequence[SegmentSlice], end_offset: int) -> None:
        self._slices = slices
        self._end_offset = end_offset
        self.size = sum(entry.size for entry in slices)
        """Bytes to read, at most."""

    def within(self, max_bytes: int) -> Cut | None:
        """Find a cut near ``max_bytes`` and not beyond; None if not even one batch fits."""
        if self.size <= max_bytes:
            return Cut(self._end_offset, self.size)
        found, done = None, 0
        for entry in self._slices:
            if done + entry.size > max_bytes:
                inner = _cut_slice(entry, max_bytes - done)
                return found if inner is None else Cut(inner.offset, done + inner.size)
            done += entry.size
            found = Cut(entry.end_offset, done)
        return found

    def first_batch(self) -> Cut:
        """Find the end of the first batch, however large it is."""
        entry = next((entry for entry in self._slices if entry.size), None)
        if entry is None:
            return Cut(self._end_offset, 0)
        segment = open_planned(entry)
        if segment is not None:
            with segment:
                for cut in _batch_ends(segment, entry):
                    return cut
        return Cut(entry.end_offset, entry.size)


def find_backlog(log: PartitionLog, start: int, end: int) -> Backlog:
    """Measure the offsets ``[start, end)``; what lies below the log start is not there to count.

    Raises:
        UnknownTopicOrPartitionError: the partition is gone.
    """
    return Backlog(log.slices(max(start, log.log_start_offset), end), end)


def _cut_slice(entry: SegmentSlice, max_bytes: int) -> Cut | None:
    segment = open_planned(entry)
    if segment is None:
        return None
    with segment:
        return _cut_by_index(segment, entry, max_bytes) or _cut_by_headers(
            segment, entry, max_bytes
        )


def _cut_by_index(segment: LogSegment, entry: SegmentSlice, max_bytes: int) -> Cut | None:
    index = segment.offset_index()
    if index is None:
        return None
    try:
        entries = index.between(entry.start_position, entry.start_position + max_bytes + 1)
    except CorruptIndexError:  # said already when the slice was found, or it has just shrunk
        return None
    entries = entries[(entries[:, 0] >= entry.start_offset) & (entries[:, 0] < entry.end_offset)]
    if len(entries) < 2:
        return None
    # An entry's offset is the last one of its batches, which end where the next entry points to.
    return Cut(int(entries[-2, 0]) + 1, int(entries[-1, 1]) - entry.start_position)


def _cut_by_headers(segment: LogSegment, entry: SegmentSlice, max_bytes: int) -> Cut | None:
    found = None
    for cut in _batch_ends(segment, entry):
        if cut.size > max_bytes:
            break
        found = cut
    return found


def _batch_ends(segment: LogSegment, entry: SegmentSlice) -> Iterator[Cut]:
    """Walk the batches of a slice, from the one on that holds its first offset."""
    begin = -1
    for header in segment.headers(entry.start_position):
        if header.last_offset < entry.start_offset:
            continue
        begin = header.position if begin < 0 else begin
        end_offset = min(header.last_offset + 1, entry.end_offset)
        yield Cut(end_offset, header.position + header.size - begin)
        if end_offset == entry.end_offset:
            return
