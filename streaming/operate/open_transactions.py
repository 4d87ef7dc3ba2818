"""Abort the transactions that a dead broker has left open, as its coordinator would.

Nothing can be appended after an open transaction: readers of committed records would never come to
it. A broker ends it once ``transaction.timeout.ms`` is over. If no broker will start again, an
ABORT marker of the producer is written here. It has the producer's epoch, not a higher one: a
coordinator that aborts the transaction later raises the epoch, and must not find it used.

The index of aborted transactions is written before the marker. A process that is killed between the
two leaves an entry for an offset that the log does not reach yet. The next attempt removes it.

Source: Kafka ``EndTransactionMarker``, ``ProducerAppendInfo``, ``UnifiedLog.append``.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kafkalog.checkpoints.broker import read_topic_id, remove_clean_shutdown_marker
from kafkalog.errors import CheckpointError, CorruptIndexError, CorruptRecordError
from kafkalog.files.atomic import write_atomically
from kafkalog.files.regular import fsync_directory, fsync_file, sync
from kafkalog.files.system import system
from kafkalog.model import INTERNAL_TOPICS
from kafkalog.streaming.log.append.appender import PartitionAppender
from kafkalog.streaming.log.append.source import BufferSource
from kafkalog.streaming.log.config import LogConfig
from kafkalog.streaming.log.files import SNAPSHOT, TXN_INDEX, file_name
from kafkalog.streaming.log.index.txn import TXN_ENTRY, AbortedTransaction, TxnIndex
from kafkalog.streaming.log.producer_state import list_snapshots, read_snapshot
from kafkalog.streaming.log.read.transactions import open_at
from kafkalog.streaming.log.read.walk import walk_batches
from kafkalog.streaming.records.batch import scan_batches
from kafkalog.streaming.records.control import abort_marker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.append.appender import AppendPlan
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import LogSet

__all__ = ["abort_open_transactions", "aborted_by"]


class _OpenTransaction(NamedTuple):
    """A transaction that is open at the end of a log: whose it is, and where it began."""

    producer_id: int
    first_offset: int
    epoch: int
    coordinator_epoch: int


def abort_open_transactions(log_set: LogSet) -> list[str]:
    """Abort all open transactions of a set, whose locks are held and whose torn tails are cut.

    Logs that do not end with a valid batch are left alone, and so are a broker's own topics.

    Returns:
        what was aborted, a line each.
    """
    done = []
    for key, found in log_set.partitions().items():
        topic_id = read_topic_id(found.path)
        known = log_set.state.topic(key.topic, topic_id)
        if key.topic in INTERNAL_TOPICS and known is None:
            continue
        config = LogConfig.of_topic(known.settings if known else {})
        with suppress(CorruptRecordError):
            now_ms = system.time_ns() // 1_000_000
            appender = PartitionAppender(found.path, key, config, now_ms=now_ms, topic_id=topic_id)
            opened = _opened(found.path, appender.log_end_offset)
            log_set.check_current()
            done += _abort(appender, found, opened, now_ms)
    return done


def aborted_by(key: TopicPartition, folder: Path, end: int) -> list[str]:
    """Return which transactions would be aborted at the end of a log, a line each."""
    return _texts(key, _opened(folder, end), end)


def _opened(folder: Path, end: int) -> list[_OpenTransaction]:
    """Return the transactions that are open at the end of a log, the oldest one first."""
    first_offsets = open_at(folder, end)
    if not first_offsets:
        return []
    epochs: dict[int, int] = {}
    for _, chunk in walk_batches(folder, min(first_offsets.values())):
        pairs = (chunk.table.producer_id.tolist(), chunk.table.producer_epoch.tolist())
        epochs |= dict(zip(*pairs, strict=True))
    coordinators = _coordinator_epochs(folder)
    opened = [
        _OpenTransaction(producer, first, epochs.get(producer, 0), coordinators.get(producer, 0))
        for producer, first in first_offsets.items()
    ]
    return sorted(opened, key=lambda each: each.first_offset)


def _coordinator_epochs(folder: Path) -> dict[int, int]:
    """Return the epoch of the coordinator that wrote each producer's last marker, if known."""
    for offset in reversed(list_snapshots(folder)):
        with suppress(CheckpointError, FileNotFoundError):
            entries = read_snapshot(folder / file_name(offset, SNAPSHOT))
            epochs = np.maximum(entries["coordinator_epoch"], 0).tolist()
            return dict(zip(entries["producer_id"].tolist(), epochs, strict=True))
    return {}


def _abort(
    appender: PartitionAppender,
    found: PartitionDirectory,
    opened: Sequence[_OpenTransaction],
    now_ms: int,
) -> list[str]:
    if not opened:
        return []
    end = appender.log_end_offset
    batches = b"".join(
        abort_marker(
            end + number,
            leader_epoch=appender.leader_epoch,
            timestamp_ms=now_ms,
            producer_id=each.producer_id,
            producer_epoch=each.epoch,
            coordinator_epoch=each.coordinator_epoch,
        )
        for number, each in enumerate(opened)
    )
    data = np.frombuffer(batches, np.uint8)
    plan = appender.plan([scan_batches(data).table])
    remove_clean_shutdown_marker(found.log_dir)
    _index(found.path, plan, _entries(opened, end), end)
    appender.apply(plan, [BufferSource(data)], _sync_and_close)
    for path in (*plan.created_files(), *plan.index_files(sealed=True)):
        fsync_file(path, missing_ok=True)
    fsync_directory(found.path)
    return _texts(appender.topic_partition, opened, end)


def _texts(key: TopicPartition, opened: Sequence[_OpenTransaction], end: int) -> list[str]:
    return [
        f"{key}: the transaction of producer {each.producer_id} (epoch "
        f"{each.epoch}) that began at offset {each.first_offset} is aborted at offset "
        f"{end + number}"
        for number, each in enumerate(opened)
    ]


def _entries(opened: Sequence[_OpenTransaction], end: int) -> dict[int, AbortedTransaction]:
    """Return what the index says of each marker, by its offset."""
    entries = {}
    for number, each in enumerate(opened):
        others = [other.first_offset for other in opened[number + 1 :]]
        marker = end + number
        stable = min(others, default=marker + 1)
        entries[marker] = AbortedTransaction(each.producer_id, each.first_offset, marker, stable)
    return entries


def _index(
    folder: Path, plan: AppendPlan, entries: Mapping[int, AbortedTransaction], end: int
) -> None:
    """Write the entries into the indexes of the segments that get the markers."""
    bases = [segment.base_offset for segment in plan.segments]
    for base, following in zip(bases, [*bases[1:], plan.end_offset], strict=True):
        path = folder / file_name(base, TXN_INDEX)
        mine = [entry for marker, entry in entries.items() if base <= marker < following]
        kept = [entry for entry in _read_index(path, base) if entry.last_offset < end]
        if mine:
            rows = np.array([(0, *entry) for entry in (*kept, *mine)], TXN_ENTRY)
            write_atomically(path, rows.tobytes())


def _read_index(path: Path, base_offset: int) -> list[AbortedTransaction]:
    """Read an index; one that is damaged counts as empty: readers look into the log then."""
    try:
        with TxnIndex(path, base_offset) as index:
            return list(index)
    except (FileNotFoundError, CorruptIndexError):
        return []


def _sync_and_close(descriptor: int) -> None:
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)
