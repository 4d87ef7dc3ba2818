"""Group positions read from log files: what real brokers answered, and transactions of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.support.coordinator_corpus import OFFSETS_TOPIC, group_offsets, offsets_logs
from tests.support.logs import Row, batch_bytes, write_segment
from tests.support.messages import offset_commit_key, offset_commit_value

from kafkalog.errors import CorruptRecordError
from kafkalog.model import TopicPartition
from kafkalog.streaming.coordinator.group_replay import (
    ReplayDecoder,
    partition_for_group,
    read_group_positions,
    read_groups,
)
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.records.batch import scan_batches

if TYPE_CHECKING:
    from pathlib import Path


def test_one_group_is_found_in_its_partition_alone(tmp_path: Path) -> None:
    logs = offsets_logs("p09-groups", tmp_path)
    expected = group_offsets("p09-groups")
    for group, offsets in expected.items():
        log = logs[partition_for_group(group, len(logs))]
        found = read_group_positions(log, log.log_end_offset(), group=group)
        assert {place: at.offset for place, at in found.pop(group).items()} == {
            place: offset for place, (offset, _, _) in offsets.items()
        }
        assert not found


def test_nothing_from_the_end_offset_on_counts(tmp_path: Path) -> None:
    log = offsets_logs("p09-groups", tmp_path)[2]
    group, end = "tx-group", log.log_end_offset()
    whole = read_group_positions(log, end, group=group)[group]
    # Without the last marker, what it commits is pending, and what it replaces still counts.
    before_the_marker = read_group_positions(log, end - 1, group=group)[group]
    assert whole.keys() == before_the_marker.keys()
    for place, position in whole.items():
        assert before_the_marker[place].record_offset < position.record_offset
    assert read_group_positions(log, 0, group=group) == {}


def test_markers_are_decoded_beside_records_with_their_producer() -> None:
    """The marker is one that Kafka's writer made: ABORT at offset 7 for producer 1234."""
    marker = bytes.fromhex(
        "00000000000000070000004200000003029581677a00300000000000000000075bcd1500000000075bcd15"
        "00000000000004d20005ffffffff000000012000000008000000000c00000000000900"
    )
    records = batch_bytes(5, [Row(b"v5", b"k"), Row(None, b"k")])
    data = np.frombuffer(records + marker + batch_bytes(8, [Row(b"v8", b"k")]), np.uint8)
    decoded = ReplayDecoder().feed(
        data,
        scan_batches(data).table,
        file_position=0,
        path="",
        start_offset=6,
        end_offset=9,
    )
    assert [row for batch in decoded for row in batch.to_pylist()] == [
        {"key": b"k", "value": None, "offset": 6, "producerId": -1, "isControl": False},
        {
            "key": b"\0\0\0\0",
            "value": b"\0\0\0\0\0\x09",
            "offset": 7,
            "producerId": 1234,
            "isControl": True,
        },
        {"key": b"k", "value": b"v8", "offset": 8, "producerId": -1, "isControl": False},
    ]


@pytest.mark.parametrize(
    ("odd", "attributes", "reason"),
    [
        (Row(b"", None), 0x30, "the control record has no key"),
        (Row(b"", b"\0\0\0"), 0x30, "the control record has no key"),
        (Row(b"\0\3damage", offset_commit_key("odd", "t", 0)), 0, "value: field 'offset'"),
        (Row(b"\0\x09zzz", b"\0\2\0\3odd"), 0, "value: GroupMetadataValue version 9 is not"),
        (Row(b"\0\x00", b"\0\3\0\x09odd"), 0, "key: field 'groupId'"),
        (Row(b"\0\x00", b""), 0, "the record has no key"),
    ],
)
def test_a_record_that_cannot_be_decoded_hides_no_group(
    odd: Row, attributes: int, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [
        batch_bytes(0, [Row(offset_commit_value(4), offset_commit_key("g", "t", 0))]),
        batch_bytes(1, [odd], attributes=attributes),
        batch_bytes(2, [Row(offset_commit_value(5), offset_commit_key("last", "t", 0))]),
    ]
    write_segment(tmp_path, 0, b"".join(rows))
    with PartitionLog(tmp_path, TopicPartition(OFFSETS_TOPIC, 0)) as log:
        found = read_groups(log, 3)
    ends = {name: [at.offset for at in each.positions.values()] for name, each in found.items()}
    assert ends == {"g": [4], "last": [5]}
    (told,) = caplog.messages
    assert f"{tmp_path}: 1 record cannot be decoded" in told
    assert f"First: offset 1: {reason}" in told


def test_a_damaged_commit_of_the_group_asked_for_is_an_error_with_its_place(
    tmp_path: Path,
) -> None:
    commit = Row(b"\0\3damage", offset_commit_key("g", "t", 0))
    write_segment(tmp_path, 0, batch_bytes(0, [Row(b"", b"\0\2\0\1g"), commit]))
    log = PartitionLog(tmp_path, TopicPartition(OFFSETS_TOPIC, 0))
    with pytest.raises(CorruptRecordError, match=f"{tmp_path} offset 1: value: field 'offset'"):
        read_group_positions(log, 2, group="g")


def test_a_log_without_records_has_no_positions(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, b"")
    log = PartitionLog(tmp_path, TopicPartition(OFFSETS_TOPIC, 0))
    assert read_group_positions(log, 0) == {}
