"""Sets of three nodes, on one of which a call of the system does not return."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.replicated import (
    OPTIONS,
    append,
    check_clean,
    check_equal,
    check_in_sync,
    newest_state,
    path_of,
    values,
)
from tests.support.stalling import stalling

import kafkalog
from kafkalog.checkpoints.broker import is_locked
from kafkalog.checkpoints.commit_state import LOCK_FILE, PREPARED_FILE
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.checkpoints.state_file import load_state
from kafkalog.checkpoints.topic_ids import note_changed_ids
from kafkalog.errors import CommitError, KafkaLogError, NotEnoughReplicasError
from kafkalog.streaming.admin.topics import delete
from kafkalog.streaming.store.ends.tracker import LogEndTracker
from kafkalog.streaming.store.replicas import open_nodes

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.streaming.store.log_set import LogSet

pytestmark = pytest.mark.long

LAG = {"replica.lag.time.max.ms": "1000"}
RENAME = f"{PREPARED_FILE}'), PosixPath("
"""What is in the text of the rename that decides."""

ROWS = ["third", "fourth"]


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in "abc"]
    append(found, 0, ["first", "second"])
    return found


def in_sync_with(nodes: list[Path], node: int) -> list[int]:
    """Return the partitions in whose in-sync sets a node is."""
    (topic,) = newest_state(nodes).topics.values()
    return [number for number, each in topic.replicas.items() if node in each.isr]


def check_whole(nodes: list[Path], rows: list[str]) -> None:
    append(nodes, 90, ["later"])
    append(nodes, 91, ["last"])
    assert values(nodes) == sorted(["first", "second", *rows, "later", "last"])
    check_in_sync(nodes)
    check_equal(nodes)
    check_clean(nodes)


@pytest.mark.parametrize("node", [0, 1, 2])
@pytest.mark.parametrize(
    ("name", "call"),
    [("fsync", 0), ("fsync", 4), ("pwrite", 3), ("replace", 0), ("replace", 1), ("unlink", 2)],
)
def test_a_commit_ends_without_a_node_that_stalls(
    nodes: list[Path], node: int, name: str, call: int
) -> None:
    with stalling(nodes[node], call, name) as stall:
        append(nodes, 1, ROWS, **LAG)
        assert stall.where is not None
        there = [each for each in nodes if each != nodes[node]]
        assert values(there) == sorted(["first", "second", *ROWS])
        assert not in_sync_with(there, node)
    check_whole(nodes, ROWS)


def test_its_locks_are_kept_until_the_call_returns(nodes: list[Path]) -> None:
    with stalling(nodes[2], 3, "pwrite") as stall:
        append(nodes, 1, ROWS, **LAG)
        assert is_locked(nodes[2] / LOCK_FILE)
        assert not is_locked(nodes[0] / LOCK_FILE)
        stall.release()
        assert not is_locked(nodes[2] / LOCK_FILE)


def test_later_commits_find_it_missing_until_the_call_returns(nodes: list[Path]) -> None:
    with stalling(nodes[0], 3, "pwrite") as stall:
        append(nodes, 1, ROWS, **LAG)
        calls = stall.calls
        append(nodes, 2, ["meanwhile"], **LAG)
        assert not in_sync_with(nodes[1:], 0)
        stall.release()
        append(nodes, 3, ["after"], **LAG)
        assert stall.calls == calls
        assert in_sync_with(nodes, 0) == [0, 1]
    check_whole(nodes, [*ROWS, "meanwhile", "after"])


@pytest.mark.parametrize("node", [0, 2])
def test_a_rename_that_comes_late_publishes_what_the_others_have(
    nodes: list[Path], node: int
) -> None:
    with stalling(nodes[node], 0, RENAME) as first:
        append(nodes, 1, ROWS, **LAG)
        assert first.where is not None
        append(nodes, 2, ["meanwhile"])
        newest = newest_state(nodes)
        first.release()
        own = load_state(nodes[node])
        assert own is not None
        assert own.rank < newest.rank
        assert own.sequence == newest.sequence - 1
    check_whole(nodes, [*ROWS, "meanwhile"])


def test_a_write_that_nobody_remembers_is_there_once(nodes: list[Path]) -> None:
    withdrawn = f"unlink({nodes[1] / INTENT_FILE!r}"
    with stalling(nodes[1], 1, withdrawn) as stall:  # the first one is that of who begins
        outcome = kafkalog.append(
            path_of(nodes), "t", pa.table({"value": ROWS}), options=OPTIONS | LAG
        )
        assert stall.where is not None
    assert outcome is not None
    check_whole(nodes, ROWS)


@pytest.mark.parametrize("call", ["prepared", "withdrawn"])
def test_a_write_that_nobody_remembers_is_there_once_though_who_goes_on_publishes_more(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """As for folders of a deleted topic that are gone by then, or for a node that lags."""
    roll_back = open_nodes.roll_back
    opened: list[int] = []

    def roll_back_and_publish(log_set: LogSet, **given: Any) -> None:
        roll_back(log_set, **given)
        opened.append(log_set.state.sequence)
        if len(opened) > 1:
            log_set.publish(log_set.state.following())

    monkeypatch.setattr(open_nodes, "roll_back", roll_back_and_publish)
    node, at, text = {
        "prepared": (0, 0, RENAME),
        "withdrawn": (1, 1, f"unlink({nodes[1] / INTENT_FILE!r}"),
    }[call]
    with stalling(nodes[node], at, text) as stall:
        outcome = kafkalog.append(
            path_of(nodes), "t", pa.table({"value": ROWS}), options=OPTIONS | LAG
        )
        assert stall.where is not None
    assert len(opened) > 1
    assert outcome is not None
    monkeypatch.undo()
    check_whole(nodes, ROWS)


def test_a_node_stalls_that_has_the_folders_of_a_deleted_topic(nodes: list[Path]) -> None:
    append(nodes, 0, ["gone"], "u")
    nodes[2].rename(nodes[2].with_suffix(".away"))
    delete([path_of(nodes)], "u")
    nodes[2].with_suffix(".away").rename(nodes[2])
    with stalling(nodes[2], 0, "rmdir") as stall:
        append(nodes, 1, ROWS, **LAG)
        assert stall.where is not None
        assert values(nodes[:2]) == sorted(["first", "second", *ROWS])
    check_whole(nodes, ROWS)


def test_a_reader_leaves_a_node_alone_that_stalls(nodes: list[Path]) -> None:
    with stalling(nodes[2], 3, "pwrite"):
        append(nodes, 1, ROWS, **LAG)
        with stalling(nodes[2], 0) as second:
            assert values(nodes) == sorted(["first", "second", *ROWS])
            assert second.where is None
    check_whole(nodes, ROWS)


def test_what_a_node_that_stalls_has_noted_of_topic_ids_is_not_waited_for(
    nodes: list[Path],
) -> None:
    for node in nodes:
        note_changed_ids(node, [("t", "a", "b")])
    with stalling(nodes[0], 3, "pwrite"):
        append(nodes, 1, ROWS, **LAG)
        ends = LogEndTracker(nodes)
        ends.look()
        with stalling(nodes[0], 0) as second:
            assert ends.is_changed_id("t", "a", "b")
            assert not ends.is_changed_id("t", "b", "a")
            assert second.where is None


def test_with_fewer_than_a_majority_left_it_fails(nodes: list[Path]) -> None:
    with ExitStack() as undo:
        for node in nodes[1:]:
            undo.enter_context(stalling(node, 3, "fsync"))
        with pytest.raises(KafkaLogError, match=r"still out|needed|min\.insync"):
            append(nodes, 1, ROWS, **LAG)
    append(nodes, 1, ROWS, **LAG)
    check_whole(nodes, ROWS)


@pytest.mark.parametrize("stalls", [1, 2], ids=["its leader", "the replica"])
def test_a_replica_that_is_brought_in_sync_stalls_or_its_leader(
    nodes: list[Path], stalls: int
) -> None:
    nodes[2].rename(nodes[2].with_suffix(".away"))
    append(nodes, 1, ROWS * 20, **LAG)
    nodes[2].with_suffix(".away").rename(nodes[2])
    part = "preadv" if stalls == 1 else "pwrite"
    with stalling(nodes[stalls], 0, part) as stall:
        append(nodes, 2, ["meanwhile"], **LAG, **{"min.insync.replicas": "1"})
        assert stall.where is not None
        there = [each for each in nodes if each != nodes[stalls]]
        assert not in_sync_with(there, stalls)
    check_whole(nodes, [*ROWS * 20, "meanwhile"])


def test_whether_it_was_committed_may_not_be_known(nodes: list[Path]) -> None:
    nodes[1].rename(nodes[1].with_suffix(".away"))
    with (
        stalling(nodes[0], 0, RENAME),
        pytest.raises(CommitError, match="will be published is not known"),
    ):
        append(nodes, 1, ROWS, **LAG, **{"min.insync.replicas": "1"})
    nodes[1].with_suffix(".away").rename(nodes[1])
    append(nodes, 1, ROWS, **LAG)
    check_whole(nodes, ROWS)


def test_what_fails_though_nothing_stalls_is_said_as_it_is(nodes: list[Path]) -> None:
    for node in nodes[1:]:
        (node / "t-0").rename(node / "elsewhere")
        (node / "t-1").rename(node / "elsewhere-too")
    with pytest.raises(NotEnoughReplicasError, match=r"min\.insync\.replicas"):
        append(nodes, 1, ROWS, **LAG)


def test_who_stalls_is_said(nodes: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    with stalling(nodes[2], 3, "pwrite"):
        append(nodes, 1, ROWS, **LAG)
    assert any("left alone until a call there returns" in each for each in caplog.messages)
