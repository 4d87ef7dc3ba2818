"""The schemas of ``__consumer_offsets`` and ``__transaction_state`` records, and what lies in them.

A record's key is an int16, the record type (Kafka's older name: key version), and a message of that
type; its value is an int16, the value's version, and a message. No value is a tombstone. The field
names are Kafka's.

The consumer groups of KIP-848 (types 3 to 8 and 16) are read whole. Of share and streams groups
(KIP-932, KIP-1071) only keys are: their values were changed without a new version while those
groups were previews, so bytes alone do not tell what they mean.

Source: the JSON definitions of Kafka 4.1 (``OffsetCommitValue.json`` and so on, of the group
coordinator; ``TransactionLogValue.json``, of the transaction coordinator;
``ConsumerProtocolSubscription.json``, of the clients) and its ``CoordinatorRecordType``, with the
types that earlier and later releases have.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.errors import CorruptRecordError
from kafkalog.model import NO_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP
from kafkalog.streaming.coordinator.message_schema import (
    Field,
    Schema,
    array_of,
    int8,
    int16,
    int32,
    int64,
    nullable_array_of,
    nullable_bytes,
    nullable_string,
    plain_bytes,
    string,
    struct_of,
    tagged_struct_of,
    uuid,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkalog.streaming.coordinator.message_schema import Fields


__all__ = [
    "CONSUMER_ASSIGNMENT",
    "CONSUMER_PROTOCOL_TYPE",
    "CONSUMER_SUBSCRIPTION",
    "GROUP_METADATA_VALUE",
    "OFFSETS_RECORD_TYPES",
    "OFFSET_COMMIT_VALUE",
    "TRANSACTIONS_RECORD_TYPES",
    "TRANSACTION_STATES",
    "DecodedKey",
    "DecodedValue",
    "RecordType",
    "decode_assignment",
    "decode_key",
    "decode_subscription",
    "decode_value",
    "value_version",
]


@dataclass(frozen=True, slots=True)
class RecordType:
    """What a key's first int16 stands for; ``value`` is None where only the key can be read."""

    name: str
    key: Schema
    value: Schema | None


# --- offsets and classic groups -----------------------------------------------------------------

_OFFSET_COMMIT_KEY = Schema(
    "OffsetCommitKey",
    struct_of(Field("group", string), Field("topic", string), Field("partition", int32)),
)

OFFSET_COMMIT_VALUE: Final = Schema(
    "OffsetCommitValue",
    struct_of(
        Field("offset", int64),
        Field("leaderEpoch", int32, since=3, default=NO_EPOCH),
        Field("metadata", string),
        Field("commitTimestamp", int64),
        Field("expireTimestamp", int64, since=1, until=1, default=NO_TIMESTAMP),
        Field("topicId", uuid, tag=0),
    ),
    last_version=4,
    first_flexible=4,
)

_GROUP_METADATA_KEY = Schema("GroupMetadataKey", struct_of(Field("group", string)))

_MEMBER = struct_of(
    Field("memberId", string),
    Field("groupInstanceId", nullable_string, since=3),
    Field("clientId", string),
    Field("clientHost", string),
    Field("rebalanceTimeout", int32, since=1),
    Field("sessionTimeout", int32),
    Field("subscription", plain_bytes),
    Field("assignment", plain_bytes),
)

GROUP_METADATA_VALUE: Final = Schema(
    "GroupMetadataValue",
    struct_of(
        Field("protocolType", string),
        Field("generation", int32),
        Field("protocol", nullable_string),
        Field("leader", nullable_string),
        Field("currentStateTimestamp", int64, since=2, default=NO_TIMESTAMP),
        Field("members", array_of(_MEMBER)),
    ),
    last_version=4,
    first_flexible=4,
)

# --- a classic member's subscription and assignment, when the protocol type is "consumer" ---------

_TOPIC_PARTITIONS = struct_of(Field("topic", string), Field("partitions", array_of(int32)))

