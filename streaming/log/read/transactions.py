"""Transactions in a log: which are open, which were aborted, and the last stable offset."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import numpy as np

from kafkalog.errors import (
    CheckpointError,
    CorruptIndexError,
    CorruptRecordError,
    DataLossError,
    LogDirectoryError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.open_file import FileIdentity
from kafkalog.files.remote_path import RemotePath
from kafkalog.model import MAX_OFFSET, NO_PRODUCER_ID
from kafkalog.streaming.log.files import SNAPSHOT, TXN_INDEX, file_name
from kafkalog.streaming.log.indexes import TxnIndex
from kafkalog.streaming.log.producer_state import list_snapshots, open_transactions
from kafkalog.streaming.log.read.salvage import Salvage, walk_batches
from kafkalog.streaming.log.segments import SegmentListing, list_base_offsets
from kafkalog.streaming.records.control import MarkerReader, MarkerType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from kafkalog.streaming.log.read.salvage import Place
    from kafkalog.streaming.log.segment import Chunk, LogSegment
    from kafkalog.streaming.records.batch import BatchHeader, BatchTable

    Integers = npt.NDArray[np.int64]

    Mask = npt.NDArray[np.bool_]

__all__ = [
    "Aborted",
    "AbortedTransactions",
    "OpenTransactions",
    "StableOffset",
    "open_at",
    "snapshot_transactions",
]


# ----------------------------------------------------------------------------------------------
# Which transactions are open at a point of a log, and the last stable offset.
#
# All offsets below the *last stable offset* belong to no transaction, or to one that has ended:
# it is the first offset of the oldest transaction that is open at the high watermark, or the high
# watermark itself. A transaction whose marker lies at the high watermark or above counts as open.
# Readers of committed records stop there.
#
# A transaction begins with the first transactional batch of a producer id, and ends with that
# producer's marker. What is open is told by the newest producer snapshot and the headers of the
# batches after it, or, without a snapshot, of all batches. A batch that the cleaner has emptied
# begins nothing: it only cleans below the last stable offset, and may have removed the marker
# since.
#
# Source: Kafka ``ProducerStateManager``, ``ProducerAppendInfo``, ``UnifiedLog.lastStableOffset``.


_LOGGER = logging.getLogger("kafkalog.log")

_ENDS: Final = frozenset(MarkerType)

Aborted: TypeAlias = tuple[int, int, int]
"""Producer id, first offset, and the offset of the marker."""


class OpenTransactions:
    """The transactions that are open after the batches seen so far.

    ``first_offsets`` maps producer ids to where their transactions begin.

    With a ``salvage``, through which the batches come, damage is no error. It may have been the
    marker of any transaction that is open there, so nobody can know how these ended. Their records
    before the damage count as aborted, those after it as a new transaction's.
    """

    def __init__(
        self, first_offsets: dict[int, int] | None = None, salvage: Salvage | None = None
    ) -> None:
        self.first_offsets = first_offsets or {}
        self._salvage = salvage
        self._markers = MarkerReader()

    def first_offset(self) -> int | None:
        """Return the first offset of the oldest one; None without any."""
        return min(self.first_offsets.values(), default=None)

    def apply(
        self, segment: LogSegment, chunk: Chunk, places: Sequence[Place] = ()
    ) -> list[Aborted]:
        """Take the next batches of a segment, in offset order; only markers are decoded.

        ``places`` are places of damage between the batches of the last call and the last one here.

        Returns:
            the transactions that an ABORT marker ended, or whose end is not known.

        Raises:
            CorruptRecordError: a marker that cannot be decoded, without a salvage.
        """
        aborted: list[Aborted] = []
        table, done = chunk.table, 0
        for place in places:
            of_this = place.base_offset == segment.base_offset
            cut = int(np.searchsorted(table.position, place.position)) if of_this else 0
            aborted += self._apply(segment, chunk._replace(table=table[done:cut]))
            aborted += self.end_at_damage(_offset_of(table, cut), segment)
            done = cut
        return aborted + self._apply(segment, chunk._replace(table=table[done:]))

    def end_at_damage(self, offset: int, segment: LogSegment) -> list[Aborted]:
        """End what is open below ``offset``, where there is damage; return those transactions."""
        doubtful = [(producer, first, offset) for producer, first in self.first_offsets.items()]
        if doubtful:
            _LOGGER.warning(
                "%s: damage before offset %d may have been the end of the transactions of "
                "producers %s, which began at offsets %s: their records before it count as "
                "aborted, since onCorruptRecord is skip",
                segment.path,
                offset,
                *map(
                    list, zip(*[(producer, first) for producer, first, _ in doubtful], strict=True)
                ),
            )
        self.first_offsets.clear()
        return doubtful

    def _apply(self, segment: LogSegment, chunk: Chunk) -> list[Aborted]:
        table = chunk.table
        concerns = (table.is_transactional | table.is_control) & (table.count > 0)
        table = table[concerns & (table.producer_id != NO_PRODUCER_ID)]
        if not len(table):
            return []
        try:
            types = self._markers.types(
                chunk.data, table, file_position=chunk.file_position, path=str(segment.path)
            )
        except CorruptRecordError as error:
            if self._salvage is None:
                raise
            bad = int(np.searchsorted(table.position, error.position))
            before = self._apply(segment, chunk._replace(table=table[:bad]))
            doubtful = self.end_at_damage(_offset_of(table, bad) + 1, segment)
            after = self._apply(segment, chunk._replace(table=table[bad + 1 :]))
            return before + doubtful + after
        return self._go_over(table, types)

    def _go_over(self, table: BatchTable, types: Integers) -> list[Aborted]:
        aborted = []
        for producer_id, offset, is_control, kind in zip(
            table.producer_id.tolist(),
            table.base_offset.tolist(),
            table.is_control.tolist(),
            types.tolist(),
            strict=True,
        ):
            if not is_control:
                self.first_offsets.setdefault(producer_id, offset)
            elif kind in _ENDS:
                first = self.first_offsets.pop(producer_id, None)
                if first is not None and kind == MarkerType.ABORT:
                    aborted.append((producer_id, first, offset))
        return aborted


def _offset_of(table: BatchTable, row: int) -> int:
    """Return the offset at which the batch of a row begins, or at which the batches end."""
    if row < len(table):
        return max(int(table.base_offset[row]), 0)
    return int(table.last_offset[-1]) + 1


def open_at(directory: Path, high_watermark: int) -> dict[int, int]:
    """Return the transactions that are open at an offset of a log: producer ids with first offsets.

    Raises:
        CorruptRecordError: bytes below the offset that are no batch.
        UnknownTopicOrPartitionError: the folder is gone.
    """
    stable = StableOffset(directory)
    stable.find(high_watermark)
    return stable.first_offsets


class StableOffset:
    """Follows the last stable offset of a growing log: each look reads what is new. Not picklable.

    Memory grows with the producers whose transactions are open at the same time, and for a moment
    by the size of a snapshot.
    """

    def __init__(self, directory: Path, *, around_damage: bool = False) -> None:
        """Follow the log in a partition's folder; ``around_damage`` as with a ``Salvage``."""
        self._directory = directory
        self._salvage = Salvage(None, check_records=False) if around_damage else None
        self._high_watermark = -1
        self._next = 0
        self._open = OpenTransactions(salvage=self._salvage)
        self._read_last: tuple[LogSegment, FileIdentity, BatchHeader | None] | None = None

    @property
    def first_offsets(self) -> dict[int, int]:
        """The transactions that were open at the last look: producer ids with first offsets."""
        return dict(self._open.first_offsets)

    def find(self, high_watermark: int) -> int:
        """Return the last stable offset, by the batches below ``high_watermark``.

        Raises:
            CorruptRecordError: bytes below the high watermark that are no batch.
            UnknownTopicOrPartitionError: the folder is gone.
        """
        try:
            if high_watermark < self._high_watermark or not self._is_same_log():
                self._restart(high_watermark)
            if self._next < high_watermark:
                self._walk_to(high_watermark)
        except FileNotFoundError as error:
            raise UnknownTopicOrPartitionError(f"{self._directory}: {error}") from error
        self._high_watermark = high_watermark
        first = self._open.first_offset()
        return high_watermark if first is None else min(first, high_watermark)

    def _is_same_log(self) -> bool:
        """Return whether what was read last is still there: a log may be recreated or rewritten."""
        if self._read_last is None:
            return False
        segment, identity, header = self._read_last
        try:
            with segment:
                if segment.identity != identity or header is None:
                    return False
                # A file that is recreated may get the number of the one that was there.
                return segment.header_at(header.position) == header
        except FileNotFoundError:
            return False

    def _restart(self, high_watermark: int) -> None:
        self._read_last = None
        for offset in reversed(list_snapshots(self._directory)):
            if offset <= high_watermark:
                found = snapshot_transactions(self._directory, offset)
                if found is not None and not self._is_outdated(offset, found):
                    self._next, self._open = offset, OpenTransactions(found, self._salvage)
                    return
        stable = self._directory.stable_end() if isinstance(self._directory, RemotePath) else 0
        begin = min(stable, high_watermark)
        self._next, self._open = begin, OpenTransactions(salvage=self._salvage)

    def _is_outdated(self, offset: int, first_offsets: dict[int, int]) -> bool:
        """Return whether a snapshot is older than what a cleaner has made of the log around it.

        A copy that took a while may have a snapshot from before segments were joined, and a log
        from which the marker of an open transaction is gone. So a snapshot with which no segment
        begins is compared with the log: a transaction that is really open was never cleaned, and
        begins where the snapshot says.
        """
        if not first_offsets:
            return False
        producer_id, first = min(first_offsets.items(), key=lambda item: item[1])
        bases = list_base_offsets(self._directory)
        if offset in bases or not bases or first < bases[0]:
            return False
        with suppress(CorruptRecordError):
            for _, chunk in walk_batches(self._directory, first):
                begin = chunk.table[:1]
                as_it_was = (begin.base_offset == first) & (begin.producer_id == producer_id)
                return not (as_it_was & (begin.count > 0)).all()
        return False

    def _walk_to(self, high_watermark: int) -> None:
        segment = None
        for segment, chunk in walk_batches(self._directory, self._next, salvage=self._salvage):
            table = chunk.table
            end = int(np.searchsorted(table.last_offset, high_watermark))
            # A batch of records may straddle the end; a marker never does.
            if end < len(table) and table.base_offset[end] < high_watermark:
                end += 1
            if end:
                places = self._places_below(segment, int(table.end_position[end - 1]))
                self._open.apply(segment, chunk._replace(table=table[:end]), places)
                self._next = int(table.last_offset[end - 1]) + 1
                last = int(table.position[end - 1])
                self._read_last = segment, segment.identity, segment.header_at(last)
            if end < len(table) or self._next >= high_watermark:
                return
        if segment is not None and self._places_below(segment, segment.size):
            self._open.end_at_damage(self._next, segment)

    def _places_below(self, segment: LogSegment, position: int) -> list[Place]:
        """Return the places of damage since the last look, up to a position of a segment."""
        places = [] if self._salvage is None else self._salvage.take_places()
        return [place for place in places if place < (segment.base_offset, position)]


