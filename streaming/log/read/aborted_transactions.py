"""Which batches belong to aborted transactions, for a reader that goes forward through a log.

A reader of committed records needs, for a range of offsets, the transactions that overlap it and
were aborted; their markers may lie far after it. Three sources tell them:

- **The indexes of aborted transactions**, as a broker answers a fetch: those of the range's segment
  and of the following ones, up to an entry whose last stable offset is not below the range's end.
- **A producer snapshot**, where the next segment has no such index: if no transaction of the range
  is open where that segment begins, nothing more is to be looked for.
- **The log itself**, where an index is missing, empty, damaged or not of the file read, and after
  the last entry of the last segment's: the headers of the batches from the range on, and the
  markers among them, until all transactions of the range have ended. An index exists only where
  something was aborted, so that a missing one does not say that nothing was.

Nothing is looked for until a range has transactional batches. The sources are read forward, as the
reader goes: each index entry and each header is read once.

A producer has one transaction at a time. Take the last aborted transaction of the batch's producer
that begins at or below the batch. The batch is aborted if that transaction ends after it. A client
comes to the same answer with a heap of first offsets and a set of producer ids. Batches of the same
producer that are not transactional stay.

Source: Kafka ``LocalLog.collectAbortedTransactions``, ``CompletedFetch``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kafkalog.errors import CorruptIndexError, DataLossError, LogDirectoryError
from kafkalog.files.open_file import FileIdentity
from kafkalog.model import MAX_OFFSET
from kafkalog.streaming.log.files import TXN_INDEX
from kafkalog.streaming.log.index.txn import TxnIndex
from kafkalog.streaming.log.read.salvage import Salvage
from kafkalog.streaming.log.read.transactions import OpenTransactions, snapshot_transactions
from kafkalog.streaming.log.read.walk import walk_batches
from kafkalog.streaming.log.segments import LogSegments

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    from kafkalog.streaming.log.read.salvage import Place
    from kafkalog.streaming.log.read.transactions import Aborted
    from kafkalog.streaming.log.segment import LogSegment
    from kafkalog.streaming.records.batch import BatchTable

    Integers = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]

__all__ = ["AbortedTransactions"]

_LOGGER = logging.getLogger("kafkalog.log")

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
            segment = LogSegments.of(segment.directory).higher(segment.base_offset)
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
                    yield _rows(self._open.doubt(self._next, self._segment))
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
