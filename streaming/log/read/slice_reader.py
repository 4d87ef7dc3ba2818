"""Slices of a log: cut by offsets, and read as Arrow record batches, to the end or not at all.

Between planning and reading, files change: a cleaner swaps a segment for a compacted one or merges
several, retention unlinks, a recovering broker truncates. The slice's offsets are still what has to
be read. If the file is another one by now, the position is looked up again by offset. If the file
ends early, only a following segment proves that no offsets are missing. A replica proves nothing
once it is brought up to date: what is read of it counts only as long as its stamp is the same.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np

from kafkalog.errors import (
    CorruptIndexError,
    CorruptRecordError,
    DataLossError,
    KafkaLogError,
    OffsetOutOfRangeError,
    TimestampOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.deferred_signals import check_interrupt
from kafkalog.files.paths import as_path
from kafkalog.files.remote_path import RemotePath
from kafkalog.streaming.log.files import SWAP
from kafkalog.streaming.log.log_dir import check_stamp
from kafkalog.streaming.log.read.transactions import AbortedTransactions
from kafkalog.streaming.log.segment import LogSegment, ends_with_gap
from kafkalog.streaming.log.segments import LogSegments, leaps_into_higher, retrying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from kafkalog.files.watch import Stamp
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.read.salvage import Salvage
    from kafkalog.streaming.log.segment import Chunk
    from kafkalog.streaming.records.arrow_buffers import Bytes
    from kafkalog.streaming.records.batch import BatchTable

    Elsewhere: TypeAlias = Callable[[int, Exception], Iterator[pa.RecordBatch] | None]

__all__ = [
    "FIRST_PIECE",
    "PIECE",
    "Decoder",
    "NarrowedDecoder",
    "SegmentSlice",
    "cut_slice",
    "open_planned",
    "pieces_backwards",
    "read_slice",
    "slice_segment",
    "split_slice",
]

# ----------------------------------------------------------------------------------------------
# Slices: byte ranges of segments that a reader is to read, and how they are split.
#
# A slice carries offsets *and* positions. The offsets are the contract; the positions say where to
# start and how much to read at most, and hold only for the very file that the slice names by device
# and inode. Everything here comes from listings and offset indexes: no log is scanned.


_BEFORE_CUT: Final = 1 << 20
"""How far before the first cut entries of an index are looked at: a batch is rarely larger."""
PIECE: Final = 1 << 20
"""Bytes of a piece: what is worth a look at a file, and is decompressed within a core's reach."""
FIRST_PIECE: Final = 64 << 10
"""Bytes of the piece at the end, where what is looked for often lies."""
_WINDOW: Final = 8 << 20
"""The bytes for which an index is looked at in one go, from the end backwards."""


class SegmentSlice(NamedTuple):
    """The offsets ``[start_offset, end_offset)`` of one segment, and the bytes they lie in.

    ``end_position`` bounds the bytes from above by less than an index interval and one batch.
    ``replica`` is the stamp of a replica in sync: with another one, it may not be any more. Plain
    numbers and text: it travels to tasks.
    """

    path: str | RemotePath
    base_offset: int
    device: int
    inode: int
    start_position: int
    end_position: int
    start_offset: int
    end_offset: int
    replica: Stamp | None = None

    @property
    def size(self) -> int:
        """Bytes to read, at most."""
        return self.end_position - self.start_position

    @property
    def folder(self) -> Path:
        """The partition's folder. To make a path takes longer than to open a file: ask once."""
        return as_path(self.path).parent

    def announce(self) -> None:
        """Let the store know that it is read soon, after others or before them."""
        if isinstance(self.path, RemotePath):
            self.path.store.will_read(self.path.key, self.start_position, self.end_position)

    def __reduce__(self) -> tuple[Callable[..., SegmentSlice], tuple[object, ...]]:
        path, carried = self.path, None
        if isinstance(path, RemotePath):
            carried = path.store.carried(path.key, self.start_position, self.end_position)
        return _carried_slice, (carried, *self)


def _carried_slice(carried: object, *fields: Any) -> SegmentSlice:  # noqa: ANN401
    """Return a slice that was planned in another process, which has told its store of it."""
    arrived = SegmentSlice(*fields)
    if isinstance(arrived.path, RemotePath):
        arrived.path.store.carry(arrived.path.key, carried)
    return arrived