def snapshot_transactions(directory: Path, offset: int) -> dict[int, int] | None:
    """Return what is open by the snapshot at an offset: producer ids with first offsets.

    None if there is no such snapshot, or, with a warning, if it cannot be used.
    """
    path = directory / file_name(offset, SNAPSHOT)
    try:
        return open_transactions(path)
    except FileNotFoundError:
        return None
    except (CheckpointError, LogDirectoryError) as error:
        _LOGGER.warning("%s: not used, the log is looked at instead: %s", path, error)
        return None


# ----------------------------------------------------------------------------------------------
# Which batches belong to aborted transactions, for a reader that goes forward through a log.
#
# A reader of committed records needs, for a range of offsets, the transactions that overlap it
# and were aborted; their markers may lie far after it. Three sources tell them:
#
# - **The indexes of aborted transactions**, as a broker answers a fetch: those of the range's
#   segment and of the following ones, up to an entry whose last stable offset is not below the
#   range's end.
# - **A producer snapshot**, where the next segment has no such index: if no transaction of the
#   range is open where that segment begins, nothing more is to be looked for.
# - **The log itself**, where an index is missing, empty, damaged or not of the file read, and after
#   the last entry of the last segment's: the headers of the batches from the range on, and the
#   markers among them, until all transactions of the range have ended. An index exists only where
#   something was aborted, so that a missing one does not say that nothing was.
#
# Nothing is looked for until a range has transactional batches. The sources are read forward, as
# the reader goes: each index entry and each header is read once.
#
# A producer has one transaction at a time. Take the last aborted transaction of the batch's
# producer that begins at or below the batch. The batch is aborted if that transaction ends after
# it. A client comes to the same answer with a heap of first offsets and a set of producer ids.
# Batches of the same producer that are not transactional stay.
#
# Source: Kafka ``LocalLog.collectAbortedTransactions``, ``CompletedFetch``.


