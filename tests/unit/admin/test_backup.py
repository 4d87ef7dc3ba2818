"""A copy that is made while others write can be read, and written on."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.logs import Row, append_batch, batch_bytes, write_segment
from tests.support.sinking import Writer, rows, values_of
from typer.testing import CliRunner

from kafkalog.checkpoints import state_file
from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    META_PROPERTIES,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from kafkalog.checkpoints.commit_state import STATE_FILE, UNFINISHED_FOLDER
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import BatchIdentityError, LogDirectoryError
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.inspection.batches import verify_logs
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin import backup
from kafkalog.streaming.admin import backup as backup_module
from kafkalog.streaming.admin.backup import FolderCopy, back_up
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.store.log_set import LogSet
from kafkalog.streaming.store.nodes import let_brokers_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NUMBERS = [0, 1, 2]


def write(writer: Writer, batch_id: int) -> None:
    writer.write(batch_id, rows([f"{batch_id}/{p}" for p in NUMBERS], partitions=NUMBERS))


def values(batches: int) -> dict[int, list[str]]:
    return {p: [f"{batch}/{p}" for batch in range(batches)] for p in NUMBERS}


def writer_of(*folders: Path, **options: str) -> Writer:
    return Writer(*folders, topic="t", numPartitions="3", segment__bytes="300", **options)


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    """Give a query that has written a few segments to three partitions in two directories."""
    made = writer_of(tmp_path / "a", tmp_path / "b")
    for batch_id in range(8):
        write(made, batch_id)
    return made


def paths_of(writer: Writer) -> list[str]:
    return [str(folder) for folder in writer.directories]


def copies_in(target: Path) -> list[Path]:
    return [target / "1", target / "2"]


def check_sound(folders: Sequence[Path]) -> None:
    assert [row for row in verify_logs([*map(str, folders)]) if row["problem"]] == []
    assert {p.name for folder in folders for p in folder.iterdir() if p.name[0] != "t"} == {
        STATE_FILE,
        HIGH_WATERMARK,
        "recovery-point-offset-checkpoint",
    }


def during_passes(monkeypatch: pytest.MonkeyPatch, act: Callable[[FolderCopy], object]) -> None:
    """Let something happen while files are copied and no lock is held, before each directory's."""
    original = FolderCopy.bring_up_to_date

    def bring_up_to_date(self: FolderCopy, sizes: Any = None) -> int:
        if sizes is not None or (self.source / META_PROPERTIES).exists():
            act(self)
        return original(self, sizes)

    monkeypatch.setattr(FolderCopy, "bring_up_to_date", bring_up_to_date)


def test_the_copy_of_a_large_set_has_its_state_in_one_file(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_file, "FEW_ENTRIES", -1)
    write(writer, 8)
    write(writer, 9)
    copies = copies_in(tmp_path / "copy")
    assert all([*folder.glob("kafkalog.snapshot.*")] for folder in writer.directories)
    back_up(paths_of(writer), tmp_path / "copy")
    assert not [path for folder in copies for path in folder.glob("kafkalog.snapshot.*")]
    assert values_of(copies, "t") == values(10)
    write(writer_of(*copies), 10)
    assert values_of(copies, "t") == values(11)


def test_a_copy_that_was_made_while_a_query_wrote_is_the_set_at_one_moment(
    writer: Writer, tmp_path: Path
) -> None:
    written, stop = 8, threading.Event()

    def go_on() -> None:
        nonlocal written
        while not stop.is_set():
            write(writer, written)
            written += 1

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        for number in range(3):
            before = written
            target = tmp_path / f"copy {number}"
            assert back_up(paths_of(writer), str(target)).at_one_moment
            folders = copies_in(target)
            (batches,) = {len(found) for found in values_of(folders, "t").values()}
            assert before <= batches <= written + 1
            assert values_of(folders, "t") == values(batches)
            check_sound(folders)
            write(writer_of(*folders), batches)
            assert values_of(folders, "t") == values(batches + 1)
    finally:
        stop.set()
        thread.join()
    assert values_of(writer.directories, "t") == values(written)