CONSUMER_SUBSCRIPTION: Final = Schema(
    "ConsumerProtocolSubscription",
    struct_of(
        Field("topics", array_of(string)),
        Field("userData", nullable_bytes),
        Field("ownedPartitions", array_of(_TOPIC_PARTITIONS), since=1),
        Field("generationId", int32, since=2),
        Field("rackId", nullable_string, since=3),
    ),
    last_version=3,
)

CONSUMER_ASSIGNMENT: Final = Schema(
    "ConsumerProtocolAssignment",
    struct_of(
        Field("assignedPartitions", array_of(_TOPIC_PARTITIONS)),
        Field("userData", nullable_bytes),
    ),
    last_version=3,
)

# --- the groups of KIP-848 and after --------------------------------------------------------------

_GROUP_KEY = struct_of(Field("groupId", string))
_MEMBER_KEY = struct_of(Field("groupId", string), Field("memberId", string))
_REGULAR_EXPRESSION_KEY = struct_of(Field("groupId", string), Field("regularExpression", string))

_TOPIC_ID_PARTITIONS = array_of(
    struct_of(Field("topicId", uuid), Field("partitions", array_of(int32)))
)

_PARTITION_RACKS = struct_of(Field("partition", int32), Field("racks", array_of(string)))

_CLASSIC_MEMBER_METADATA = tagged_struct_of(
    Field("sessionTimeoutMs", int32),
    Field(
        "supportedProtocols",
        array_of(struct_of(Field("name", string), Field("metadata", plain_bytes))),
    ),
)

_CONSUMER_GROUP_VALUES = MappingProxyType(
    {
        "ConsumerGroupMetadata": struct_of(
            Field("epoch", int32),
            Field("metadataHash", int64, default=0, tag=0),
        ),
        "ConsumerGroupPartitionMetadata": struct_of(
            Field(
                "topics",
                array_of(
                    struct_of(
                        Field("topicId", uuid),
                        Field("topicName", string),
                        Field("numPartitions", int32),
                        Field("partitionMetadata", array_of(_PARTITION_RACKS)),
                    )
                ),
            )
        ),
        "ConsumerGroupMemberMetadata": struct_of(
            Field("instanceId", nullable_string),
            Field("rackId", nullable_string),
            Field("clientId", string),
            Field("clientHost", string),
            Field("subscribedTopicNames", array_of(string)),
            Field("subscribedTopicRegex", nullable_string),
            Field("rebalanceTimeoutMs", int32),
            Field("serverAssignor", nullable_string),
            Field("classicMemberMetadata", _CLASSIC_MEMBER_METADATA, tag=0),
        ),
        "ConsumerGroupTargetAssignmentMetadata": struct_of(Field("assignmentEpoch", int32)),
        "ConsumerGroupTargetAssignmentMember": struct_of(
            Field("topicPartitions", _TOPIC_ID_PARTITIONS)
        ),
        "ConsumerGroupCurrentMemberAssignment": struct_of(
            Field("memberEpoch", int32),
            Field("previousMemberEpoch", int32),
            Field("state", int8),
            Field("assignedPartitions", _TOPIC_ID_PARTITIONS),
            Field("partitionsPendingRevocation", _TOPIC_ID_PARTITIONS),
        ),
        "ConsumerGroupRegularExpression": struct_of(
            Field("topics", array_of(string)),
            Field("version", int64),
            Field("timestamp", int64),
        ),
    }
)