def slice_segment(segment: LogSegment, start: int, end: int, *, sealed_end: bool) -> SegmentSlice:
    """Find the bytes of the offsets ``[start, end)`` of a segment.

    ``sealed_end`` says that the segment holds nothing at or above ``end``: its size is the bound.

    Raises:
        FileNotFoundError: the segment is gone.
    """
    identity = segment.identity
    start_position = segment.floor_position(start) if start > segment.base_offset else 0
    end_position = segment.size if sealed_end else segment.end_position(end)
    return SegmentSlice(
        segment.place(),
        segment.base_offset,
        identity.device,
        identity.inode,
        start_position,
        max(start_position, end_position),
        start,
        end,
    )


def open_planned(planned: SegmentSlice, folder: Path | None = None) -> LogSegment | None:
    """Open the file that a slice was planned for; None if there is no such file any more.

    ``folder`` is the slice's, of who knows it. A file that was planned under its ``.swap`` name has
    its final one by now.
    """
    directory = folder or planned.folder
    for suffix in ("", SWAP):
        segment = LogSegment(directory, planned.base_offset, suffix)
        with suppress(FileNotFoundError):
            if segment.identity == (planned.device, planned.inode) and _begins(segment, planned):
                return segment
        segment.close()
    return None


def _begins(segment: LogSegment, planned: SegmentSlice) -> bool:
    """Return whether nothing of a slice lies before its start position.

    File systems give the inode of a deleted file to the next one, which may be the same segment
    compacted once more.
    """
    if planned.start_position == 0:
        return True
    return segment.begins_by(planned.start_offset, planned.start_position)


def split_slice(whole: SegmentSlice, pieces: int) -> list[SegmentSlice]:
    """Cut a slice into at most ``pieces`` of about equal bytes, at batch boundaries.

    The boundaries are those that the offset index knows, so that there may be fewer pieces, down to
    the slice itself. Together they hold its offsets exactly once.
    """
    return cut_slice(whole, [part * whole.size / pieces for part in range(1, pieces)])


def cut_slice(whole: SegmentSlice, after: Sequence[float]) -> list[SegmentSlice]:
    """Cut a slice near places, given in bytes from its start and ascending; see above."""
    segment = open_planned(whole) if after else None
    if segment is None:
        return [whole]
    with segment:
        index = segment.offset_index()
        if index is None:
            return [whole]
        first = whole.start_position + int(after[0]) - _BEFORE_CUT
        try:
            entries = index.between(max(whole.start_position, first), whole.end_position)
        except CorruptIndexError:  # a hint that does not help; whoever seeks by it says so
            return [whole]
    # An entry's offset is the last one of its batch: the boundary lies after it.
    inside = (entries[:, 0] >= whole.start_offset) & (entries[:, 0] < whole.end_offset - 1)
    entries = entries[inside]
    if not len(entries) or (np.diff(entries[:, 0]) <= 0).any():
        return [whole]
    wanted = whole.start_position + np.array(after)
    # ... which is where the next entry points to, if that is not too far on.
    cuts = np.unique(np.maximum(np.searchsorted(entries[:, 1], wanted) - 1, 0))
    return list(_pieces(whole, entries, cuts.tolist()))


def _pieces(
    whole: SegmentSlice, entries: np.ndarray[tuple[int, int], np.dtype[np.int64]], cuts: list[int]
) -> Iterator[SegmentSlice]:
    start_offset, start_position = whole.start_offset, whole.start_position
    for cut in cuts:
        end_offset = int(entries[cut, 0]) + 1
        # The batch at the entry belongs to the piece before the cut, so that piece ends, at most,
        # where the next entry's begins.
        after = int(entries[cut + 1, 1]) if cut + 1 < len(entries) else whole.end_position
        yield whole._replace(
            start_offset=start_offset,
            start_position=start_position,
            end_offset=end_offset,
            end_position=after,
        )
        start_offset, start_position = end_offset, int(entries[cut, 1])
    yield whole._replace(start_offset=start_offset, start_position=start_position)


