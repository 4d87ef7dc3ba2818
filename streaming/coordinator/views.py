"""Typed views of internal topics: a row per record, in Arrow.

A record that cannot be decoded is a row too: what could be read is filled in, the rest is null, and
``error`` says which bytes are wrong. ``error`` is null for a sound record,
also for one of a type that is not known (``recordType`` is then ``Unknown``). Kafka's times are ms;
here they are timestamps, and one that no timestamp can hold is null with an ``error``.

Rows are built one by one in Python: see :mod:`kafkalog.streaming.coordinator.schemas`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

import pyarrow as pa

from kafkalog.errors import CorruptRecordError
from kafkalog.model import NO_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP
from kafkalog.streaming.coordinator.cluster_metadata import RECORD_SCHEMAS, TOPIC, MetadataRecord
from kafkalog.streaming.coordinator.message_schema import Fields
from kafkalog.streaming.coordinator.remote_log_metadata import (
    SEGMENT_STATES,
    decode_remote_log_record,
)
from kafkalog.streaming.coordinator.schemas import (
    CONSUMER_PROTOCOL_TYPE,
    OFFSETS_RECORD_TYPES,
    TRANSACTION_STATES,
    TRANSACTIONS_RECORD_TYPES,
    DecodedKey,
    RecordType,
    decode_assignment,
    decode_key,
    decode_subscription,
    decode_value,
    value_version,
)
from kafkalog.streaming.coordinator.view_schemas import (
    METADATA_VIEW_SCHEMA,
    OFFSETS_VIEW_SCHEMA,
    REMOTE_VIEW_SCHEMA,
    TRANSACTIONS_VIEW_SCHEMA,
)

__all__ = [
    "UNKNOWN_RECORD_TYPE",
    "decode_metadata_batch",
    "decode_metadata_values",
    "decode_offsets_batch",
    "decode_remote_batch",
    "decode_transactions_batch",
]

UNKNOWN_RECORD_TYPE: Final = "Unknown"

_MAX_TIMESTAMP_MS: Final = (2**63 - 1) // 1000  # in µs, an int64

_Columns: TypeAlias = dict[str, Any]
_T = TypeVar("_T")


def decode_offsets_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Decode records of ``__consumer_offsets``.

    Args:
        batch: columns ``key`` and ``value`` (binary), ``partition`` (int32) and ``offset`` (int64)
            in the log, ``timestamp`` (timestamp[us, UTC]); others are ignored.

    Returns:
        As many rows of ``OFFSETS_VIEW_SCHEMA``, in the same order. Damaged records do not raise.
    """
    return _decode_batch(
        batch, OFFSETS_VIEW_SCHEMA, OFFSETS_RECORD_TYPES, _offsets_key, _offsets_value
    )


def decode_transactions_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Decode records of ``__transaction_state`` into rows of ``TRANSACTIONS_VIEW_SCHEMA``.

    Takes and promises what :func:`decode_offsets_batch` does.
    """
    return _decode_batch(
        batch,
        TRANSACTIONS_VIEW_SCHEMA,
        TRANSACTIONS_RECORD_TYPES,
        _transactions_key,
        _transactions_value,
    )


@dataclass(slots=True)
class _Row:
    """One row in the making: the columns known so far, and what is wrong with the record."""

    columns: _Columns = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def timestamp(self, fields: Fields, name: str) -> int | None:
        """Return a field in ms as µs; None for none, and for what no timestamp can hold."""
        value: int = fields[name]
        if value == NO_TIMESTAMP:
            return None
        if abs(value) > _MAX_TIMESTAMP_MS:
            self.problems.append(f"value: {name} {value} ms is beyond every timestamp")
            return None
        return value * 1000

    def finish(self) -> _Columns:
        """Return the columns, with ``error``."""
        if self.problems:
            self.columns["error"] = "; ".join(self.problems)
        return self.columns


_KeyColumns: TypeAlias = Callable[[Fields], _Columns]
_ValueColumns: TypeAlias = Callable[[RecordType, Fields, _Row], _Columns]


def _decode_batch(
    batch: pa.RecordBatch,
    schema: pa.Schema,
    record_types: Mapping[int, RecordType],
    key_columns: _KeyColumns,
    value_columns: _ValueColumns,
) -> pa.RecordBatch:
    rows = [
        _decode_row(key, value, record_types, key_columns, value_columns)
        for key, value in zip(
            batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True
        )
    ]
    return _placed(batch, rows, schema)


def _placed(batch: pa.RecordBatch, rows: list[_Columns], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with where their records lie."""
    place = {
        "logPartition": batch.column("partition"),
        "logOffset": batch.column("offset"),
        "logTimestamp": batch.column("timestamp"),
    }
    decoded = pa.RecordBatch.from_pylist(rows, schema=schema)
    return pa.RecordBatch.from_arrays(
        [place.get(name, decoded.column(name)) for name in schema.names], schema=schema
    )


