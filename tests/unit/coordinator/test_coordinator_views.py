"""The typed views: a row per record, whatever the bytes are."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import messages as write
from tests.support.coordinator_corpus import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    dumped_records,
    internal_records,
)

from kafkalog.streaming.coordinator.view_schemas import (
    OFFSETS_VIEW_SCHEMA,
    TRANSACTIONS_VIEW_SCHEMA,
)
from kafkalog.streaming.coordinator.views import (
    decode_offsets_batch,
    decode_transactions_batch,
)

Row = dict[str, Any]
Record = tuple[bytes | None, bytes | None]

AT = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
AT_MS = 1700000000000


def record_batch(*records: Record) -> pa.RecordBatch:
    """Lay out keys and values as a reader of partition 3 gives them, from offset 100 on."""
    count = len(records)
    return pa.record_batch(
        {
            "key": pa.array([key for key, _ in records], pa.binary()),
            "value": pa.array([value for _, value in records], pa.binary()),
            "partition": pa.array([3] * count, pa.int32()),
            "offset": pa.array(range(100, 100 + count), pa.int64()),
            "timestamp": pa.array([AT] * count, pa.timestamp("us", tz="UTC")),
            "timestampType": pa.array([0] * count, pa.int32()),
        }
    )


def offsets_row(key: bytes | None, value: bytes | None) -> Row:
    """Give the row of one record, without the columns that are null."""
    (row,) = decode_offsets_batch(record_batch((key, value))).to_pylist()
    return {name: cell for name, cell in row.items() if cell is not None}


def transactions_row(key: bytes | None, value: bytes | None) -> Row:
    """Give the row of one record, without the columns that are null."""
    (row,) = decode_transactions_batch(record_batch((key, value))).to_pylist()
    return {name: cell for name, cell in row.items() if cell is not None}


PLACE = {"logPartition": 3, "logOffset": 100, "logTimestamp": AT}
COMMIT_KEY = write.offset_commit_key("g", "t", 7)
COMMIT_KEY_ROW = {
    **PLACE,
    "recordType": "OffsetCommit",
    "keyVersion": 1,
    "tombstone": False,
    "group": "g",
    "topic": "t",
    "partition": 7,
}
TRANSACTION_KEY = write.i16(0) + write.string("tx-1")


def test_an_offset_commit_is_a_row_with_its_position() -> None:
    value = write.offset_commit_value(42, leader_epoch=5, metadata="m", timestamp=AT_MS)
    assert offsets_row(COMMIT_KEY, value) == {
        **COMMIT_KEY_ROW,
        "valueVersion": 3,
        "committedOffset": 42,
        "leaderEpoch": 5,
        "metadata": "m",
        "commitTimestamp": AT,
    }


def test_what_kafka_marks_with_minus_one_is_null() -> None:
    value = write.i16(1) + write.i64(42) + write.string("") + write.i64(-1) + write.i64(-1)
    row = offsets_row(COMMIT_KEY, value)
    assert row["committedOffset"] == 42
    assert row.keys().isdisjoint({"leaderEpoch", "commitTimestamp", "expireTimestamp", "error"})


def test_a_tombstone_is_a_row_with_its_key() -> None:
    assert offsets_row(COMMIT_KEY, None) == {**COMMIT_KEY_ROW, "tombstone": True}


def test_a_consumer_groups_members_have_their_subscription_and_assignment() -> None:
    subscription = (
        write.i16(3)
        + write.array(write.string("t"))
        + write.data(b"u")
        + write.array(write.string("t") + write.array(write.i32(1)))
        + write.i32(4)
        + write.string("rack")
    )
    assignment = (
        write.i16(3)
        + write.array(write.string("t") + write.array(write.i32(0), write.i32(2)))
        + write.data(None)
    )
    row = offsets_row(write.i16(2) + write.string("g"), group("consumer", subscription, assignment))
    assert (row["recordType"], row["group"], row["valueVersion"]) == ("GroupMetadata", "g", 3)
    assert "error" not in row
    assert row["groupMetadata"] == {
        "protocolType": "consumer",
        "generation": 5,
        "protocol": "range",
        "leader": "m-1",
        "currentStateTimestamp": AT,
        "members": [
            {
                "memberId": "m-1",
                "groupInstanceId": None,
                "clientId": "client",
                "clientHost": "/127.0.0.1",
                "rebalanceTimeoutMs": 60000,
                "sessionTimeoutMs": 45000,
                "subscription": {
                    "version": 3,
                    "topics": ["t"],
                    "userData": b"u",
                    "ownedPartitions": [{"topic": "t", "partitions": [1]}],
                    "generationId": 4,
                    "rackId": "rack",
                },
                "assignment": {
                    "version": 3,
                    "assignedPartitions": [{"topic": "t", "partitions": [0, 2]}],
                    "userData": None,
                },
                "subscriptionBytes": subscription,
                "assignmentBytes": assignment,
            }
        ],
    }


def group(protocol_type: str, subscription: bytes, assignment: bytes) -> bytes:
    """The value of a classic group of one member."""
    return (
        write.i16(3)
        + write.string(protocol_type)
        + write.i32(5)
        + write.string("range")
        + write.string("m-1")
        + write.i64(AT_MS)
        + write.array(
            write.string("m-1")
            + write.string(None)
            + write.string("client")
            + write.string("/127.0.0.1")
            + write.i32(60000)
            + write.i32(45000)
            + write.data(subscription)
            + write.data(assignment)
        )
    )


@pytest.mark.parametrize(
    ("protocol_type", "subscription", "error"),
    [
        ("connect", b"\x00\x01anything", None),
        ("consumer", b"", None),
        ("consumer", b"\x00", "value: subscription: 1 bytes, too few for its leading int16"),
    ],
)
def test_member_bytes_that_are_no_subscription_are_given_as_they_are(
    protocol_type: str, subscription: bytes, error: str | None
) -> None:
    row = offsets_row(write.i16(2) + write.string("g"), group(protocol_type, subscription, b""))
    (member,) = row["groupMetadata"]["members"]
    assert (member["subscription"], member["assignment"]) == (None, None)
    assert (member["subscriptionBytes"], member["assignmentBytes"]) == (subscription, b"")
    assert row.get("error") == error


def test_a_newer_consumer_groups_value_is_json_with_kafkas_names() -> None:
    key = write.i16(8) + write.string("g") + write.string("m-1")
    partitions = write.compact_array(
        bytes(16) + write.compact_array(write.i32(0), write.i32(1)) + write.NO_TAGS
    )
    value = (
        write.i16(0)
        + write.i32(2)
        + write.i32(1)
        + write.i8(0)
        + partitions
        + write.compact_array()
        + write.NO_TAGS
    )
    row = offsets_row(key, value)
    assert (row["recordType"], row["group"], row["memberId"]) == (
        "ConsumerGroupCurrentMemberAssignment",
        "g",
        "m-1",
    )
    assert json.loads(row["valueJson"]) == {
        "memberEpoch": 2,
        "previousMemberEpoch": 1,
        "state": 0,
        "assignedPartitions": [{"topicId": "AAAAAAAAAAAAAAAAAAAAAA", "partitions": [0, 1]}],
        "partitionsPendingRevocation": [],
    }


def test_of_a_share_groups_record_the_key_is_read_and_the_values_version() -> None:
    row = offsets_row(write.i16(10) + write.string("g") + write.string("m"), b"\x00\x00whatever")
    assert row == {
        **PLACE,
        "recordType": "ShareGroupMemberMetadata",
        "keyVersion": 10,
        "valueVersion": 0,
        "tombstone": False,
        "group": "g",
        "memberId": "m",
    }


def test_a_record_of_an_unknown_type_is_a_row_without_error() -> None:
    assert offsets_row(write.i16(99) + b"?", b"?") == {
        **PLACE,
        "recordType": "Unknown",
        "keyVersion": 99,
        "tombstone": False,
    }


@pytest.mark.parametrize(
    ("key", "value", "kept", "error"),
    [
        (None, b"v", PLACE, "the record has no key"),
        (b"\x00", b"v", PLACE, "key: 1 bytes, too few for its leading int16"),
        (b"\x00\x01", b"v", PLACE, "key: field 'group' at byte 0 needs 2 bytes, 0 are left"),
        (COMMIT_KEY, b"", COMMIT_KEY_ROW, "value: 0 bytes, too few for its leading int16"),
        (
            COMMIT_KEY,
            b"\x00\x03\x00",
            {**COMMIT_KEY_ROW, "valueVersion": 3},
            "value: field 'offset' at byte 0 needs 8 bytes, 1 are left",
        ),
        (
            COMMIT_KEY,
            b"\x00\x09",
            {**COMMIT_KEY_ROW, "valueVersion": 9},
            "value: OffsetCommitValue version 9 is not known (0 to 4 are)",
        ),
    ],
)
def test_a_damaged_record_keeps_what_can_be_read_and_says_what_cannot(
    key: bytes | None, value: bytes, kept: Row, error: str
) -> None:
    assert offsets_row(key, value) == {**kept, "tombstone": False, "error": error}


@pytest.mark.parametrize(
    ("milliseconds", "micros"),
    [
        (9223372036854775, 9223372036854775000),
        (-9223372036854775, -9223372036854775000),
        (9223372036854776, None),
        (-9223372036854776, None),
        (2**63 - 1, None),
        (-(2**63), None),
    ],
)
def test_a_time_that_no_timestamp_can_hold_is_null_with_an_error(
    milliseconds: int, micros: int | None
) -> None:
    value = write.offset_commit_value(42, timestamp=milliseconds)
    decoded = decode_offsets_batch(record_batch((COMMIT_KEY, value)))
    assert decoded.column("commitTimestamp").cast(pa.int64()).to_pylist() == [micros]
    assert decoded.column("committedOffset").to_pylist() == [42]
    (error,) = decoded.column("error").to_pylist()
    expected = f"value: commitTimestamp {milliseconds} ms is beyond every timestamp"
    assert error == (expected if micros is None else None)


def test_a_transaction_is_a_row_with_its_state_by_name() -> None:
    value = (
        write.i16(1)
        + write.i64(1234)
        + write.i16(5)
        + write.i32(60000)
        + write.i8(2)
        + write.compact_array(
            write.compact_string("t") + write.compact_array(write.i32(0)) + write.NO_TAGS
        )
        + write.i64(AT_MS)
        + write.i64(-1)
        + write.tags(t0=write.i64(1233), t2=write.i16(2))
    )
    assert transactions_row(TRANSACTION_KEY, value) == {
        **PLACE,
        "recordType": "TransactionLog",
        "keyVersion": 0,
        "valueVersion": 1,
        "tombstone": False,
        "transactionalId": "tx-1",
        "producerId": 1234,
        "previousProducerId": 1233,
        "producerEpoch": 5,
        "transactionTimeoutMs": 60000,
        "status": "PrepareCommit",
        "partitions": [{"topic": "t", "partitions": [0]}],
        "lastUpdateTimestamp": AT,
        "clientTransactionVersion": 2,
    }


@pytest.mark.parametrize("code", [-1, 8])
def test_a_transaction_state_that_nobody_knows_is_named_by_its_code(code: int) -> None:
    numbers = write.i64(1) + write.i16(0) + write.i32(0) + write.i8(code)
    value = write.i16(0) + numbers + write.i32(-1) + write.i64(-1) + write.i64(-1)
    row = transactions_row(TRANSACTION_KEY, value)
    assert row["producerId"] == 1
    assert row["error"] == f"value: transactionStatus {code} is not known"


def test_a_transactional_id_that_expired_is_a_tombstone() -> None:
    row = transactions_row(TRANSACTION_KEY, None)
    assert (row["transactionalId"], row["tombstone"]) == ("tx-1", True)


def test_rows_stay_in_the_order_of_their_records() -> None:
    value = write.offset_commit_value(1)
    decoded = decode_offsets_batch(
        record_batch((COMMIT_KEY, value), (None, None), (COMMIT_KEY, None))
    )
    assert decoded.column("logOffset").to_pylist() == [100, 101, 102]
    assert decoded.column("error").is_null().to_pylist() == [True, False, True]


def test_no_records_give_no_rows() -> None:
    assert decode_offsets_batch(record_batch()).num_rows == 0
    assert decode_transactions_batch(record_batch()).schema.equals(TRANSACTIONS_VIEW_SCHEMA)


KEYS = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.builds(
        lambda kind, rest: write.i16(kind) + rest, st.integers(0, 25), st.binary(max_size=30)
    ),
    st.sampled_from([COMMIT_KEY, TRANSACTION_KEY, write.i16(2) + write.string("g")]),
)
VALUES = st.one_of(
    st.none(),
    st.builds(lambda kind, rest: write.i16(kind) + rest, st.integers(0, 5), st.binary(max_size=60)),
    st.binary(max_size=60).map(lambda data: group("consumer", data, data[::-1])),
)


@pytest.mark.long
@given(st.lists(st.tuples(KEYS, VALUES), max_size=8))
@settings(max_examples=200)
def test_any_records_give_as_many_sound_rows(records: list[Record]) -> None:
    batch = record_batch(*records)
    offsets, transactions = decode_offsets_batch(batch), decode_transactions_batch(batch)
    for decoded, schema in (
        (offsets, OFFSETS_VIEW_SCHEMA),
        (transactions, TRANSACTIONS_VIEW_SCHEMA),
    ):
        decoded.validate(full=True)
        assert decoded.schema.equals(schema)
        assert decoded.column("logOffset").equals(batch.column("offset"))
        for row in decoded.to_pylist():
            assert row["recordType"] is not None or row["error"] is not None


def test_real_groups_are_seen_as_kafkas_dump_tool_shows_them() -> None:
    records = internal_records("p09-groups", OFFSETS_TOPIC)
    rows = decode_offsets_batch(records).to_pylist()
    dumped = {
        (record.topic_partition.partition, record.offset): record.value
        for record in dumped_records("p09-groups")
        if record.topic_partition.topic == OFFSETS_TOPIC and record.marker is None
    }
    assert [row["error"] for row in rows] == [None] * len(dumped)
    for row in rows:
        value = dumped[row["logPartition"], row["logOffset"]]
        assert row["tombstone"] == (value is None)
        if row["recordType"] == "OffsetCommit" and value is not None:
            assert row["committedOffset"] == value["data"]["offset"]
            assert row["metadata"] == value["data"]["metadata"]
        elif row["recordType"] == "GroupMetadata" and value is not None:
            assigned = [
                (member["memberId"], (member["assignment"] or {}).get("assignedPartitions"))
                for member in row["groupMetadata"]["members"]
            ]
            assert assigned == [
                (member["memberId"], member["assignment"]["assignedPartitions"])
                for member in value["data"]["members"]
            ]
        elif value is not None:
            assert json.loads(row["valueJson"]).items() >= value["data"].items()
    assert {row["recordType"] for row in rows} >= {
        "OffsetCommit",
        "GroupMetadata",
        "ConsumerGroupCurrentMemberAssignment",
    }


@pytest.mark.parametrize("case", ["p06-transactions", "p09-groups"])
def test_real_transactions_are_all_read(case: str) -> None:
    records = internal_records(case, TRANSACTIONS_TOPIC)
    decoded = decode_transactions_batch(records)
    assert decoded.num_rows == records.num_rows
    assert decoded.column("error").null_count == records.num_rows
    assert set(decoded.column("status").to_pylist()) >= {"Empty", "Ongoing", "CompleteCommit"}
