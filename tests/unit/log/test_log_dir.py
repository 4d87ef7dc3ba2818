"""Which partitions live in log directories, and where a new one goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.logs import write_checkpoint, write_segment

from kafkalog.checkpoints.broker import HIGH_WATERMARK
from kafkalog.errors import LogDirectoryError
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.log_dir import PartitionDirectory
from kafkalog.streaming.store import log_dirs
from kafkalog.streaming.store.log_dirs import LogDirs, choose_directory

if TYPE_CHECKING:
    from pathlib import Path

_UUID = "8f5c9b0de0f94a2e9d6a4f8a3c1e7b21"


def _make(directory: Path, *names: str) -> Path:
    for name in names:
        (directory / name).mkdir(parents=True)
    return directory


def test_live_partitions_are_found_over_several_directories(tmp_path: Path) -> None:
    first = _make(tmp_path / "d1", "b-1", "a-0", f"c-0.{_UUID}-delete")
    second = _make(tmp_path / "d2", "a-10", "a-2", "x-y-3", f"e-0.{_UUID}-future")
    _make(second, f"f-0.{_UUID}-stray", "__cluster_metadata-0", "remote-log-index-cache", "lost")
    (second / "g-0").write_text("a file")
    found = LogDirs([first, second]).partitions()
    assert [str(key) for key in found] == ["a-0", "a-2", "a-10", "b-1", "x-y-3"]
    assert found[TopicPartition("a", 2)].path == second / "a-2"
    assert found[TopicPartition("a", 0)].log_dir == first


def test_a_partition_that_lives_twice_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_dirs, "_RESTS_SECONDS", (0.0,))
    first, second = _make(tmp_path / "d1", "a-0"), _make(tmp_path / "d2", "a-0")
    with pytest.raises(LogDirectoryError, match="a-0 lives in"):
        LogDirs([first, second]).partitions()
    assert len(LogDirs([first, first]).partitions()) == 1


def test_the_folder_of_one_partition_is_a_path_too(tmp_path: Path) -> None:
    directory = _make(tmp_path, "copy-of-a-7") / "copy-of-a-7"
    (directory / f"{0:020d}.log").touch()
    (found,) = LogDirs([str(directory)]).partitions().values()
    assert found.topic_partition == TopicPartition("copy-of-a", 7)
    assert (found.path, found.log_dir) == (directory, tmp_path)


@pytest.mark.parametrize("word", ["delete", "future", "stray"])
def test_a_retired_folder_is_read_when_it_is_named_itself(word: str, tmp_path: Path) -> None:
    """What the checkpoints say of ``t-0`` is about the topic that has the name now."""
    retired = tmp_path / f"t-0.{_UUID}-{word}"
    write_segment(retired, 0, b"")
    write_segment(tmp_path / "t-0", 0, b"")
    write_checkpoint(tmp_path, HIGH_WATERMARK, {"t-0": 7})
    found = LogDirs([retired]).partitions()
    key = TopicPartition("t", 0)
    assert found == {key: PartitionDirectory(key, retired, retired)}
    assert LogDirs([retired]).checkpoint(HIGH_WATERMARK, found.values()) == {}
    assert LogDirs([tmp_path]).partitions()[key].path == tmp_path / "t-0"


def test_a_log_directory_may_be_named_like_a_partition(tmp_path: Path) -> None:
    directory = _make(tmp_path / "kafka-0", "a-0", "a-1")
    assert len(LogDirs([directory]).partitions()) == 2


def test_a_missing_directory_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(LogDirectoryError, match=str(tmp_path / "missing")):
        LogDirs([tmp_path / "missing"]).partitions()


def test_checkpoints_count_only_for_partitions_that_live_beside_them(tmp_path: Path) -> None:
    first, second = _make(tmp_path / "d1", "a-0"), _make(tmp_path / "d2", "a-1")
    write_checkpoint(first, HIGH_WATERMARK, {"a-0": 5, "a-1": 99, "gone-0": 7})
    write_checkpoint(second, HIGH_WATERMARK, {"a-1": 6})
    dirs = LogDirs([first, second])
    known = dirs.checkpoint(HIGH_WATERMARK, dirs.partitions().values())
    assert known == {TopicPartition("a", 0): 5, TopicPartition("a", 1): 6}


def test_an_unreadable_checkpoint_counts_as_empty_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = _make(tmp_path, "a-0")
    (directory / HIGH_WATERMARK).write_text("7\n")
    dirs = LogDirs([directory])
    assert dirs.checkpoint(HIGH_WATERMARK, dirs.partitions().values()) == {}
    assert HIGH_WATERMARK in caplog.text


def test_a_new_partition_goes_where_the_fewest_are(tmp_path: Path) -> None:
    first = _make(tmp_path / "z", "a-0", "a-1")
    second = _make(tmp_path / "y", "a-2", f"b-0.{_UUID}-future", f"c-0.{_UUID}-delete", "other")
    third = _make(tmp_path / "x", "a-3")
    counts = LogDirs([first, second, third]).partition_counts()
    assert counts == {first: 2, second: 2, third: 1}
    placed = []
    for _ in range(5):
        placed.append(choose_directory(counts).name)
        counts[tmp_path / placed[-1]] += 1
    assert placed == ["x", "z", "y", "x", "z"]
