"""Groups and their positions, read from the log of a ``__consumer_offsets`` partition."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from kafkalog.errors import CorruptRecordError
from kafkalog.streaming.coordinator.group_metadata import decode_group_metadata
from kafkalog.streaming.coordinator.group_positions import (
    UNDECODABLE_MARKER,
    PositionsReplay,
    ReplayRecord,
    group_positions,
)
from kafkalog.streaming.coordinator.records import decode_key
from kafkalog.streaming.coordinator.schemas import OFFSETS_RECORD_TYPES
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.records.control import as_data_batches, marker_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.coordinator.group_metadata import GroupMetadata
    from kafkalog.streaming.coordinator.group_positions import CommittedOffset, GroupPositions
    from kafkalog.streaming.log.partition_log import PartitionLog
    from kafkalog.streaming.records.arrow_buffers import Bytes
    from kafkalog.streaming.records.batch import BatchTable


__all__ = [
    "KnownGroup",
    "ReplayDecoder",
    "is_newer_key",
    "read_group_positions",
    "read_groups",
    "replay_records",
]


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