_PRODUCER_ID, _FIRST, _LAST, _STABLE = range(4)
"""Columns: of an index entry all four, of a transaction the first three."""


class AbortedTransactions:
    """What a reader of committed records leaves out. For ascending offsets; not thread safe.

    Memory grows with the aborted transactions between where the reader is and the end of the
    longest transaction that is open there: 24 bytes each.
    """

    def __init__(self, directory: Path, *, around_damage: bool = False) -> None:
        """Take a partition's folder; for ``around_damage`` see :class:`OpenTransactions`."""
        self._directory = directory
        self._around_damage = around_damage
        self._source: _Source | None = None
        self._known = _none()

    def mask(self, segment: LogSegment, table: BatchTable) -> Mask:
        """Return which batches belong to aborted transactions.

        Args:
            segment: the open segment that the batches were read from.
            table: n batches, all of them below the last stable offset, and after those of earlier
                calls.

        Returns:
            bool[n]

        Raises:
            DataLossError: the log ends inside a transaction of the batches.
            CorruptRecordError: where the log has to be looked into, bytes that are no batch, or a
                marker that cannot be decoded.
        """
        aborted: Mask = table.is_transactional & ~table.is_control & (table.count > 0)
        rows = np.flatnonzero(aborted)
        if len(rows):
            batches = table[rows]
            start, end = int(batches.base_offset[0]), int(batches.last_offset[-1]) + 1
            covered = _covered(batches, self.within(segment, start, end))
            aborted[rows] = covered | (batches.last_offset >= self._unseen_from())
        return aborted

    def _unseen_from(self) -> int:
        """Return from where on damage hid from the source how transactions ended."""
        return MAX_OFFSET if self._source is None else self._source.unseen_from

    def within(self, segment: LogSegment, start: int, end: int) -> Integers:
        """Return the aborted transactions that overlap the offsets ``[start, end)`` of a segment.

        If one began before the first range asked for, its first offset may be returned too high,
        but not above ``start`` if the range holds records of it.

        Returns:
            int64[m, 3]: producer id, first offset, offset of the marker.
        """
        if self._source is None:
            self._source = _IndexSource(segment)
        try:
            self._learn(self._source, end)
        except _InconclusiveError as inconclusive:
            self._source = self._log_source(segment, start, inconclusive.lacking)
            self._learn(self._source, end)
        self._known = self._known[self._known[:, _LAST] >= start]
        return self._known[self._known[:, _FIRST] < end]

    def _learn(self, source: _Source, end: int) -> None:
        for found in source.up_to(end):
            self._known = np.concatenate([self._known, found])

    def _log_source(self, segment: LogSegment, start: int, lacking: int | None) -> _LogSource:
        """Go on in the segment ``lacking`` an index, if a snapshot says what is open there."""
        if lacking is not None and lacking > segment.base_offset:
            opened = snapshot_transactions(self._directory, lacking)
            if opened is not None:
                return _LogSource(
                    self._directory, lacking, opened, around_damage=self._around_damage
                )
        return _LogSource(
            self._directory, start, {}, within=segment, around_damage=self._around_damage
        )


