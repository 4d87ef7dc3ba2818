"""What counts as published: the very state that a commit made, whoever else was there."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.lost_locks_model import on_a_network
from tests.support.sinking import Writer, rows, values_of

import kafkalog
from kafkalog.checkpoints.broker import HIGH_WATERMARK, read_offset_checkpoint
from kafkalog.checkpoints.commit_state import STATE_FILE, load_stamp
from kafkalog.checkpoints.intent import INTENT_FILE, load_intent
from kafkalog.checkpoints.state_file import find_state, load_state, state_bytes
from kafkalog.errors import CommitError, DurabilityError, KafkaLogError
from kafkalog.files.atomic import prepare
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker.handover import take_over
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.store import nodes as publishing
from kafkalog.streaming.store.identity import BatchIdentity
from kafkalog.streaming.store.locks import DirectoryLocks
from kafkalog.streaming.store.nodes import Node
from kafkalog.streaming.store.policy import SetPolicy
from kafkalog.streaming.store.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kafkalog.checkpoints.intent import Intent

T0 = TopicPartition("t", 0)


def commit_elsewhere(folder: Path, *values: str) -> None:
    """Let another process commit, though the locks are held: as a server lets it that lost them."""
    for name in (".lock", "kafkalog.lock"):
        (folder / name).unlink()

    def commit() -> None:
        writer = Writer(folder, topic="t")
        runs = writer.stage(0, rows(values))
        Committer(writer.plan().commit_plan, BatchIdentity("job:other", 0)).commit(runs)

    in_child(commit)


def in_child(action: Callable[[], object]) -> None:
    """Act in another process."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def at_call(patch: pytest.MonkeyPatch, name: str, path: Path, action: Callable[[], None]) -> None:
    """Act once before a function of ``os`` is called with a path."""
    original = getattr(os, name)
    acted: list[bool] = []

    def function(*arguments: Any, **named: Any) -> Any:
        if os.fspath(arguments[0]) == str(path) and not acted:
            acted.append(True)
            action()
        return original(*arguments, **named)

    patch.setattr(os, name, function)


MOMENTS = {
    "before the intent": ("mkdir", "kafkalog.unfinished"),
    "before the state": ("open", "kafkalog.commit.tmp"),
    "before the rename": ("replace", "kafkalog.commit.tmp"),
}


@pytest.mark.long
@pytest.mark.parametrize("told", [True, False], ids=["told by its locks", "not told"])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("count", [1, 3])
def test_a_commit_whose_sequence_another_writer_published_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, told: bool, count: int
) -> None:
    name, file = MOMENTS[moment]
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]))
    runs = writer.stage(1, rows(["b"]))
    theirs = [f"x{number}" for number in range(count)]
    with monkeypatch.context() as patch:
        if not told:
            patch.setattr(DirectoryLocks, "verify", lambda _: None)
        at_call(patch, name, tmp_path / file, lambda: commit_elsewhere(tmp_path, *theirs))
        with pytest.raises(KafkaLogError) as raised:
            writer.commit(1, runs)
    if not told:
        assert "another writer has published commit 2" in str(raised.value)
    assert values_of([tmp_path], "t") == {0: ["a", *theirs]}
    assert read_offset_checkpoint(tmp_path, HIGH_WATERMARK) == {T0: 1 + count}
    writer.write(1, rows(["b"]))
    writer.write(2, rows(["c"]))
    assert values_of([tmp_path], "t") == {0: ["a", *theirs, "b", "c"]}


