"""End the transactions that a dead broker has left open, as their coordinators would.

Nothing can be appended after an open transaction: readers of committed records would never come to
it. If no broker will start again that ends it, the marker is written here. Which one, tells
``__transaction_state`` (:mod:`~kafkalog.streaming.coordinator.transaction_states`): what was
prepared to commit is committed in each partition, all else is aborted. Where its records are not
here, nothing is guessed. ``__consumer_offsets`` is one of the partitions.

A marker of what was prepared has the epochs of its coordinator's record, which will be sent again
by a coordinator that gets the logs later. One of what nobody decided has the producer's epoch, and
not a higher one: a coordinator that aborts the transaction later raises the epoch, and must not
find it used.

The index of aborted transactions is written before the marker. A process that is killed between the
two leaves an entry for an offset that the log does not reach yet. The next attempt removes it.

Source: Kafka ``EndTransactionMarker``, ``ProducerAppendInfo``, ``UnifiedLog.append``.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkalog.checkpoints.broker import (
    read_leader_epochs,
    read_topic_id,
    remove_clean_shutdown_marker,
)
from kafkalog.errors import (
    CheckpointError,
    CorruptIndexError,
    CorruptRecordError,
    KafkaLogError,
)
from kafkalog.files.atomic import write_atomically
from kafkalog.files.regular import fsync_directory, fsync_file, sync
from kafkalog.files.system import system
from kafkalog.model import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from kafkalog.streaming.admin.broker.handover_state import newest_view
from kafkalog.streaming.commit.tail_recovery import open_transaction_error
from kafkalog.streaming.coordinator.transaction_states import (
    Decision,
    TransactionStates,
    Undecided,
)
from kafkalog.streaming.log.appender import BufferSource, PartitionAppender
from kafkalog.streaming.log.files import SNAPSHOT, TXN_INDEX, file_name
from kafkalog.streaming.log.indexes import TXN_ENTRY, AbortedTransaction, TxnIndex
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.producer_state import list_snapshots, read_snapshot
from kafkalog.streaming.log.read.salvage import walk_batches
from kafkalog.streaming.log.read.transactions import open_at
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.records.batch import scan_batches
from kafkalog.streaming.records.control import MarkerType, end_transaction_marker
from kafkalog.streaming.store.log_dirs import LogDirs
from kafkalog.streaming.store.recovery.partition_states import last_epoch

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from kafkalog.streaming.log.appender import AppendPlan
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import LogSet

__all__ = ["EndedTransactions", "TransactionEnds", "end_transactions", "end_transactions_of"]

_ENDED: Final = {MarkerType.ABORT: "aborted", MarkerType.COMMIT: "committed"}


class _OpenTransaction(NamedTuple):
    """A transaction that is open at the end of a log: whose it is, and where it began."""

    producer_id: int
    first_offset: int
    epoch: int
    coordinator_epoch: int


class _End(NamedTuple):
    """The marker that an open transaction gets."""

    opened: _OpenTransaction
    decision: Decision

    @property
    def epoch(self) -> int:
        """The producer epoch of the marker."""
        epoch = self.decision.producer_epoch
        return self.opened.epoch if epoch is None else epoch


@dataclass(slots=True)
class EndedTransactions:
    """What was done, a line each; ``undecided`` says by partition what was left open, and why."""

    aborted: list[str] = field(default_factory=list)
    committed: list[str] = field(default_factory=list)
    undecided: dict[TopicPartition, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether a marker was written."""
        return bool(self.aborted or self.committed)

    def note(self, key: TopicPartition, ends: Sequence[_End], end: int) -> None:
        """Add what markers from the offset ``end`` on say."""
        for number, (each, decision) in enumerate(ends):
            lines = self.aborted if decision.marker == MarkerType.ABORT else self.committed
            lines.append(
                f"{key}: the transaction of producer {each.producer_id} (epoch {each.epoch}) that "
                f"began at offset {each.first_offset} is {_ENDED[decision.marker]} at offset "
                f"{end + number} ({decision.reason})"
            )


