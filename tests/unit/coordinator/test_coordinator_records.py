"""Records of the coordinators' topics: each version by its bytes, and as Kafka's tool reads it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

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

from kafkalog.errors import CorruptRecordError, UnsupportedFormatError
from kafkalog.streaming.coordinator.schemas import (
    OFFSET_COMMIT_VALUE,
    OFFSETS_RECORD_TYPES,
    TRANSACTION_STATES,
    TRANSACTIONS_RECORD_TYPES,
    RecordType,
    decode_assignment,
    decode_key,
    decode_subscription,
    decode_value,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Fields = dict[str, Any]


def offsets_value(key_version: int, data: bytes) -> tuple[int, Fields]:
    """Decode a value of __consumer_offsets."""
    schema = OFFSETS_RECORD_TYPES[key_version].value
    assert schema is not None
    return decode_value(schema, data)


def transactions_value(data: bytes) -> tuple[int, Fields]:
    """Decode a value of __transaction_state."""
    schema = TRANSACTIONS_RECORD_TYPES[0].value
    assert schema is not None
    return decode_value(schema, data)


# --- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_an_offset_commit_key_is_read_in_both_versions(version: int) -> None:
    data = bytes([0, version]) + b"\x00\x02g1" + b"\x00\x03t-a" + b"\x00\x00\x00\x07"
    key = decode_key(OFFSETS_RECORD_TYPES, data)
    assert (key.version, key.fields) == (version, {"group": "g1", "topic": "t-a", "partition": 7})
    assert key.record_type is OFFSETS_RECORD_TYPES[1]


def test_a_group_metadata_key_holds_the_group() -> None:
    key = decode_key(OFFSETS_RECORD_TYPES, b"\x00\x02\x00\x03\xe2\x82\xac")
    assert key == (2, OFFSETS_RECORD_TYPES[2], {"group": "€"})


MEMBER_KEYS = {5, 7, 8, 10, 13, 14, 19, 21, 22}


@pytest.mark.parametrize("version", range(3, 25))
def test_keys_of_newer_groups_hold_the_group_and_what_else_names_the_record(version: int) -> None:
    data = write.i16(version) + write.string("g") + write.string("second")
    key = decode_key(OFFSETS_RECORD_TYPES, data)
    expected = {"groupId": "g"}
    if version in MEMBER_KEYS:
        expected["memberId"] = "second"
    elif version == 16:
        expected["regularExpression"] = "second"
    assert key.fields == expected


def test_record_types_have_the_names_that_kafka_gives_them() -> None:
    names = {version: kind.name for version, kind in OFFSETS_RECORD_TYPES.items()}
    assert names == {
        0: "OffsetCommit",
        1: "OffsetCommit",
        2: "GroupMetadata",
        3: "ConsumerGroupMetadata",
        4: "ConsumerGroupPartitionMetadata",
        5: "ConsumerGroupMemberMetadata",
        6: "ConsumerGroupTargetAssignmentMetadata",
        7: "ConsumerGroupTargetAssignmentMember",
        8: "ConsumerGroupCurrentMemberAssignment",
        9: "ShareGroupPartitionMetadata",
        10: "ShareGroupMemberMetadata",
        11: "ShareGroupMetadata",
        12: "ShareGroupTargetAssignmentMetadata",
        13: "ShareGroupTargetAssignmentMember",
        14: "ShareGroupCurrentMemberAssignment",
        15: "ShareGroupStatePartitionMetadata",
        16: "ConsumerGroupRegularExpression",
        17: "StreamsGroupMetadata",
        18: "StreamsGroupPartitionMetadata",
        19: "StreamsGroupMemberMetadata",
        20: "StreamsGroupTargetAssignmentMetadata",
        21: "StreamsGroupTargetAssignmentMember",
        22: "StreamsGroupCurrentMemberAssignment",
        23: "StreamsGroupTopology",
        24: "StreamsGroupTargetAssignmentResolvedTopicIds",
    }


@pytest.mark.parametrize("version", [-1, 25, 32767, -32768])
def test_a_key_of_an_unknown_type_is_no_error(version: int) -> None:
    key = decode_key(OFFSETS_RECORD_TYPES, write.i16(version) + b"whatever")
    assert key == (version, None, {})


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "the record has no key"),
        (b"", "key: 0 bytes, too few"),
        (b"\x00", "key: 1 bytes, too few"),
        (b"\x00\x01", "key: field 'group' at byte 0 needs 2 bytes, 0 are left"),
        (b"\x00\x01\x00\x05g", "key: field 'group' at byte 2 needs 5 bytes, 1 are left"),
        (b"\x00\x02\xff\xff", "key: field 'group' at byte 2 is null"),
    ],
)
def test_a_damaged_key_is_refused_with_the_place(data: bytes | None, reason: str) -> None:
    with pytest.raises(CorruptRecordError, match=reason):
        decode_key(OFFSETS_RECORD_TYPES, data)


def test_ids_that_are_not_utf8_are_read_as_a_broker_reads_them() -> None:
    found = decode_key(OFFSETS_RECORD_TYPES, b"\x00\x02\x00\x04caf\xe9")
    assert found.fields == {"group": "caf\ufffd"}


# --- offset commits -------------------------------------------------------------------------------

OFFSET = b"\x00\x00\x00\x01\x00\x00\x00\x02"  # 4294967298
COMMITTED_AT = b"\x00\x00\x01\x8b\xcf\xe5\x68\x00"  # 1700000000000
EXPIRES_AT = b"\x00\x00\x01\x8b\xcf\xe5\x6b\xe8"  # 1700000001000
OFFSET_COMMITS = {
    0: b"\x00\x00" + OFFSET + b"\x00\x02hi" + COMMITTED_AT,
    1: b"\x00\x01" + OFFSET + b"\x00\x02hi" + COMMITTED_AT + EXPIRES_AT,
    2: b"\x00\x02" + OFFSET + b"\x00\x02hi" + COMMITTED_AT,
    3: b"\x00\x03" + OFFSET + b"\x00\x00\x00\x09" + b"\x00\x02hi" + COMMITTED_AT,
    4: b"\x00\x04" + OFFSET + b"\x00\x00\x00\x09" + b"\x03hi" + COMMITTED_AT + b"\x00",
}


@pytest.mark.parametrize("version", OFFSET_COMMITS)
def test_an_offset_commit_is_read_in_every_version(version: int) -> None:
    assert decode_value(OFFSET_COMMIT_VALUE, OFFSET_COMMITS[version]) == (
        version,
        {
            "offset": 4294967298,
            "leaderEpoch": 9 if version >= 3 else -1,
            "metadata": "hi",
            "commitTimestamp": 1700000000000,
            "expireTimestamp": 1700000001000 if version == 1 else -1,
            "topicId": None,
        },
    )


def test_an_offset_commit_of_version_4_may_have_a_topic_id_and_tags_that_nobody_knows() -> None:
    topic_id = bytes.fromhex("c1d746 1f73b14b329e94d7c5151118e3")
    data = OFFSET_COMMITS[4][:-1] + write.tags(t0=topic_id, t9=b"later")
    _, fields = decode_value(OFFSET_COMMIT_VALUE, data)
    assert (fields["offset"], fields["topicId"]) == (4294967298, "wddGH3OxSzKelNfFFREY4w")


def test_an_offset_commit_that_a_2_8_broker_wrote_is_read() -> None:
    key = bytes.fromhex("0001 0009 6f6c642d67726f7570 000a 76302d72642d6e6f6e65 00000000")
    value = bytes.fromhex("0003 000000000000000c ffffffff 0005 6d65746100 000001a1fbd06715")
    assert decode_key(OFFSETS_RECORD_TYPES, key).fields == {
        "group": "old-group",
        "topic": "v0-rd-none",
        "partition": 0,
    }
    version, fields = decode_value(OFFSET_COMMIT_VALUE, value)
    assert (version, fields["offset"], fields["metadata"]) == (3, 12, "meta\x00")
    assert fields["commitTimestamp"] == 1795226101525


def test_negative_and_extreme_numbers_are_kept() -> None:
    data = write.i16(3) + write.i64(-(2**63)) + write.i32(2**31 - 1) + write.string("")
    _, fields = decode_value(OFFSET_COMMIT_VALUE, data + write.i64(2**63 - 1))
    assert (fields["offset"], fields["leaderEpoch"]) == (-(2**63), 2**31 - 1)
    assert fields["commitTimestamp"] == 2**63 - 1


@pytest.mark.parametrize("version", OFFSET_COMMITS)
def test_an_offset_commit_cut_anywhere_is_refused(version: int) -> None:
    whole = OFFSET_COMMITS[version]
    for size in range(len(whole)):
        with pytest.raises(CorruptRecordError, match=r"^value: "):
            decode_value(OFFSET_COMMIT_VALUE, whole[:size])


@pytest.mark.parametrize("version", [-1, 5, 32767])
def test_a_value_of_an_unknown_version_is_refused_by_its_number(version: int) -> None:
    with pytest.raises(
        UnsupportedFormatError, match=rf"OffsetCommitValue version {version} is not known \(0 to 4"
    ):
        decode_value(OFFSET_COMMIT_VALUE, write.i16(version) + OFFSET_COMMITS[3][2:])


# --- groups ---------------------------------------------------------------------------------------


def group_metadata(version: int) -> bytes:
    """A group of one member, in version 0 to 3."""
    return (
        write.i16(version)
        + write.string("consumer")
        + write.i32(5)
        + write.string("range")
        + write.string("m-1")
        + (write.i64(1700000000000) if version >= 2 else b"")
        + write.array(
            write.string("m-1")
            + (write.string("static-1") if version >= 3 else b"")
            + write.string("client")
            + write.string("/127.0.0.1")
            + (write.i32(60000) if version >= 1 else b"")
            + write.i32(45000)
            + write.data(b"S")
            + write.data(b"")
        )
    )


FLEXIBLE_GROUP_METADATA = (
    write.i16(4)
    + write.compact_string("consumer")
    + write.i32(5)
    + write.compact_string("range")
    + write.compact_string("m-1")
    + write.i64(1700000000000)
    + write.compact_array(
        write.compact_string("m-1")
        + write.compact_string("static-1")
        + write.compact_string("client")
        + write.compact_string("/127.0.0.1")
        + write.i32(60000)
        + write.i32(45000)
        + write.compact_data(b"S")
        + write.compact_data(b"")
        + write.tags(t0=b"of the member")
    )
    + write.tags(t7=b"of the group")
)
GROUP_METADATA = {**{v: group_metadata(v) for v in range(4)}, 4: FLEXIBLE_GROUP_METADATA}


@pytest.mark.parametrize("version", GROUP_METADATA)
def test_group_metadata_is_read_in_every_version(version: int) -> None:
    assert offsets_value(2, GROUP_METADATA[version]) == (
        version,
        {
            "protocolType": "consumer",
            "generation": 5,
            "protocol": "range",
            "leader": "m-1",
            "currentStateTimestamp": 1700000000000 if version >= 2 else -1,
            "members": [
                {
                    "memberId": "m-1",
                    "groupInstanceId": "static-1" if version >= 3 else None,
                    "clientId": "client",
                    "clientHost": "/127.0.0.1",
                    "rebalanceTimeout": 60000 if version >= 1 else None,
                    "sessionTimeout": 45000,
                    "subscription": b"S",
                    "assignment": b"",
                }
            ],
        },
    )


@pytest.mark.parametrize("version", GROUP_METADATA)
def test_group_metadata_cut_anywhere_is_refused(version: int) -> None:
    whole = GROUP_METADATA[version]
    for size in range(len(whole)):
        with pytest.raises(CorruptRecordError, match=r"^value: "):
            offsets_value(2, whole[:size])


def test_an_empty_group_has_neither_protocol_nor_leader_nor_members() -> None:
    data = bytes.fromhex("0003 0000 00000000 ffff ffff 0000018bcfe56800 00000000")
    assert offsets_value(2, data)[1] == {
        "protocolType": "",
        "generation": 0,
        "protocol": None,
        "leader": None,
        "currentStateTimestamp": 1700000000000,
        "members": [],
    }


def test_a_consumer_group_member_that_came_by_the_classic_protocol_keeps_its_protocols() -> None:
    classic = (
        b"\x01"
        + write.i32(45000)
        + write.compact_array(
            write.compact_string("range") + write.compact_data(b"\x00\x01") + write.NO_TAGS
        )
        + write.NO_TAGS
    )
    data = (
        write.i16(0)
        + write.compact_string(None)
        + write.compact_string("rack")
        + write.compact_string("client")
        + write.compact_string("/host")
        + write.compact_array(write.compact_string("t"))
        + write.compact_string("")
        + write.i32(300000)
        + write.compact_string("uniform")
        + write.tags(t0=classic)
    )
    _, fields = offsets_value(5, data)
    assert fields["serverAssignor"] == "uniform"
    assert fields["classicMemberMetadata"] == {
        "sessionTimeoutMs": 45000,
        "supportedProtocols": [{"name": "range", "metadata": b"\x00\x01"}],
    }


# --- the consumer protocol ------------------------------------------------------------------------

OWNED = write.array(write.string("t") + write.array(write.i32(0), write.i32(2)))
SUBSCRIPTIONS = {
    0: write.array(write.string("t")) + write.data(None),
    1: write.array(write.string("t")) + write.data(None) + OWNED,
    2: write.array(write.string("t")) + write.data(None) + OWNED + write.i32(4),
    3: write.array(write.string("t")) + write.data(None) + OWNED + write.i32(4) + write.string("r"),
}


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 32767])
def test_a_subscription_is_read_in_every_version_and_a_newer_one_as_the_last(version: int) -> None:
    newer = b"" if version <= 3 else b"fields of the future"
    assert decode_subscription(write.i16(version) + SUBSCRIPTIONS[min(version, 3)] + newer) == {
        "version": version,
        "topics": ["t"],
        "userData": None,
        "ownedPartitions": [{"topic": "t", "partitions": [0, 2]}] if version >= 1 else None,
        "generationId": 4 if version >= 2 else None,
        "rackId": "r" if version >= 3 else None,
    }


@pytest.mark.parametrize("version", [0, 3, 9])
def test_an_assignment_is_read_in_every_version(version: int) -> None:
    assert decode_assignment(write.i16(version) + OWNED + write.data(b"\x01")) == {
        "version": version,
        "assignedPartitions": [{"topic": "t", "partitions": [0, 2]}],
        "userData": b"\x01",
    }


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "subscription: 0 bytes"),
        (b"\xff\xff", "subscription: ConsumerProtocolSubscription version -1 is not known"),
        (b"\x00\x00\x7f\xff\xff\xff", "subscription: field 'topics' .* has 2147483647 elements"),
    ],
)
def test_bytes_that_are_no_subscription_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptRecordError, match=reason):
        decode_subscription(data)


# --- transactions ---------------------------------------------------------------------------------


def test_a_transaction_is_read_in_version_0() -> None:
    data = bytes.fromhex(
        "0000 00000000000004d2 0005 0000ea60 01"
        "00000001 0001 74 00000002 00000000 00000003"
        "0000018bcfe56800 0000018bcfe56418"
    )
    assert transactions_value(data) == (
        0,
        {
            "producerId": 1234,
            "previousProducerId": -1,
            "nextProducerId": -1,
            "producerEpoch": 5,
            "nextProducerEpoch": -1,
            "transactionTimeoutMs": 60000,
            "transactionStatus": 1,
            "transactionPartitions": [{"topic": "t", "partitionIds": [0, 3]}],
            "transactionLastUpdateTimestampMs": 1700000000000,
            "transactionStartTimestampMs": 1699999999000,
            "clientTransactionVersion": 0,
        },
    )


def test_a_transaction_is_read_in_version_1_with_its_tags() -> None:
    data = bytes.fromhex(
        "0001 00000000000004d2 0005 0000ea60 00"
        "00"
        "0000018bcfe56800 ffffffffffffffff"
        "04 00 08 00000000000004d1 01 08 00000000000004d3 02 02 0002 03 02 0006"
    )
    version, fields = transactions_value(data)
    assert version == 1
    assert fields["transactionPartitions"] is None
    assert (fields["previousProducerId"], fields["nextProducerId"]) == (1233, 1235)
    assert (fields["clientTransactionVersion"], fields["nextProducerEpoch"]) == (2, 6)


def test_transaction_states_stand_at_their_codes() -> None:
    assert TRANSACTION_STATES.index("Empty") == 0
    assert TRANSACTION_STATES.index("PrepareEpochFence") == 7


# --- anything at all ------------------------------------------------------------------------------

KINDS = [*OFFSETS_RECORD_TYPES.values(), *TRANSACTIONS_RECORD_TYPES.values()]


@given(st.sampled_from(KINDS), st.integers(-1, 5), st.binary(max_size=200))
@settings(max_examples=200)
def test_any_bytes_are_decoded_or_refused(kind: RecordType, version: int, data: bytes) -> None:
    with contextlib.suppress(CorruptRecordError):
        decode_key(OFFSETS_RECORD_TYPES, write.i16(version) + data)
    if kind.value is not None:
        with contextlib.suppress(CorruptRecordError):
            decode_value(kind.value, write.i16(version) + data)


@given(st.data())
@settings(max_examples=200)
def test_a_record_with_bytes_changed_is_decoded_or_refused(data: st.DataObject) -> None:
    value = bytearray(
        data.draw(st.sampled_from([*GROUP_METADATA.values(), *OFFSET_COMMITS.values()]))
    )
    for position in data.draw(st.lists(st.integers(0, len(value) - 1), min_size=1, max_size=4)):
        value[position] = data.draw(st.integers(0, 255))
    for key_version in (1, 2):
        with contextlib.suppress(CorruptRecordError):
            offsets_value(key_version, bytes(value))


# --- Kafka's own tool -----------------------------------------------------------------------------


def expand(fields: Fields) -> Fields:
    """Decode the members' bytes of a consumer group, as the tool does."""
    if fields.get("protocolType") != "consumer":
        return fields
    members = [
        {
            **member,
            "subscription": decode_subscription(member["subscription"]),
            "assignment": decode_assignment(member["assignment"]),
        }
        for member in fields["members"]
    ]
    return {**fields, "members": members}


