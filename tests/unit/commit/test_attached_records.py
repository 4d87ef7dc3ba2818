"""What a commit is asked to look at, and what it takes along."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.sinking import Writer, rows, values_of

from kafkalog.checkpoints.commit_state import STAGED_PREFIX
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import CommitError
from kafkalog.streaming.commit.committer import Committer, Outcome
from kafkalog.streaming.commit.staging.staged_files import AttachedRecords
from kafkalog.streaming.store.log_dirs import LogDirs
from kafkalog.streaming.store.log_set import LogSet
from kafkalog.streaming.store.policy import TopicPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kafkalog.streaming.store.session import Condition

GROUPS = "__consumer_offsets"


def attached(*values: str, topic: str = GROUPS, partitions: int = 3) -> AttachedRecords:
    return AttachedRecords(
        topic=topic,
        partition_of=lambda count: count - 1,
        records=[(b"key", value.encode()) for value in values],
        timestamp_ms=1,
        policy=TopicPolicy(
            allows_internal=True, partitions=partitions, settings={"cleanup.policy": "compact"}
        ),
    )


def commit(
    writer: Writer,
    batch_id: int,
    *values: str,
    attached_records: Sequence[AttachedRecords] = (),
    conditions: Sequence[Condition] = (),
) -> Outcome:
    runs = writer.stage(batch_id, rows(values)) if values else []
    plan, identity = writer.plan().commit_plan, writer.identity(batch_id, "digest")
    committer = Committer(plan, identity, attached_records=attached_records, conditions=conditions)
    return committer.commit_or_abort(runs)


def staged(folder: Path) -> list[Path]:
    return list(folder.glob(f"{STAGED_PREFIX}*"))


def test_attached_records_are_published_with_their_batch_and_not_a_second_time(
    tmp_path: Path,
) -> None:
    writer = Writer(tmp_path, topic="t")
    assert commit(writer, 0, "a", attached_records=[attached("x", "y")]).appended
    assert values_of([tmp_path], "t") == {0: ["a"]}
    assert values_of([tmp_path], GROUPS) == {0: [], 1: [], 2: ["x", "y"]}
    assert not commit(writer, 0, "a", attached_records=[attached("x", "y")]).appended
    assert commit(writer, 1, "b", attached_records=[attached("z", partitions=50)]).appended
    assert values_of([tmp_path], "t") == {0: ["a", "b"]}
    assert values_of([tmp_path], GROUPS) == {0: [], 1: [], 2: ["x", "y", "z"]}
    assert not staged(tmp_path)


def test_a_batch_without_rows_takes_attached_records_along(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t")
    commit(writer, 0, attached_records=[attached()])
    assert values_of([tmp_path], GROUPS) == {}, "one without records makes no topic"
    assert commit(writer, 1, attached_records=[attached("x")]).appended
    assert values_of([tmp_path], GROUPS) == {0: [], 1: [], 2: ["x"]}
    state = load_state(tmp_path)
    assert state is not None
    assert [topic.last_query for topic in state.topics.values()] == [None]


def test_attached_records_of_a_commit_that_fails_go_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path, topic="t")
    commit(writer, 0, "a", attached_records=[attached("x")])

    def fail(*_: Any) -> None:
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr(LogSet, "publish", fail)
        with pytest.raises(CommitError):
            commit(writer, 1, "b", attached_records=[attached("y")])
    assert values_of([tmp_path], GROUPS)[2] == ["x"]
    assert not staged(tmp_path)
    commit(writer, 1, "b", attached_records=[attached("y")])
    assert values_of([tmp_path], GROUPS)[2] == ["x", "y"]


def test_rows_do_not_go_where_attached_records_go(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t")
    with pytest.raises(CommitError, match="records that the commit adds itself"):
        commit(writer, 0, "a", attached_records=[attached("x", topic="t")])
    assert not LogDirs([tmp_path]).partitions()


def test_conditions_are_looked_at_before_the_intent_and_again_before_the_rename(
    tmp_path: Path,
) -> None:
    writer = Writer(tmp_path, topic="t")
    looks: list[bool] = []

    def note(log_set: LogSet) -> None:
        log_set.check_current()
        looks.append((tmp_path / INTENT_FILE).exists())

    assert commit(writer, 0, "a", conditions=[note]).appended
    assert looks == [False, True]
    assert not commit(writer, 0, "a", conditions=[note]).appended
    assert looks == [False, True], "nothing is published that was not before"
    commit(writer, 1, conditions=[note])
    assert looks == [False, True, False, False]


@pytest.mark.parametrize("look", [0, 1])
def test_a_condition_that_does_not_hold_refuses_the_batch_and_its_attached_records(
    tmp_path: Path, look: int
) -> None:
    writer = Writer(tmp_path, topic="t")
    commit(writer, 0, "a", attached_records=[attached("x")])
    before = load_state(tmp_path)
    looks = iter(range(9))

    def refuse(_: LogSet) -> None:
        if next(looks) == look:
            raise CommitError("not any more")

    with pytest.raises(CommitError, match="not any more"):
        commit(writer, 1, "b", attached_records=[attached("y")], conditions=[refuse])
    assert load_state(tmp_path) == before
    assert not (tmp_path / INTENT_FILE).exists()
    assert not staged(tmp_path)
    log = tmp_path / f"{GROUPS}-2" / f"{0:020d}.log"
    assert log.read_bytes().count(b"key") == 1
    assert commit(writer, 1, "b", attached_records=[attached("y")]).appended
    assert values_of([tmp_path], "t") == {0: ["a", "b"]}
