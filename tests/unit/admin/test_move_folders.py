"""Partitions move to another log directory of their node."""

from __future__ import annotations

import errno
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.disk import Renamed
from tests.support.disk_calls import MOUNT
from tests.support.least_left import acted, least, made
from tests.support.log_files import flip
from tests.support.replicated import without_mount

import kafkalog
from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    PARTITION_METADATA,
    RECOVERY_POINT,
    read_offset_checkpoint,
)
from kafkalog.errors import CorruptRecordError, LogDirectoryError, UnknownTopicOrPartitionError
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.nodes import reassign as module
from kafkalog.streaming.admin.nodes.reassign import Move, check_places, move_folders, move_planned
from kafkalog.streaming.admin.nodes.replicas import compare_replicas
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.retention import delete_records
from kafkalog.streaming.admin.topics import delete
from kafkalog.streaming.store import folder_changes as directory_moves

if TYPE_CHECKING:
    from pathlib import Path

ROWS = [f"a{n}" for n in range(40)]


def write(path: str, version: int, rows: list[str], **options: str) -> None:
    table = pa.table({"key": rows, "value": rows})
    told = {"numPartitions": "2", "segment.bytes": "300"} | options
    kafkalog.append(path, "t", table, transactional_id="w", version=version, options=told)


def read(path: str, **options: Any) -> list[str]:
    found = kafkalog.read(path, "t", columns=["value"], strings=["value"], **options).read_all()
    return sorted(found.column("value").to_pylist())


@pytest.fixture
def dirs(tmp_path: Path) -> list[Path]:
    """Give the two directories of one node; the first one has t-0, the second t-1."""
    found = [tmp_path / "one", tmp_path / "two"]
    for version in range(4):
        write(path_of(found), version, ROWS[10 * version :][:10])
    return found


def path_of(dirs: list[Path]) -> str:
    return ",".join(map(str, dirs))


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if each.is_dir())


def test_a_partition_moves_with_all_that_lies_beside_it(dirs: list[Path]) -> None:
    path, key = path_of(dirs), TopicPartition("t", 0)
    delete_records([path], {key: 3})
    before = {each.name: each.read_bytes() for each in (dirs[0] / "t-0").iterdir()}
    (moved,) = move_folders([path], "t", str(dirs[1]))
    assert moved == (key, dirs[0], dirs[1])
    assert names(dirs[0]) == []
    assert names(dirs[1]) == ["t-0", "t-1"]
    after = {each.name: each.read_bytes() for each in (dirs[1] / "t-0").iterdir()}
    assert after == {name: data for name, data in before.items() if not name.endswith(".deleted")}
    assert read_offset_checkpoint(dirs[1], LOG_START_OFFSET) == {key: 3}
    assert key not in read_offset_checkpoint(dirs[0], RECOVERY_POINT)
    write(path, 5, ["b"])
    assert len(read(path)) == len(ROWS) - 3 + 1
    assert recover([path]).problems == []
    assert move_folders([path], "t", str(dirs[1])) == []


