from __future__ import annotations

import dataclasses
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.coordinator_corpus import OFFSETS_TOPIC, internal_records

from kafkalog.errors import CorruptRecordError, OptionError
from kafkalog.model import TopicPartition
from kafkalog.streaming.coordinator.group_metadata import (
    GroupMetadata,
    MemberMetadata,
    decode_group_metadata,
    encode_assignment,
    encode_group_key,
    encode_group_metadata,
    encode_subscription,
    listed_partitions,
)
from kafkalog.streaming.coordinator.schemas import (
    OFFSETS_RECORD_TYPES,
    decode_assignment,
    decode_key,
    decode_subscription,
    value_version,
)

# Java has one replacement for a lone surrogate, so that it does not come back
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PARTITIONS = st.lists(
    st.builds(TopicPartition, NAMES, st.integers(0, 2**31 - 1)), max_size=6, unique=True
).map(sorted)
INT32 = st.integers(-(2**31), 2**31 - 1)
MEMBERS = st.builds(
    MemberMetadata, NAMES, st.none() | NAMES, NAMES, NAMES, INT32, INT32, st.binary(), st.binary()
)
GROUPS = st.builds(
    GroupMetadata,
    INT32,
    st.none() | NAMES,
    st.none() | NAMES,
    st.lists(MEMBERS, max_size=3).map(tuple),
    NAMES,
    st.integers(-(2**63), 2**63 - 1),
)


@cache
def written_by_a_broker() -> list[tuple[bytes, bytes]]:
    """List the keys and values of groups' metadata that a broker 4.1 wrote."""
    return [
        (row["key"], row["value"])
        for row in internal_records("p09-groups", OFFSETS_TOPIC).to_pylist()
        if row["key"].startswith(b"\x00\x02") and row["value"]
    ]


def test_what_a_broker_wrote_is_encoded_again_byte_for_byte() -> None:
    assert any(decode_group_metadata(value).members for _, value in written_by_a_broker())
    for key, value in written_by_a_broker():
        assert value_version(value) == 3
        assert encode_group_metadata(decode_group_metadata(value)) == value
        group = decode_key(OFFSETS_RECORD_TYPES, key).fields["group"]
        assert encode_group_key(group) == key


def test_what_clients_subscribed_to_and_were_assigned_is_encoded_with_the_same_meaning() -> None:
    members = [
        member
        for _, value in written_by_a_broker()
        for member in decode_group_metadata(value).members
    ]
    assert members
    for member in members:
        wish, got = decode_subscription(member.subscription), decode_assignment(member.assignment)
        again = encode_subscription(
            wish["topics"],
            owned=listed_partitions(wish["ownedPartitions"] or []),
            generation=-1 if wish["generationId"] is None else wish["generationId"],
            user_data=wish["userData"],
        )
        same = decode_subscription(again)
        assert (same["topics"], same["userData"]) == (wish["topics"], wish["userData"])
        assert same["ownedPartitions"] == (wish["ownedPartitions"] or [])
        partitions = listed_partitions(got["assignedPartitions"])
        encoded = encode_assignment(partitions, user_data=got["userData"])
        assert encoded[2:] == member.assignment[2:], "the version aside"


@given(GROUPS)
def test_a_group_comes_back_as_it_was(group: GroupMetadata) -> None:
    assert decode_group_metadata(encode_group_metadata(group)) == group


@given(st.lists(NAMES, max_size=4), PARTITIONS, INT32, st.none() | st.binary())
def test_a_subscription_and_an_assignment_come_back_as_they_were(
    topics: list[str], partitions: list[TopicPartition], generation: int, user_data: bytes | None
) -> None:
    wish = decode_subscription(
        encode_subscription(topics, owned=partitions, generation=generation, user_data=user_data)
    )
    assert wish["version"] == 3
    assert wish["topics"] == topics
    assert listed_partitions(wish["ownedPartitions"]) == partitions
    assert (wish["generationId"], wish["userData"], wish["rackId"]) == (generation, user_data, None)
    got = decode_assignment(encode_assignment(partitions, user_data=user_data))
    assert listed_partitions(got["assignedPartitions"]) == partitions
    assert got["userData"] == user_data


@given(GROUPS, st.integers(0, 200))
def test_a_value_that_ends_early_is_refused(group: GroupMetadata, size: int) -> None:
    data = encode_group_metadata(group)
    if size < len(data):
        with pytest.raises(CorruptRecordError):
            decode_group_metadata(data[:size])


def test_names_that_do_not_fit_and_partitions_below_zero_are_refused() -> None:
    with pytest.raises(OptionError, match="id is empty"):
        encode_group_key("")
    with pytest.raises(OptionError, match="at most 32767 fit"):
        encode_group_key("é" * 16384)
    with pytest.raises(OptionError, match="UTF-8 can hold"):
        encode_group_key("caf\udce9")
    assert encode_group_key("é" * 16383)[2:4] == b"\x7f\xfe"
    group = GroupMetadata(1, "range", None, ())
    with pytest.raises(OptionError, match="at most 32767 fit"):
        encode_group_metadata(dataclasses.replace(group, leader="x" * 32768))
    with pytest.raises(CorruptRecordError, match="has the partition"):
        listed_partitions([{"topic": "t", "partitions": [-1]}])