_MODERN_GROUP_KEYS = MappingProxyType(
    {
        3: ("ConsumerGroupMetadata", _GROUP_KEY),
        4: ("ConsumerGroupPartitionMetadata", _GROUP_KEY),
        5: ("ConsumerGroupMemberMetadata", _MEMBER_KEY),
        6: ("ConsumerGroupTargetAssignmentMetadata", _GROUP_KEY),
        7: ("ConsumerGroupTargetAssignmentMember", _MEMBER_KEY),
        8: ("ConsumerGroupCurrentMemberAssignment", _MEMBER_KEY),
        9: ("ShareGroupPartitionMetadata", _GROUP_KEY),  # not written since Kafka 4.1
        10: ("ShareGroupMemberMetadata", _MEMBER_KEY),
        11: ("ShareGroupMetadata", _GROUP_KEY),
        12: ("ShareGroupTargetAssignmentMetadata", _GROUP_KEY),
        13: ("ShareGroupTargetAssignmentMember", _MEMBER_KEY),
        14: ("ShareGroupCurrentMemberAssignment", _MEMBER_KEY),
        15: ("ShareGroupStatePartitionMetadata", _GROUP_KEY),
        16: ("ConsumerGroupRegularExpression", _REGULAR_EXPRESSION_KEY),
        17: ("StreamsGroupMetadata", _GROUP_KEY),
        18: ("StreamsGroupPartitionMetadata", _GROUP_KEY),  # not written since Kafka 4.1
        19: ("StreamsGroupMemberMetadata", _MEMBER_KEY),
        20: ("StreamsGroupTargetAssignmentMetadata", _GROUP_KEY),
        21: ("StreamsGroupTargetAssignmentMember", _MEMBER_KEY),
        22: ("StreamsGroupCurrentMemberAssignment", _MEMBER_KEY),
        23: ("StreamsGroupTopology", _GROUP_KEY),
        24: ("StreamsGroupTargetAssignmentResolvedTopicIds", _GROUP_KEY),  # after Kafka 4.1
    }
)


def _modern_group_types() -> dict[int, RecordType]:
    types = {}
    for code, (name, key) in _MODERN_GROUP_KEYS.items():
        read_value = _CONSUMER_GROUP_VALUES.get(name)
        value = Schema(f"{name}Value", read_value, first_flexible=0) if read_value else None
        types[code] = RecordType(name, Schema(f"{name}Key", key), value)
    return types


_OFFSET_COMMIT = RecordType("OffsetCommit", _OFFSET_COMMIT_KEY, OFFSET_COMMIT_VALUE)

OFFSETS_RECORD_TYPES: Final[Mapping[int, RecordType]] = MappingProxyType(
    {
        0: _OFFSET_COMMIT,  # the same key, as the first brokers wrote it
        1: _OFFSET_COMMIT,
        2: RecordType("GroupMetadata", _GROUP_METADATA_KEY, GROUP_METADATA_VALUE),
        **_modern_group_types(),
    }
)
"""The records of ``__consumer_offsets`` by the int16 that their keys start with."""

# --- transactions ---------------------------------------------------------------------------------

_TRANSACTION_LOG_KEY = Schema("TransactionLogKey", struct_of(Field("transactionalId", string)))

_TRANSACTION_PARTITIONS = struct_of(Field("topic", string), Field("partitionIds", array_of(int32)))

_TRANSACTION_LOG_VALUE = Schema(
    "TransactionLogValue",
    struct_of(
        Field("producerId", int64),
        Field("previousProducerId", int64, default=NO_PRODUCER_ID, tag=0),
        Field("nextProducerId", int64, default=NO_PRODUCER_ID, tag=1),
        Field("producerEpoch", int16),
        Field("nextProducerEpoch", int16, default=NO_EPOCH, tag=3),
        Field("transactionTimeoutMs", int32),
        Field("transactionStatus", int8),
        Field("transactionPartitions", nullable_array_of(_TRANSACTION_PARTITIONS)),
        Field("transactionLastUpdateTimestampMs", int64),
        Field("transactionStartTimestampMs", int64),
        Field("clientTransactionVersion", int16, default=0, tag=2),
    ),
    last_version=1,
    first_flexible=1,
)

