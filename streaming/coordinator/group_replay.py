"""Groups and their positions, replayed from the log of a ``__consumer_offsets`` partition."""

from __future__ import annotations

import itertools
import logging
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from kafkalog.errors import CorruptRecordError
from kafkalog.model import NO_PRODUCER_ID, OFFSETS_TOPIC, TopicPartition, many
from kafkalog.streaming.coordinator.group_metadata import decode_group_metadata
from kafkalog.streaming.coordinator.schemas import (
    OFFSET_COMMIT_VALUE,
    OFFSETS_RECORD_TYPES,
    decode_key,
    decode_value,
)
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.records.control import MarkerType, as_data_batches, marker_type

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from kafkalog.streaming.coordinator.group_metadata import GroupMetadata
    from kafkalog.streaming.log.partition_log import PartitionLog
    from kafkalog.streaming.records.arrow_buffers import Bytes
    from kafkalog.streaming.records.batch import BatchTable


__all__ = [
    "DEFAULT_OFFSETS_PARTITIONS",
    "UNDECODABLE_MARKER",
    "CommittedOffset",
    "GroupPositions",
    "KnownGroup",
    "PositionsReplay",
    "ReplayDecoder",
    "ReplayRecord",
    "group_positions",
    "is_newer_key",
    "partition_for_group",
    "read_group_positions",
    "read_groups",
    "replay_records",
]


# ----------------------------------------------------------------------------------------------
# The positions that consumer groups committed: a fold over one partition of their topic.
#
# This is what a group coordinator does when it loads a partition of ``__consumer_offsets`` (Kafka
# ``OffsetMetadataManager.replay`` and ``replayEndTransactionMarker``), in offset order:
#
# * A commit outside a transaction counts at once. For a topic partition of a group, the later
#   commit wins.
# * A commit whose batch has a producer id is pending until that producer's marker. ABORT drops it.
#   COMMIT makes it count, unless a commit at a higher offset counts already. What is pending at the
#   end does not count.
# * A tombstone removes the position, and what is pending for it.
#
# A record that cannot be decoded, such as one of a later broker's version, is a problem of its
# own group alone. Where all groups are asked for, it is passed over, and one warning counts such
# records.
#
# Positions do not expire here: a broker forgets those of a group that is long empty, by its own
# clock and settings, and writes tombstones when it does.


DEFAULT_OFFSETS_PARTITIONS: Final = 50
"""Kafka's default of ``offsets.topic.num.partitions``."""

UNDECODABLE_MARKER: Final = -1
"""The ``marker_type`` of a control record whose key cannot be decoded."""

