"""What becomes of each batch when its log is cleaned: copied, emptied, encoded again, or gone.

A record stays if it is the last one of its key, as far as the map of offsets reaches. A tombstone
stays for a while after that: the batch gets a *delete horizon*, which stands in its base timestamp,
when a cleaner first meets it, and its tombstones go once that has passed. Markers of transactions
of which nothing is left likewise. Before magic 2 a tombstone goes by the age of its segment.

A batch without records goes. Its header stays where it tells the last sequence or epoch of a
producer, or where the round of cleaning ends.

Source: Kafka ``Cleaner.cleanInto``, ``Cleaner.shouldRetainRecord``, ``MemoryRecords.filterTo``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkalog.model import NO_TIMESTAMP
from kafkalog.streaming.clean.rebuilding import emptied, rebuild
from kafkalog.streaming.clean.records import Scratch, find_records
from kafkalog.streaming.records.batch_layout import DELETE_HORIZON_MASK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from kafkalog.streaming.clean.offset_map import OffsetMap
    from kafkalog.streaming.clean.producers import LastRecords
    from kafkalog.streaming.clean.records import Records
    from kafkalog.streaming.clean.transactions import CleanedTransactions
    from kafkalog.streaming.log.segment import Chunk, LogSegment
    from kafkalog.streaming.records.arrow_buffers import Integers
    from kafkalog.streaming.records.batch import BatchTable

    Mask = NDArray[np.bool_]

__all__ = ["BatchFilter", "FilterRules", "Piece"]

_NO_HORIZON: Final = -1

_INT_MAX: Final = 2**31 - 1
"""Offsets that a segment may span: pieces that span more must be of one batch each."""


@dataclass(frozen=True, slots=True)
class FilterRules:
    """What holds for a whole round; times in ms.

    ``end_offset`` is where the round may reach: the batch right before it stays as a header at
    least. ``legacy_horizon_ms`` is the time up to which a segment of magic 0 or 1 must have been
    written for its tombstones to go.
    """

    now_ms: int
    delete_retention_ms: int
    end_offset: int
    legacy_horizon_ms: int
    last_records: LastRecords


class Piece(NamedTuple):
    """Bytes to be written: one batch, or several."""

    data: memoryview | bytes
    first_offset: int
    """The base offset of the first batch; -1 for an older wrapper."""
    last_offset: int


class BatchFilter:
    """Filters the batches of a log in order, from its first segment on. Not thread safe."""

    def __init__(
        self, offsets: OffsetMap, rules: FilterRules, transactions: CleanedTransactions
    ) -> None:
        self._offsets = offsets
        self._rules = rules
        self._transactions = transactions
        self._scratch = Scratch()
        self.keyless = 0
        """Records that went because they had no key."""

    def pieces(
        self, segment: LogSegment, chunk: Chunk, *, keep_legacy_tombstones: bool
    ) -> Iterator[Piece]:
        """Filter the next batches and yield what stays of them, in order.

        Raises:
            CorruptRecordError: a batch that cannot be decoded: nobody can know what would be lost.
        """
        table = chunk.table
        discard, markers = self._discard(segment, chunk)
        stays_empty = self._stays_empty(table)
        wanted = np.flatnonzero(~discard & (table.count != 0))
        wanted = wanted[~self._have_no_last(table[wanted])]
        rebuilt: dict[int, bytes] = {}
        copied = np.zeros(len(table), np.bool_)
        path = str(segment.path)
        done = 0
        for records in find_records(
            *(chunk.data, table[wanted], self._scratch),
            file_position=chunk.file_position,
            path=path,
        ):
            rows = wanted[done : done + len(records.table)]
            done += len(rows)
            keep = self._keep(records, keep_legacy_tombstones=keep_legacy_tombstones)
            now_ms, retention_ms = self._rules.now_ms, self._rules.delete_retention_ms
            result = rebuild(chunk, records, keep, markers[rows], now_ms + retention_ms)
            copied[rows] = result.unchanged
            rebuilt |= {int(rows[slot]): batch for slot, batch in result.batches.items()}
            stays_empty[rows] &= result.kept == 0
        for row in np.flatnonzero(stays_empty).tolist():
            rebuilt[row] = emptied(table, row)
        yield from _in_order(chunk, copied, rebuilt)

    def _discard(self, segment: LogSegment, chunk: Chunk) -> tuple[Mask, Mask]:
        """Return whose records all go, and which are markers of which nothing else is left."""
        table = chunk.table
        discardable = self._transactions.discardable(segment, chunk)
        markers = discardable & table.is_control
        horizon = _horizons(table)
        waits = table.is_control & ((horizon == _NO_HORIZON) | (horizon > self._rules.now_ms))
        return discardable & ~waits, markers

    def _stays_empty(self, table: BatchTable) -> Mask:
        """Return of which batches the header must stay."""
        stays: Mask = table.last_offset + 1 == self._rules.end_offset
        stays |= self._rules.last_records.stay(table)
        stays &= table.magic == 2
        return stays

    def _have_no_last(self, table: BatchTable) -> Mask:
        """Return of which batches no record stays, as far as their headers tell.

        So they need not be decompressed. That they can be was seen when the map was filled.
        """
        told: Mask = (table.magic == 2) & ~table.is_control & ~table.is_transactional
        rows = np.flatnonzero(told)
        told[rows] = self._offsets.have_no_last(
            table.base_offset[rows], table.last_offset[rows], int(table.count[rows].sum())
        )
        return told

    def _keep(self, records: Records, *, keep_legacy_tombstones: bool) -> Mask:
        """Return which records stay, bool[n]."""
        table = records.table
        horizon = _horizons(table)
        due = (horizon == _NO_HORIZON) | (self._rules.now_ms < horizon)
        due = np.where(table.magic == 2, due, keep_legacy_tombstones)
        counts = np.diff(records.firsts, append=len(records.offsets))
        has_key = records.key_lengths >= 0
        keep: Mask = has_key & self._are_last(records)
        keep &= (records.value_lengths >= 0) | np.repeat(due, counts)
        beyond = records.offsets > self._offsets.latest_offset
        is_control = np.repeat(table.is_control, counts)
        self.keyless += int((~has_key & ~beyond & ~is_control).sum())
        return keep | beyond | is_control

    def _are_last(self, records: Records) -> Mask:
        """Return after which records the map has none of their keys, bool[n]."""
        table = records.table
        # Those of aborted transactions were not put.
        if not table.is_transactional.any() and self._offsets.has_put(records.offsets):
            return self._offsets.are_last(records.offsets)
        found = self._offsets.find(records.source, records.key_starts, records.key_lengths)
        return records.offsets >= found


def _horizons(table: BatchTable) -> Integers:
    """Return the delete horizon of each batch, ms; -1 where it has none."""
    has = ((table.attributes & DELETE_HORIZON_MASK) != 0) & (table.magic == 2)
    return np.where(has, table.base_timestamp, NO_TIMESTAMP)


def _in_order(chunk: Chunk, copied: Mask, rebuilt: Mapping[int, bytes]) -> Iterator[Piece]:
    """Put batches that are copied and others into order, as one piece if offsets allow it."""
    table, view = chunk.table, chunk.data.data
    edges = np.flatnonzero(np.diff(copied, prepend=False, append=False)).tolist()
    ends = dict(zip(edges[::2], edges[1::2], strict=True))
    is_wide = bool(len(table)) and table.last_offset[-1] - table.base_offset[0] > _INT_MAX
    if is_wide:
        ends = {row: row + 1 for row in np.flatnonzero(copied).tolist()}
    starts = (table.position - chunk.file_position).tolist()
    starts.append(len(view))
    rows = sorted(ends.keys() | rebuilt.keys())
    parts = [
        rebuilt[row] if row in rebuilt else view[starts[row] : starts[ends[row]]] for row in rows
    ]
    lasts = [ends.get(row, row + 1) - 1 for row in rows]
    if rows and not is_wide:
        parts, rows, lasts = [b"".join(parts)], rows[:1], lasts[-1:]
    for data, first, last in zip(parts, rows, lasts, strict=True):
        yield Piece(data, int(table.base_offset[first]), int(table.last_offset[last]))
