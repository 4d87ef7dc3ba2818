"""Which transactions are open at a point of a log, and the last stable offset.

All offsets below the *last stable offset* belong to no transaction, or to one that has ended: it is
the first offset of the oldest transaction that is open at the high watermark, or the high watermark
itself. A transaction whose marker lies at the high watermark or above counts as open. Readers of
committed records stop there.

A transaction begins with the first transactional batch of a producer id, and ends with that
producer's marker. What is open is told by the newest producer snapshot and the headers of the
batches behind it, or, without a snapshot, of all batches. A batch that the cleaner has emptied
begins nothing: it only cleans below the last stable offset, and may have removed the marker since.

Source: Kafka ``ProducerStateManager``, ``ProducerAppendInfo``, ``UnifiedLog.lastStableOffset``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.errors import CheckpointError, LogDirectoryError, UnknownTopicOrPartitionError
from kafkalog.model import NO_PRODUCER_ID
from kafkalog.streaming.log.files import SNAPSHOT, file_name
from kafkalog.streaming.log.log_walk import walk_batches
from kafkalog.streaming.log.producer_state import list_snapshots, open_transactions
from kafkalog.streaming.records.control import MarkerReader, MarkerType

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.streaming.log.open_file import FileIdentity
    from kafkalog.streaming.log.partition_log import PartitionLog
    from kafkalog.streaming.log.segment import BatchHeader, Chunk, LogSegment

__all__ = [
    "OpenTransactions",
    "StableOffset",
    "last_stable_offset",
    "snapshot_transactions",
]

_LOGGER = logging.getLogger("kafkalog.log")

_ENDS: Final = frozenset(MarkerType)


class OpenTransactions:
    """The transactions that are open behind the batches seen so far.

    ``first_offsets`` maps producer ids to where their transactions begin.
    """

    def __init__(self, first_offsets: dict[int, int] | None = None) -> None:
        self.first_offsets = first_offsets or {}
        self._markers = MarkerReader()

    def first_offset(self) -> int | None:
        """Give the first offset of the oldest one; None without any."""
        return min(self.first_offsets.values(), default=None)

    def apply(self, chunk: Chunk, path: str) -> list[tuple[int, int, int]]:
        """Go on over the next batches, in offset order; only markers are decoded.

        Returns:
            the transactions that an ABORT marker ended: producer id, first offset, marker's offset.

        Raises:
            CorruptRecordError: a marker that cannot be decoded.
        """
        table = chunk.table
        concerns = (table.is_transactional | table.is_control) & (table.count > 0)
        table = table[concerns & (table.producer_id != NO_PRODUCER_ID)]
        if not len(table):
            return []
        types = self._markers.types(chunk.data, table, file_position=chunk.file_position, path=path)
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


def last_stable_offset(log: PartitionLog, high_watermark: int) -> int:
    """Find where readers of committed records have to stop in a log.

    To ask the same log again and again, keep a :class:`StableOffset`.

    Raises:
        CorruptRecordError: bytes below the high watermark that are no batch.
        UnknownTopicOrPartitionError: the folder is gone.
    """
    stable = StableOffset(log.directory).find(high_watermark)
    return min(high_watermark, max(stable, log.log_start_offset))


class StableOffset:
    """Follows the last stable offset of a growing log: each look reads what is new. Not picklable.

    Memory grows with the producers whose transactions are open at the same time, and for a moment
    by the size of a snapshot.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._high_watermark = -1
        self._next = 0
        self._open = OpenTransactions()
        self._read_last: tuple[LogSegment, FileIdentity, BatchHeader | None] | None = None

    def find(self, high_watermark: int) -> int:
        """Give the last stable offset, by the batches below ``high_watermark``.

        Raises:
            CorruptRecordError: bytes below the high watermark that are no batch.
            UnknownTopicOrPartitionError: the folder is gone.
        """
        try:
            if high_watermark < self._high_watermark or not self._goes_on():
                self._restart(high_watermark)
            if self._next < high_watermark:
                self._walk_to(high_watermark)
        except FileNotFoundError as error:
            raise UnknownTopicOrPartitionError(f"{self._directory}: {error}") from error
        self._high_watermark = high_watermark
        first = self._open.first_offset()
        return high_watermark if first is None else min(first, high_watermark)

    def _goes_on(self) -> bool:
        """Tell whether what was read last is still there: a log may be made anew, or rewritten."""
        if self._read_last is None:
            return False
        segment, identity, header = self._read_last
        try:
            with segment:
                if segment.identity != identity or header is None:
                    return False
                # A file that is made anew may get the number of the one that was there.
                return segment.header_at(header.position) == header
        except FileNotFoundError:
            return False

    def _restart(self, high_watermark: int) -> None:
        self._read_last = None
        for offset in reversed(list_snapshots(self._directory)):
            if offset <= high_watermark:
                found = snapshot_transactions(self._directory, offset)
                if found is not None:
                    self._next, self._open = offset, OpenTransactions(found)
                    return
        self._next, self._open = 0, OpenTransactions()

    def _walk_to(self, high_watermark: int) -> None:
        for segment, chunk in walk_batches(self._directory, self._next):
            table = chunk.table
            end = int(np.searchsorted(table.last_offset, high_watermark))
            # A batch of records may straddle the end; a marker never does.
            if end < len(table) and table.base_offset[end] < high_watermark:
                end += 1
            if end:
                self._open.apply(chunk._replace(table=table[:end]), str(segment.path))
                self._next = int(table.last_offset[end - 1]) + 1
                last = int(table.position[end - 1])
                self._read_last = segment, segment.identity, segment.header_at(last)
            if end < len(table) or self._next >= high_watermark:
                return


def snapshot_transactions(directory: Path, offset: int) -> dict[int, int] | None:
    """Give what is open by the snapshot at an offset: producer ids with first offsets.

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