def _decode_row(
    key: bytes | None,
    value: bytes | None,
    record_types: Mapping[int, RecordType],
    key_columns: _KeyColumns,
    value_columns: _ValueColumns,
) -> _Columns:
    row = _Row({"tombstone": value is None})
    try:
        decoded = decode_key(record_types, key)
        row.columns |= _type_columns(decoded) | key_columns(decoded.fields)
        if value is not None and decoded.record_type is not None:
            _fill_value(row, decoded.record_type, value, value_columns)
    except CorruptRecordError as error:
        row.problems.append(str(error))
    return row.finish()


def _type_columns(key: DecodedKey) -> _Columns:
    name = UNKNOWN_RECORD_TYPE if key.record_type is None else key.record_type.name
    return {"keyVersion": key.version, "recordType": name}


def _fill_value(
    row: _Row, record_type: RecordType, value: bytes, value_columns: _ValueColumns
) -> None:
    row.columns["valueVersion"] = value_version(value)
    if record_type.value is not None:
        fields = decode_value(record_type.value, value).fields
        row.columns |= value_columns(record_type, fields, row)


def _offsets_key(fields: Fields) -> _Columns:
    names = ("topic", "partition", "memberId", "regularExpression")
    group = fields.get("group", fields.get("groupId"))
    return {"group": group, **{name: fields.get(name) for name in names}}


def _offsets_value(record_type: RecordType, fields: Fields, row: _Row) -> _Columns:
    if record_type.name == "OffsetCommit":
        return _offset_commit(fields, row)
    if record_type.name == "GroupMetadata":
        return {"groupMetadata": _group_metadata(fields, row)}
    return {"valueJson": json.dumps(fields, ensure_ascii=False, default=_base64)}


def _offset_commit(fields: Fields, row: _Row) -> _Columns:
    return {
        "committedOffset": fields["offset"],
        "leaderEpoch": _unless(NO_EPOCH, fields["leaderEpoch"]),
        "metadata": fields["metadata"],
        "commitTimestamp": row.timestamp(fields, "commitTimestamp"),
        "expireTimestamp": row.timestamp(fields, "expireTimestamp"),
        "topicId": fields["topicId"],
    }


def _group_metadata(fields: Fields, row: _Row) -> Fields:
    is_consumer = fields["protocolType"] == CONSUMER_PROTOCOL_TYPE
    return {
        **{name: fields[name] for name in ("protocolType", "generation", "protocol", "leader")},
        "currentStateTimestamp": row.timestamp(fields, "currentStateTimestamp"),
        "members": [_member(each, row, is_consumer=is_consumer) for each in fields["members"]],
    }


