"""Which transactions are open at a point of a log, and the last stable offset.

All offsets below the *last stable offset* belong to no transaction, or to one that has ended: it is
the first offset of the oldest transaction that is open at the high watermark, or the high watermark
itself. A transaction whose marker lies at the high watermark or above counts as open. Readers of
committed records stop there.

A transaction begins with the first transactional batch of a producer id, and ends with that
producer's marker. What is open is told by the newest producer snapshot and the headers of the
batches after it, or, without a snapshot, of all batches. A batch that the cleaner has emptied
begins nothing: it only cleans below the last stable offset, and may have removed the marker since.

Source: Kafka ``ProducerStateManager``, ``ProducerAppendInfo``, ``UnifiedLog.lastStableOffset``.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from kafkalog.errors import (
    CheckpointError,
    CorruptRecordError,
    LogDirectoryError,
    UnknownTopicOrPartitionError,
)
from kafkalog.model import NO_PRODUCER_ID
from kafkalog.streaming.log.files import SNAPSHOT, file_name
from kafkalog.streaming.log.producer_state import list_snapshots, open_transactions
from kafkalog.streaming.log.read.salvage import Salvage
from kafkalog.streaming.log.read.walk import walk_batches
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.records.control import MarkerReader, MarkerType

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

    from kafkalog.files.open_file import FileIdentity
    from kafkalog.streaming.log.read.salvage import Place
    from kafkalog.streaming.log.segment import Chunk, LogSegment
    from kafkalog.streaming.records.batch import BatchTable
    from kafkalog.streaming.records.batch_header import BatchHeader

    Integers = npt.NDArray[np.int64]

__all__ = [
    "Aborted",
    "OpenTransactions",
    "StableOffset",
    "open_at",
    "snapshot_transactions",
]

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
            aborted += self.doubt(_offset_of(table, cut), segment)
            done = cut
        return aborted + self._apply(segment, chunk._replace(table=table[done:]))

    def doubt(self, offset: int, segment: LogSegment) -> list[Aborted]:
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
            doubtful = self.doubt(_offset_of(table, bad) + 1, segment)
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
        self._next, self._open = 0, OpenTransactions(salvage=self._salvage)

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
            self._open.doubt(self._next, segment)

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