def _none() -> Integers:
    return np.empty((0, 3), np.int64)


def _rows(aborted: list[Aborted]) -> Integers:
    return np.array(aborted, np.int64).reshape(-1, 3)


def _covered(batches: BatchTable, transactions: Integers) -> Mask:
    """Return which batches lie in one of the transactions of their producers.

    All are put into one order, by producer and offset: then each batch looks for the last
    transaction before it.
    """
    split = len(transactions)
    producers = np.concatenate([transactions[:, _PRODUCER_ID], batches.producer_id])
    offsets = np.concatenate([transactions[:, _FIRST], batches.last_offset])
    numbers = np.arange(len(producers))
    order = np.lexsort((numbers >= split, offsets, producers))
    places = np.where(order < split, numbers, -1)
    before = np.empty(len(order), np.int64)
    before[order] = np.maximum.accumulate(places)
    before = before[split:]  # of each batch: the place of the last transaction before it, or -1
    covered: Mask = before >= 0
    found = order[before[covered]]
    covered[covered] = (producers[found] == batches.producer_id[covered]) & (
        transactions[found, _LAST] > batches.base_offset[covered]
    )
    return covered


class _InconclusiveError(Exception):
    """The indexes do not tell; ``lacking`` is the base offset of a segment without one, if any."""

    def __init__(self, lacking: int | None) -> None:
        super().__init__(lacking)
        self.lacking = lacking


