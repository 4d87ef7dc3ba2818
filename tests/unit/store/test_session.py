from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.sinking import Writer, rows, values_of

from kafkalog.checkpoints.commit_state import STATE_FILE
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import CommitError, LogDirectoryError
from kafkalog.files.deferred_signals import shielded
from kafkalog.streaming.store import open_set, session
from kafkalog.streaming.store.log_set import LogSet
from kafkalog.streaming.store.policy import SetPolicy
from kafkalog.streaming.store.session import Session

if TYPE_CHECKING:
    from pathlib import Path

POLICY = SetPolicy(wait_ms=100)


def losing_locks(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let somebody replace Kafka's lock file as soon as something is made durable."""
    original = os.fsync

    def sync_and_replace(descriptor: int) -> None:
        original(descriptor)
        if (folder / ".lock").exists():
            (folder / ".lock").unlink()
            (folder / ".lock").touch()

    patch.setattr(os, "fsync", sync_and_replace)


@pytest.mark.parametrize("first", ["a", "b"])
def test_no_set_begins_nor_grows_once_the_locks_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    one, two = tmp_path / "a", tmp_path / "b"
    if first == "b":
        Writer(one, topic="t").write(0, rows(["x"]))
    before = load_state(one)
    one.mkdir(exist_ok=True)
    two.mkdir()
    with monkeypatch.context() as patch:
        losing_locks(patch, one)
        with pytest.raises(LogDirectoryError, match="deleted or replaced"):
            Writer(one, two, topic="t").ensure()
    assert load_state(one) == before
    assert load_state(two) is None
    assert Writer(one, two, topic="t").ensure()


def test_no_set_grows_by_a_directory_that_was_invited_once_the_locks_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "a", tmp_path / "b"
    Writer(one, topic="t").write(0, rows(["x"]))
    before = load_state(one)
    two.mkdir()
    original = open_set._write

    def write_and_replace(*given: Any) -> None:
        original(*given)
        (one / ".lock").unlink()
        (one / ".lock").touch()

    with monkeypatch.context() as patch:
        patch.setattr(open_set, "_write", write_and_replace)
        with pytest.raises(LogDirectoryError, match="deleted or replaced"):
            Writer(one, two, topic="t").ensure()
    assert load_state(one) == before


@pytest.mark.parametrize("grows", [False, True])
def test_a_set_that_has_just_begun_or_grown_knows_its_locks(tmp_path: Path, *, grows: bool) -> None:
    one, two = tmp_path / "a", tmp_path / "b"
    if grows:
        Writer(one, topic="t").write(0, rows(["x"]))
    one.mkdir(exist_ok=True)
    two.mkdir()
    with Session([one, two], POLICY, holder="me") as session:
        log_set = session.open()
        assert len(log_set.members) == 2
        (two / ".lock").unlink()
        (two / ".lock").touch()
        with pytest.raises(LogDirectoryError, match="deleted or replaced"):
            log_set.check_current()


def test_what_a_condition_refuses_leaves_the_unfinished_commit_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a"]))

    def cut(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LogSet, "publish", cut)
        with pytest.raises(KeyboardInterrupt):
            Writer(tmp_path, topic="t").write(1, rows(["b"]))

    def refuse(log_set: LogSet) -> None:
        assert log_set.unfinished()
        raise CommitError("not now")

    @shielded
    def open_it() -> None:
        with Session([tmp_path], POLICY, holder="me") as session:
            session.open(refuse)

    with pytest.raises(CommitError, match="not now"):
        open_it()
    assert (tmp_path / INTENT_FILE).exists()
    Writer(tmp_path, topic="t").write(1, rows(["b"]))
    assert values_of([tmp_path], "t") == {0: ["a", "b"]}


def refuse_to_look(patch: pytest.MonkeyPatch) -> None:
    """Fail where log directories are looked at as those of a set that is not known."""

    def look(*_: object) -> str:
        raise AssertionError

    patch.setattr(session, "_ensure_set", look)


def test_who_published_last_in_a_set_only_looks_whether_anybody_has_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "a", tmp_path / "b"
    writer = Writer(one, two, topic="t")
    writer.write(0, rows(["x"]))
    set_id = writer.ensure()
    refuse_to_look(monkeypatch)
    assert writer.ensure() == set_id


def grow(one: Path, two: Path) -> None:
    """Have another process take a third directory into the set."""
    child = os.fork()
    if child == 0:
        try:
            Writer(one, two, two.with_name("c"), topic="t").write(1, rows(["y"]))
        finally:
            os._exit(0)
    os.waitpid(child, 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda _, two: two.rename(two.with_name("away")),
        lambda one, two: (two / STATE_FILE).write_bytes((one / STATE_FILE).read_bytes()),
        lambda _, two: (two / STATE_FILE).unlink(),
        grow,
    ],
    ids=["one is away", "a copied state", "a lost state", "another process has published"],
)
def test_where_anything_has_changed_a_set_is_looked_at_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    one, two = tmp_path / "a", tmp_path / "b"
    writer = Writer(one, two, topic="t")
    writer.write(0, rows(["x"]))
    change(one, two)
    refuse_to_look(monkeypatch)
    with pytest.raises(AssertionError):
        writer.ensure()


def test_a_part_of_a_set_is_not_taken_for_the_set(tmp_path: Path) -> None:
    one, two = tmp_path / "a", tmp_path / "b"
    Writer(one, two, topic="t").write(0, rows(["x"]))
    with pytest.raises(LogDirectoryError, match="of the 2 log directories"):
        Writer(one, topic="t").ensure()
    (tmp_path / "link").symlink_to(one)
    with pytest.raises(LogDirectoryError, match="given twice"):
        Writer(one, two, tmp_path / "link", topic="t").ensure()


def test_directories_of_two_sets_are_not_taken_for_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        Writer(tmp_path / f"{name}1", tmp_path / f"{name}2", topic="t").write(0, rows(["x"]))
    with pytest.raises(LogDirectoryError, match="belongs to another set"):
        Writer(tmp_path / "a1", tmp_path / "b1", topic="t").ensure()
