"""Lines that an earlier topic of the same name has left in Kafka's checkpoints."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from tests.support.sinking import Writer, rows, values_of
from typer.testing import CliRunner

import kafkalog
from kafkalog.checkpoints.broker import (
    CLEANER_OFFSET,
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from kafkalog.errors import LogDirectoryError
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.inspection.batches import verify_logs
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.retention import delete_records
from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.store.log_set import LogSet
from kafkalog.streaming.store.recovery import partition_states as recovery_points
from kafkalog.streaming.store.recovery.partition_states import LogReach

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kafkalog.streaming.admin.recovery import RecoveryReport

T0 = TopicPartition("t", 0)
U0 = TopicPartition("u", 0)
NAMES = (LOG_START_OFFSET, RECOVERY_POINT, HIGH_WATERMARK, CLEANER_OFFSET)


def lines(directories: tuple[Path, ...]) -> dict[str, dict[TopicPartition, int]]:
    """Give the lines of each checkpoint, of all directories together."""
    found: dict[str, dict[TopicPartition, int]] = {name: {} for name in NAMES}
    for folder in directories:
        for name in NAMES:
            found[name] |= read_offset_checkpoint(folder, name)
    return found


def test_a_recovery_point_above_the_end_of_a_log_counts_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Writer(tmp_path, topic="t", flush="os").write(0, rows(["a"]))
    synced: list[str] = []
    monkeypatch.setattr(recovery_points, "fsync_file", lambda path, **_: synced.append(path.suffix))
    for point, expected in ((1, False), (500, True)):
        write_offset_checkpoint(tmp_path, RECOVERY_POINT, {T0: point})
        recovery_points.sync_up_to([LogReach(tmp_path / "t-0", T0, 1, 4096)])
        assert (".log" in synced) is expected


@pytest.mark.parametrize("flush", ["commit", "os"])
def test_lines_of_a_topic_that_is_made_again_go_everywhere_before_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: str
) -> None:
    writer = Writer(tmp_path / "a", tmp_path / "b", topic="t", flush=flush)
    writer.plan()
    for folder in writer.directories:
        for name in NAMES:
            write_offset_checkpoint(folder, name, {T0: 500, U0: 7})
    before: list[dict[str, dict[TopicPartition, int]]] = []
    publish = LogSet.publish

    def noting(log_set: LogSet, *state: object, **options: object) -> None:
        before.append(lines(writer.directories))
        publish(log_set, *state, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(LogSet, "publish", noting)
    writer.write(0, rows(["a", "b"]))
    assert before == [{name: {U0: 7} for name in NAMES}]
    assert T0 not in lines(writer.directories)[LOG_START_OFFSET]


def add_folder(log_dir: Path, key: TopicPartition, *, beside: Path) -> None:
    """Add an empty partition to a topic, as an operator would, by its id."""
    folder = log_dir / f"{key.topic}-{key.partition}"
    folder.mkdir()
    shutil.copy(beside / "partition.metadata", folder)


def test_a_partition_that_is_added_to_a_recreated_topic_is_not_taken_for_the_earlier_one(
    tmp_path: Path,
) -> None:
    directories = (tmp_path / "a", tmp_path / "b")
    earlier = Writer(*directories, topic="t", numPartitions="3", partitioner="round_robin")
    earlier.write(0, rows([f"old {n}" for n in range(30)]))
    for folder in directories:
        write_offset_checkpoint(folder, LOG_START_OFFSET, {TopicPartition("t", 2): 500})
        for partition in folder.glob("t-*"):
            shutil.rmtree(partition)
    Writer(*directories, name="b", topic="t").write(0, rows(["a"]))
    (first,) = (folder / "t-0" for folder in directories if (folder / "t-0").is_dir())
    for number, folder in enumerate(directories, start=1):
        add_folder(folder, TopicPartition("t", number), beside=first)
    tail = EndOffsets([str(folder) for folder in directories], lambda _: True)
    assert list(tail.look().offsets.values()) == [1, 0, 0]
    assert tail.ends.missing == {}
    added = rows(["b", "c"], partitions=[1, 2])
    Writer(*directories, name="c", topic="t").write(0, added)
    assert values_of(directories, "t") == {0: ["a"], 1: ["b"], 2: ["c"]}


def test_lines_of_partitions_that_have_a_folder_stay_when_another_topic_is_made(
    tmp_path: Path,
) -> None:
    """Also of one whose folder is a link to a place that is not mounted now."""
    writer = Writer(tmp_path, topic="t")
    writer.plan()
    linked, gone = TopicPartition("t", 4), TopicPartition("v", 0)
    (tmp_path / "t-4").symlink_to(tmp_path / "not mounted")
    (tmp_path / "u-0").mkdir()
    for name in NAMES:
        write_offset_checkpoint(tmp_path, name, {T0: 7, linked: 5, U0: 0, gone: 3})
    writer.write(0, rows(["a"]))
    assert lines((tmp_path,))[CLEANER_OFFSET].keys() == {linked, U0, gone}


def test_a_directory_that_joins_a_set_brings_no_lines_of_partitions_that_it_lacks(
    tmp_path: Path,
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    Writer(one, topic="t").write(0, rows(["a"]))
    two.mkdir()
    for name in NAMES:
        write_offset_checkpoint(two, name, {TopicPartition("t", 1): 500})
    Writer(one, two, topic="t").write(1, rows(["b"]))
    assert set().union(*lines((two,)).values()) == set()
    add_folder(two, TopicPartition("t", 1), beside=one / "t-0")
    Writer(one, two, topic="t").write(2, rows(["c"], partitions=[1]))
    assert values_of((one, two), "t") == {0: ["a", "b"], 1: ["c"]}


def with_a_stale_start(tmp_path: Path) -> Writer:
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a", "b"]))
    write_offset_checkpoint(tmp_path, LOG_START_OFFSET, {T0: 500})
    return writer


def test_a_log_whose_start_lies_above_its_end_is_neither_read_nor_appended_to(
    tmp_path: Path,
) -> None:
    writer = with_a_stale_start(tmp_path)
    with pytest.raises(LogDirectoryError, match="at offset 500 there, but its log"):
        EndOffsets([str(tmp_path)], lambda _: True).look()
    another = Writer(tmp_path, name="another", topic="t")
    with pytest.raises(LogDirectoryError, match="recover --reset-log-start"):
        another.write(0, rows(["c"]))
    assert values_of(writer.directories, "t") == {0: ["a", "b"]}


def test_a_log_that_is_emptied_up_to_its_end_is_read_and_appended_to(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a", "b"]))
    write_offset_checkpoint(tmp_path, LOG_START_OFFSET, {T0: 2})
    assert EndOffsets([str(tmp_path)], lambda _: True).look().offsets == {T0: 2}
    Writer(tmp_path, name="another", topic="t").write(0, rows(["c"]))
    assert EndOffsets([str(tmp_path)], lambda _: True).look().offsets == {T0: 3}


@pytest.mark.parametrize("act", [recover, hand_over, take_over])
def test_recovery_handover_and_takeover_report_a_start_above_the_end(
    tmp_path: Path, act: object
) -> None:
    with_a_stale_start(tmp_path)
    (problem,) = act([str(tmp_path)]).problems  # type: ignore[operator]
    assert "starts at offset 500 there, but its log ends at offset 2" in problem
    assert read_offset_checkpoint(tmp_path, LOG_START_OFFSET) == {T0: 500}


def test_verification_reports_a_start_above_the_end(tmp_path: Path) -> None:
    with_a_stale_start(tmp_path)
    (problem,) = [row["problem"] for row in verify_logs([str(tmp_path)]) if row["problem"]]
    assert "starts at offset 500 there, but its log ends at offset 2" in problem


def test_recovery_resets_no_start_below_the_end(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a", "b"]))
    write_offset_checkpoint(tmp_path, LOG_START_OFFSET, {T0: 1})
    assert recover([str(tmp_path)], reset_log_start=True).reset == []
    assert read_offset_checkpoint(tmp_path, LOG_START_OFFSET) == {T0: 1}


def test_recovery_resets_a_start_above_the_end_if_it_is_told_to(tmp_path: Path) -> None:
    writer = with_a_stale_start(tmp_path)
    write_offset_checkpoint(tmp_path, LOG_START_OFFSET, {U0: 1})
    done = CliRunner().invoke(app, ["recover", "--reset-log-start", str(tmp_path), "--json"])
    assert done.exit_code == 0
    (told,) = json.loads(done.stdout)["reset"]
    assert "500" in told
    assert "t-0" in told
    assert read_offset_checkpoint(tmp_path, LOG_START_OFFSET) == {U0: 1}
    assert EndOffsets([str(tmp_path)], lambda _: True).look().offsets == {T0: 2}
    writer.write(1, rows(["c"]))
    assert values_of(writer.directories, "t") == {0: ["a", "b", "c"]}


@pytest.mark.parametrize("act", [hand_over, take_over])
def test_handover_and_takeover_keep_no_line_of_a_partition_that_is_gone(
    tmp_path: Path, act: Callable[[list[str]], RecoveryReport]
) -> None:
    for topic in "tu":
        Writer(tmp_path, name=topic, topic=topic).write(0, rows(["a"]))
    for name in NAMES:
        write_offset_checkpoint(tmp_path, name, {T0: 1, U0: 1})
    shutil.rmtree(tmp_path / "t-0")
    assert act([str(tmp_path)]).problems == []
    assert T0 not in set().union(*lines((tmp_path,)).values())


def test_a_log_start_that_was_not_written_yet_is_not_that_of_another_topic_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    Writer(ours, topic="t").write(0, rows(["old 0", "old 1"]))
    with monkeypatch.context() as patch:
        patch.setattr("kafkalog.streaming.store.broker_files.repeat_log_starts", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            delete_records([str(ours)], {T0: 2})
    shutil.rmtree(ours / "t-0")
    Writer(theirs, topic="t").write(0, rows(["a", "b", "c"]))
    (theirs / "t-0").rename(ours / "t-0")
    assert take_over([str(ours)]).problems == []
    assert kafkalog.read(ours, "t").read_all().num_rows == 3