class TransactionEnds:
    """Tells how the open transactions of a set end: by what their coordinators have noted.

    Args:
        log_set: the set; what lies in it of ``__transaction_state`` is read, of several nodes what
            a leader would have.
        copies: log directories, or folders of partitions, with more of it.
        producers: whose transactions are to be aborted where no record tells how they end.
        metadata: log directories with copies of the cluster's metadata, besides those of the set.

    Raises:
        KafkaLogError: a folder of ``copies`` is no log directory.
    """

    def __init__(
        self,
        log_set: LogSet,
        copies: Collection[Path] = (),
        producers: Collection[int] = (),
        metadata: Collection[Path] = (),
    ) -> None:
        self._producers = frozenset(producers)
        count = _partition_count([*log_set.directories, *copies], metadata)
        self._states = TransactionStates(count)
        listings = [*log_set.node.replicas(), *(LogDirs([each]).partitions() for each in copies)]
        for number, folder in sorted(_newest_copies(listings).items()):
            self._states.read(folder, number, _epoch_of(folder))

    def of(
        self, key: TopicPartition, folder: Path, end: int
    ) -> tuple[list[_End], list[tuple[_OpenTransaction, Undecided]]]:
        """Return the transactions that are open at the end of a log, the oldest first.

        That is how they end, and those of which nothing tells how.
        """
        ends, undecided = [], []
        for each in _opened(folder, end):
            producer = each.producer_id
            markers = partial(_newest_marker_ms, folder, producer)
            decision = self._states.decide(key, producer, each.epoch, markers)
            if isinstance(decision, Undecided) and each.producer_id in self._producers:
                decision = Decision(MarkerType.ABORT, None, 0, "the producer was named")
            if isinstance(decision, Undecided):
                undecided.append((each, decision))
            else:
                ends.append(_End(each, decision))
        return ends, undecided

    def preview(self, key: TopicPartition, folder: Path, end: int, ended: EndedTransactions) -> int:
        """Note in ``ended`` what would be done at the end of a log; return the end after that.

        Raises:
            CommitError: a transaction would stay open.
        """
        ends, undecided = self.of(key, folder, end)
        ended.note(key, ends, end)
        end += len(ends)
        if undecided:
            stable = undecided[0][0].first_offset
            raise open_transaction_error(folder, key, stable, end, _advice(undecided))
        return end


def _partition_count(directories: Sequence[Path], metadata: Collection[Path]) -> int | None:
    """Return how many partitions ``__transaction_state`` has; None where no metadata tells."""
    with suppress(KafkaLogError, OSError):
        view = newest_view(directories, metadata)
        for key, name in view.names.items() if view is not None else ():
            if view is not None and name == TRANSACTIONS_TOPIC:
                return len(view.partitions.get(key, ())) or None
    return None


def _newest_copies(
    listings: Sequence[Mapping[TopicPartition, PartitionDirectory]],
) -> dict[int, Path]:
    """Choose of each partition of ``__transaction_state`` the copy that a leader would have."""
    found: dict[int, list[Path]] = {}
    for listing in listings:
        for key, where in listing.items():
            if key.topic == TRANSACTIONS_TOPIC:
                found.setdefault(key.partition, []).append(where.path)
    return {
        number: max(copies, key=partial(_rank, TopicPartition(TRANSACTIONS_TOPIC, number)))
        for number, copies in found.items()
    }


def _rank(key: TopicPartition, folder: Path) -> tuple[int, int, bool]:
    """Rank a copy of a log: by its last leader epoch, its end, and whether all of it is whole.

    Not by its size: each replica is compacted by itself. A longer copy that is damaged comes before
    a shorter one, which lacks what was decided last.
    """
    try:
        with PartitionLog(folder, key) as log:
            end = log.log_end().offset
            is_whole = not log.log_end(verify_from=log.log_start_offset).is_damage
        epochs = [each.epoch for each in read_leader_epochs(folder) if each.start_offset <= end]
    except (KafkaLogError, OSError):
        return _epoch_of(folder), sys.maxsize, False
    return max(epochs, default=0), end, is_whole


def _epoch_of(folder: Path) -> int:
    """Return the newest leader epoch of a log; 0 where its file cannot be read."""
    with suppress(CheckpointError):
        return last_epoch(folder)
    return 0


def end_transactions(log_set: LogSet, known: TransactionEnds) -> EndedTransactions:
    """End the open transactions of a set, whose locks are held and whose torn tails are cut.

    Logs that do not end with a valid batch are left alone, and so are a broker's own topics, but
    for the positions of its groups.
    """
    done = EndedTransactions()
    for key, found in log_set.partitions().items():
        topic_id = read_topic_id(found.path)
        topic = log_set.state.topic(key.topic, topic_id)
        if key.topic in INTERNAL_TOPICS - {OFFSETS_TOPIC} and topic is None:
            continue
        with suppress(CorruptRecordError):
            end_transactions_of(key, found, log_set, known, done)
    return done