class _Source(Protocol):
    unseen_from: int
    """Offsets from here on were asked for, and the source ended before them: no more is known."""

    def up_to(self, end: int) -> Iterator[Integers]:
        """Go on until all about the offsets below ``end`` is known.

        Yields:
            int64[n, 3]: transactions that were not given before.
        """
        ...


class _IndexSource:
    """The index entries of a segment and the following ones."""

    def __init__(self, segment: LogSegment) -> None:
        self._blocks = self._read(segment)
        self._stable = 0
        self.unseen_from = MAX_OFFSET

    def up_to(self, end: int) -> Iterator[Integers]:
        while self._stable < end:
            block = next(self._blocks)
            self._stable = int(block[:, _STABLE].max())
            yield block[:, :_STABLE]

    @staticmethod
    def _read(first: LogSegment) -> Iterator[Integers]:
        segment: LogSegment | None = first
        listing = SegmentListing(first.directory)
        while segment is not None:
            index = _usable_index(segment)
            if segment is not first:
                segment.close()
            if index is None:
                raise _InconclusiveError(segment.base_offset)
            with index:
                try:
                    yield from index.blocks()
                except CorruptIndexError as error:  # cut since it was checked
                    _warn(index.path, error)
                    raise _InconclusiveError(None) from error
            segment = listing.segments().higher(segment.base_offset)
        raise _InconclusiveError(None)


def _usable_index(segment: LogSegment) -> TxnIndex | None:
    """Open a segment's index; None if there is none, or it is empty, damaged or another file's."""
    path = segment.file(TXN_INDEX)
    try:
        identity = segment.identity
        index = TxnIndex(path, segment.base_offset)
    except FileNotFoundError:
        return None
    except (CorruptIndexError, LogDirectoryError) as error:
        _warn(path, error)
        return None
    try:
        index.check()
        # A cleaner takes the log away before the index: if the log's name still leads to the file
        # that is read, the index that was just opened belongs to it.
        status = segment.path.stat()
        if len(index) and FileIdentity(status.st_dev, status.st_ino) == identity:
            return index
    except FileNotFoundError:
        pass
    except CorruptIndexError as error:
        _warn(path, error)
    index.close()
    return None


def _warn(path: Path, error: Exception) -> None:
    _LOGGER.warning("%s: not used, the log is looked at instead: %s", path, error)


class _LogSource:
    """The batches of the log from an offset on, with what is open there."""

    def __init__(
        self,
        directory: Path,
        offset: int,
        opened: dict[int, int],
        *,
        within: LogSegment | None = None,
        around_damage: bool,
    ) -> None:
        self._directory = directory
        self._next = offset
        self._salvage = Salvage(None, check_records=False) if around_damage else None
        self._open = OpenTransactions(opened, self._salvage)
        self._batches = walk_batches(directory, offset, within=within, salvage=self._salvage)
        self._segment = within
        self.unseen_from = MAX_OFFSET

    def up_to(self, end: int) -> Iterator[Integers]:
        while self._next < end or self._is_open_below(end):
            try:
                segment, chunk = next(self._batches)
            except StopIteration:
                # What a damaged header claims may have hidden from the end of stable records that
                # a transaction is open there; what is known of it now is damage all the same.
                doubtful = self._places() or (self._salvage and self._is_open_below(end))
                if self._segment is not None and doubtful:
                    yield _rows(self._open.end_at_damage(self._next, self._segment))
                self._refuse_open(end)
                if self._salvage is not None and self._next < end:
                    self.unseen_from = self._next
                return
            self._segment = segment
            aborted = self._open.apply(segment, chunk, self._places())
            self._next = int(chunk.table.last_offset[-1]) + 1
            if aborted:
                yield _rows(aborted)

    def _places(self) -> list[Place]:
        return [] if self._salvage is None else self._salvage.take_places()

    def _is_open_below(self, end: int) -> bool:
        first = self._open.first_offset()
        return first is not None and first < end

    def _refuse_open(self, end: int) -> None:
        for producer_id, first in self._open.first_offsets.items():
            if first < end:
                raise DataLossError(
                    f"{self._directory}: the transaction of producer {producer_id} that begins at "
                    f"offset {first} is neither committed nor aborted where the log ends, at "
                    f"{self._next}: the log was truncated since it was planned to read offsets "
                    f"below {end}"
                )