@pytest.mark.long
def test_of_a_commit_that_others_followed_at_once_nobody_says_that_it_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host sleeps after its rename. Its locks are given away; who gets them appends after it."""
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]))
    runs = writer.stage(1, rows(["b"]))
    load = publishing._published_stamp

    def asleep(written: Any) -> object:
        monkeypatch.setattr(publishing, "_published_stamp", load)
        commit_elsewhere(tmp_path, "x")
        return load(written)

    monkeypatch.setattr(publishing, "_published_stamp", asleep)
    with pytest.raises(
        CommitError, match=r"whether commit 2 is published is not known: .*commit 3"
    ):
        writer.commit(1, runs)
    assert values_of([tmp_path], "t") == {0: ["a", "b", "x"]}
    assert not writer.write(1, rows(["b"])).appended
    assert values_of([tmp_path], "t") == {0: ["a", "b", "x"]}


def test_of_a_commit_whose_directory_is_away_after_the_rename_nobody_says_that_it_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, away = tmp_path / "log", tmp_path / "away"
    writer = Writer(log, topic="t")
    writer.write(0, rows(["a"]))
    runs = writer.stage(1, rows(["b"]))
    load = publishing._published_stamp

    def unmounted(written: Any) -> object:
        monkeypatch.setattr(publishing, "_published_stamp", load)
        log.rename(away)
        log.mkdir()
        return load(written)

    monkeypatch.setattr(publishing, "_published_stamp", unmounted)
    with pytest.raises(
        CommitError, match=r"commit 2 is published is not known: .*nothing is there"
    ):
        writer.commit(1, runs)
    shutil.rmtree(log)
    away.rename(log)
    assert not Writer(log, topic="t").write(1, rows(["b"])).appended
    assert values_of([log], "t") == {0: ["a", "b"]}


def test_a_directory_that_is_replaced_by_one_of_another_history_is_noticed(tmp_path: Path) -> None:
    """Its state has the sequence that was known, and is another one."""
    Writer(tmp_path, topic="t").write(0, rows(["a"]))
    with Session([tmp_path], SetPolicy.of_upkeep(1000), holder="a test") as session:
        log_set = session.open()
        log_set.check_current()
        other = replace(log_set.state, commit_id=log_set.state.following().commit_id)
        (tmp_path / STATE_FILE).write_bytes(state_bytes(other))
        with pytest.raises(CommitError, match="another writer has published commit"):
            log_set.check_current()


def test_a_rename_that_failed_says_why_and_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]))

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(publishing, "publish", fail)
        with pytest.raises((KafkaLogError, OSError), match="the disk is full"):
            writer.write(1, rows(["b"]))
    writer.write(1, rows(["c"]))
    assert values_of([tmp_path], "t") == {0: ["a", "c"]}


def test_a_rename_that_put_anothers_state_in_place_is_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All writers use one temporary name: without locks it may be another one's by then."""
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]))
    runs = writer.stage(1, rows(["b"]))
    before = load_state(tmp_path)
    assert before is not None
    theirs = before.following()

    def prepare_theirs() -> None:
        prepare(tmp_path / STATE_FILE, state_bytes(theirs))

    with monkeypatch.context() as patch:
        at_call(patch, "replace", tmp_path / "kafkalog.commit.tmp", prepare_theirs)
        with pytest.raises(CommitError, match="another writer has published commit 2"):
            writer.commit(1, runs)
    assert load_state(tmp_path) == theirs
    assert values_of([tmp_path], "t") == {0: ["a"]}


def test_on_a_shared_file_system_what_was_rolled_back_is_not_published_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host sleeps after its last proof, another one recovers, and has not committed yet."""
    on_a_network(monkeypatch)
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]))
    runs = writer.stage(1, rows(["b"]))
    original, acted = os.replace, []

    def replace(source: Any, target: Any) -> None:
        if os.fspath(target) == str(tmp_path / STATE_FILE) and not acted:
            acted.append(source)
            for name in (".lock", "kafkalog.lock"):
                (tmp_path / name).unlink()
            in_child(lambda: recover([str(tmp_path)]))
        original(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(CommitError, match="nothing of it is visible"):
            writer.commit(1, runs)
    assert acted
    assert values_of([tmp_path], "t") == {0: ["a"]}
    writer.write(1, rows(["b"]))
    assert values_of([tmp_path], "t") == {0: ["a", "b"]}
    assert not [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"]


def test_a_takeover_whose_sequence_another_writer_published_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]))
    theirs = tmp_path / "kafkalog.commit"
    state = load_state(tmp_path)
    assert state is not None
    ours = state.following(topics={})
    theirs.write_bytes(state_bytes(ours))  # a takeover finds more than this says

    def publish_theirs() -> None:
        theirs.write_bytes(state_bytes(ours.following()))

    at_call(monkeypatch, "open", tmp_path / "kafkalog.commit.tmp", publish_theirs)
    with pytest.raises(CommitError, match="another writer has published"):
        take_over([str(tmp_path)])


def test_two_commits_of_like_content_differ(tmp_path: Path) -> None:
    stamps = []
    for name in ("a", "b"):
        writer = Writer(tmp_path / name, topic="t")
        runs = writer.stage(0, rows(["x"]))
        Committer(writer.plan().commit_plan, BatchIdentity("job:1", 0)).commit(runs)
        stamps.append(load_stamp(tmp_path / name))
    assert stamps[0] != stamps[1]
    assert {stamp and stamp.sequence for stamp in stamps} == {1}


def test_what_an_intent_of_another_commit_says_is_not_done_after_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]))
    kept: list[bytes] = []
    declare = Node.declare

    def note(node: Node, intent: Intent) -> None:
        declare(node, intent)
        kept.append((tmp_path / INTENT_FILE).read_bytes())

    lost = Writer(tmp_path, topic="t", name="lost")
    runs = lost.stage(0, rows(["x", "y"]))
    with monkeypatch.context() as patch:
        patch.setattr(Node, "declare", note)
        patch.setattr("kafkalog.streaming.store.nodes.publish", _fail)
        with pytest.raises(CommitError):
            lost.commit(0, runs)
    writer.write(1, rows(["b"]))
    # As the writer that lost its locks leaves it: of the same sequence, and not published.
    (tmp_path / INTENT_FILE).write_bytes(kept[0])
    writer.write(1, rows(["b"]))
    assert load_intent(tmp_path) is None
    assert read_offset_checkpoint(tmp_path, HIGH_WATERMARK) == {T0: 2}


def _fail(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def failing_fsync_of(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let each fsync of a folder fail once its state was renamed."""
    original, rename, renamed = os.fsync, os.replace, []

    def noted(source: Any, target: Any, **named: Any) -> None:
        rename(source, target, **named)
        renamed.append(str(target).endswith(STATE_FILE))

    def fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        if any(renamed) and stat.S_ISDIR(found.st_mode) and found.st_ino == folder.stat().st_ino:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        original(descriptor)

    patch.setattr(os, "replace", noted)
    patch.setattr(os, "fsync", fsync)


