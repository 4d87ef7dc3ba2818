"""What a Delta table holds is read off its history, whatever Delta or others have done to it."""

from __future__ import annotations

import json

import pytest

from kafkalog.errors import CheckpointError
from kafkalog.jobs.pipelines.continuation import HeldTopic, TargetState
from kafkalog.jobs.pipelines.delta_tables import History, TableCommit, held_in


def state(end: int) -> TargetState:
    return TargetState("table", "set", {"t": HeldTopic("A", {0: end})})


def ours(version: int, end: int, base: int | None = None, *, epoch: str = "table") -> TableCommit:
    held = json.loads(TargetState(epoch, "set", state(end).topics).to_json())
    kept = {"base": version - 1 if base is None else base, "run": "r", "held": held}
    return TableCommit(version, "WRITE", {"mode": "Append"}, json.dumps({"kafkalog.archive": kept}))


def other(version: int, operation: str, /, **parameters: str | None) -> TableCommit:
    return TableCommit(version, operation, parameters, None)


def history(*commits: TableCommit) -> History:
    return held_in(commits[::-1], "table")


CREATED = other(0, "CREATE TABLE")


def test_the_newest_commit_of_ours_tells() -> None:
    assert history(CREATED, ours(1, 10), ours(2, 20)) == History(state(20))
    assert history() == History(None)


@pytest.mark.parametrize(
    ("operation", "parameters"),
    [
        ("OPTIMIZE", {}),
        ("VACUUM START", {}),
        ("VACUUM END", {}),
        ("SET TBLPROPERTIES", {}),
        ("DELETE", {"predicate": '["(offset > 3)"]'}),
    ],
)
def test_what_does_not_add_or_replace_rows_changes_nothing(
    operation: str, parameters: dict[str, str]
) -> None:
    found = history(CREATED, ours(1, 10), other(2, operation, **parameters))
    assert found == History(state(10))


def test_restore_sets_the_state_back_and_is_named() -> None:
    commits = (CREATED, ours(1, 10), ours(2, 20), other(3, "RESTORE", version="1", timestamp=None))
    assert history(*commits) == History(state(10), "RESTORE to 1 in its version 3")
    assert history(*commits, ours(4, 15)) == History(state(15))
    again = other(4, "RESTORE", version="2")
    assert history(*commits, again) == History(state(20), "RESTORE to 2 in its version 4")
    by_time = other(3, "RESTORE", version=None, timestamp="2026-01-01 00:00:00.0")
    found = history(*commits[:3], by_time)
    assert (found.held, "2026-01-01" in found.why) == (None, True)


@pytest.mark.parametrize(
    "commit",
    [
        other(3, "CREATE OR REPLACE TABLE"),
        other(3, "REPLACE TABLE AS SELECT"),
        other(3, "TRUNCATE"),
        other(3, "DELETE", predicate='["true"]'),
        other(3, "DELETE", predicate="[]"),
        other(3, "WRITE", mode="Overwrite"),
    ],
    ids=lambda commit: commit.operation,
)
def test_a_table_that_was_emptied_or_replaced_holds_what_its_rows_show(commit: TableCommit) -> None:
    found = history(CREATED, ours(1, 10), ours(2, 20), commit, other(4, "OPTIMIZE"))
    assert (found.held, found.begins_anew) == (None, True)
    assert commit.operation in found.why


def test_where_the_history_does_not_tell_rows_and_properties_do() -> None:
    assert history(other(0, "CLONE")) == History(None, "")
    assert history(other(8, "OPTIMIZE"), other(9, "OPTIMIZE")) == History(None)
    restored = other(9, "RESTORE", version="3", timestamp=None)
    assert history(ours(8, 90), restored) == History(None, "RESTORE to 3 in its version 9")
    assert history(ours(1, 10, epoch="another")).held is None


def test_rows_of_others_since_are_noticed() -> None:
    appended = other(2, "WRITE", mode="Append")
    assert history(CREATED, ours(1, 10), appended) == History(state(10), others_wrote=True)
    assert history(CREATED, appended, ours(3, 10)) == History(state(10))


def test_rows_above_a_change_that_their_writer_did_not_see_are_noticed() -> None:
    restored = other(3, "RESTORE", version="1", timestamp=None)
    found = history(CREATED, ours(1, 10), ours(2, 20), restored, ours(4, 30, base=2))
    assert found.is_mixed
    assert "RESTORE to 1 in its version 3" in found.why
    seen = history(CREATED, ours(1, 10), other(2, "OPTIMIZE"), ours(3, 30, base=1))
    assert seen == History(state(30))


@pytest.mark.parametrize("text", ["{kafkalog.archive", '{"kafkalog.archive": {"base": 1}}'])
def test_a_commit_that_does_not_tell_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError, match="version 1 of the table"):
        history(TableCommit(1, "WRITE", {}, text))
    assert history(TableCommit(0, "WRITE", {}, "nightly run")).held is None
