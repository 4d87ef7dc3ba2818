"""The columns of the typed views of internal topics.

The columns ``logPartition``, ``logOffset`` and ``logTimestamp`` say where a record lies; ``topic``
and ``partition`` are what it speaks of. ``keyVersion`` and ``valueVersion`` are the int16 that its
key and value start with. Null stands for every "none" that Kafka marks with -1: leader epoch,
producer id and epoch, timestamp. ``error`` says which bytes of a damaged record cannot be read.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

__all__ = [
    "METADATA_VIEW_SCHEMA",
    "OFFSETS_VIEW_SCHEMA",
    "REMOTE_VIEW_SCHEMA",
    "TRANSACTIONS_VIEW_SCHEMA",
]

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

_TOPIC_PARTITIONS: Final = pa.list_(
    pa.struct({"topic": pa.string(), "partitions": pa.list_(pa.int32())})
)
_SUBSCRIPTION: Final = pa.struct(
    {
        "version": pa.int32(),
        "topics": pa.list_(pa.string()),
        "userData": pa.binary(),
        "ownedPartitions": _TOPIC_PARTITIONS,
        "generationId": pa.int32(),
        "rackId": pa.string(),
    }
)
_ASSIGNMENT: Final = pa.struct(
    {
        "version": pa.int32(),
        "assignedPartitions": _TOPIC_PARTITIONS,
        "userData": pa.binary(),
    }
)
_MEMBER: Final = pa.struct(
    {
        "memberId": pa.string(),
        "groupInstanceId": pa.string(),
        "clientId": pa.string(),
        "clientHost": pa.string(),
        "rebalanceTimeoutMs": pa.int32(),
        "sessionTimeoutMs": pa.int32(),
        "subscription": _SUBSCRIPTION,
        "assignment": _ASSIGNMENT,
        "subscriptionBytes": pa.binary(),
        "assignmentBytes": pa.binary(),
    }
)
_GROUP_METADATA: Final = pa.struct(
    {
        "protocolType": pa.string(),
        "generation": pa.int32(),
        "protocol": pa.string(),
        "leader": pa.string(),
        "currentStateTimestamp": _TIMESTAMP,
        "members": pa.list_(_MEMBER),
    }
)
_RECORD_COLUMNS: Final = {
    "logPartition": pa.int32(),
    "logOffset": pa.int64(),
    "logTimestamp": _TIMESTAMP,
    "recordType": pa.string(),
    "keyVersion": pa.int32(),
    "valueVersion": pa.int32(),
    "tombstone": pa.bool_(),
}

OFFSETS_VIEW_SCHEMA: Final = pa.schema(
    {
        **_RECORD_COLUMNS,
        "group": pa.string(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "committedOffset": pa.int64(),
        "leaderEpoch": pa.int32(),
        "metadata": pa.string(),
        "commitTimestamp": _TIMESTAMP,
        "expireTimestamp": _TIMESTAMP,
        "topicId": pa.string(),
        "groupMetadata": _GROUP_METADATA,
        "memberId": pa.string(),
        "regularExpression": pa.string(),
        "valueJson": pa.string(),
        "error": pa.string(),
    }
)
"""A row per record of ``__consumer_offsets``.

``subscription`` and ``assignment`` of a member are null, and only their bytes given, unless the
group's protocol type is ``consumer``. ``memberId``, ``regularExpression`` and ``valueJson`` (the
value's fields by Kafka's names, bytes in base64) belong to the groups of KIP-848 and after.
"""

TRANSACTIONS_VIEW_SCHEMA: Final = pa.schema(
    {
        **_RECORD_COLUMNS,
        "transactionalId": pa.string(),
        "producerId": pa.int64(),
        "previousProducerId": pa.int64(),
        "nextProducerId": pa.int64(),
        "producerEpoch": pa.int32(),
        "nextProducerEpoch": pa.int32(),
        "transactionTimeoutMs": pa.int32(),
        "status": pa.string(),
        "partitions": _TOPIC_PARTITIONS,
        "lastUpdateTimestamp": _TIMESTAMP,
        "startTimestamp": _TIMESTAMP,
        "clientTransactionVersion": pa.int32(),
        "error": pa.string(),
    }
)
"""A row per record of ``__transaction_state``; ``status`` is Kafka's name of the state."""

_PLACE: Final = {name: _RECORD_COLUMNS[name] for name in ("logPartition", "logOffset")}
_IDS: Final = pa.list_(pa.int32())

METADATA_VIEW_SCHEMA: Final = pa.schema(
    {
        **_PLACE,
        "logTimestamp": _TIMESTAMP,
        "snapshot": pa.string(),
        "recordType": pa.string(),
        "apiKey": pa.int32(),
        "version": pa.int32(),
        "topic": pa.string(),
        "topicId": pa.string(),
        "partition": pa.int32(),
        "leader": pa.int32(),
        "leaderEpoch": pa.int32(),
        "replicas": _IDS,
        "isr": _IDS,
        "resourceType": pa.string(),
        "resourceName": pa.string(),
        "configName": pa.string(),
        "configValue": pa.string(),
        "brokerId": pa.int32(),
        "brokerEpoch": pa.int64(),
        "featureName": pa.string(),
        "featureLevel": pa.int32(),
        "valueJson": pa.string(),
        "error": pa.string(),
    }
)
"""A row per record of ``__cluster_metadata``, and of the snapshot that its log goes on from.

``snapshot`` is the name of its file; such a row has no ``logOffset``. A change of a partition has
the columns that it changes, and null in the others. ``leader`` -1 is none. ``valueJson`` are all
fields of a record, by Kafka's names.
"""

REMOTE_VIEW_SCHEMA: Final = pa.schema(
    {
        **_PLACE,
        "logTimestamp": _TIMESTAMP,
        "recordType": pa.string(),
        "topic": pa.string(),
        "topicId": pa.string(),
        "partition": pa.int32(),
        "segmentId": pa.string(),
        "state": pa.string(),
        "startOffset": pa.int64(),
        "endOffset": pa.int64(),
        "brokerId": pa.int32(),
        "sizeInBytes": pa.int32(),
        "maxTimestamp": _TIMESTAMP,
        "eventTimestamp": _TIMESTAMP,
        "leaderEpochs": pa.list_(pa.struct({"leaderEpoch": pa.int32(), "offset": pa.int64()})),
        "txnIndexEmpty": pa.bool_(),
        "customMetadata": pa.binary(),
        "error": pa.string(),
    }
)
"""A row per record of ``__remote_log_metadata``. ``endOffset`` is the last one, as Kafka has it."""
