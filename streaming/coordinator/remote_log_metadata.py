"""The records of ``__remote_log_metadata``: which segments a broker has in its remote tier.

A record's key is null. Its value is a message in a frame
(:func:`~kafkalog.streaming.coordinator.message_schema.read_frame`); by its api key:

====  ==================  =======================================================================
0     SegmentMetadata     a copy was started: the segment's offsets, leader epochs, size
1     …Update             the copy has finished, or the segment is being deleted or is deleted
2     PartitionDelete     all segments of a partition are being deleted, or are deleted
3     …Snapshot           as 0, without the topic; only in snapshot files
====  ==================  =======================================================================

A segment is there to read from the moment at which its copy has finished until its deletion starts.

Source: Kafka ``RemoteLogSegmentMetadataRecord.json`` and its like, ``RemoteLogMetadataSerde``,
``RemoteLogMetadataCache``, ``RemoteLogSegmentState``, ``RemotePartitionDeleteState``; KIP-405.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.errors import CorruptRecordError, UnsupportedFormatError
from kafkalog.streaming.coordinator.message_schema import (
    Field,
    Schema,
    array_of,
    int8,
    int32,
    int64,
    nullable_bytes,
    read_frame,
    string,
    struct_of,
    uuid,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.streaming.coordinator.message_schema import Fields, MessageReader

__all__ = [
    "REMOTE_LOG_METADATA_TOPIC",
    "SEGMENT_STATES",
    "RemoteLogRecord",
    "RemoteLogReplay",
    "RemoteSegment",
    "decode_remote_log_record",
]

REMOTE_LOG_METADATA_TOPIC: Final = "__remote_log_metadata"

SEGMENT_STATES: Final = {
    0: "COPY_SEGMENT_STARTED",
    1: "COPY_SEGMENT_FINISHED",
    2: "DELETE_SEGMENT_STARTED",
    3: "DELETE_SEGMENT_FINISHED",
}
"""Of ``RemoteLogSegmentState``; those of a partition's deletion are 0 marked, 1 started, 2 done."""

_SEGMENT, _UPDATE, _PARTITION_DELETE, _SNAPSHOT = range(4)
_STARTED, _FINISHED, _DELETING, _DELETED = range(4)

_TOPIC_ID_PARTITION: Final = struct_of(
    Field("name", string), Field("id", uuid), Field("partition", int32)
)
_SEGMENT_ID: Final = struct_of(Field("topicIdPartition", _TOPIC_ID_PARTITION), Field("id", uuid))


def _boolean(reader: MessageReader) -> bool:
    return int8(reader) != 0


_OF_SEGMENT: Final = (
    Field("startOffset", int64),
    Field("endOffset", int64),
    Field("brokerId", int32),
    Field("maxTimestampMs", int64),
    Field("eventTimestampMs", int64),
    Field(
        "segmentLeaderEpochs",
        array_of(struct_of(Field("leaderEpoch", int32), Field("offset", int64))),
    ),
    Field("segmentSizeInBytes", int32),
    Field("customMetadata", nullable_bytes),
    Field("remoteLogSegmentState", int8),
    Field("txnIndexEmpty", _boolean, default=0, tag=0),
)

_SCHEMAS: Final = {
    _SEGMENT: Schema(
        "RemoteLogSegmentMetadataRecord",
        struct_of(Field("remoteLogSegmentId", _SEGMENT_ID), *_OF_SEGMENT),
        first_flexible=0,
    ),
    _UPDATE: Schema(
        "RemoteLogSegmentMetadataUpdateRecord",
        struct_of(
            Field("remoteLogSegmentId", _SEGMENT_ID),
            Field("brokerId", int32),
            Field("eventTimestampMs", int64),
            Field("customMetadata", nullable_bytes),
            Field("remoteLogSegmentState", int8),
        ),
        first_flexible=0,
    ),
    _PARTITION_DELETE: Schema(
        "RemotePartitionDeleteMetadataRecord",
        struct_of(
            Field("topicIdPartition", _TOPIC_ID_PARTITION),
            Field("brokerId", int32),
            Field("eventTimestampMs", int64),
            Field("remotePartitionDeleteState", int8),
        ),
        first_flexible=0,
    ),
    _SNAPSHOT: Schema(
        "RemoteLogSegmentMetadataSnapshotRecord",
        struct_of(Field("segmentId", uuid), *_OF_SEGMENT),
        first_flexible=0,
    ),
}


class RemoteLogRecord(NamedTuple):
    """A record: what kind it is, by Kafka's name and api key, and its fields by Kafka's names."""

    name: str
    api_key: int
    fields: Fields