def only_what_is_printed(ours: object, printed: object) -> object:
    """Drop what the tool leaves out: versions it has printed elsewhere, and defaults."""
    if isinstance(ours, dict) and isinstance(printed, dict):
        left_out = {name: ours[name] for name in ours.keys() - printed.keys() - {"version"}}
        assert all(value in {None, -1, 0} for value in left_out.values()), left_out
        return {
            name: only_what_is_printed(value, printed[name])
            for name, value in ours.items()
            if name in printed
        }
    if isinstance(ours, list) and isinstance(printed, list) and len(ours) == len(printed):
        return [only_what_is_printed(*pair) for pair in zip(ours, printed, strict=True)]
    return ours


@pytest.mark.parametrize(
    ("case", "topic", "record_types"),
    [
        ("p06-transactions", TRANSACTIONS_TOPIC, TRANSACTIONS_RECORD_TYPES),
        ("p09-groups", TRANSACTIONS_TOPIC, TRANSACTIONS_RECORD_TYPES),
        ("p09-groups", OFFSETS_TOPIC, OFFSETS_RECORD_TYPES),
    ],
)
def test_every_record_that_a_broker_wrote_reads_as_its_dump_tool_prints_it(
    case: str, topic: str, record_types: Mapping[int, RecordType]
) -> None:
    printed = {
        (*record.topic_partition, record.offset): record
        for record in dumped_records(case)
        if record.topic_partition.topic == topic and record.marker is None
    }
    rows = internal_records(case, topic).to_pylist()
    assert {(topic, row["partition"], row["offset"]) for row in rows} == printed.keys()
    for row in rows:
        record = printed[topic, row["partition"], row["offset"]]
        key = decode_key(record_types, row["key"])
        assert {"type": str(key.version), "data": key.fields} == record.key
        if record.value is None:
            assert row["value"] is None
            continue
        assert key.record_type is not None
        assert key.record_type.value is not None
        version, fields = decode_value(key.record_type.value, row["value"])
        ours = only_what_is_printed(expand(fields), record.value["data"])
        assert {"version": str(version), "data": ours} == record.value
