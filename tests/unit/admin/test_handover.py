"""What a broker finds when it starts on directories that the sink wrote."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.logs import Row, batch_bytes, write_checkpoint, write_segment
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.broker import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    META_PROPERTIES,
    read_offset_checkpoint,
    read_topic_id,
)
from kafkalog.errors import OptionError
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker import handover as broker_warnings
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.retention import delete_records
from kafkalog.streaming.coordinator.cluster_metadata import ClusterTopics

T0 = TopicPartition("t", 0)


def test_all_files_of_a_partition_are_on_the_disk_when_a_broker_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Writer(tmp_path, topic="t", flush="os").write(0, rows(["a"]))
    (tmp_path / "t-0" / f"{1:020d}.snapshot").touch()
    synced = set()
    original = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    hand_over([str(tmp_path)])
    assert {*(tmp_path / "t-0").iterdir(), tmp_path / "t-0"} <= synced


def test_a_broker_gets_no_deleted_records_back_where_its_checkpoint_is_lost(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a", "b", "c"]))
    delete_records([str(tmp_path)], {T0: 2})
    (tmp_path / LOG_START_OFFSET).unlink()
    (found,) = hand_over([str(tmp_path)]).partitions
    assert found.log_start == 2
    assert read_offset_checkpoint(tmp_path, LOG_START_OFFSET) == {T0: 2}


@pytest.mark.parametrize("dry_run", [True, False])
def test_indexes_that_were_mended_are_named(tmp_path: Path, *, dry_run: bool) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a"]))
    index = tmp_path / "t-0" / f"{0:020d}.index"
    index.write_bytes(b"\1" * 8)
    (found,) = hand_over([str(tmp_path)], dry_run=dry_run).partitions
    assert found.corrected == (index.name,)


def test_a_topic_that_lacks_a_partition_is_not_handed_over(tmp_path: Path) -> None:
    """As in the directories of a broker whose cluster had others."""
    folder = tmp_path / "t-1"
    folder.mkdir()
    write_segment(folder, 0, batch_bytes(0, [Row(b"a")]))
    assert take_over([str(tmp_path)]).problems == []
    (problem,) = hand_over([str(tmp_path)]).problems
    assert "topic 't' has partition 1 and lacks [0]" in problem
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()


def handed_over(folder: Path, cluster_id: str, node_id: int) -> bytes:
    hand_over([str(folder)], cluster_id=cluster_id, node_id=node_id)
    return (folder / META_PROPERTIES).read_bytes()


@pytest.mark.parametrize("wrong", ["", "a b", "a\nnode.id=7", "a=b"])
def test_what_is_no_id_of_a_cluster_is_not_written(tmp_path: Path, wrong: str) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a"]))
    with pytest.raises(OptionError, match="is no id of a cluster"):
        handed_over(tmp_path, wrong, 1)
    assert not (tmp_path / META_PROPERTIES).exists()


def test_what_is_no_id_of_a_node_is_not_written(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a"]))
    with pytest.raises(OptionError, match="node id -1 is negative"):
        handed_over(tmp_path, "c", -1)
    assert not (tmp_path / META_PROPERTIES).exists()


def test_directories_of_another_broker_are_not_handed_over(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a"]))
    (tmp_path / META_PROPERTIES).write_text("cluster.id=c\nnode.id=1\nversion=1\n")
    for cluster_id, node_id in (("d", 1), ("c", 2)):
        with pytest.raises(OptionError, match="is of cluster c, node 1"):
            handed_over(tmp_path, cluster_id, node_id)
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()


def test_a_directory_keeps_the_identity_that_it_has(tmp_path: Path) -> None:
    """By its ``directory.id`` the cluster knows it."""
    Writer(tmp_path, topic="t").write(0, rows(["a"]))
    first = handed_over(tmp_path, "c", 1)
    take_over([str(tmp_path)])
    assert handed_over(tmp_path, "c", 1) == first


def test_where_a_broker_has_logs_of_its_own_no_clean_shutdown_is_marked(tmp_path: Path) -> None:
    """It has to look at the ends of these itself."""
    Writer(tmp_path / "a", tmp_path / "b", topic="t", numPartitions="2").write(
        0, rows(["a", "b"], partitions=[0, 1])
    )
    groups = tmp_path / "a" / "__consumer_offsets-0"
    groups.mkdir()
    write_segment(groups, 0, batch_bytes(0, [Row(b"a")]))
    done = hand_over([str(tmp_path / "a"), str(tmp_path / "b")])
    assert done.problems == []
    marked = [name for name in "ab" if (tmp_path / name / CLEAN_SHUTDOWN).exists()]
    assert marked == ["b"]


def test_after_a_takeover_no_mark_of_a_clean_shutdown_is_left(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a"]))
    hand_over([str(tmp_path)])
    assert (tmp_path / CLEAN_SHUTDOWN).exists()
    take_over([str(tmp_path)])
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()


def test_after_a_takeover_high_watermarks_say_no_more_than_there_is(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, batch_bytes(0, [Row(b"a")]))
    write_checkpoint(tmp_path, HIGH_WATERMARK, {"t-0": 5, "gone-0": 7})
    assert take_over([str(tmp_path)]).problems == []
    assert read_offset_checkpoint(tmp_path, HIGH_WATERMARK) == {TopicPartition("t", 0): 1}


def test_topics_whose_folders_a_broker_may_rename_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("t", "u"):
        Writer(tmp_path, topic=name, name=name).write(0, rows(["a"]))
    given = {"t": "AAAAAAAAAAAAAAAAAAAAAQ"}
    hand_over([str(tmp_path)], topic_ids=given, dry_run=True)
    (warning,) = (each for each in caplog.messages if "-stray" in each)
    assert "the ids that they have here: u. " in warning
    assert warning.endswith("--topic-id NAME=ID")

    caplog.clear()
    ids = {read_topic_id(tmp_path / f"{name}-0"): {} for name in ("t", "u")}
    monkeypatch.setattr(
        broker_warnings,
        "read_cluster_topics",
        lambda _: ClusterTopics(ids, 7),  # type: ignore[arg-type]
    )
    hand_over([str(tmp_path)])
    assert "-stray" not in caplog.text
