"""The state of producers at an offset: the newest snapshot below it, and the batches since.

A broker keeps it in memory, and writes it when it rolls a segment. Here it is found in the log when
the snapshot that tells it is about to be deleted.

Source: Kafka ``ProducerStateManager.update``, ``ProducerAppendInfo``, ``ProducerStateEntry``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.errors import CheckpointError, LogDirectoryError
from kafkalog.model import NO_PRODUCER_ID
from kafkalog.streaming.log.files import SNAPSHOT, file_name
from kafkalog.streaming.log.producer_state import (
    PRODUCER_ENTRY,
    list_snapshots,
    read_snapshot,
    snapshot_bytes,
)
from kafkalog.streaming.log.read.walk import walk_batches
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.records.control import as_data_batches, coordinator_epoch

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.streaming.log.segment import Chunk
    from kafkalog.streaming.records.batch import BatchTable

__all__ = ["snapshot_at"]

_LOGGER: Final = logging.getLogger("kafkalog.log")

_SEQUENCES: Final = 1 << 31
"""How many there are: after the largest one comes 0."""


def snapshot_at(directory: Path, offset: int, *, since: int | None = None) -> bytes | None:
    """Return the snapshot that a broker would have written when its log ended at ``offset``.

    The batches from ``since`` on are read where there is no snapshot. None without either.

    Raises:
        CorruptRecordError: bytes that are no batch.
    """
    known, begin = _newest(directory, offset, since)
    if begin is None:
        return None
    if begin < offset:
        for segment, chunk in walk_batches(directory, begin):
            _take(known, chunk, offset, str(segment.path))
            if int(chunk.table.last_offset[-1]) + 1 >= offset:
                break
    rows = [tuple(entry.values()) for entry in known.values()]
    return snapshot_bytes(np.array(rows, PRODUCER_ENTRY))


def _newest(
    directory: Path, offset: int, since: int | None
) -> tuple[dict[int, dict[str, int]], int | None]:
    """Return what the newest snapshot says that can be read, and its offset."""
    for each in reversed(list_snapshots(directory)):
        if each > offset:
            continue
        try:
            entries = read_snapshot(directory / file_name(each, SNAPSHOT))
        except (CheckpointError, LogDirectoryError) as error:
            _LOGGER.warning("not used, the log is looked at instead: %s", error)
            continue
        names = PRODUCER_ENTRY.names or ()
        rows = zip(*(entries[name].tolist() for name in names), strict=True)
        return {row[0]: dict(zip(names, row, strict=True)) for row in rows}, each
    return {}, since


def _take(known: dict[int, dict[str, int]], chunk: Chunk, end_offset: int, path: str) -> None:
    table = chunk.table[chunk.table.last_offset < end_offset]
    # The cleaner leaves control batches without their record, which say nothing.
    table = table[(table.producer_id != NO_PRODUCER_ID) & (~table.is_control | (table.count > 0))]
    coordinators = _coordinator_epochs(chunk, table[table.is_control], path)
    columns = (
        *(table.producer_id, table.producer_epoch, table.base_sequence, table.base_offset),
        *(table.last_offset, table.max_timestamp, table.is_control, table.is_transactional),
    )
    for row in zip(*(column.tolist() for column in columns), strict=True):
        producer, epoch, sequence, base, last, timestamp, is_control, is_transactional = row
        entry = known.setdefault(producer, _new(producer, epoch))
        if entry["epoch"] != epoch:
            entry |= {"epoch": epoch, **_NO_BATCH}
        entry["timestamp"] = timestamp
        if is_control:
            entry |= {"coordinator_epoch": coordinators[last], "txn_first_offset": -1}
            continue
        delta = last - base
        entry |= {
            "last_sequence": (sequence + delta) % _SEQUENCES,
            "last_offset": last,
            "offset_delta": delta,
        }
        if is_transactional and entry["txn_first_offset"] < 0:
            entry["txn_first_offset"] = base


_NO_BATCH: Final = {"last_sequence": -1, "last_offset": -1, "offset_delta": 0}


def _new(producer: int, epoch: int) -> dict[str, int]:
    """Return an entry in the order of its fields."""
    return {
        "producer_id": producer,
        "epoch": epoch,
        **_NO_BATCH,
        "timestamp": -1,
        "coordinator_epoch": -1,
        "txn_first_offset": -1,
    }


def _coordinator_epochs(chunk: Chunk, markers: BatchTable, path: str) -> dict[int, int]:
    """Return the epoch of the coordinator by the offset of its marker."""
    if not len(markers):
        return {}
    decoder = RecordDecoder(Columns.VALUE | Columns.OFFSET, max_rows=1024)
    batches = decoder.decode(
        chunk.data, as_data_batches(markers), file_position=chunk.file_position, path=path
    )
    return {
        offset: coordinator_epoch(value)
        for batch in batches
        for offset, value in zip(
            batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True
        )
    }