def test_it_is_copied_in_steps_while_it_is_written(
    dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rests = path_of(dirs), list[float]()

    def resting(seconds: float) -> None:
        rests.append(seconds)
        assert any(name.endswith("-future") for name in names(dirs[1]))
        if len(rests) < 3:
            write(path, 4 + len(rests), [f"b{len(rests)}"])

    monkeypatch.setattr(module, "pause", resting)
    move_folders([path], "t", str(dirs[1]), 0, rate=110)
    assert len(rests) > 3
    assert rests[0] > 0.1
    assert names(dirs[1]) == ["t-0", "t-1"]
    assert read(path) == sorted([*ROWS, "b1", "b2"])
    write(path, 9, ["c"])
    assert recover([path]).problems == []


def test_the_next_call_continues_with_the_copy(
    dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_of(dirs)

    def cut_off(_: float) -> None:
        raise RuntimeError

    monkeypatch.setattr(module, "pause", cut_off)
    with pytest.raises(RuntimeError):
        move_folders([path], "t", str(dirs[1]), rate=350)
    monkeypatch.undo()
    (copy,) = (name for name in names(dirs[1]) if name.endswith("-future"))
    first = min((dirs[1] / copy).glob("*.log"))
    inode = first.stat().st_ino
    write(path, 5, ["b"])
    move_folders([path], "t", str(dirs[1]))
    assert (dirs[1] / "t-0" / first.name).stat().st_ino == inode
    assert read(path) == sorted([*ROWS, "b"])


def test_a_copy_below_a_mount_that_failed_is_not_put_in_place(
    dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mount is back when the locks are looked at, with the part of a copy that it had."""
    path, original = path_of(dirs), module.catch_up

    def cut_off(_: float) -> None:
        raise RuntimeError

    monkeypatch.setattr(module, "pause", cut_off)
    with pytest.raises(RuntimeError):
        move_folders([path], "t", str(dirs[1]), rate=350)

    def copied_below(*given: Any, **named: Any) -> Any:
        with without_mount(dirs[1]):
            return original(*given, **named)

    monkeypatch.setattr(module, "catch_up", copied_below)
    with pytest.raises(LogDirectoryError, match="another file than a moment ago, or gone"):
        move_folders([path], "t", str(dirs[1]))
    assert read(path) == sorted(ROWS)
    monkeypatch.undo()
    move_folders([path], "t", str(dirs[1]))
    assert names(dirs[1]) == ["t-0", "t-1"]
    write(path, 5, ["b"])
    assert read(path) == sorted([*ROWS, "b"])
    assert recover([path]).problems == []


def test_a_topic_that_is_deleted_takes_its_copy_with_it(
    dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(_: float) -> None:
        raise RuntimeError

    monkeypatch.setattr(module, "pause", cut_off)
    with pytest.raises(RuntimeError):
        move_folders([path_of(dirs)], "t", str(dirs[1]), rate=350)
    delete([path_of(dirs)], "t")
    assert names(dirs[1]) == names(dirs[0]) == []


def test_a_reader_that_has_planned_reads_on(dirs: list[Path]) -> None:
    path = path_of(dirs)
    reader = kafkalog.read(path, "t", columns=["value"], strings=["value"])
    move_folders([path], "t", str(dirs[1]))
    assert sorted(reader.read_all().column("value").to_pylist()) == sorted(ROWS)


def test_one_replica_moves_and_the_others_stay(tmp_path: Path) -> None:
    one = [tmp_path / "one", tmp_path / "two"]
    path = f"{path_of(one)};{tmp_path / 'b'};{tmp_path / 'c'}"
    write(path, 0, ROWS)
    home, other = sorted(one, key=lambda each: "t-0" not in names(each))
    move = Move(TopicPartition("t", 0), (0, 1, 2), (str(other), None, None))
    check_places([path], [move])
    move_planned([path], [move])
    assert "t-0" in names(other)
    assert "t-0" not in names(home)
    write(path, 1, ["b"])
    assert read(path) == sorted([*ROWS, "b"])
    assert list(compare_replicas([path])) == []
    with pytest.raises(LogDirectoryError, match="no log directory of node 1"):
        check_places([path], [move._replace(log_dirs=(None, str(one[0]), None))])


def test_where_it_cannot_be_is_refused(dirs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(LogDirectoryError, match="no log directory of the set"):
        move_folders([path_of(dirs)], "t", str(tmp_path / "nowhere"))
    with pytest.raises(UnknownTopicOrPartitionError, match="u has no folder"):
        move_folders([path_of(dirs)], "u", str(dirs[1]))
    assert [
        each.key.partition
        for each in move_folders([path_of(dirs)], "t", str(dirs[1]), dry_run=True)
    ] == [0]
    assert names(dirs[0]) == ["t-0"]


def test_a_move_that_was_cut_off_between_two_names_is_finished(
    dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(directory_moves, "finish_moves", cut_off)
    with pytest.raises(RuntimeError):
        move_folders([path_of(dirs)], "t", str(dirs[1]))
    assert "t-0" in names(dirs[0])
    assert "t-0" in names(dirs[1])
    monkeypatch.undo()
    with pytest.raises(LogDirectoryError, match="`kafkalog recover` keeps the right one"):
        read(path_of(dirs))
    assert recover([path_of(dirs)]).problems == []
    write(path_of(dirs), 5, ["b"])
    assert names(dirs[0]) == []
    assert read(path_of(dirs)) == sorted([*ROWS, "b"])
    assert recover([path_of(dirs)]).problems == []


def test_a_move_is_finished_though_another_node_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = [tmp_path / "one", tmp_path / "two"], tmp_path / "b"
    path = f"{path_of(one)};{other};{tmp_path / 'c'}"
    write(path, 0, ROWS)
    home, new = sorted(one, key=lambda each: "t-0" not in names(each))

    def cut_off(_: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(directory_moves, "finish_moves", cut_off)
        with pytest.raises(RuntimeError):
            move_folders([path], "t", str(new), 0)
    listed = directory_moves.entries_of

    def fails_on_other(folder: Path) -> Any:
        if folder == other:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(folder))
        return listed(folder)

    with monkeypatch.context() as patch:
        patch.setattr(directory_moves, "entries_of", fails_on_other)
        write(path, 1, ["b"])
    assert "t-0" not in names(home)
    assert "t-0" in names(new)
    write(path, 2, ["c"])
    assert read(path) == sorted([*ROWS, "b", "c"])
    assert recover([path]).problems == []
    assert list(compare_replicas([path])) == []


def test_what_others_are_about_to_delete_is_left_to_them(dirs: list[Path]) -> None:
    other = dirs[0] / f"x-0.{'0' * 32}-delete"
    other.mkdir()
    (other / "00000000000000000000.log").write_bytes(b"")
    move_folders([path_of(dirs)], "t", str(dirs[1]))
    assert names(dirs[0]) == [other.name]


def forget_checkpoints() -> None:
    """Remove what would be written again, and synced with its folder."""
    for name in (RECOVERY_POINT, HIGH_WATERMARK):
        (MOUNT / "one" / name).unlink()


def test_the_new_folder_is_on_the_disk_before_the_old_one_goes() -> None:
    path = ",".join(str(MOUNT / name) for name in ("one", "two"))
    before = made(partial(write, path, 0, ROWS), forget_checkpoints)
    machine = acted(before, partial(move_folders, [path], "t", str(MOUNT / "two")))
    log, there = "t-0/00000000000000000000.log", machine.disk.tree()
    assert f"one/{log}" not in there
    assert "one/t-0/kafkalog.moved" in least(before, machine, "t-0")
    changed = (each.name for each in machine.disk.changes if isinstance(each, Renamed))
    retired = next(name for name in changed if name.endswith("-delete"))
    assert least(before, machine, retired)[f"two/{log}"] == there[f"two/{log}"]
    left = least(before, machine, PARTITION_METADATA, last=True)
    assert not [name for name in left if name.startswith("one/t-0/")]


def test_segments_keep_their_times(dirs: list[Path]) -> None:
    """Records without timestamps expire by the time of their file."""
    logs = sorted((dirs[0] / "t-0").glob("*.log"))
    for number, log in enumerate(logs):
        os.utime(log, ns=(0, 10**18 + number * 10**9))
    before = {log.name: log.stat().st_mtime_ns for log in logs}
    move_folders([path_of(dirs)], "t", str(dirs[1]), 0)
    moved = sorted((dirs[1] / "t-0").glob("*.log"))
    assert len(moved) > 1
    assert {log.name: log.stat().st_mtime_ns for log in moved} == before


def test_what_is_damaged_stays_and_the_way_out_is_one_there_is(dirs: list[Path]) -> None:
    """There is no other replica that ``recover`` could copy it from."""
    log = min((dirs[0] / "t-0").glob("*.log"))
    flip(log, log.stat().st_size - 1)
    with pytest.raises(CorruptRecordError, match="t-0 is damaged, and stays in") as raised:
        move_folders([path_of(dirs)], "t", str(dirs[1]), 0)
    text = str(raised.value)
    assert log.name in text
    assert "`kafkalog salvage` shows" in text
    assert "leader" not in text
    assert "recover" not in text
    assert (dirs[0] / "t-0").is_dir()
