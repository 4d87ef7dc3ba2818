"""The last record of each producer: its batch must not lose its header to a cleaner.

Source: Kafka ``UnifiedLog.lastRecordsOfActiveProducers``, ``ProducerStateManager``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from kafkalog.errors import CheckpointError, LogDirectoryError
from kafkalog.model import NO_PRODUCER_ID
from kafkalog.streaming.log.files import SNAPSHOT, file_name
from kafkalog.streaming.log.producer_state import list_snapshots, read_snapshot
from kafkalog.streaming.log.read.walk import walk_batches

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Integers
    from kafkalog.streaming.records.batch import BatchTable

__all__ = ["DEFAULT_EXPIRATION_MS", "LastRecord", "LastRecords"]

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
