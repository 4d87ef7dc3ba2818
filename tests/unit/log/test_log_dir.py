"""Which partitions live in log directories, and where a new one goes."""

from __future__ import annotations

import os
import random
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.logs import write_checkpoint, write_segment

from kafkalog.checkpoints.broker import HIGH_WATERMARK
from kafkalog.errors import LogDirectoryError
from kafkalog.files import watch
from kafkalog.files.watch import name_changes, watch_names
from kafkalog.model import TopicPartition
from kafkalog.streaming.log import log_dir
from kafkalog.streaming.log.log_dir import (
    FolderListing,
    PartitionDirectory,
    list_folders,
    names_beside_partitions,
)
from kafkalog.streaming.store import log_dirs
from kafkalog.streaming.store.ends.tracker import LogEndTracker
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


# Paths with many folders, of which the kernel tells what comes and goes.


@pytest.fixture
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat each path as one with many folders."""
    monkeypatch.setattr(log_dir, "_MANY_FOLDERS", 0)


def _listed(path: Path, known: FolderListing | None) -> FolderListing:
    return list_folders(path, known, lambda _: False)


def _beside(path: Path) -> set[str]:
    return {*names_beside_partitions(path, lambda _: False)}


def _check(path: Path, known: FolderListing | None) -> FolderListing:
    """Compare what is said to lie at a path with what does; returns it."""
    there = {each.name for each in path.iterdir()}
    names = {name for name in there if name[-1].isdecimal() and "-" in name}
    assert _beside(path) == there - names
    found = _listed(path, known)
    assert {*found.folders} == names
    assert {*found.folders.values()} == {(path / name).lstat().st_ino for name in names}
    assert _beside(path) == there - names
    return found


def _change(path: Path, chance: random.Random) -> None:
    """Let something come, go, be renamed or be replaced at a path, or the path itself."""
    folder, other = (path / f"t-{chance.randrange(4)}" for _ in range(2))
    file = path / f"staged.{chance.randrange(3)}"
    act = chance.choice(("make", "remove", "rename", "replace", "file", "unlink", "swap", "all"))
    if act == "make":
        folder.mkdir(exist_ok=True)
    elif act == "remove" and folder.is_dir():
        folder.rmdir()
    elif act == "rename" and folder.is_dir() and not other.exists():
        folder.rename(other)
    elif act == "replace" and folder.is_dir():
        aside = folder.rename(path / "aside")
        folder.mkdir()
        aside.rmdir()
    elif act == "file":
        (path / "new").touch()
        (path / "new").rename(file)
    elif act == "unlink":
        file.unlink(missing_ok=True)
    elif act == "swap":
        shutil.copytree(path, path.with_name("copy"))
        path.rename(path.with_name("old"))
        path.with_name("copy").rename(path)
        shutil.rmtree(path.with_name("old"))
    elif act == "all":
        shutil.rmtree(path)
        path.mkdir()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.usefixtures("few_are_many")
def test_what_the_kernel_tells_is_what_a_listing_finds(seed: int, tmp_path: Path) -> None:
    chance, path = random.Random(seed), tmp_path / "log"
    path.mkdir()
    known: FolderListing | None = None
    for _ in range(60):
        for _ in range(chance.randrange(3)):
            _change(path, chance)
        known = _check(path, known if chance.random() < 0.7 else None)


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels tell nothing of names")
@pytest.mark.usefixtures("few_are_many")
def test_many_folders_are_listed_again_only_if_one_has_come_or_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _make(tmp_path / "log", "t-0", "t-1")
    known = _listed(path, _listed(path, _listed(path, None)))
    listings = []
    entries_of = log_dir.entries_of
    monkeypatch.setattr(
        log_dir, "entries_of", lambda path: listings.append(path) or entries_of(path)
    )
    (path / "kafkalog.intent").touch()
    (path / "kafkalog.intent").rename(path / "kafkalog.commit")
    assert _listed(path, known) is known
    assert _beside(path) == {"kafkalog.commit"}
    assert listings == []
    (path / "t-2").mkdir()
    assert {*_listed(path, known).folders} == {"t-0", "t-1", "t-2"}
    assert listings == [path]


@pytest.mark.usefixtures("few_are_many")
def test_changes_that_the_kernel_has_dropped_are_found_by_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps 16,384 events by default, and drops what comes after them."""
    monkeypatch.setattr(watch, "_MOST_PENDING", 1 << 20)
    path = _make(tmp_path / "log", "t-0")
    known = _check(path, _check(path, None))
    for _ in range(10_000):
        (path / "file").touch()
        (path / "file").unlink()
    (path / "last").touch()
    _make(path, "t-1")
    assert "t-1" in _check(path, known).folders


@pytest.mark.usefixtures("few_are_many")
def test_changes_that_nobody_has_asked_for_are_found_by_listing(tmp_path: Path) -> None:
    """So many are not kept, while the process looks at other paths."""
    path, other = _make(tmp_path / "log", "t-0"), _make(tmp_path / "other", "t-0")
    known, beside = _check(path, _check(path, None)), _check(other, _check(other, None))
    _make(path, "t-1")
    for _ in range(12):
        for _ in range(1000):
            (path / "file").touch()
            (path / "file").unlink()
        beside = _check(other, beside)
    assert "t-1" in _check(path, known).folders


