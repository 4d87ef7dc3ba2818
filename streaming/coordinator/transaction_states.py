"""How transaction coordinators let transactions end, as they noted it in ``__transaction_state``.

A coordinator decides first, and has the markers written afterwards: its record says PrepareCommit
or PrepareAbort, and names the partitions that are to get a marker. A broker that becomes the
coordinator after a crash completes what was prepared, in each of these partitions. What is merely
ongoing it aborts when ``transaction.timeout.ms`` is over. The newest record of each transactional
id counts. Older ones that compaction has left tell of a marker that the end of a log has lost:

===============  =============================  ================================================
newest record    transaction of epoch e         ends as
===============  =============================  ================================================
PrepareCommit    in a partition that it names   COMMIT, of the record's epoch
PrepareAbort     in a partition that it names   ABORT, of the record's epoch
Ongoing          of the same epoch              nothing is decided: ABORT
any              an older record prepared it    what that record says: its marker was lost
any other        none of the above              nobody decides any more (it hangs): ABORT
any              of a higher epoch than its     unknown: the records are older than the data
none             none of the above              unknown; ABORT if all records are there
===============  =============================  ================================================

With transaction version 2 (KIP-890) the epoch is raised as each transaction is prepared: batches of
epoch e are ended by what was prepared as e + 1. Before it, only a fenced producer's is raised.

Source: Kafka ``TransactionStateManager.loadTransactionMetadata``, ``TransactionCoordinator``,
``TransactionMetadata.prepareAbortOrCommit``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.errors import CorruptRecordError, KafkaLogError
from kafkalog.model import TRANSACTIONS_TOPIC, TopicPartition, listed
from kafkalog.streaming.coordinator.group_replay import replay_records
from kafkalog.streaming.coordinator.schemas import (
    TRANSACTION_STATES,
    TRANSACTIONS_RECORD_TYPES,
    decode_key,
    decode_value,
)
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.records.control import MarkerType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from kafkalog.streaming.coordinator.message_schema import Fields

__all__ = ["Decision", "TransactionStates", "Undecided"]

_PREPARED: Final = {"PrepareCommit": MarkerType.COMMIT, "PrepareAbort": MarkerType.ABORT}
_NOT_DECIDED: Final = frozenset({"Ongoing", "PrepareEpochFence"})
_BUMPS_EPOCHS: Final = 2
"""The transaction version of a client from which on each transaction has an epoch of its own."""


class Undecided(NamedTuple):
    """Why the records that are there do not tell how a transaction ends."""

    reason: str


class Decision(NamedTuple):
    """The marker that ends a transaction, and why it is this one.

    ``producer_epoch`` is None where the transaction's own is to be taken.
    """

    marker: MarkerType
    producer_epoch: int | None
    coordinator_epoch: int
    reason: str


class _State(NamedTuple):
    """A record of a transactional id, which lies in the partition ``number`` at ``offset``."""

    number: int
    offset: int
    transactional_id: str
    status: str
    producer_id: int
    previous_producer_id: int
    epoch: int
    bumps_epochs: bool
    partitions: frozenset[TopicPartition]
    updated_ms: int

    @property
    def name(self) -> str:
        """The record, for messages."""
        return (
            f"{self.status} of transactional id {self.transactional_id!r}, "
            f"{TRANSACTIONS_TOPIC}-{self.number} offset {self.offset}"
        )


@dataclass(slots=True)
class TransactionStates:
    """The records of all partitions of ``__transaction_state`` that are there.

    ``count`` is how many partitions the topic has, None if nothing tells.
    """

    count: int | None = None
    _numbers: set[int] = field(default_factory=set)
    _epochs: dict[int, int] = field(default_factory=dict)
    _newest: dict[str, _State | None] = field(default_factory=dict)
    _prepared: dict[int, list[_State]] = field(default_factory=dict)
    _unreadable: list[str] = field(default_factory=list)

    def read(self, folder: Path, number: int, leader_epoch: int) -> None:
        """Read a partition from its folder, up to the last valid batch as its leader would.

        What cannot be read is noted: producers that nothing else tells of are undecided then.
        """
        key = TopicPartition(TRANSACTIONS_TOPIC, number)
        self._numbers.add(number)
        self._epochs[number] = leader_epoch
        try:
            with PartitionLog(folder, key) as log:
                start = log.log_start_offset
                end = log.log_end(verify_from=start)
                if end.is_damage:
                    self._unreadable.append(f"{folder} is damaged after offset {end.offset}")
                for record in replay_records(log, start, end.offset):
                    if record.marker_type is None:
                        self.feed(number, record.offset, record.key, record.value)
        except (KafkaLogError, OSError) as error:
            self._unreadable.append(f"{folder} cannot be read: {error}")

    def feed(self, number: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Take the next record of a partition."""
        self._numbers.add(number)
        where = f"{TRANSACTIONS_TOPIC}-{number} offset {offset}"
        try:
            decoded = decode_key(TRANSACTIONS_RECORD_TYPES, key)
        except CorruptRecordError as error:
            self._unreadable.append(f"{where}: {error}")
            return
        if decoded.record_type is None or decoded.record_type.value is None:
            return  # of a newer version, which says something else
        name = decoded.fields["transactionalId"]
        if value is None:
            self._newest.pop(name, None)
            return
        try:
            fields = decode_value(decoded.record_type.value, value).fields
            self._take(_state(number, offset, name, fields))
        except CorruptRecordError as error:
            self._unreadable.append(f"{where}: {error}")
            self._newest[name] = None

    def _take(self, state: _State) -> None:
        self._newest.pop(state.transactional_id, None)
        self._newest[state.transactional_id] = state
        if state.status in _PREPARED:
            self._prepared.setdefault(state.producer_id, []).append(state)

    def decide(
        self,
        key: TopicPartition,
        producer_id: int,
        epoch: int,
        newest_marker_ms: Callable[[], int],
    ) -> Decision | Undecided:
        """Return how a transaction ends that is open at the end of a log.

        Args:
            key: the partition.
            producer_id: whose transaction it is.
            epoch: of its last batch.
            newest_marker_ms: returns when the producer's last marker in that log was written, -1
                if there is none.
        """
        newest = self._newest_of(producer_id)
        is_its = newest is not None and newest.producer_id == producer_id
        found = self._by_newest(newest, key, epoch) if newest is not None and is_its else None
        if found is not None:
            return found
        for state in reversed(self._prepared.get(producer_id, [])):
            if key in state.partitions and _ended(state, epoch, newest_marker_ms):
                return self._as_prepared(state)
        if newest is not None:
            reason = f"it hangs: its coordinator has gone on to {newest.name}"
            return self._aborting(newest, reason)
        lacking = self._lacking()
        if lacking is not None:
            return Undecided(lacking)
        return Decision(MarkerType.ABORT, None, 0, "no coordinator knows the producer")

    def _by_newest(
        self, newest: _State, key: TopicPartition, epoch: int
    ) -> Decision | Undecided | None:
        """Return what the newest record says of a transaction of its producer; None if nothing."""
        if epoch > newest.epoch:
            return Undecided(
                f"its producer epoch is {epoch}, and the newest record of its coordinator is of "
                f"epoch {newest.epoch} ({newest.name}): the records are older than the data"
            )
        if newest.status in _PREPARED and key in newest.partitions:
            return self._as_prepared(newest)
        if newest.status in _NOT_DECIDED and epoch == newest.epoch:
            return self._aborting(newest, f"nothing was decided: {newest.name}")
        return None

    def _aborting(self, newest: _State, reason: str) -> Decision:
        return Decision(MarkerType.ABORT, None, self._epochs.get(newest.number, 0), reason)

    def _as_prepared(self, state: _State) -> Decision:
        epoch = self._epochs.get(state.number, 0)
        return Decision(_PREPARED[state.status], state.epoch, epoch, state.name)

    def _newest_of(self, producer_id: int) -> _State | None:
        """Return the newest record of the transactional id that has, or had, a producer id."""
        states = [each for each in self._newest.values() if each is not None]
        for state in states:
            if state.producer_id == producer_id:
                return state
        for state in states:
            if state.previous_producer_id == producer_id:
                return state
        return None

    def _lacking(self) -> str | None:
        """Say which records that are not here, or cannot be read, may know a producer; or None."""
        if self._unreadable:
            return "records that may name it cannot be read: " + "; ".join(self._unreadable[:3])
        if not self._numbers:
            return f"the records of its coordinator are not here: there is no {TRANSACTIONS_TOPIC}"
        shown = listed(f"{TRANSACTIONS_TOPIC}-{number}" for number in sorted(self._numbers))
        if self.count is None:
            return (
                f"no record in {shown} names it, and nothing tells whether the topic has more "
                "partitions"
            )
        missing = sorted(set(range(self.count)) - self._numbers)
        if not missing:
            return None
        lost = listed(f"{TRANSACTIONS_TOPIC}-{number}" for number in missing)
        return f"no record in {shown} names it, and these are not here: {lost}"