def decode_remote_log_record(value: bytes) -> RemoteLogRecord:
    """Decode the value of a record.

    Raises:
        UnsupportedFormatError: a frame, a kind of record or a version that is not known.
        CorruptRecordError: the bytes are no such message.
    """
    api_key, version, message = read_frame(value)
    if api_key not in _SCHEMAS:
        raise UnsupportedFormatError(f"api key {api_key} is not known (0 to {_SNAPSHOT} are)")
    schema = _SCHEMAS[api_key]
    return RemoteLogRecord(schema.name, api_key, schema.decode(message, version))


class RemoteSegment(NamedTuple):
    """A segment in a remote tier; ``end_offset`` is exclusive, epochs are (epoch, first offset)."""

    segment_id: str
    start_offset: int
    end_offset: int
    leader_epochs: tuple[tuple[int, int], ...]
    size: int
    max_timestamp: int
    custom_metadata: bytes | None = None
    has_txn_index: bool = True


@dataclass(slots=True)
class RemoteLogReplay:
    """A fold over the records of the topic: the segments that are there to read.

    The records of a partition lie in one partition of the topic, in the order of what happened.
    """

    _partitions: dict[tuple[str, int], _Partition] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """The name of each topic, by its id."""
    count: int = 0
    """Of the records so far."""

    def feed(self, value: bytes | None) -> None:
        """Take the next record's value; a tombstone says nothing.

        Raises:
            UnsupportedFormatError, CorruptRecordError: see :func:`decode_remote_log_record`.
        """
        self.count += 1
        if value is None:
            return
        _, api_key, fields = decode_remote_log_record(value)
        if api_key == _PARTITION_DELETE:
            where = fields["topicIdPartition"]
            self._of(where).deleted = True
        elif api_key != _SNAPSHOT:  # those are in files of a broker's cache alone
            segment_id = fields["remoteLogSegmentId"]
            partition = self._of(segment_id["topicIdPartition"])
            if api_key == _SEGMENT:
                partition.add(_segment_of(segment_id["id"], fields), fields)
            else:
                partition.update(segment_id["id"], fields)

    def _of(self, where: Fields) -> _Partition:
        self.names.setdefault(where["id"], where["name"])
        return self._partitions.setdefault((where["id"], where["partition"]), _Partition())

    def of(self, topic_id: str, number: int) -> list[RemoteSegment] | None:
        """Return the finished copies of a partition; None if no record is about it."""
        found = self._partitions.get((topic_id, number))
        return None if found is None else found.finished()

    def id_of(self, topic: str) -> str | None:
        """Return the id of the topic of a name that was written of last; None if none was."""
        return next((key for key, name in reversed(self.names.items()) if name == topic), None)

    def segments(self) -> Iterator[tuple[str, int, list[RemoteSegment]]]:
        """Yield topic id, partition and the finished copies of each partition, by start offset."""
        for (topic_id, number), partition in self._partitions.items():
            yield topic_id, number, partition.finished()


@dataclass(slots=True)
class _Partition:
    segments: dict[str, RemoteSegment] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)
    deleted: bool = False

    def add(self, segment: RemoteSegment, fields: Fields) -> None:
        self.segments[segment.segment_id] = segment
        self._move(segment.segment_id, fields["remoteLogSegmentState"])

    def update(self, segment_id: str, fields: Fields) -> None:
        found = self.segments.get(segment_id)
        if found is not None and fields["customMetadata"] is not None:
            self.segments[segment_id] = found._replace(custom_metadata=fields["customMetadata"])
        self._move(segment_id, fields["remoteLogSegmentState"])

    def _move(self, segment_id: str, state: int) -> None:
        # two brokers may write of one segment: a state never goes back
        known = max(self.states.get(segment_id, _STARTED), state)
        self.states[segment_id] = known
        if known >= _DELETED:
            self.segments.pop(segment_id, None)

    def finished(self) -> list[RemoteSegment]:
        if self.deleted:
            return []
        found = (s for key, s in self.segments.items() if self.states[key] == _FINISHED)
        return sorted(found, key=lambda each: (each.start_offset, each.end_offset))


def _segment_of(segment_id: str, fields: Fields) -> RemoteSegment:
    """Make a segment of a record."""
    start, last = fields["startOffset"], fields["endOffset"]
    epochs = tuple((each["leaderEpoch"], each["offset"]) for each in fields["segmentLeaderEpochs"])
    in_order = all(a < b and x <= y for (a, x), (b, y) in pairwise(epochs))
    if not 0 <= start <= last < 2**63 - 1 or fields["segmentSizeInBytes"] < 0 or not in_order:
        raise CorruptRecordError(
            f"segment {segment_id} has offsets {start} to {last}, "
            f"{fields['segmentSizeInBytes']} bytes and leader epochs {list(epochs)}, which no "
            "segment has"
        )
    return RemoteSegment(
        segment_id,
        start,
        last + 1,
        epochs,
        fields["segmentSizeInBytes"],
        fields["maxTimestampMs"],
        fields["customMetadata"],
        not fields["txnIndexEmpty"],
    )
