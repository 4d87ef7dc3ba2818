from __future__ import annotations

import pytest
from tests.support.messages import offset_commit_key, offset_commit_value

from kafkalog.errors import OptionError
from kafkalog.model import TopicPartition
from kafkalog.streaming.coordinator.group_metadata import encode_position, encode_position_key
from kafkalog.streaming.coordinator.schemas import (
    OFFSET_COMMIT_VALUE,
    OFFSETS_RECORD_TYPES,
    decode_key,
    decode_value,
)


def test_a_key_and_a_value_have_the_bytes_of_a_brokers() -> None:
    key = encode_position_key("gé", TopicPartition("flights", 7))
    assert key == offset_commit_key("gé", "flights", 7)
    assert encode_position_key("g", TopicPartition("t", 0)).hex() == "0001000167000174" + "0" * 8
    value = encode_position(2**40, timestamp_ms=1_700_000_000_000, metadata="by é")
    assert value == offset_commit_value(2**40, metadata="by é", timestamp=1_700_000_000_000)


def test_what_is_encoded_is_decoded_again() -> None:
    key = encode_position_key("g", TopicPartition("t", 3))
    assert decode_key(OFFSETS_RECORD_TYPES, key).fields == {
        "group": "g",
        "topic": "t",
        "partition": 3,
    }
    value = decode_value(OFFSET_COMMIT_VALUE, encode_position(5, timestamp_ms=8)).fields
    assert (value["offset"], value["leaderEpoch"], value["commitTimestamp"]) == (5, -1, 8)


@pytest.mark.parametrize("group", ["", "g" * 32768])
def test_a_group_without_a_name_that_a_key_can_hold_is_refused(group: str) -> None:
    with pytest.raises(OptionError, match="has 1 to 32767 bytes"):
        encode_position_key(group, TopicPartition("t", 0))
