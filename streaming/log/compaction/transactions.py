"""Batches that compaction keeps for transactions and producers."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from kafkalog.errors import CheckpointError, CorruptIndexError, LogDirectoryError
from kafkalog.model import NO_PRODUCER_ID
from kafkalog.streaming.log.files import SNAPSHOT, TXN_INDEX, file_name
from kafkalog.streaming.log.indexes import AbortedTransaction, TxnIndex
from kafkalog.streaming.log.producer_state import list_snapshots, read_snapshot
from kafkalog.streaming.log.read.salvage import walk_batches
from kafkalog.streaming.log.read.transactions import AbortedTransactions
from kafkalog.streaming.records.control import MarkerReader, MarkerType

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    from kafkalog.streaming.log.segment import Chunk, LogSegment
    from kafkalog.streaming.records.arrow_buffers import Integers
    from kafkalog.streaming.records.batch import BatchTable

    Mask = NDArray[np.bool_]

__all__ = ["DEFAULT_EXPIRATION_MS", "CleanedTransactions", "LastRecord", "LastRecords"]


# ----------------------------------------------------------------------------------------------
# Which batches a cleaner may discard for the sake of their transactions.
#
# - A batch of an aborted transaction: its records go.
# - A marker, once no batch of its transaction was met in this pass. An ABORT marker that stays
#   keeps its entry in the index of aborted transactions.
# - A marker that has lost its record already.
#
# Source: Kafka ``CleanedTransactionMetadata``.


@dataclass(slots=True)
class _Aborted:
    """A transaction that ends with an ABORT marker."""

    first_offset: int
    was_met: bool = False


class CleanedTransactions:
    """Follows one pass over a log from its first segment on. Not thread safe."""

    def __init__(self, directory: Path) -> None:
        """Take a partition's folder."""
        self._aborted = AbortedTransactions(directory)
        self._markers = MarkerReader()
        self._open: dict[int, int] = {}  # not aborted: producer id to the first offset met
        self._open_aborted: dict[int, _Aborted] = {}
        self._entries: dict[int, AbortedTransaction] = {}
        self._segment: LogSegment | None = None
        self._kept: list[AbortedTransaction] = []

    def discardable(self, segment: LogSegment, chunk: Chunk) -> Mask:
        """Return which of the next batches may be discarded, bool[n].

        Raises:
            CorruptRecordError: a marker that cannot be decoded.
            DataLossError: a transaction in them has no end.
        """
        table = chunk.table
        result: Mask = np.zeros(len(table), np.bool_)
        rows = np.flatnonzero(table.is_transactional | table.is_control)
        if not len(rows):
            return result
        if self._segment is not segment:
            self._segment, self._entries = segment, _entries(segment)
        batches = table[rows]
        start, end = int(batches.base_offset[0]), int(batches.last_offset[-1]) + 1
        known = self._aborted.within(segment, start, end)
        to_come = known[np.argsort(known[:, 1], kind="stable")].tolist()[::-1]
        types = self._markers.types(
            chunk.data, batches, file_position=chunk.file_position, path=str(segment.path)
        )
        columns = (
            *(batches.base_offset, batches.last_offset, batches.producer_id),
            *(batches.is_control, batches.count, types),
        )
        for row, (base, last, producer, is_control, count, kind) in zip(
            rows.tolist(), zip(*(column.tolist() for column in columns), strict=True), strict=True
        ):
            while to_come and to_come[-1][1] <= last:
                owner, first, _ = to_come.pop()
                self._open_aborted.setdefault(owner, _Aborted(first))
            if is_control:
                result[row] = count == 0 or self._end(producer, last, kind)
            else:
                result[row] = self._meet(producer, base)
        return result

    def take_kept(self) -> list[AbortedTransaction]:
        """Return the entries of ABORT markers that stay, of what was met since the last call."""
        kept, self._kept = self._kept, []
        return kept

    def _meet(self, producer: int, base_offset: int) -> bool:
        """Meet a batch of a transaction; return whether it is aborted."""
        aborted = self._open_aborted.get(producer)
        if aborted is None:
            self._open.setdefault(producer, base_offset)
            return False
        aborted.was_met = True
        return True

    def _end(self, producer: int, offset: int, kind: int) -> bool:
        """Meet a marker; return whether nothing was left of its transaction."""
        if kind == MarkerType.COMMIT:
            return self._open.pop(producer, None) is None
        if kind != MarkerType.ABORT:
            return False
        aborted = self._open_aborted.pop(producer, None)
        met_empty = self._open.pop(producer, None)
        if aborted is None and met_empty is not None:
            # Without an index, batches that a cleaner has emptied tell of no aborted transaction.
            aborted = _Aborted(met_empty, was_met=True)
        if aborted is None or not aborted.was_met:
            return True
        self._kept.append(self._entry(producer, aborted, offset))
        return False

    def _entry(self, producer: int, aborted: _Aborted, offset: int) -> AbortedTransaction:
        """Return the index's entry of a marker, or make what a broker would have written."""
        found = self._entries.get(offset)
        if found is not None:
            return found
        others = [*self._open.values(), *(one.first_offset for one in self._open_aborted.values())]
        stable = min(others, default=offset + 1)
        return AbortedTransaction(producer, aborted.first_offset, offset, stable)


