"""Logs that real brokers wrote: same ends, same lookups, same indexes, same segments."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests.support.coordinator_corpus import OFFSETS_TOPIC, group_offsets
from tests.support.corpus import CAPTURED_LIVE, CASES, CORPUS, UnpackedCase
from tests.support.log_files import read_offsets

from kafkalog.checkpoints.broker import HIGH_WATERMARK, LOG_START_OFFSET, read_leader_epochs
from kafkalog.model import TopicPartition
from kafkalog.streaming.coordinator.group_replay import read_group_positions
from kafkalog.streaming.log.files import OFFSET_INDEX, TIME_INDEX
from kafkalog.streaming.log.growth import SegmentState, index_segment, plan_append
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.valid_batches import valid_chunks
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.store.log_dirs import LogDirs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.streaming.coordinator.group_replay import GroupPositions
    from kafkalog.streaming.log.segment import LogSegment
    from kafkalog.streaming.records.batch import BatchTable

BEFORE_4_1 = {"p13-v0v1"}
"""Its broker wrote index entries for whole appends."""


class Partition(NamedTuple):
    log: PartitionLog
    high_watermark: int
    facts: dict[str, Any]
    settings: dict[str, str]


class Case(NamedTuple):
    name: str
    partitions: list[Partition]


@contextmanager
def _open_case(name: str, directory: Path) -> Iterator[Case]:
    unpacked = UnpackedCase(name, directory)
    facts = json.loads((CORPUS / name / "offsets.json").read_text())
    dirs = LogDirs(unpacked.path.split(","))
    found = dirs.partitions()
    starts = dirs.checkpoint(LOG_START_OFFSET, found.values())
    watermarks = dirs.checkpoint(HIGH_WATERMARK, found.values())
    by_key = {TopicPartition(p["topic"], p["partition"]): p for p in facts["partitions"]}
    assert found.keys() == by_key.keys()
    partitions = [
        Partition(
            PartitionLog(where.path, key, starts.get(key)),
            watermarks.get(key, 0),
            by_key[key],
            facts["topics"][key.topic]["config"],
        )
        for key, where in found.items()
    ]
    yield Case(name, partitions)
    for partition in partitions:
        partition.log.close()
    assert unpacked.changed_files() == []


@pytest.fixture(scope="module", params=CASES)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Case]:
    with _open_case(request.param, tmp_path_factory.mktemp(request.param)) as opened:
        yield opened


@pytest.mark.long
def test_logs_start_and_end_where_the_broker_says(case: Case) -> None:
    for log, watermark, facts, _ in case.partitions:
        end = log.log_end_offset()
        assert (log.log_start_offset, end) == (facts["log_start"], facts["high_watermark"])
        assert log.log_end_offset(verify_from=0, committed_end=end) == end
        if case.name not in CAPTURED_LIVE:
            assert max(log.log_start_offset, min(watermark, end)) == facts["high_watermark"]


def test_the_last_stable_offset_is_the_one_that_the_broker_gave(case: Case) -> None:
    for log, _, facts, _ in case.partitions:
        assert log.last_stable_offset(facts["high_watermark"]) == facts["lso"], log.topic_partition


def test_the_leader_epoch_is_the_one_that_the_broker_gave(case: Case) -> None:
    for log, _, facts, _ in case.partitions:
        epochs = read_leader_epochs(log.directory)
        if epochs:  # a partition without records of magic 2 has none
            assert epochs[-1].epoch == facts["leader_epoch"], log.topic_partition


def test_group_positions_are_those_that_the_broker_gave(case: Case) -> None:
    found: GroupPositions = {}
    for log, _, facts, _ in case.partitions:
        if log.topic_partition.topic == OFFSETS_TOPIC:
            found |= read_group_positions(log, facts["high_watermark"])
    assert group_offsets(case.name) == {
        group: {
            place: (position.offset, position.leader_epoch, position.metadata)
            for place, position in positions.items()
        }
        for group, positions in found.items()
    }


def test_as_many_records_are_read_as_a_client_read(case: Case) -> None:
    for log, _, facts, _ in case.partitions:
        found = read_offsets(log, log.log_start_offset, facts["high_watermark"], pieces=3)
        assert sorted(set(found)) == found
        assert len(found) == facts["n_read_uncommitted"]


def test_timestamps_lead_to_the_offsets_that_the_broker_gave(case: Case) -> None:
    for log, _, facts, _ in case.partitions:
        answered = [answer for answer in facts["offsets_for_times"] if len(answer) == 4]
        for asked, offset, timestamp, _ in answered:
            found = log.offset_for_timestamp(asked)
            if found is None or found.offset >= facts["high_watermark"]:
                found = None
            expected = None if offset < 0 else (timestamp, offset)
            assert expected == found, f"{log.topic_partition} at {asked}"


def test_the_greatest_timestamp_is_the_one_that_the_broker_gave(case: Case) -> None:
    for log, _, facts, _ in case.partitions:
        if facts.get("max_timestamp") is None:
            continue  # brokers of that time could not be asked
        offset, timestamp = facts["max_timestamp"]
        expected = None if offset < 0 else (timestamp, offset)
        assert expected == log.max_timestamp(), log.topic_partition


def test_rebuilt_indexes_are_byte_for_byte_the_brokers(case: Case) -> None:
    for log, _, _, settings in case.partitions:
        interval = int(settings.get("index.interval.bytes", 4096))
        for segment in log.segments:
            with segment:
                tables = [chunk.table for chunk in valid_chunks(segment, 0)]
                if case.name in BEFORE_4_1:
                    _check_entries_of_appends(segment, tables)
                    continue
                built = index_segment(segment.base_offset, tables, interval)
                assert built.index_entries == _written(segment, OFFSET_INDEX)
                times = _written(segment, TIME_INDEX)
                if case.name in CAPTURED_LIVE and segment is log.segments[-1]:
                    assert built.time_index_entries.startswith(times)
                else:
                    assert built.time_index_entries == times


def _check_entries_of_appends(segment: LogSegment, tables: list[BatchTable]) -> None:
    """An entry has the last offset of an append and the position of the append's first batch."""
    index = segment.offset_index()
    assert index is not None
    last_offsets = {offset for table in tables for offset in table.last_offset.tolist()}
    for offset, position in index.between(0, segment.size).tolist():
        header = segment.header_at(position)
        assert header is not None
        assert header.last_offset <= offset
        assert offset in last_offsets


def _written(segment: LogSegment, kind: str) -> bytes:
    index = segment.offset_index() if kind == OFFSET_INDEX else segment.time_index()
    assert index is not None
    return index.read(0, len(index)).tobytes()


def test_segments_roll_where_the_broker_rolled(tmp_path: Path) -> None:
    with _open_case("p05-segments", tmp_path) as case:
        for log, _, _, settings in case.partitions:
            known = {name.removeprefix("internal."): value for name, value in settings.items()}
            tables = []
            for segment in log.segments:
                with segment:
                    tables += [chunk.table for chunk in valid_chunks(segment, 0)]
            planned, _ = plan_append(
                log.topic_partition,
                LogConfig.from_mapping(known),
                SegmentState.empty(0, 0),
                tables,
                now_ms=0,
            )
            expected = [segment.base_offset for segment in log.segments]
            assert expected == [segment.base_offset for segment in planned], log.topic_partition
        assert sum(len(partition.log.segments) for partition in case.partitions) == 41


def test_reading_leaves_no_files_open(case: Case) -> None:
    for log, _, _, _ in case.partitions:
        log.close()
    opened = {str(link.resolve()) for link in Path("/proc/self/fd").iterdir()}
    assert not [path for path in opened if case.name in path and "-0/" in path]
