"""Which batches a cleaner may discard for the sake of their transactions.

- A batch of an aborted transaction: its records go.
- A marker, once no batch of its transaction was met in this pass. An ABORT marker that stays keeps
  its entry in the index of aborted transactions.
- A marker that has lost its record already.

Source: Kafka ``CleanedTransactionMetadata``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kafkalog.errors import CorruptIndexError, LogDirectoryError
from kafkalog.streaming.log.files import TXN_INDEX
from kafkalog.streaming.log.index.txn import AbortedTransaction, TxnIndex
from kafkalog.streaming.log.read.aborted_transactions import AbortedTransactions
from kafkalog.streaming.records.control import MarkerReader, MarkerType

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from kafkalog.streaming.log.segment import Chunk, LogSegment

    Mask = NDArray[np.bool_]

__all__ = ["CleanedTransactions"]


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
