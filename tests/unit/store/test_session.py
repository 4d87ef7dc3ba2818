from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.sinking import Writer, rows, values_of

from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import CommitError, LogDirectoryError
from kafkalog.files.deferred_signals import shielded
from kafkalog.streaming.store import open_set
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
