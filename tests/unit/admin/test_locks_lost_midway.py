"""Locks that are lost between two steps of a change: what comes after is left to others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.compacting import FORCED, updates
from tests.support.compacting import writer as compacting_writer
from tests.support.logs import write_checkpoint
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.broker import HIGH_WATERMARK, RECOVERY_POINT, read_offset_checkpoint
from kafkalog.checkpoints.commit_state import STATE_FILE
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.errors import KafkaLogError, LogDirectoryError
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin import cleaning
from kafkalog.streaming.admin import recovery as recover_module
from kafkalog.streaming.admin import retention as shortening
from kafkalog.streaming.admin.compaction import compact
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.retention import delete_records
from kafkalog.streaming.admin.topics import delete
from kafkalog.streaming.commit import committer
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.store import folder_changes as deletion
from kafkalog.streaming.store.locks import CLEANER_PREFIX
from kafkalog.streaming.store.log_set import LogSet, publish_guarded
from kafkalog.streaming.store.nodes import Node
from kafkalog.streaming.store.policy import SetPolicy
from kafkalog.streaming.store.recovery import rollback as roll_back
from kafkalog.streaming.store.session import Session

if TYPE_CHECKING:
    from pathlib import Path

T0 = TopicPartition("t", 0)
LOST = "deleted or replaced"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a log of four batches, each in a segment of its own."""
    writer = Writer(tmp_path, topic="t", segment__bytes="100")
    for number in range(4):
        writer.write(number, rows([f"{number}" * 20]))
    return tmp_path


def lose(log: Path, name: str = ".lock") -> None:
    """Let somebody replace a lock file, which a server's loss of locks comes to."""
    (log / name).unlink()
    (log / name).touch()


def losing(patch: pytest.MonkeyPatch, where: Any, name: str, log: Path, *, after: bool) -> None:
    """Let the locks be lost right before a function is called, or right after it."""
    original = getattr(where, name)

    def act(*arguments: Any, **named: Any) -> Any:
        if not after:
            lose(log)
        done = original(*arguments, **named)
        if after:
            lose(log)
        return done

    patch.setattr(where, name, act)


def logs(log: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in log.glob("t-*/*") if path.is_file()}