def _member(fields: Fields, row: _Row, *, is_consumer: bool) -> Fields:
    names = ("memberId", "groupInstanceId", "clientId", "clientHost")
    member = {
        **{name: fields[name] for name in names},
        "rebalanceTimeoutMs": fields["rebalanceTimeout"],
        "sessionTimeoutMs": fields["sessionTimeout"],
        "subscriptionBytes": fields["subscription"],
        "assignmentBytes": fields["assignment"],
    }
    if is_consumer:
        member["subscription"] = _protocol_bytes(decode_subscription, fields["subscription"], row)
        member["assignment"] = _protocol_bytes(decode_assignment, fields["assignment"], row)
    return member


def _protocol_bytes(decode: Callable[[bytes], Fields], data: bytes, row: _Row) -> Fields | None:
    """Decode a member's bytes; none at all is what a member has before its group is stable."""
    if not data:
        return None
    try:
        return decode(data)
    except CorruptRecordError as error:
        row.problems.append(f"value: {error}")
        return None


def _transactions_key(fields: Fields) -> _Columns:
    return {"transactionalId": fields.get("transactionalId")}


def _transactions_value(_: RecordType, fields: Fields, row: _Row) -> _Columns:
    return {
        "producerId": _unless(NO_PRODUCER_ID, fields["producerId"]),
        "previousProducerId": _unless(NO_PRODUCER_ID, fields["previousProducerId"]),
        "nextProducerId": _unless(NO_PRODUCER_ID, fields["nextProducerId"]),
        "producerEpoch": _unless(NO_EPOCH, fields["producerEpoch"]),
        "nextProducerEpoch": _unless(NO_EPOCH, fields["nextProducerEpoch"]),
        "transactionTimeoutMs": fields["transactionTimeoutMs"],
        "status": _status(fields["transactionStatus"], row),
        "partitions": _transaction_partitions(fields["transactionPartitions"]),
        "lastUpdateTimestamp": row.timestamp(fields, "transactionLastUpdateTimestampMs"),
        "startTimestamp": row.timestamp(fields, "transactionStartTimestampMs"),
        "clientTransactionVersion": fields["clientTransactionVersion"],
    }


def _status(code: int, row: _Row) -> str | None:
    if 0 <= code < len(TRANSACTION_STATES):
        return TRANSACTION_STATES[code]
    row.problems.append(f"value: transactionStatus {code} is not known")
    return None


def _transaction_partitions(partitions: list[Fields] | None) -> list[Fields] | None:
    if partitions is None:
        return None
    return [{"topic": entry["topic"], "partitions": entry["partitionIds"]} for entry in partitions]


def _unless(none: _T, value: _T) -> _T | None:
    return None if value == none else value


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


# ----------------------------------------------------------------------------------------------
# Topics whose records have values alone.


_RESOURCES: Final = {
    2: "TOPIC",
    4: "BROKER",
    8: "BROKER_LOGGER",
    16: "CLIENT_METRICS",
    32: "GROUP",
}
"""Kafka ``ConfigResource.Type``."""


def decode_metadata_batch(batch: pa.RecordBatch, names: dict[str, str]) -> pa.RecordBatch:
    """Decode records of ``__cluster_metadata`` into rows of ``METADATA_VIEW_SCHEMA``.

    ``names`` are those of topics, by their ids; topics that are made by these records are added.
    Takes and promises what :func:`decode_offsets_batch` does.
    """
    rows = [_metadata_row(value, names) for value in batch.column("value").to_pylist()]
    return _placed(batch, rows, METADATA_VIEW_SCHEMA)


def decode_metadata_values(
    values: list[bytes | None], snapshot: str, names: dict[str, str]
) -> pa.RecordBatch:
    """Decode the records of a snapshot, the name of whose file is given, in the same way."""
    place = {"snapshot": snapshot, "logPartition": 0}
    rows = [place | _metadata_row(value, names) for value in values]
    return pa.RecordBatch.from_pylist(rows, schema=METADATA_VIEW_SCHEMA)