TRANSACTIONS_RECORD_TYPES: Final[Mapping[int, RecordType]] = MappingProxyType(
    {0: RecordType("TransactionLog", _TRANSACTION_LOG_KEY, _TRANSACTION_LOG_VALUE)}
)
"""The records of ``__transaction_state`` by the int16 that their keys start with."""

TRANSACTION_STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
"""Names of ``transactionStatus``, in the order of its codes (Kafka ``TransactionState``)."""


# ----------------------------------------------------------------------------------------------
# Decode the records of ``__consumer_offsets`` and ``__transaction_state`` into plain values.
#
# Works on one record at a time, in Python: these topics are compacted and small beside the data
# they speak of, and their records have too many shapes for a kernel.
#
# Source: ``GroupCoordinatorRecordSerde``, ``TransactionLog`` and ``ConsumerProtocol`` of Kafka
# 4.1.


CONSUMER_PROTOCOL_TYPE: Final = "consumer"
"""The protocol type of classic groups whose members' bytes are subscriptions and assignments."""

_PREFIX_BYTES: Final = 2


class DecodedKey(NamedTuple):
    """A record's key: its int16, what that stands for (None if not known) and its fields."""

    version: int
    record_type: RecordType | None
    fields: Fields


class DecodedValue(NamedTuple):
    """A record's value: its version and its fields."""

    version: int
    fields: Fields


def decode_key(record_types: Mapping[int, RecordType], data: bytes | None) -> DecodedKey:
    """Decode a record's key.

    A type that is not in ``record_types`` is no error: brokers ignore what newer ones wrote.

    Raises:
        CorruptRecordError: no key, or one that ends early; the message says where.
    """
    if data is None:
        raise CorruptRecordError("the record has no key")
    version = _leading_int16(data, "key")
    record_type = record_types.get(version)
    if record_type is None:
        return DecodedKey(version, None, {})
    return DecodedKey(version, record_type, _decode(record_type.key, data, version=0, part="key"))


def decode_value(schema: Schema, data: bytes) -> DecodedValue:
    """Decode a value, which is not a tombstone, of a record whose key's type has this schema.

    Raises:
        UnsupportedFormatError: a version that is not known.
        CorruptRecordError: the bytes are not of the version they name; the message says where.
    """
    version = value_version(data)
    return DecodedValue(version, _decode(schema, data, version=version, part="value"))


def value_version(data: bytes) -> int:
    """Return the version that a value, which is not a tombstone, names.

    Raises:
        CorruptRecordError: it is shorter than that.
    """
    return _leading_int16(data, "value")


def decode_subscription(data: bytes) -> Fields:
    """Decode what a member of a classic consumer group subscribed to, with its ``version``.

    Raises:
        CorruptRecordError: the bytes are no subscription.
    """
    return _decode_consumer_protocol(CONSUMER_SUBSCRIPTION, data, "subscription")


def decode_assignment(data: bytes) -> Fields:
    """Decode what a member of a classic consumer group was assigned, with its ``version``.

    Raises:
        CorruptRecordError: the bytes are no assignment.
    """
    return _decode_consumer_protocol(CONSUMER_ASSIGNMENT, data, "assignment")


def _decode_consumer_protocol(schema: Schema, data: bytes, part: str) -> Fields:
    version = _leading_int16(data, part)
    # A newer client only adds fields at the end, so that its bytes can be read as the last version.
    fields = _decode(schema, data, version=min(version, schema.last_version), part=part)
    return {"version": version, **fields}


def _decode(schema: Schema, data: bytes, *, version: int, part: str) -> Fields:
    try:
        return schema.decode(data[_PREFIX_BYTES:], version)
    except CorruptRecordError as error:
        raise type(error)(f"{part}: {error}") from error


def _leading_int16(data: bytes, part: str) -> int:
    if len(data) < _PREFIX_BYTES:
        raise CorruptRecordError(f"{part}: {len(data)} bytes, too few for its leading int16")
    return int.from_bytes(data[:_PREFIX_BYTES], "big", signed=True)
