from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, cast

import pytest
from tests.support.sinking import Writer, rows, values_of

from kafkalog.errors import KafkaLogError, LogDirectoryError
from kafkalog.files.system import system
from kafkalog.model import TopicPartition
from kafkalog.streaming.coordinator.group_replay import partition_for_group
from kafkalog.streaming.groups.administration import GroupWriter
from kafkalog.streaming.groups.position_topics import last_batch_of
from kafkalog.streaming.log.history import find_last_batch
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.source.start import read_commits
from kafkalog.streaming.spark.datasource import KafkaLogDataSource
from kafkalog.streaming.store.log_dirs import LogDirs

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.streaming.spark.readers import LogStreamReader

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a log directory that the sink has written two records to."""
    directory = tmp_path / "log"
    directory.mkdir()
    Writer(directory, topic="t").write(0, rows(["a", "b"]))
    return directory


def positions(log: Path, group: str = "g") -> dict[TopicPartition, int]:
    found = read_commits([str(log)], group, to_log_end=False)
    return {key: position.offset for key, position in found.items()}


def test_positions_are_read_back_as_they_were_committed(log: Path) -> None:
    writer = GroupWriter([str(log)], "g")
    assert writer.commit({T0: 1, T1: 7})
    assert positions(log) == {T0: 1, T1: 7}
    assert writer.commit({T0: 2, T1: 7})
    assert GroupWriter([str(log)], "other").commit({T0: 9})
    assert positions(log) == {T0: 2, T1: 7}
    assert values_of([log], "t") == {0: ["a", "b"]}


def test_a_position_goes_with_the_last_batch_below_it(log: Path) -> None:
    GroupWriter([str(log)], "g").commit({T0: 2, T1: 7})
    committed = read_commits([str(log)], "g", to_log_end=False)
    with PartitionLog(log / "t-0", T0) as partition:
        assert last_batch_of(committed[T0]) == find_last_batch(partition, 2)
    assert last_batch_of(committed[T1]) is None


def test_only_what_has_changed_is_written(log: Path) -> None:
    writer = GroupWriter([str(log)], "g")
    writer.commit({T0: 1, T1: 7})
    assert not writer.commit({T0: 1, T1: 7})
    writer.commit({T0: 2, T1: 7})
    number = partition_for_group("g")
    file = log / f"__consumer_offsets-{number}" / f"{0:020d}.log"
    assert file.read_bytes().count(b"\0\1g\0\1t") == 3


def test_positions_that_stay_as_they_are_are_written_again_once_an_hour(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(system, "monotonic", lambda: now_s)
    writer = GroupWriter([str(log)], "g")
    assert writer.commit({T0: 1, T1: 7})
    now_s = 3599.0
    assert not writer.commit({T0: 1, T1: 7})
    now_s = 3600.0
    assert writer.commit({T0: 2, T1: 7})
    assert not writer.commit({T0: 2, T1: 7})
    file = log / f"__consumer_offsets-{partition_for_group('g')}" / f"{0:020d}.log"
    assert file.read_bytes().count(b"\0\1g\0\1t") == 4


def test_a_query_to_which_nothing_comes_writes_its_positions_again_too(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved_s = [0.0]
    options = {"path": str(log), "subscribe": "t", "startingOffsets": "earliest"}
    options |= {"commitGroupOffsets": "true", "kafka.group.id": "g"}
    source = KafkaLogDataSource(options)
    reader = cast("LogStreamReader", source.streamReader(source.schema()))
    limit = reader.getDefaultReadLimit()
    end = reader.latestOffset(reader.initialOffset(), limit)
    file = log / f"__consumer_offsets-{partition_for_group('g')}" / f"{0:020d}.log"
    assert reader.latestOffset(end, limit) == end
    assert not file.exists()
    real = system.monotonic
    monkeypatch.setattr(system, "monotonic", lambda: real() + moved_s[0])
    written = []
    for moved_s[0] in (3500.0, 3700.0, 3800.0, 7400.0):
        assert reader.latestOffset(end, limit) == end
        written.append(file.exists() and file.read_bytes().count(b"\0\1g\0\1t"))
    assert written == [0, 1, 1, 2]


def test_the_topic_is_made_as_a_broker_makes_it_or_kept_as_it_is(log: Path, tmp_path: Path) -> None:
    GroupWriter([str(log)], "g").commit({T0: 1})
    folders = [key for key in LogDirs([log]).partitions() if key.topic == "__consumer_offsets"]
    assert len(folders) == 50
    small = tmp_path / "small"
    small.mkdir()
    made = {"topic": "__consumer_offsets", "allowInternalTopics": "true", "numPartitions": "3"}
    Writer(small, **made).write(0, rows([b""], keys=[b"\0\2"], partitions=[1]))
    GroupWriter([str(small)], "g").commit({T0: 1})
    assert positions(small) == {T0: 1}
    assert len(LogDirs([small]).partitions()) == 3


def test_directories_that_are_not_the_sinks_are_refused(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(log / "t-0", other / "t-0")
    with pytest.raises(LogDirectoryError, match="the directories are not the sink's"):
        GroupWriter([str(other)], "g")
    (log / "meta.properties").write_text("version=1\n")
    with pytest.raises(LogDirectoryError, match="a broker lived here"):
        GroupWriter([str(log)], "g")


def test_a_failure_is_said_and_the_next_commit_makes_up_for_it(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = GroupWriter([str(log)], "g")
    writer.commit({T0: 1})
    (log / "meta.properties").write_text("version=1\n")
    with pytest.raises(KafkaLogError):
        writer.commit({T0: 2})
    writer.try_to_commit({T0: 2})
    assert "positions of group 'g' were not committed" in caplog.text
    (log / "meta.properties").unlink()
    writer.try_to_commit({T0: 2})
    assert positions(log) == {T0: 2}