def pieces_backwards(whole: SegmentSlice, smallest: int, largest: int) -> Iterator[SegmentSlice]:
    """Cut a slice as its index allows, the last piece first: of ``smallest`` bytes, then doubling.

    Pieces end near multiples of their size in the file, so that they are the same when the file has
    grown.
    """
    rest, size = whole, smallest
    while True:
        places: list[int] = []
        place = rest.end_position
        while rest.end_position - place < _WINDOW:
            place = (place - 1) // size * size
            if place <= rest.start_position:
                break
            places.append(place - rest.start_position)
            size = min(2 * size, largest)
        rest, *pieces = cut_slice(rest, places[::-1])
        yield from reversed(pieces)
        if not pieces:
            yield rest
            return


# ----------------------------------------------------------------------------------------------
# Read a slice to its very end, though files change meanwhile.


_LOGGER = logging.getLogger("kafkalog.log")

_MOST_OVERLAPPING: Final = 4
"""How many earlier segments are looked into; leaders change seldom while they upload."""


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
        """Return the rows that were kept."""
        ...


class NarrowedDecoder:
    """Hands a decoder the batches that are chosen of those it is fed, and no others."""

    def __init__(self, decoder: Decoder, choose: Callable[[BatchTable], BatchTable]) -> None:
        self._decoder = decoder
        self._choose = choose

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
        """Decode as the decoder does, without the others."""
        chosen = self._choose(table)
        if len(chosen):
            yield from self._decoder.feed(
                data,
                chosen,
                file_position=file_position,
                path=path,
                start_offset=start_offset,
                end_offset=end_offset,
            )

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Return the rows that the decoder has kept."""
        return self._decoder.flush()


def read_slice(
    topic_partition: TopicPartition,
    planned: SegmentSlice,
    decoder: Decoder,
    *,
    committed_end: int | None = None,
    committed_only: bool = False,
    salvage: Salvage | None = None,
    elsewhere: Elsewhere | None = None,
    folder: Path | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the offsets of ``planned``, in order, as ``decoder`` gives them.

    An error comes after the rows before it. Offsets that compaction removed, and those of control
    batches, are gaps and no loss. From ``committed_end`` on, if it is given, the first bytes that
    are no whole batch are the end of the log, said in a warning; below it, and everywhere without
    it, they are an error.

    With ``committed_only`` the records of aborted transactions are left out, and gaps like them.
    The slice must not reach beyond the last stable offset then.

    With ``salvage`` damage is left out, counted and warned of instead of raised. ``committed_end``
    has no meaning then. ``elsewhere`` is asked where reading fails, with the next offset and the
    error: it may give the rest from another replica. ``folder`` is the slice's, of who knows it.

    Raises:
        OffsetOutOfRangeError: retention has deleted the segment; holds the log start offset.
        DataLossError: the log ends before the slice does, or, with ``committed_only``, inside of a
            transaction that the slice has records of.
        CorruptRecordError: bytes that are no batch, a wrong checksum, offsets that do not ascend.
        TimestampOutOfRangeError: a record whose timestamp the decoder cannot give.
        UnknownTopicOrPartitionError: the folder is gone; holds the next offset.
        LogDirectoryError: the replica was not in sync any more.
    """
    reader = _SliceReader(
        *(topic_partition, planned, folder or planned.folder, decoder),
        *(committed_end, committed_only, salvage),
    )
    return reader.batches() if elsewhere is None else reader.batches_of_replicas(elsewhere)


class _Place(NamedTuple):
    """Where to read: from a position of a segment, at first up to another one if it is known."""

    segment: LogSegment
    position: int
    end_position: int | None