@pytest.mark.usefixtures("few_are_many")
def test_a_listing_does_not_hide_what_another_thread_was_told_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _make(tmp_path / "log", "t-0")
    known = _check(path, _check(path, None))
    _make(path, "t-1")
    find = log_dir._list

    def find_and_be_late(*args: Any) -> FolderListing:
        found = find(*args)
        (path / "file").touch()
        _beside(path)  # which another thread asks for
        return found

    monkeypatch.setattr(log_dir, "_list", find_and_be_late)
    known = _listed(path, known)
    monkeypatch.undo()
    monkeypatch.setattr(log_dir, "_MANY_FOLDERS", 0)
    _check(path, known)


@pytest.mark.usefixtures("few_are_many")
def test_a_forked_child_and_its_parent_are_both_told_of_changes(tmp_path: Path) -> None:
    path = _make(tmp_path / "log", "t-0")
    known = _check(path, _check(path, None))
    child = os.fork()
    if not child:
        try:
            _make(path, "t-1")
            _check(path, known)
        except BaseException:  # noqa: BLE001 - the parent says so
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert "t-1" in _check(path, known).folders


@pytest.mark.usefixtures("few_are_many")
def test_what_other_machines_change_is_found_by_listing(tmp_path: Path) -> None:
    path = _make(tmp_path / "log", "t-0")
    (path / "file").touch()
    shared = lambda _: True  # noqa: E731
    known = list_folders(path, list_folders(path, None, shared), shared)
    before, _ = names_beside_partitions(path, shared), name_changes(watch_names(str(path)))
    (path / "t-1").mkdir()
    (path / "file").unlink()
    name_changes(watch_names(str(path)))  # as if this kernel had heard nothing
    assert {*before} == {"file"}
    assert "t-1" in list_folders(path, known, shared).folders
    assert not names_beside_partitions(path, shared)


@pytest.mark.usefixtures("few_are_many")
def test_two_paths_to_one_folder_are_both_told_of_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, link = _make(tmp_path / "log", "t-0"), tmp_path / "link"
    link.symlink_to(path)
    known = {each: _check(each, _check(each, None)) for each in (path, link)}
    for number in range(1, 4):
        _make(path, f"t-{number}")
        (path / f"file{number}").touch()
        known = {each: _check(each, known[each]) for each in known}
    monkeypatch.setattr(log_dir, "entries_of", None)  # nothing is listed any more
    assert {each: _listed(each, known[each]) for each in known} == known


@pytest.mark.usefixtures("few_are_many")
def test_a_path_that_has_gone_is_said_to_be_missing(tmp_path: Path) -> None:
    log_dirs = LogDirs([_make(tmp_path / "log", "t-0")])
    for _ in range(3):
        assert len(log_dirs.partitions()) == 1
    shutil.rmtree(tmp_path / "log")
    with pytest.raises(LogDirectoryError, match="does not exist"):
        log_dirs.partitions()
    _make(tmp_path / "log", "t-1")
    assert [key.partition for key in log_dirs.partitions()] == [1]


@pytest.mark.usefixtures("few_are_many")
def test_without_a_watch_folders_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user may have 128 queues by default, and other programs have need of them, too."""
    monkeypatch.setattr(log_dir, "watch_names", lambda _: -1)
    path = _make(tmp_path / "log", "t-0")
    known = _check(path, _check(path, None))
    _make(path, "t-1")
    assert "t-1" in _check(path, known).folders


@pytest.mark.parametrize("others", [0, 600])
def test_what_a_link_leads_to_may_come_and_go_without_a_trace_in_the_path(
    tmp_path: Path, others: int
) -> None:
    """As where the disk of a partition is mounted late; with many folders the kernel tells."""
    path, disk, away = (tmp_path / name for name in ("log", "disk", "away"))
    for folder in (*(path / f"o-{n}" for n in range(others)), path / "t-0", disk / "t-1"):
        folder.mkdir(parents=True)
        write_segment(folder, 0, b"")
    (path / "t-1").symlink_to(disk / "t-1")
    key, log_dirs = TopicPartition("t", 1), LogDirs([path])
    watch = LogEndTracker([path], lambda each: each == key)
    for _ in range(2):
        assert key in log_dirs.partitions()
        assert watch.look().offsets == {key: 0}
        disk.rename(away)
        assert key not in log_dirs.partitions()
        assert log_dirs.leads_nowhere
        assert log_dirs.partitions() is log_dirs.partitions()
        assert watch.look().offsets == {}
        away.rename(disk)


def test_a_folder_is_another_one_than_a_link_whatever_its_number(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    with os.scandir(tmp_path) as found:
        entries = {entry.name: entry for entry in found}
    numbers = log_dir._inodes([entries["folder"], entries["link"]])
    assert [*numbers] == [entries["folder"].inode(), ~entries["link"].inode()]


def test_what_somebody_has_joined_is_not_joined_again(tmp_path: Path) -> None:
    """Each command looks at the same directories several times, in objects of their own."""
    path, second = _make(tmp_path / "log", "t-1", "t-0"), _make(tmp_path / "other", "u-0")
    held = LogDirs([path])
    found = held.partitions()
    assert LogDirs([path]).partitions() is found
    assert len(LogDirs([path, second]).partitions()) == 3
    _make(path, "t-2")
    assert [str(key) for key in LogDirs([path]).partitions()] == ["t-0", "t-1", "t-2"]
    assert len(found) == 2
    shutil.rmtree(path / "t-0")
    assert [str(key) for key in held.partitions()] == ["t-1", "t-2"]