def test_no_intent_is_written_once_the_locks_are_lost(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing(monkeypatch, Committer, "_write", log, after=False)
    with pytest.raises(LogDirectoryError, match=LOST):
        Writer(log, topic="t").write(4, rows(["new"]))
    assert not (log / INTENT_FILE).exists()


def test_no_segment_is_retired_once_the_locks_are_lost(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(logs(log))
    losing(monkeypatch, shortening, "_publish", log, after=True)
    with pytest.raises(LogDirectoryError, match=LOST):
        delete_records([str(log)], {T0: 3})
    assert set(logs(log)) == before


def test_no_segment_goes_before_the_log_start_is_published(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = logs(log)
    losing(monkeypatch, shortening, "_publish", log, after=False)
    with pytest.raises(LogDirectoryError, match=LOST):
        delete_records([str(log)], {T0: 3})
    assert logs(log) == before


def test_no_folder_of_a_deleted_topic_is_renamed_once_the_locks_are_lost(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing(monkeypatch, deletion, "publish_guarded", log, after=True)
    with pytest.raises(LogDirectoryError, match=LOST):
        delete([str(log)], "t")
    assert (log / "t-0").is_dir()


def test_no_index_is_mended_by_a_recovery_once_the_locks_are_lost(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = log / "t-0" / f"{3:020d}.index"
    index.write_bytes(b"\xff" * 8)
    losing(monkeypatch, recover_module, "finish_swap", log, after=False)
    done = recover([str(log)])
    assert LOST in done.problems[0]
    assert index.read_bytes() == b"\xff" * 8


def test_nothing_is_swapped_in_once_the_locks_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates(compacting_writer(tmp_path), [{"a": "1"}, {"a": "2"}, {"a": "3"}])
    before = logs(tmp_path)
    losing(monkeypatch, cleaning, "check_interrupt", tmp_path, after=True)
    done = compact([str(tmp_path)], FORCED)
    assert LOST in done.problems[0]
    assert logs(tmp_path) == before


def test_nor_once_the_cleaner_has_lost_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates(compacting_writer(tmp_path), [{"a": "1"}, {"a": "2"}, {"a": "3"}])
    before = logs(tmp_path)

    def lose_own() -> None:
        (name,) = (path.name for path in tmp_path.glob(f"{CLEANER_PREFIX}*"))
        lose(tmp_path, name)

    monkeypatch.setattr(cleaning, "check_interrupt", lose_own)
    done = compact([str(tmp_path)], FORCED)
    assert LOST in done.problems[0]
    assert logs(tmp_path) == before


# The intent of a state that is followed by other changes


def publish(log: Path) -> None:
    """Publish a state, as retention and deletions do."""
    with Session([log], SetPolicy.of_upkeep(1000), holder="a test") as session:
        log_set = session.open()
        lose_if_wanted(log_set)
        publish_guarded(log_set, log_set.state.following(), "a test")


def lose_if_wanted(_: LogSet) -> None:
    """Give tests a place to lose the locks."""


def test_no_intent_of_a_log_start_is_written_once_the_locks_are_lost(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(publish.__globals__, "lose_if_wanted", lambda _: lose(log))
    with pytest.raises(LogDirectoryError, match=LOST):
        publish(log)
    assert not (log / INTENT_FILE).exists()


def test_an_intent_that_may_be_anothers_stays(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losing(monkeypatch, Node, "declare", log, after=True)
    with pytest.raises(LogDirectoryError, match=LOST):
        publish(log)
    assert (log / INTENT_FILE).exists()


def test_the_intent_stays_if_its_state_is_published_after_all(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = LogSet.publish

    def fail_afterwards(*arguments: Any) -> None:
        original(*arguments)
        raise OSError("the network is gone")

    monkeypatch.setattr(LogSet, "publish", fail_afterwards)
    with pytest.raises(OSError, match="the network is gone"):
        publish(log)
    assert (log / INTENT_FILE).exists()


# What was cut off


@pytest.fixture
def cut_off(log: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a log with a commit that was cut off before it was published."""

    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Committer, "_publish", fail)
        patch.setattr(Committer, "_try_to_roll_back", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            Writer(log, topic="t").write(4, rows(["new"]))
    assert (log / INTENT_FILE).exists()
    return log


def test_nothing_is_rolled_back_once_the_locks_are_lost(
    cut_off: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = logs(cut_off)
    losing(monkeypatch, roll_back, "_undo", cut_off, after=False)
    with pytest.raises(KafkaLogError, match=LOST):
        Writer(cut_off, topic="t").write(4, rows(["new"]))
    assert logs(cut_off) == before


def test_the_intent_stays_if_the_locks_are_lost_while_it_is_rolled_back(
    cut_off: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing(monkeypatch, roll_back, "_undo", cut_off, after=True)
    with pytest.raises(KafkaLogError, match=LOST):
        Writer(cut_off, topic="t").write(4, rows(["new"]))
    assert (cut_off / INTENT_FILE).exists()


def test_no_checkpoint_of_a_finished_commit_is_written_once_the_locks_are_lost(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Committer, "_finish", lambda *_: None)
        Writer(log, topic="t").write(4, rows(["new"]))
    names = (HIGH_WATERMARK, RECOVERY_POINT)
    before = [(log / name).read_bytes() for name in names]
    losing(monkeypatch, roll_back, "_end_finished", log, after=False)
    with pytest.raises(KafkaLogError, match=LOST):
        Writer(log, name="other", topic="t").write(0, rows(["more"]))
    assert [(log / name).read_bytes() for name in names] == before


def test_no_state_is_made_durable_once_the_locks_are_lost(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Committer, "_finish", lambda *_: None)
        Writer(log, topic="t").write(4, rows(["new"]))
    before = (log / STATE_FILE).stat().st_ino
    losing(monkeypatch, roll_back, "sync_up_to", log, after=True)
    with pytest.raises(KafkaLogError, match=LOST):
        Writer(log, name="other", topic="t").write(0, rows(["more"]))
    assert (log / STATE_FILE).stat().st_ino == before


def test_no_line_of_a_topic_that_was_made_goes_once_the_locks_are_lost(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Committer, "_finish", lambda *_: None)
        Writer(log, topic="u").write(4, rows(["new"]))
    write_checkpoint(log, HIGH_WATERMARK, {"u-0": 1})
    losing(monkeypatch, roll_back, "_end_finished", log, after=False)
    with pytest.raises(KafkaLogError, match=LOST):
        Writer(log, name="other", topic="t").write(0, rows(["more"]))
    assert read_offset_checkpoint(log, HIGH_WATERMARK) == {TopicPartition("u", 0): 1}


def test_a_failed_commit_that_has_lost_its_locks_takes_nothing_back(
    log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    taken = []
    monkeypatch.setattr(committer, "roll_back", lambda *_, **__: taken.append(1))
    losing(monkeypatch, Committer, "_declare", log, after=True)
    with pytest.raises(LogDirectoryError, match=LOST):
        Writer(log, topic="t").write(4, rows(["new"]))
    assert not taken
    assert "left for the next commit to roll back" in caplog.text