_LOGGER: Final = logging.getLogger("kafkalog.source")

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
        log_name: stands in errors and warnings for where the records come from.

    Returns:
        The positions of every group that has any.

    Raises:
        CorruptRecordError: a commit of ``group`` that counts cannot be decoded; names its offset in
            the log. Without ``group``, such commits are passed over with a warning.
    """
    replay = PositionsReplay(group=group, log_name=log_name)
    for record in records:
        replay.feed(record)
    return replay.positions()


class PositionsReplay:
    """The same, record by record; :meth:`positions` returns where the groups stand so far."""

    def __init__(
        self,
        *,
        group: str | None = None,
        only: Collection[str] = (),
        log_name: str = OFFSETS_TOPIC,
    ) -> None:
        """Begin; ``only`` these groups are kept, if any is named, and damage is that of all."""
        self._group = group
        self._log_name = log_name
        self._prefixes = _key_prefixes(group)
        if only:
            self._prefixes = tuple(itertools.chain.from_iterable(map(_key_prefixes, only)))
        self._committed: _Commits = {}
        self._pending: dict[int, _Commits] = {}
        self._undecodable: dict[int, str] = {}
        self._warned = 0

    def feed(self, record: ReplayRecord) -> None:
        """Take the next record or marker.

        Raises:
            CorruptRecordError: a marker that ends a transaction of the one group that is asked for
                cannot be decoded.
        """
        if record.marker_type == UNDECODABLE_MARKER:
            if self._group is None or record.producer_id in self._pending:
                error = CorruptRecordError("the control record has no key that says what it is")
                self.pass_over(record.offset, error)
        elif record.marker_type is not None:
            _end_transaction(self._committed, self._pending, record)
        elif record.key is not None and record.key.startswith(self._prefixes):
            _replay_commit(self._committed, self._pending, record.key, record)
        elif self._group is None and len(record.key or b"") < _KEY_PREFIX_BYTES:
            error = CorruptRecordError("the record has no key that says what it is")
            self.pass_over(record.offset, error)

    def pass_over(self, offset: int, error: CorruptRecordError) -> None:
        """Note that the record at ``offset`` cannot be decoded: the other groups are known.

        Raises:
            CorruptRecordError: one group alone is asked for, and this record is one of it.
        """
        if self._group is not None:
            text = f"{self._log_name} offset {offset}: {error}"
            raise type(error)(text, offset=offset) from error
        self._undecodable[offset] = str(error)

    def positions(self) -> GroupPositions:
        """Return the positions of every group that has any.

        Raises:
            CorruptRecordError: a commit of the one group that is asked for cannot be decoded; names
                its offset in the log.
        """
        positions: GroupPositions = {}
        for commit in self._committed.values():
            try:
                group, topic_partition, committed = _decode_commit(commit)
            except CorruptRecordError as error:
                self.pass_over(commit.record_offset, error)
            else:
                positions.setdefault(group, {})[topic_partition] = committed
        self._warn()
        return positions

    def _warn(self) -> None:
        """Warn of what is passed over, once for as many records as there are."""
        if len(self._undecodable) > self._warned:
            self._warned = len(self._undecodable)
            first = min(self._undecodable)
            _LOGGER.warning(
                "%s: %s cannot be decoded, and what it says of its group is not known. First: "
                "offset %d: %s. view=offsets shows each",
                self._log_name,
                many(self._warned, "record"),
                first,
                self._undecodable[first],
            )


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


def _decode_commit(commit: _Commit) -> tuple[str, TopicPartition, CommittedOffset]:
    key = decode_key(OFFSETS_RECORD_TYPES, commit.key).fields
    value = decode_value(OFFSET_COMMIT_VALUE, commit.value).fields
    committed = CommittedOffset(
        offset=value["offset"],
        leader_epoch=value["leaderEpoch"],
        metadata=value["metadata"],
        commit_timestamp_ms=value["commitTimestamp"],
        expire_timestamp_ms=value["expireTimestamp"],
        record_offset=commit.record_offset,
    )
    return key["group"], TopicPartition(key["topic"], key["partition"]), committed


# ----------------------------------------------------------------------------------------------
# The positions of consumer groups, read from the log of a ``__consumer_offsets`` partition.
#
# The replay needs producer ids and transaction markers, which no client ever gets. They stand in
# the batches, and :class:`ReplayDecoder` keeps them beside each record.


def read_group_positions(
    log: PartitionLog, end_offset: int, *, group: str | None = None
) -> GroupPositions:
    """Replay a partition of ``__consumer_offsets`` from its log start offset.

    Args:
        log: the partition.
        end_offset: where it is committed; nothing from there on counts.
        group: look at this group only, which lies in :func:`partition_for_group` of the topic.

    Raises:
        CorruptRecordError: the log cannot be read, or a commit of ``group`` that counts cannot be
            decoded.
        DataLossError: the log ends before ``end_offset``.
    """
    records = replay_records(log, log.log_start_offset, end_offset)
    return group_positions(records, group=group, log_name=str(log.directory))


def replay_records(log: PartitionLog, start_offset: int, end_offset: int) -> Iterator[ReplayRecord]:
    """Read the records and markers ``[start_offset, end_offset)``.

    Raises:
        CorruptRecordError: the log cannot be read.
        DataLossError: the log ends before ``end_offset``.
    """
    decoder = ReplayDecoder()
    for planned in log.slices(start_offset, end_offset):
        for batch in log.read_slice(planned, decoder):
            columns = (column.to_pylist() for column in batch.columns)
            for key, value, offset, producer_id, is_control in zip(*columns, strict=True):
                if is_control:
                    yield ReplayRecord(offset, None, None, producer_id, _marker_type(key))
                else:
                    yield ReplayRecord(offset, key, value, producer_id)


def _marker_type(key: bytes | None) -> int:
    try:
        return marker_type(key)
    except CorruptRecordError:
        return UNDECODABLE_MARKER


class ReplayDecoder:
    """Decodes all records, those of control batches too.

    The output's fields: ``key: binary``, ``value: binary``, ``offset: int64``, and of the record's
    batch ``producerId: int64`` and ``isControl: bool``. Not shared between threads.
    """

    def __init__(self) -> None:
        self._records = RecordDecoder(Columns.KEY | Columns.VALUE | Columns.OFFSET)

    def feed(
        self,
        data: Bytes,
        table: BatchTable,
        *,
        file_position: int,
        path: str,
        start_offset: int,
        end_offset: int,
    ) -> Iterator[pa.RecordBatch]:
        """Decode the rows with ``start_offset <= offset < end_offset``."""
        for run in _runs(table):
            producer_id, is_control = int(run.producer_id[0]), bool(run.is_control[0])
            for batch in self._records.decode(
                data,
                as_data_batches(run),
                file_position=file_position,
                path=path,
                start_offset=start_offset,
                end_offset=end_offset,
            ):
                rows = batch.num_rows
                yield batch.append_column(
                    "producerId", pa.repeat(pa.scalar(producer_id, pa.int64()), rows)
                ).append_column("isControl", pa.repeat(is_control, rows))

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Return nothing: no row is kept."""
        return iter(())