def _entries(segment: LogSegment) -> dict[int, AbortedTransaction]:
    """Return the entries of a segment's index by the offsets of the markers; none if it is bad."""
    try:
        with TxnIndex(segment.file(TXN_INDEX), segment.base_offset) as index:
            return {entry.last_offset: entry for entry in index}
    except (FileNotFoundError, CorruptIndexError, LogDirectoryError):
        return {}


# ----------------------------------------------------------------------------------------------
# The last record of each producer: its batch must not lose its header to a cleaner.
#
# Source: Kafka ``UnifiedLog.lastRecordsOfActiveProducers``, ``ProducerStateManager``.


_LOGGER = logging.getLogger("kafkalog.log")

DEFAULT_EXPIRATION_MS: Final = 86_400_000
"""Kafka's ``producer.id.expiration.ms``."""


@dataclass(slots=True)
class LastRecord:
    """What a producer wrote last; ``data_offset`` is -1 if that was a marker of a new epoch."""

    epoch: int
    data_offset: int = -1
    timestamp_ms: int = -1
    in_transaction: bool = False


def _none() -> Integers:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class LastRecords:
    """Those of the producers that are active: int64[n] each, by ascending id."""

    producer_ids: Integers = field(default_factory=_none)
    data_offsets: Integers = field(default_factory=_none)
    epochs: Integers = field(default_factory=_none)

    @classmethod
    def of(cls, found: Iterable[tuple[int, LastRecord]]) -> Self:
        """Take producer ids with their last records."""
        rows = sorted((producer, one.data_offset, one.epoch) for producer, one in found)
        columns = np.array(rows, np.int64).reshape(-1, 3).T
        return cls(*map(np.ascontiguousarray, columns))

    @classmethod
    def read(
        cls,
        directory: Path,
        *,
        end_offset: int,
        now_ms: int,
        expiration_ms: int = DEFAULT_EXPIRATION_MS,
    ) -> Self:
        """Read them: the newest snapshot, and the headers of the batches since.

        Args:
            directory: the partition's folder.
            end_offset: the committed end; what lies after it is not looked at.
            now_ms: the time.
            expiration_ms: a producer that wrote nothing for so long, and has no open transaction,
                is no longer active.

        Raises:
            CorruptRecordError: bytes since the snapshot that are no batch.
            UnknownTopicOrPartitionError: the folder is gone.
        """
        known, since = _newest_snapshot(directory, end_offset)
        batches = walk_batches(directory, since) if since < end_offset else iter(())
        for _, chunk in batches:
            table = chunk.table[chunk.table.last_offset < end_offset]
            _apply(known, table[table.producer_id != NO_PRODUCER_ID])
            if int(chunk.table.last_offset[-1]) + 1 >= end_offset:
                break
        return cls.of(
            (producer, one)
            for producer, one in known.items()
            if one.in_transaction or now_ms - one.timestamp_ms < expiration_ms
        )

    def stay(self, table: BatchTable) -> NDArray[np.bool_]:
        """Return which batches tell the last sequence or epoch of a producer, bool[n]."""
        if not len(self.producer_ids):
            return np.zeros(len(table), np.bool_)
        slots = np.searchsorted(self.producer_ids, table.producer_id)
        slots = np.minimum(slots, len(self.producer_ids) - 1)
        active = self.producer_ids[slots] == table.producer_id
        data_offsets = self.data_offsets[slots]
        by_epoch = table.is_control & (table.producer_epoch == self.epochs[slots])
        stays: NDArray[np.bool_] = np.where(
            data_offsets >= 0, table.last_offset == data_offsets, by_epoch
        )
        stays &= active
        return stays


def _newest_snapshot(directory: Path, end_offset: int) -> tuple[dict[int, LastRecord], int]:
    for offset in reversed(list_snapshots(directory)):
        if offset > end_offset:
            continue
        path = directory / file_name(offset, SNAPSHOT)
        try:
            entries = read_snapshot(path)
        except FileNotFoundError:
            continue
        except (CheckpointError, LogDirectoryError) as error:
            _LOGGER.warning("%s: not used, the log is looked at instead: %s", path, error)
            continue
        names = ("producer_id", "epoch", "last_offset", "timestamp", "txn_first_offset")
        rows = zip(*(entries[name].tolist() for name in names), strict=True)
        known = {
            producer: LastRecord(epoch, last, timestamp, first >= 0)
            for producer, epoch, last, timestamp, first in rows
        }
        return known, offset
    return {}, 0


def _apply(known: dict[int, LastRecord], table: BatchTable) -> None:
    """Take batches of producers, of which a control batch without a record says nothing."""
    said = table[~table.is_control | (table.count > 0)]
    columns = (
        *(said.producer_id, said.producer_epoch, said.last_offset, said.max_timestamp),
        *(said.is_control, said.is_transactional, said.count),
    )
    for producer, epoch, last, timestamp, is_control, in_transaction, count in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        one = known.setdefault(producer, LastRecord(epoch))
        if one.epoch != epoch:
            one.epoch, one.data_offset = epoch, -1
        one.timestamp_ms = timestamp
        if is_control:
            one.in_transaction = False
        else:
            one.data_offset = last
            one.in_transaction |= in_transaction and count > 0
