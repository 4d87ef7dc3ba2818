"""The positions that consumer groups committed: a fold over one partition of their topic.

This is what a group coordinator does when it loads a partition of ``__consumer_offsets`` (Kafka
``OffsetMetadataManager.replay`` and ``replayEndTransactionMarker``), in offset order:

* A commit outside a transaction counts at once. For a topic partition of a group, the later commit
  wins.
* A commit whose batch has a producer id is pending until that producer's marker. ABORT drops it.
  COMMIT makes it count, unless a commit at a higher offset counts already. What is pending at the
  end does not count.
* A tombstone removes the position, and what is pending for it.

Positions do not expire here: a broker forgets those of a group that is long empty, by its own clock
and settings, and writes tombstones when it does.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from kafkalog.errors import CorruptRecordError
from kafkalog.model import NO_PRODUCER_ID, OFFSETS_TOPIC, TopicPartition
from kafkalog.streaming.coordinator.records import decode_key, decode_value
from kafkalog.streaming.coordinator.schemas import (
    OFFSET_COMMIT_VALUE,
    OFFSETS_RECORD_TYPES,
)
from kafkalog.streaming.records.control import MarkerType

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "DEFAULT_OFFSETS_PARTITIONS",
    "CommittedOffset",
    "GroupPositions",
    "PositionsReplay",
    "ReplayRecord",
    "group_positions",
    "partition_for_group",
]

DEFAULT_OFFSETS_PARTITIONS: Final = 50
"""Kafka's default of ``offsets.topic.num.partitions``."""

_OFFSET_COMMIT_PREFIXES: Final = (b"\x00\x00", b"\x00\x01")
_KEY_PREFIX_BYTES: Final = 2


class ReplayRecord(NamedTuple):
    """One record of ``__consumer_offsets``, or one control record between them.

    ``producer_id`` is its batch's, ``marker_type`` a control record's type (whose key and value are
    not looked at) and None for all other records.
    """

    offset: int
    key: bytes | None
    value: bytes | None
    producer_id: int = NO_PRODUCER_ID
    marker_type: int | None = None


class CommittedOffset(NamedTuple):
    """A group's position in one topic partition: the next offset to consume, and what came with it.

    ``leader_epoch`` is -1 for none; the timestamps are in ms, ``expire_timestamp_ms`` -1 unless the
    commit asked for a time of its own; ``record_offset`` is where in the log it was committed.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int
    record_offset: int


GroupPositions: TypeAlias = dict[str, dict[TopicPartition, CommittedOffset]]


class _Commit(NamedTuple):
    record_offset: int
    key: bytes
    value: bytes


# By the bytes of the key after its int16: only what counts in the end is decoded.
_Commits: TypeAlias = dict[bytes, _Commit]


def group_positions(
    records: Iterable[ReplayRecord],
    *,
    group: str | None = None,
    log_name: str = OFFSETS_TOPIC,
) -> GroupPositions:
    """Replay the commits of one partition of ``__consumer_offsets``.

    Args:
        records: all of its records and markers, in offset order, up to where the log is committed.
            Partitions are replayed each on its own: a producer's markers are one per partition.
        group: look at this group only; damage in the records of others is not even seen.
        log_name: stands in errors for where the records come from.

    Returns:
        The positions of every group that has any.

    Raises:
        CorruptRecordError: a commit that counts cannot be decoded; names its offset in the log.
    """
    replay = PositionsReplay(group=group, log_name=log_name)
    for record in records:
        replay.feed(record)
    return replay.positions()


class PositionsReplay:
    """The same, record by record; :meth:`positions` tells where the groups stand so far."""

    def __init__(self, *, group: str | None = None, log_name: str = OFFSETS_TOPIC) -> None:
        self._group = group
        self._log_name = log_name
        self._prefixes = _key_prefixes(group)
        self._committed: _Commits = {}
        self._pending: dict[int, _Commits] = {}

    def feed(self, record: ReplayRecord) -> None:
        """Take the next record or marker.

        Raises:
            CorruptRecordError: it has no key; not where one group alone is looked at.
        """
        if record.marker_type is not None:
            _end_transaction(self._committed, self._pending, record)
        elif record.key is not None and record.key.startswith(self._prefixes):
            _replay_commit(self._committed, self._pending, record.key, record)
        elif self._group is None and len(record.key or b"") < _KEY_PREFIX_BYTES:
            raise CorruptRecordError(
                f"{self._log_name} offset {record.offset}: the record has no key that says what "
                "it is",
                offset=record.offset,
            )

    def positions(self) -> GroupPositions:
        """Return the positions of every group that has any.

        Raises:
            CorruptRecordError: a commit that counts cannot be decoded; names its offset in the log.
        """
        return _decode_commits(self._committed.values(), self._log_name)


def partition_for_group(group: str, partitions: int = DEFAULT_OFFSETS_PARTITIONS) -> int:
    """Return the partition of ``__consumer_offsets`` that a group's records lie in.

    The same holds for a transactional id and ``__transaction_state`` (Kafka
    ``GroupCoordinatorService.partitionFor``, ``TransactionStateManager.partitionFor``).

    Args:
        group: the group's id.
        partitions: how many partitions the topic has.
    """
    code = _java_hash(group)
    return 0 if code == -(2**31) else abs(code) % partitions


def _java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: over UTF-16 code units, wrapping at 32 bits."""
    code = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass")):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code - 2**32 if code >= 2**31 else code