def _metadata_row(value: bytes | None, names: dict[str, str]) -> _Columns:
    row = _Row()
    try:
        record = MetadataRecord.of(value)
        schema = RECORD_SCHEMAS.get(record.api_key)
        name = UNKNOWN_RECORD_TYPE if schema is None else schema.name
        row.columns = {"apiKey": record.api_key, "version": record.version, "recordType": name}
        if schema is not None:
            row.columns |= _metadata_columns(record, record.fields(), names)
    except CorruptRecordError as error:
        row.problems.append(f"value: {error}")
    return row.finish()


def _metadata_columns(record: MetadataRecord, fields: Fields, names: dict[str, str]) -> _Columns:
    if record.api_key == TOPIC:
        names[fields["topicId"]] = fields["name"]
    topic_id, has_value = fields.get("topicId"), "resourceType" in fields
    is_feature = "featureLevel" in fields
    resource = fields.get("resourceType")
    return {
        "topic": names.get(topic_id or ""),
        "topicId": topic_id,
        "partition": fields.get("partitionId"),
        **{name: fields.get(name) for name in ("leader", "leaderEpoch", "replicas", "isr")},
        "resourceType": None if resource is None else _RESOURCES.get(resource, str(resource)),
        "resourceName": fields.get("resourceName"),
        "configName": fields["name"] if has_value else None,
        "configValue": fields.get("value"),
        "brokerId": fields.get("brokerId", fields.get("id")),
        "brokerEpoch": fields.get("brokerEpoch", fields.get("epoch")),
        "featureName": fields["name"] if is_feature else None,
        "featureLevel": fields.get("featureLevel"),
        "valueJson": json.dumps(
            {name: each for name, each in fields.items() if each is not None},
            ensure_ascii=False,
            default=_base64,
        ),
    }


def decode_remote_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Decode records of ``__remote_log_metadata`` into rows of ``REMOTE_VIEW_SCHEMA``.

    Takes and promises what :func:`decode_offsets_batch` does; a tombstone is a row of nulls.
    """
    rows = [_remote_row(value) for value in batch.column("value").to_pylist()]
    return _placed(batch, rows, REMOTE_VIEW_SCHEMA)


def _remote_row(value: bytes | None) -> _Columns:
    row = _Row()
    try:
        if value is not None:
            name, _, fields = decode_remote_log_record(value)
            row.columns = {"recordType": name} | _remote_columns(fields, row)
    except CorruptRecordError as error:
        row.problems.append(f"value: {error}")
    return row.finish()


def _remote_columns(fields: Fields, row: _Row) -> _Columns:
    segment = fields.get("remoteLogSegmentId") or {"id": fields.get("segmentId")}
    where = segment.get("topicIdPartition") or fields.get("topicIdPartition") or {}
    deletion = fields.get("remotePartitionDeleteState")
    code = fields.get("remoteLogSegmentState")
    state = None if deletion is None else _DELETIONS.get(deletion, str(deletion))
    return {
        "topic": where.get("name"),
        "topicId": where.get("id"),
        "partition": where.get("partition"),
        "segmentId": segment["id"],
        "state": state if code is None else SEGMENT_STATES.get(code, str(code)),
        **{name: fields.get(name) for name in ("startOffset", "endOffset", "brokerId")},
        "sizeInBytes": fields.get("segmentSizeInBytes"),
        "maxTimestamp": row.timestamp(fields, "maxTimestampMs")
        if "maxTimestampMs" in fields
        else None,
        "eventTimestamp": row.timestamp(fields, "eventTimestampMs"),
        "leaderEpochs": fields.get("segmentLeaderEpochs"),
        "txnIndexEmpty": bool(fields["txnIndexEmpty"]) if "txnIndexEmpty" in fields else None,
        "customMetadata": fields.get("customMetadata"),
    }


_DELETIONS: Final = {
    0: "DELETE_PARTITION_MARKED",
    1: "DELETE_PARTITION_STARTED",
    2: "DELETE_PARTITION_FINISHED",
}
"""Kafka ``RemotePartitionDeleteState``."""