def test_writers_wait_for_the_last_pass_only_and_nothing_is_copied_twice(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = iter(range(8, 100))
    during_passes(monkeypatch, lambda _: write(writer, next(batches)))
    monkeypatch.setattr(backup_module, "_SMALL_BYTES", 0)
    done = back_up(paths_of(writer), str(tmp_path / "copy"))
    written = next(batches)
    assert written == 8 + 2 * 5
    folders = copies_in(tmp_path / "copy")
    assert values_of(folders, "t") == values(written)
    check_sound(folders)
    logs = sum(path.stat().st_size for path in (tmp_path / "copy").glob("*/*/*.log"))
    small = sum(path.stat().st_size for path in (tmp_path / "copy").glob("*/*/*")) - logs
    assert logs <= sum(each.bytes for each in done.directories) <= logs + 6 * small
    assert [each.partitions for each in done.directories] == [2, 1]


def test_a_log_that_was_cut_and_grew_again_is_copied_anew(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "log", topic="t")
    writer.write(0, rows(["a"]))
    (tmp_path / "copy").mkdir()
    copy = FolderCopy(tmp_path / "log", tmp_path / "copy")
    path = tmp_path / "log" / "t-0" / f"{0:020d}.log"
    whole = path.read_bytes()
    with path.open("ab") as file:
        file.write(b"torn" * 100)
    copy.bring_up_to_date(copy.log_sizes())
    path.write_bytes(whole)
    writer.write(1, rows(["b" * 1000]))
    copy.bring_up_to_date()
    assert (tmp_path / "copy" / "t-0" / path.name).read_bytes() == path.read_bytes()


def test_an_unfinished_commit_is_not_in_the_copy(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LogSet, "publish", cut)
        with pytest.raises(KeyboardInterrupt):
            write(writer, 8)
    assert (writer.directories[0] / INTENT_FILE).exists()
    back_up(paths_of(writer), str(tmp_path / "copy"))
    folders = copies_in(tmp_path / "copy")
    check_sound(folders)
    write(writer_of(*folders), 8)
    assert values_of(folders, "t") == values(9)


def test_nor_is_one_that_is_cut_off_while_the_copy_is_made(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring_up_to_date = FolderCopy.bring_up_to_date

    def cut(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def copy_and_cut_off(copy: FolderCopy, sizes: Any = None) -> int:
        changed = bring_up_to_date(copy, sizes)
        is_cut_off = any((folder / INTENT_FILE).exists() for folder in writer.directories)
        if sizes is not None and not is_cut_off:
            with monkeypatch.context() as patch:
                patch.setattr(LogSet, "publish", cut)
                with pytest.raises(KeyboardInterrupt):
                    write(writer, 8)
        return changed

    with monkeypatch.context() as patch:
        patch.setattr(FolderCopy, "bring_up_to_date", copy_and_cut_off)
        back_up(paths_of(writer), str(tmp_path / "copy"))
    folders = copies_in(tmp_path / "copy")
    check_sound(folders)
    write(writer_of(*folders), 8)
    assert values_of(folders, "t") == values(9)


def test_a_copy_is_not_written_beside_its_original(writer: Writer, tmp_path: Path) -> None:
    back_up(paths_of(writer), str(tmp_path / "copy"))
    with pytest.raises(LogDirectoryError, match="one is a copy of the other"):
        write(writer_of(*writer.directories, *copies_in(tmp_path / "copy")), 8)


def test_a_copy_takes_the_place_of_its_original_and_queries_that_are_ahead_are_refused(
    writer: Writer, tmp_path: Path
) -> None:
    back_up(paths_of(writer), str(tmp_path / "copy"))
    for batch_id in (8, 9):
        write(writer, batch_id)
    for folder, copy in zip(writer.directories, copies_in(tmp_path / "copy"), strict=True):
        shutil.rmtree(folder)
        shutil.copytree(copy, folder)
    with pytest.raises(BatchIdentityError, match="log directories were restored from an older"):
        write(writer_of(*writer.directories), 10)
    write(writer_of(*writer.directories), 8)
    assert values_of(writer.directories, "t") == values(9)


def as_broker_writes(folder: Path, values: int) -> None:
    """Append a record, and let the checkpoint of the high watermark say so."""
    append_batch(folder / "t-0" / f"{0:020d}.log", batch_bytes(values, [Row(str(values).encode())]))
    write_offset_checkpoint(folder, HIGH_WATERMARK, {TopicPartition("t", 0): values + 1})


def test_a_brokers_logs_reach_to_their_high_watermarks_in_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, copy = tmp_path / "log", tmp_path / "copy"
    (folder / "t-0").mkdir(parents=True)
    (folder / META_PROPERTIES).write_text("version=1\n")
    (folder / "t-0" / f"{0:020d}.log").touch()
    as_broker_writes(folder, 0)
    appended = iter(range(1, 100))
    during_passes(monkeypatch, lambda _: as_broker_writes(folder, next(appended)))
    done = back_up([str(folder)], str(copy))
    assert not done.at_one_moment
    assert read_offset_checkpoint(copy, HIGH_WATERMARK) == {TopicPartition("t", 0): 1}
    assert (copy / META_PROPERTIES).read_text() == "version=1\n"
    with PartitionLog(copy / "t-0", TopicPartition("t", 0)) as log:
        assert log.log_end_offset(verify_from=0) == next(appended)


def test_segments_that_a_cleaner_replaces_meanwhile_are_copied_as_they_are_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, copy = tmp_path / "log", tmp_path / "copy"
    (folder / "t-0").mkdir(parents=True)
    (folder / META_PROPERTIES).write_text("version=1\n")
    names = [f"{number:020d}.log" for number in range(4)]
    for number, name in enumerate(names):
        (folder / "t-0" / name).write_bytes(batch_bytes(number, [Row(b"x")]))
    looks = iter(range(100))

    def clean(_: FolderCopy) -> None:
        if next(looks) == 1:
            (folder / "t-0" / "cleaned").write_bytes(batch_bytes(1, [Row(b"y")]))
            (folder / "t-0" / "cleaned").replace(folder / "t-0" / names[0])
            (folder / "t-0" / names[1]).unlink()

    during_passes(monkeypatch, clean)
    back_up([str(folder)], str(copy))
    assert {path.name: path.read_bytes() for path in (copy / "t-0").iterdir()} == {
        path.name: path.read_bytes() for path in (folder / "t-0").iterdir()
    }


@pytest.mark.parametrize("name", ["t-0", ".", "..", "a/copy"])
def test_a_copy_lies_neither_in_its_original_nor_around_it(
    writer: Writer, tmp_path: Path, name: str
) -> None:
    folder = writer.directories[0]
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(LogDirectoryError, match=r"cannot lie in it, nor around it|not empty"):
        back_up(paths_of(writer), str(folder / name))
    assert sorted(tmp_path.rglob("*")) == before


def test_nothing_is_copied_over_something_nor_of_a_part_of_a_set(
    writer: Writer, tmp_path: Path
) -> None:
    (tmp_path / "copy").mkdir()
    with pytest.raises(LogDirectoryError, match="1 of the 2 log directories"):
        back_up(paths_of(writer)[:1], str(tmp_path / "copy"))
    (tmp_path / "c").mkdir()
    with pytest.raises(LogDirectoryError, match="not one set"):
        back_up([*paths_of(writer), str(tmp_path / "c")], str(tmp_path / "copy"))
    assert [*(tmp_path / "copy").iterdir()] == []
    (tmp_path / "copy" / "notes").touch()
    with pytest.raises(LogDirectoryError, match="not empty"):
        back_up(paths_of(writer), str(tmp_path / "copy"))


def test_a_copy_that_was_cut_off_is_not_taken_for_one(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(_: FolderCopy) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FolderCopy, "sync", cut)
    with pytest.raises(KeyboardInterrupt):
        back_up(paths_of(writer), str(tmp_path / "copy"))
    for folder in copies_in(tmp_path / "copy"):
        assert load_state(folder) is None
        assert (folder / UNFINISHED_FOLDER).is_dir()


def test_a_copy_is_durable_before_its_state_says_so(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[Path] = set()
    early: list[str] = []
    found: list[Path] = []
    original = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        original(descriptor)

    def finished(folder: Path) -> None:
        copied = [*folder.glob("t-*"), *folder.glob("t-*/*")]
        early.extend(path.name for path in copied if path not in synced)
        found.extend(copied)
        let_brokers_in(folder)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(backup, "let_brokers_in", finished)
    back_up(paths_of(writer), str(tmp_path / "copy"))
    assert early == []
    assert len(found) > len(NUMBERS)


def test_a_copy_whose_last_pass_was_without_the_locks_is_none(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = FolderCopy.bring_up_to_date

    def bring_up_to_date(self: FolderCopy, sizes: Any = None) -> int:
        if sizes is None:
            lock = self.source / ".lock"
            lock.unlink()
            lock.touch()
        return original(self, sizes)

    monkeypatch.setattr(FolderCopy, "bring_up_to_date", bring_up_to_date)
    with pytest.raises(LogDirectoryError, match="deleted or replaced"):
        back_up(paths_of(writer), str(tmp_path / "copy"))
    assert [load_state(folder) for folder in copies_in(tmp_path / "copy")] == [None, None]


def test_the_command_says_where_the_copies_are(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["backup", *paths_of(writer), str(tmp_path / "copy")])
    assert done.exit_code == 0, done.output
    assert f" {Path('copy', '2')} " in done.output
    assert CliRunner().invoke(app, ["backup", str(tmp_path / "a")]).exit_code == 2
    assert values_of(copies_in(tmp_path / "copy"), "t") == values(8)


@pytest.mark.parametrize("is_link", [False, True])
def test_what_a_copy_lacks_is_said(tmp_path: Path, *, is_link: bool) -> None:
    write(writer_of(tmp_path / "log"), 0)
    folder = tmp_path / "log" / "t-1"
    if is_link:
        for each in NUMBERS:
            (tmp_path / "log" / f"t-{each}").rename(tmp_path / f"away-{each}")
            (tmp_path / "log" / f"t-{each}").symlink_to(tmp_path / "unmounted")
    else:
        shutil.rmtree(folder)
    done = CliRunner().invoke(app, ["backup", str(tmp_path / "log"), str(tmp_path / "copy")])
    assert done.exit_code == 1
    said = f"{folder} is a link that leads nowhere" if is_link else "t-1 up to offset 1"
    assert "problem: the copy is not whole: " in done.stderr
    assert said in done.stderr
    there = {"0", "2"} if not is_link else set()
    assert {path.name[2:] for path in (tmp_path / "copy").glob("t-*")} == there


def test_what_a_copy_of_a_brokers_directory_lacks_is_said_as_well(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for name in ("t-0", "t-1"):
        (log / name).mkdir(parents=True)
        write_segment(log / name, 0, batch_bytes(0, [Row(b"a")]))
    (log / META_PROPERTIES).write_text("version=1\n")
    write_offset_checkpoint(log, HIGH_WATERMARK, {TopicPartition("t", 0): 1})
    (log / "t-1").rename(tmp_path / "away")
    (log / "t-1").symlink_to(tmp_path / "unmounted")
    done = CliRunner().invoke(app, ["backup", str(log), str(tmp_path / "copy")])
    assert done.exit_code == 1
    assert f"the copy is not whole: {log / 't-1'} is a link that leads nowhere" in done.stderr
    assert [path.name for path in (tmp_path / "copy").glob("t-*")] == ["t-0"]
