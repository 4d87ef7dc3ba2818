"""Whoever is given the mount point of a disk that is not mounted leaves nothing in it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from tests.support.sinking import Writer, rows

from kafkalog.errors import LogDirectoryError
from kafkalog.files.system import system
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.backup import back_up
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.retention import delete_records, retain
from kafkalog.streaming.admin.salvage import salvage
from kafkalog.streaming.api import append, read
from kafkalog.streaming.store.policy import SetPolicy
from kafkalog.streaming.store.session import Session, ensure_set

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ACTS: dict[str, Callable[[list[str]], object]] = {
    "a new writer": lambda paths: ensure_set(paths, SetPolicy()),
    "append": lambda paths: append(",".join(paths), "t", rows(["b"])),
    "retain": retain,
    "retain, dry run": lambda paths: retain(paths, dry_run=True),
    "delete-records": lambda paths: delete_records(paths, {TopicPartition("t", 0): 1}),
    "recover": recover,
    "handover": lambda paths: hand_over(paths, cluster_id="c", node_id=1),
    "takeover": take_over,
    "salvage": lambda paths: salvage(paths, cut=["t-0@0"]),
    "backup": lambda paths: back_up(paths, paths[0] + "-backup"),
}


@pytest.mark.parametrize("name", ACTS)
def test_an_empty_mount_point_is_named_and_stays_empty(tmp_path: Path, name: str) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    Writer(first, second, topic="t").write(0, rows(["a"]))
    second.rename(tmp_path / "unmounted")
    second.mkdir()
    missing = "1 of the 2 log directories of set .* are missing, and .*/second holds no"
    with pytest.raises(LogDirectoryError, match=f"{missing} kafkalog.commit: a disk may not be"):
        ACTS[name]([str(first), str(second)])
    assert list(second.iterdir()) == []


def test_no_folder_is_made_in_place_of_a_missing_one(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    Writer(first, second, topic="t").write(0, rows(["a"]))
    second.rename(tmp_path / "elsewhere")
    with pytest.raises(LogDirectoryError, match="are missing"):
        append([first, second], "t", rows(["b"]))
    assert not second.exists()


@pytest.mark.parametrize("names", [("log",), ("a", "b", "c")], ids=["one node", "three nodes"])
@pytest.mark.parametrize("leaves", ["an empty folder", "no folder"])
def test_no_log_begins_where_the_disk_of_this_process_s_log_was_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], leaves: str
) -> None:
    """Who appends for days would write below the mount point, where no reader would look."""
    disk = tmp_path / "disk"
    nodes = [disk / name for name in names]
    path = ";".join(map(str, nodes))
    root = "1 0 0:1 / / rw - ext4 /dev/root rw"
    mounted = f"{root}\n2 1 0:2 / {disk} rw - ext4 /dev/disk rw"
    mounts = [mounted]
    monkeypatch.setattr(system, "mounts", lambda: mounts[0])
    append(path, "t", rows(["a"]))
    disk.rename(tmp_path / "unmounted")
    mounts[0] = root
    disk.mkdir()
    for node in nodes if leaves == "an empty folder" else []:
        node.mkdir()
    left = sorted(disk.rglob("*"))
    for version in (None, 1):
        named = {} if version is None else {"transactional_id": "w", "version": version}
        with pytest.raises(LogDirectoryError, match=f"mounted at {disk}, where this process has"):
            append(path, "t", rows(["b"]), **named)
    assert sorted(disk.rglob("*")) == left
    mounts[0] = mounted
    append(path, "t", rows(["on another disk"]))
    shutil.rmtree(disk)
    (tmp_path / "unmounted").rename(disk)
    append(path, "t", rows(["b"]))
    assert read(path, "t").read_all().column("value").to_pylist() == [b"a", b"b"]
    for node in nodes:
        shutil.rmtree(node)
    append(path, "t", rows(["removed on purpose, on the same disk"]))


def test_a_disk_that_is_unmounted_while_its_query_runs_is_named(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    writer = Writer(first, second, topic="t")
    runs = writer.stage(0, rows(["a"]))
    writer.commit(0, runs)
    second.rename(tmp_path / "unmounted")
    second.mkdir()
    with (
        pytest.raises(LogDirectoryError, match="/second holds no"),
        Session([first, second], SetPolicy(), holder="a commit"),
    ):
        pass
    assert list(second.iterdir()) == []
