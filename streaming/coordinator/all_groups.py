"""All consumer groups that a partition of ``__consumer_offsets`` knows: metadata and positions.

A group that a broker keeps by the newer protocol (KIP-848) has records of other types. Of that one
the positions are known, and no metadata.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kafkalog.errors import CorruptRecordError
from kafkalog.streaming.coordinator.group_metadata import decode_group_metadata
from kafkalog.streaming.coordinator.group_positions import PositionsReplay
from kafkalog.streaming.coordinator.group_replay import replay_records
from kafkalog.streaming.coordinator.records import decode_key
from kafkalog.streaming.coordinator.schemas import OFFSETS_RECORD_TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.coordinator.group_metadata import GroupMetadata
    from kafkalog.streaming.coordinator.group_positions import CommittedOffset
    from kafkalog.streaming.log.partition_log import PartitionLog

__all__ = ["KnownGroup", "is_newer_key", "read_groups"]

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