def test_a_state_whose_folder_cannot_be_synced_is_published_and_not_said_to_be_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]))
    runs = writer.stage(1, rows(["b"]))
    with monkeypatch.context() as patch:
        failing_fsync_of(patch, tmp_path)
        with pytest.raises(DurabilityError, match="rows are visible, but a loss of power"):
            writer.commit(1, runs)
        assert values_of([tmp_path], "t") == {0: ["a", "b"]}
        with pytest.raises(KafkaLogError, match=os.strerror(errno.EIO)):
            Committer(writer.plan().commit_plan, writer.identity(1)).commit_or_abort(runs)
    before = (tmp_path / STATE_FILE).stat().st_ino
    assert not writer.write(1, rows(["b"])).appended
    # It was written again, and not only synced: a sync after one that failed says nothing.
    assert (tmp_path / STATE_FILE).stat().st_ino != before
    writer.write(2, rows(["c"]))
    assert values_of([tmp_path], "t") == {0: ["a", "b", "c"]}


def test_what_was_staged_stays_until_the_state_that_names_it_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the power takes the state, nothing else proves whose bytes the log has."""
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]))
    runs = writer.stage(1, rows(["b"]))
    failing_fsync_of(monkeypatch, tmp_path)
    with pytest.raises(DurabilityError):
        writer.commit(1, runs)
    Committer(writer.plan().commit_plan, writer.identity(1)).abort(runs)
    assert (tmp_path / runs[0].file).exists()


def test_one_directory_that_holds_the_state_durably_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    writer = Writer(*folders, topic="t")
    writer.write(0, rows(["a"]))
    runs = writer.stage(1, rows(["b"]))
    with monkeypatch.context() as patch:
        failing_fsync_of(patch, folders[0])
        assert writer.commit(1, runs).appended
    assert values_of(folders, "t") == {0: ["a", "b"]}


@pytest.mark.parametrize("partitions", [1, 600])
def test_a_state_that_was_published_here_is_known_until_another_file_has_its_name(
    partitions: int, tmp_path: Path
) -> None:
    """Who plans takes it as it was published; a large one lies in two files."""
    log, state_file = tmp_path / "log", tmp_path / "log" / STATE_FILE
    options = {"numPartitions": str(partitions), "flush": "os"}
    kafkalog.append(log, "t", pa.table({"value": ["a"]}), options=options)
    shutil.copy(state_file, tmp_path / "older")
    kafkalog.append(log, "t", pa.table({"value": ["b"]}), options=options)
    known, read = find_state(log), load_state(log)
    assert known is not None
    assert read is not None
    assert replace(known, snapshot=None) == replace(read, snapshot=None)
    (tmp_path / "older").replace(state_file)
    again, read = find_state(log), load_state(log)
    assert again is not None
    assert read is not None
    assert again.sequence == read.sequence < known.sequence