def _runs(table: BatchTable) -> Iterator[BatchTable]:
    """Cut a table where the producer, or what kind of batch it is, changes."""
    changes = (np.diff(table.producer_id) != 0) | (np.diff(table.is_control.view(np.int8)) != 0)
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(table)]
    for first, end in itertools.pairwise(bounds):
        if first < end:
            yield table[first:end]


# ----------------------------------------------------------------------------------------------
# All consumer groups that a partition of ``__consumer_offsets`` knows: metadata and positions.
#
# A group that a broker keeps by the newer protocol (KIP-848) has records of other types. Of that
# one the positions are known, and no metadata.


_METADATA_KEY: Final = b"\x00\x02"
_NEWER_KEY: Final = b"\x00\x03"
_LAST_CLASSIC: Final = 2


@dataclass(frozen=True, slots=True)
class KnownGroup:
    """A group; ``metadata`` is None for one that has committed positions and nothing else.

    ``is_newer`` is one of the newer protocol.
    """

    metadata: GroupMetadata | None = None
    positions: Mapping[TopicPartition, CommittedOffset] = field(default_factory=dict)
    is_newer: bool = False


def is_newer_key(key: bytes, group: str) -> bool:
    """Whether a record's key is of a group by a protocol newer than the classic one.

    All such keys begin with a type above 2 and the group's id (Kafka ``CoordinatorRecordType``).
    """
    name = group.encode("utf-8", "replace")
    kind = int.from_bytes(key[:2], "big")
    if kind <= _LAST_CLASSIC or kind not in OFFSETS_RECORD_TYPES:
        return False
    return key[2:].startswith(len(name).to_bytes(2, "big") + name)


def read_groups(log: PartitionLog, end_offset: int) -> dict[str, KnownGroup]:
    """Replay a partition of ``__consumer_offsets`` up to where it is committed, by group id.

    Records that cannot be decoded are passed over with a warning.

    Raises:
        CorruptRecordError: the log cannot be read.
        DataLossError: the log ends before ``end_offset``.
    """
    replay = PositionsReplay(log_name=str(log.directory))
    newest: dict[bytes, tuple[int, bytes]] = {}
    for record in replay_records(log, log.log_start_offset, end_offset):
        replay.feed(record)
        key = record.key or b""
        if record.marker_type is None and key.startswith((_METADATA_KEY, _NEWER_KEY)):
            newest.pop(key, None)
            if record.value is not None:
                newest[key] = record.offset, record.value
    metadata: dict[str, GroupMetadata | None] = {}
    newer = set()
    for key, (offset, value) in newest.items():
        try:
            fields = decode_key(OFFSETS_RECORD_TYPES, key).fields
            if key.startswith(_METADATA_KEY):
                metadata[fields["group"]] = decode_group_metadata(value)
            else:
                newer.add(fields["groupId"])
        except CorruptRecordError as error:
            replay.pass_over(offset, error)
    positions = replay.positions()
    return {
        group: KnownGroup(metadata.get(group), positions.get(group, {}), group in newer)
        for group in sorted(metadata.keys() | positions.keys() | newer)
    }