def end_transactions_of(
    key: TopicPartition,
    found: PartitionDirectory,
    log_set: LogSet,
    known: TransactionEnds,
    done: EndedTransactions,
) -> None:
    """End the open transactions of one log, and note it in ``done``.

    REQUIRES: the locks of the set are held, and a torn tail is cut.

    Raises:
        CorruptRecordError: the log does not end with a valid batch.
        OSError, KafkaLogError: it cannot be read or written, or the locks are lost.
    """
    topic_id = read_topic_id(found.path)
    topic = log_set.state.topic(key.topic, topic_id)
    config = LogConfig.of_topic(topic.settings if topic else {})
    now_ms = system.time_ns() // 1_000_000
    appender = PartitionAppender(found.path, key, config, now_ms=now_ms, topic_id=topic_id)
    ends, undecided = known.of(key, found.path, appender.log_end_offset)
    if undecided:
        done.undecided[key] = _advice(undecided)
    log_set.check_current()
    done.note(key, ends, appender.log_end_offset)
    if ends:
        _write(appender, found, ends, [each for each, _ in undecided], now_ms)


def _advice(undecided: Sequence[tuple[_OpenTransaction, Undecided]]) -> str:
    """Say which transactions stay open, why, and what to do about it."""
    found = [
        f"that of producer {each.producer_id} (epoch {each.epoch}, from offset "
        f"{each.first_offset} on): {why.reason}"
        for each, why in undecided
    ]
    named = " ".join(f"--abort-producer {each.producer_id}" for each, _ in undecided)
    return (
        f"How it ends is not known here, and was not guessed. {'; '.join(found)}. Let the broker "
        f"end it. Or name the folder around a copy of {TRANSACTIONS_TOPIC} of the broker that was "
        "its coordinator with --abort-open-transactions --transaction-state DIR. If there is no "
        "such copy any more, and its records may be aborted though other partitions may have "
        f"committed theirs: --abort-open-transactions {named}"
    )


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


def _newest_marker_ms(folder: Path, producer_id: int) -> int:
    """Return when the last marker of a producer in a log was written; -1 if there is none."""
    newest = -1
    for _, chunk in walk_batches(folder, 0):
        table = chunk.table
        markers = table.is_control & (table.count > 0) & (table.producer_id == producer_id)
        newest = max([newest, *table.max_timestamp[markers].tolist()])
    return newest


def _coordinator_epochs(folder: Path) -> dict[int, int]:
    """Return the epoch of the coordinator that wrote each producer's last marker, if known."""
    for offset in reversed(list_snapshots(folder)):
        with suppress(CheckpointError, FileNotFoundError):
            entries = read_snapshot(folder / file_name(offset, SNAPSHOT))
            epochs = np.maximum(entries["coordinator_epoch"], 0).tolist()
            return dict(zip(entries["producer_id"].tolist(), epochs, strict=True))
    return {}


def _write(
    appender: PartitionAppender,
    found: PartitionDirectory,
    ends: Sequence[_End],
    left: Sequence[_OpenTransaction],
    now_ms: int,
) -> None:
    """Append markers, durably; the transactions that are ``left`` stay open."""
    end = appender.log_end_offset
    batches = b"".join(
        end_transaction_marker(
            each.decision.marker,
            end + number,
            leader_epoch=appender.leader_epoch,
            timestamp_ms=now_ms,
            producer_id=each.opened.producer_id,
            producer_epoch=each.epoch,
            coordinator_epoch=max(each.opened.coordinator_epoch, each.decision.coordinator_epoch),
        )
        for number, each in enumerate(ends)
    )
    data = np.frombuffer(batches, np.uint8)
    plan = appender.plan([scan_batches(data).table])
    remove_clean_shutdown_marker(found.log_dir)
    _index(found.path, plan, _entries(ends, left, end), end)
    appender.apply(plan, [BufferSource(data)], _sync_and_close)
    for path in (*plan.created_files(), *plan.index_files(sealed=True)):
        fsync_file(path, missing_ok=True)
    fsync_directory(found.path)


def _entries(
    ends: Sequence[_End], left: Sequence[_OpenTransaction], end: int
) -> dict[int, AbortedTransaction]:
    """Return what the index says of each ABORT marker, by its offset."""
    entries = {}
    for number, (opened, decision) in enumerate(ends):
        others = [each.opened for each in ends[number + 1 :]] + [*left]
        marker = end + number
        if decision.marker == MarkerType.ABORT:
            stable = min((each.first_offset for each in others), default=marker + 1)
            entries[marker] = AbortedTransaction(
                opened.producer_id, opened.first_offset, marker, stable
            )
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
