"""The records of the topic in which brokers keep what their remote tier has."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.remote_records import (
    DELETED,
    DELETING,
    FINISHED,
    partition_deleted,
    segment_added,
    segment_updated,
)

from kafkalog.errors import CorruptRecordError, UnsupportedFormatError
from kafkalog.streaming.coordinator.remote_log_metadata import (
    RemoteLogReplay,
    decode_remote_log_record,
)

TOPIC_ID = "AAECAwQFBgcICQoLDA0ODw"
ONE, TWO = "AQIDBAUGBwgJCgsMDQ4PEA", "AgMEBQYHCAkKCwwNDg8QEQ"
TOPIC = ("t", TOPIC_ID, 3)


def readable(*values: bytes | None) -> list[tuple[int, int]]:
    replay = RemoteLogReplay()
    for value in values:
        replay.feed(value)
    return [(s.start_offset, s.end_offset) for *_, found in replay.segments() for s in found]


def test_a_record_has_the_fields_that_kafka_names() -> None:
    value = segment_added(*TOPIC, ONE, (5, 9), epochs=[(2, 5), (4, 7)])
    name, api_key, fields = decode_remote_log_record(value)
    assert (name, api_key) == ("RemoteLogSegmentMetadataRecord", 0)
    where = {"name": "t", "id": TOPIC_ID, "partition": 3}
    assert fields["remoteLogSegmentId"] == {"topicIdPartition": where, "id": ONE}
    assert (fields["startOffset"], fields["endOffset"]) == (5, 9)
    assert fields["segmentLeaderEpochs"] == [
        {"leaderEpoch": 2, "offset": 5},
        {"leaderEpoch": 4, "offset": 7},
    ]
    assert fields["txnIndexEmpty"] is True


def test_a_segment_is_there_from_the_end_of_its_copy_to_the_beginning_of_its_deletion() -> None:
    added, copied = segment_added(*TOPIC, ONE, (0, 9)), segment_updated(*TOPIC, ONE)
    assert readable(added) == []
    assert readable(added, copied) == [(0, 10)]
    for state in (DELETING, DELETED):
        assert readable(added, copied, segment_updated(*TOPIC, ONE, state)) == []
    assert readable(copied) == []


def test_a_late_word_of_another_broker_brings_no_segment_back() -> None:
    gone = segment_updated(*TOPIC, ONE, DELETED)
    added = segment_added(*TOPIC, ONE, (0, 9))
    assert readable(added, gone, segment_updated(*TOPIC, ONE, FINISHED)) == []
    assert readable(added, gone, added, segment_updated(*TOPIC, ONE, FINISHED)) == []


def test_a_deleted_partition_has_no_segments_and_a_tombstone_says_nothing() -> None:
    added, copied = segment_added(*TOPIC, ONE, (0, 9)), segment_updated(*TOPIC, ONE)
    assert readable(added, None, copied) == [(0, 10)]
    assert readable(added, copied, partition_deleted(*TOPIC)) == []
    other = segment_added("u", TWO, 0, TWO, (3, 4)), segment_updated("u", TWO, 0, TWO)
    assert readable(added, copied, partition_deleted(*TOPIC), *other) == [(3, 5)]


def test_what_an_update_says_of_the_place_replaces_what_the_segment_was_added_with() -> None:
    replay = RemoteLogReplay()
    replay.feed(segment_added(*TOPIC, ONE, (0, 9), txn_index_empty=False))
    replay.feed(segment_updated(*TOPIC, ONE, custom_metadata=b"\1\2"))
    ((_, _, (segment,)),) = replay.segments()
    assert (segment.custom_metadata, segment.has_txn_index) == (b"\1\2", True)


@pytest.mark.parametrize("offsets", [(9, 5), (-1, 5), (0, 2**63 - 1)])
def test_offsets_that_no_segment_has_are_refused(offsets: tuple[int, int]) -> None:
    with pytest.raises(CorruptRecordError, match=f"segment {ONE} has offsets {offsets[0]} to"):
        readable(segment_added(*TOPIC, ONE, offsets))


def test_a_frame_or_a_kind_from_the_future_is_no_damage() -> None:
    for value in (b"\2\0\0", b"\1\4\0", b"\1\0\1"):
        with pytest.raises(UnsupportedFormatError, match="not known"):
            decode_remote_log_record(value)


@given(st.binary(max_size=80), st.integers(0, 200), st.sampled_from([0, 1, 2]))
def test_any_bytes_are_read_or_refused(junk: bytes, cut: int, kind: int) -> None:
    whole = [
        segment_added(*TOPIC, ONE, (5, 9), epochs=[(2, 5), (4, 7)]),
        segment_updated(*TOPIC, ONE, custom_metadata=b"\1\2"),
        partition_deleted(*TOPIC),
    ][kind]
    for value in (whole[:cut] + junk, whole[:cut] + junk + whole[cut + len(junk) :]):
        with suppress(CorruptRecordError):
            readable(value)