def _key_prefixes(group: str | None) -> tuple[bytes, ...]:
    """Return what the keys of offset commits, of one group if named, start with."""
    if group is None:
        return _OFFSET_COMMIT_PREFIXES
    name = group.encode("utf-8", "replace")  # a lone surrogate becomes "?", as in Java
    if len(name) >= 2**15:
        return ()  # no key can hold it
    return tuple(prefix + struct.pack(">h", len(name)) + name for prefix in _OFFSET_COMMIT_PREFIXES)


def _replay_commit(
    committed: _Commits, pending: dict[int, _Commits], key: bytes, record: ReplayRecord
) -> None:
    identity = key[_KEY_PREFIX_BYTES:]
    if record.value is None:
        committed.pop(identity, None)
        for commits in pending.values():
            commits.pop(identity, None)
        return
    commit = _Commit(record.offset, key, record.value)
    if record.producer_id == NO_PRODUCER_ID:
        committed[identity] = commit
    else:
        pending.setdefault(record.producer_id, {})[identity] = commit


def _end_transaction(
    committed: _Commits, pending: dict[int, _Commits], marker: ReplayRecord
) -> None:
    if marker.marker_type not in {MarkerType.ABORT, MarkerType.COMMIT}:
        return
    ended = pending.pop(marker.producer_id, {})
    if marker.marker_type == MarkerType.COMMIT:
        for identity, commit in ended.items():
            current = committed.get(identity)
            if current is None or commit.record_offset > current.record_offset:
                committed[identity] = commit


def _decode_commits(commits: Iterable[_Commit], log_name: str) -> GroupPositions:
    positions: GroupPositions = {}
    for commit in commits:
        try:
            key = decode_key(OFFSETS_RECORD_TYPES, commit.key).fields
            value = decode_value(OFFSET_COMMIT_VALUE, commit.value).fields
        except CorruptRecordError as error:
            raise type(error)(
                f"{log_name} offset {commit.record_offset}: {error}", offset=commit.record_offset
            ) from error
        topic_partition = TopicPartition(key["topic"], key["partition"])
        positions.setdefault(key["group"], {})[topic_partition] = CommittedOffset(
            offset=value["offset"],
            leader_epoch=value["leaderEpoch"],
            metadata=value["metadata"],
            commit_timestamp_ms=value["commitTimestamp"],
            expire_timestamp_ms=value["expireTimestamp"],
            record_offset=commit.record_offset,
        )
    return positions