class _SliceReader:
    def __init__(
        self,
        topic_partition: TopicPartition,
        planned: SegmentSlice,
        folder: Path,
        decoder: Decoder,
        committed_end: int | None,
        committed_only: bool,
        salvage: Salvage | None,
    ) -> None:
        self._topic_partition = topic_partition
        self._planned = planned
        self._directory = folder
        self._decoder = decoder
        self._committed_end = committed_end
        self._aborted = None
        if committed_only:
            self._aborted = AbortedTransactions(folder, around_damage=salvage is not None)
        self._salvage = salvage
        self._next = planned.start_offset
        self._end = planned.end_offset

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._all_batches()
        except TimestampOutOfRangeError as error:
            raise TimestampOutOfRangeError(f"{self._topic_partition}: {error}") from error
        except UnknownTopicOrPartitionError as error:
            raise UnknownTopicOrPartitionError(str(error), offset=self._next) from error

    def batches_of_replicas(self, elsewhere: Elsewhere) -> Iterator[pa.RecordBatch]:
        try:
            yield from self.batches()
        except TimestampOutOfRangeError:
            raise
        except (KafkaLogError, OSError) as error:
            rest = elsewhere(self._next, error)
            if rest is None:
                raise
        else:
            return
        yield from rest

    def _all_batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._full_batches()
        except (KafkaLogError, OSError):
            yield from self._decoder.flush()
            raise
        yield from self._decoder.flush()

    def _full_batches(self) -> Iterator[pa.RecordBatch]:
        place: _Place | None = self._open_planned() or self._seek()
        while place is not None:
            with place.segment as segment:
                yield from self._read_segment(*place)
                place = self._behind(segment) if self._next < self._end else None

    # Finding the segment

    def _open_planned(self) -> _Place | None:
        """Open the very file that was planned to be read; None if its name leads elsewhere now."""
        segment = open_planned(self._planned, self._directory)
        if segment is None:
            return None
        return _Place(segment, self._planned.start_position, self._planned.end_position)

    def _seek(self) -> _Place:
        """Find where the next offset is now: a cleaner may have put another file there."""
        try:
            return retrying(self._open_floor)
        except FileNotFoundError as error:
            raise OffsetOutOfRangeError(
                f"{self._topic_partition}: the segments in {self._directory} are deleted faster "
                f"than they can be opened, while offset {self._next} is looked for",
                offset=self._next,
            ) from error
        except CorruptRecordError as error:
            raise self._located(error) from error

    def _open_floor(self) -> _Place:
        segment = self._floor_segment()
        if self._salvage is not None:
            return _Place(segment, segment.floor_position(self._next), None)
        position = segment.translate_offset(self._next)
        return _Place(segment, segment.size if position is None else position, None)

    def _floor_segment(self) -> LogSegment:
        segments = LogSegments.of(self._directory)
        floor = segments.floor(self._next)
        if floor is None:
            start = segments[0].base_offset if segments else -1
            raise OffsetOutOfRangeError(
                f"{self._topic_partition}: offset {self._next} is gone from {self._directory}: "
                + (f"the log starts at {start} now" if segments else "it has no segments any more"),
                offset=self._next,
                log_start_offset=start,
            )
        return floor

    def _behind(self, segment: LogSegment) -> _Place | None:
        """Find where to continue when an open segment was read to its end; None if that was all.

        If it is still the file of its name, a following segment beyond the slice proves that the
        offsets missing at the end were compacted away. If a cleaner has put another one there, that
        one knows. If retention has deleted it, it was whole when it was opened.
        """
        segments = LogSegments.of(self._directory)
        replaced = not segments.has(segment)
        if replaced and segments and segments[0].base_offset <= self._next:
            return self._seek()
        higher = segments.higher(segment.base_offset)
        check_stamp(self._directory, self._planned.replica)
        reaching = self._reaching(segments, segment)
        if reaching is not None:
            return reaching
        if higher is None and not replaced:
            self._end_of_log(segment)
        if higher is None or higher.base_offset >= self._end:
            return None
        self._next = max(self._next, higher.base_offset)
        return self._seek()

    def _reaching(self, segments: LogSegments, segment: LogSegment) -> _Place | None:
        """Find an earlier segment that goes on behind the end of this one; None without any.

        Two leaders may have uploaded 5 to 100 and 10 to 90, and a listing shows where they begin.
        """
        if not (isinstance(self._directory, RemotePath) and self._directory.may_overlap()):
            return None
        earlier = [each for each in segments if each.base_offset < segment.base_offset]
        for each in earlier[: -_MOST_OVERLAPPING - 1 : -1]:
            with suppress(FileNotFoundError), each:
                position = each.translate_offset(self._next)
                header = None if position is None else each.header_at(position)
                if position is not None and header is not None and header.offset < self._end:
                    return _Place(each, position, None)
        return None

    def _end_of_log(self, segment: LogSegment) -> None:
        reason = f"{segment.path} ends at position {segment.size} and no segment follows"
        if self._salvage is not None and self._salvage.found_any:
            _LOGGER.warning(
                "%s: offsets [%d, %d) are gone with the damage that was skipped: %s",
                self._topic_partition,
                self._next,
                self._end,
                reason,
            )
            return
        if not self._may_end_here(reason):
            raise DataLossError(
                f"{self._topic_partition}: offsets [{self._next}, {self._end}) are missing: "
                f"{reason}; the log was truncated since it was planned to read them"
            )

    def _may_end_here(self, reason: str) -> bool:
        """Return whether the log may end at the next offset; if so, warn, and read no further."""
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
        if self._salvage is not None:
            yield from self._salvage_segment(self._salvage, segment, position, end_position)
            return
        try:
            for bound in dict.fromkeys([end_position, None]):
                for chunk in segment.chunks(position, bound):
                    check_interrupt()
                    if self._overlaps(segment, chunk):
                        yield from self._decode(segment, chunk._replace(table=chunk.table[:-1]))
                        raise segment.disorder(chunk.table[-1:])
                    yield from self._decode(segment, chunk)
                    position = chunk.file_position + len(chunk.data)
                    del chunk  # before the next one is read
                    if self._next >= self._end:
                        return
            segment.refuse_rest(position)
        except CorruptRecordError as error:
            if not self._may_end_here(str(error)):
                raise self._located(error) from error

    def _overlaps(self, segment: LogSegment, chunk: Chunk) -> bool:
        """Return whether the last batch of a file leaps to offsets of the segment that follows.

        One without a gap before it has another cause: a writer that was taken for dead
        appended it late, when another writer had continued in the next segment. It is passed over.
        """
        last, end = int(chunk.table.last_offset[-1]), chunk.file_position + len(chunk.data)
        if last < self._end or end < segment.size:
            return False
        if not ends_with_gap(chunk.table, self._next - 1):
            return False
        return leaps_into_higher(segment, chunk.table[-1:])

    def _salvage_segment(
        self, salvage: Salvage, segment: LogSegment, position: int, end_position: int | None
    ) -> Iterator[pa.RecordBatch]:
        """Read on like ``_read_segment``, but around damage."""
        for bound in dict.fromkeys([end_position, None]):
            for chunk in salvage.chunks(segment, position, bound):
                check_interrupt()
                yield from self._decode(segment, chunk)
                if self._next >= self._end:
                    return
            position = salvage.position

    def _located(self, error: CorruptRecordError) -> CorruptRecordError:
        return type(error)(
            f"{self._topic_partition}: offsets [{self._next}, {self._end}) cannot be read: {error}",
            path=error.path,
            position=error.position,
            offset=error.offset,
        )

    def _decode(self, segment: LogSegment, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        table = chunk.table
        if not len(table):
            return
        last_offset = table.last_offset
        first = int(last_offset.searchsorted(self._next))
        # The batches after the first one that reaches the end have nothing for us.
        end = int(last_offset.searchsorted(self._end - 1)) + 1
        wanted = table[first:end]
        # Nor has that one, if the last offsets before the end are in no batch.
        if len(wanted) and wanted.base_offset[-1] >= self._end:
            wanted = wanted[wanted.base_offset < self._end]
        wanted = self._committed(segment, wanted)
        check_stamp(self._directory, self._planned.replica)
        if len(wanted):
            try:
                yield from self._decoder.feed(
                    chunk.data,
                    wanted,
                    file_position=chunk.file_position,
                    path=str(segment.place()),
                    start_offset=self._next,
                    end_offset=self._end,
                )
            except CorruptRecordError as error:  # what lies before it has come, or is kept
                before = int(np.searchsorted(wanted.position, error.position))
                if before:
                    self._next = max(self._next, int(wanted.last_offset[before - 1]) + 1)
                raise
        self._next = max(self._next, int(last_offset[-1]) + 1)

    def _committed(self, segment: LogSegment, table: BatchTable) -> BatchTable:
        """Leave out the batches of aborted transactions, if they are not wanted."""
        if self._aborted is None or not len(table):
            return table
        aborted = self._aborted.mask(segment, table)
        return table[~aborted] if aborted.any() else table