def _state(number: int, offset: int, name: str, fields: Fields) -> _State:
    status = fields["transactionStatus"]
    if not 0 <= status < len(TRANSACTION_STATES):
        raise CorruptRecordError(f"value: transactionStatus {status} is not known")
    return _State(
        number,
        offset,
        name,
        TRANSACTION_STATES[status],
        fields["producerId"],
        fields["previousProducerId"],
        fields["producerEpoch"],
        fields["clientTransactionVersion"] >= _BUMPS_EPOCHS,
        _partitions(fields["transactionPartitions"]),
        fields["transactionLastUpdateTimestampMs"],
    )


def _partitions(topics: Iterable[Mapping[str, object]] | None) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(str(each["topic"]), number)
        for each in topics or ()
        for number in _numbers_of(each["partitionIds"])
    )


def _numbers_of(numbers: object) -> Sequence[int]:
    return numbers if isinstance(numbers, list) else ()


def _ended(state: _State, epoch: int, newest_marker_ms: Callable[[], int]) -> bool:
    """Return whether a transaction of an epoch is the one that a record prepared.

    Where epochs do not tell, it is if the producer's last marker in the log is older than that.
    """
    if state.bumps_epochs:
        return state.epoch == epoch + 1
    return state.epoch == epoch and newest_marker_ms() < state.updated_ms
