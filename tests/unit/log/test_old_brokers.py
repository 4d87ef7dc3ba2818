"""Directories of brokers of 2015 to 2017 hold what their clients read, and their indexes serve."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from tests.support.archives import unpack

from kafkalog.checkpoints.broker import HIGH_WATERMARK, LOG_START_OFFSET
from kafkalog.model import TopicPartition
from kafkalog.streaming.coordinator.group_replay import read_group_positions
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.records.columns import ALL_COLUMNS, Columns, RecordDecoder
from kafkalog.streaming.store.log_dirs import LogDirs

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = Path(__file__).parents[2] / "data" / "old_brokers"
RELEASES = sorted(path.name for path in DATA.iterdir() if path.is_dir())
COLUMNS = (ALL_COLUMNS ^ Columns.TIMESTAMP) | Columns.TIMESTAMP_MS

Rows = dict[tuple[str, int, int], dict[str, Any]]


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def logs(release: str, tmp_path: Path) -> Iterator[list[tuple[PartitionLog, int]]]:
    """Give the logs of a release, each with where its broker's high watermark was."""
    unpack(DATA / release / "logdir.tar.gz", tmp_path)
    dirs = LogDirs([tmp_path / "logdir"])
    found = dirs.partitions()
    starts = dirs.checkpoint(LOG_START_OFFSET, found.values())
    ends = dirs.checkpoint(HIGH_WATERMARK, found.values())
    logs = [
        (PartitionLog(at.path, key, starts.get(key)), ends[key])
        for key, at in found.items()
        if key.topic != "__transaction_state"  # nobody read that at the time
    ]
    yield logs
    for log, _ in logs:
        log.close()


def expected(release: str, *, committed_only: bool) -> Rows:
    rows = pq.read_table(DATA / release / "expected.parquet").to_pylist()
    return {
        (row["topic"], row["partition"], row["offset"]): row
        for row in rows
        if row.pop("committed") or not committed_only
    }


def read(log: PartitionLog, end: int, *, pieces: int, committed_only: bool = False) -> Rows:
    decoder = RecordDecoder(COLUMNS)
    topic, partition = log.topic_partition
    found: Rows = {}
    for whole in log.slices(log.log_start_offset, end):
        for planned in log.split_slice(whole, pieces):
            for batch in log.read_slice(planned, decoder, committed_only=committed_only):
                for row in batch.to_pylist():
                    row["timestamp"] = row.pop("timestampMs")
                    found[topic, partition, row["offset"]] = {
                        "topic": topic,
                        "partition": partition,
                        **row,
                    }
    return found


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_rows_are_those_that_clients_read(
    release: str, level: str, logs: list[tuple[PartitionLog, int]], caplog: pytest.LogCaptureFixture
) -> None:
    committed = level == "read_committed"
    found: Rows = {}
    for log, high_watermark in logs:
        assert log.log_end_offset() == high_watermark
        end = log.last_stable_offset(high_watermark) if committed else high_watermark
        found |= read(log, end, pieces=5, committed_only=committed)
    assert found == expected(release, committed_only=committed)
    assert "not used" not in caplog.text


def test_any_offset_is_found_by_the_indexes_of_the_time(
    release: str, logs: list[tuple[PartitionLog, int]], caplog: pytest.LogCaptureFixture
) -> None:
    there = expected(release, committed_only=False)
    for log, high_watermark in logs:
        topic, partition = log.topic_partition
        for start in range(log.log_start_offset, high_watermark, 41):
            end = min(start + 3, high_watermark)
            keys = {(topic, partition, offset) for offset in range(start, end)}
            decoded = (
                batch.column("offset").to_pylist()
                for planned in log.slices(start, end)
                for batch in log.read_slice(planned, RecordDecoder(Columns.OFFSET))
            )
            found = {(topic, partition, offset) for offsets in decoded for offset in offsets}
            assert found == keys & there.keys()
    assert "not used" not in caplog.text


def test_group_positions_are_those_that_were_committed(
    logs: list[tuple[PartitionLog, int]],
) -> None:
    found = {
        place: position.offset
        for log, high_watermark in logs
        if log.topic_partition.topic == "__consumer_offsets"
        for place, position in read_group_positions(log, high_watermark).get("grp", {}).items()
    }
    assert found == {TopicPartition("rd-none", 0): 15, TopicPartition("rd-gzip", 1): 3}
