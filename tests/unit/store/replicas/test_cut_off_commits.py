"""Commits on three nodes that were cut off, and what is left of them on a node that was away."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.replicated import (
    append,
    away,
    check_clean,
    check_equal,
    check_in_sync,
    path_of,
    values,
)
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.commit_state import STAGED_PREFIX, STATE_FILE
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import CommitError, NotEnoughReplicasError
from kafkalog.streaming.admin.nodes.reassign import known_state
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.commit import committer as applying
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.store.policy import SetPolicy
from kafkalog.streaming.store.recovery import rollback as roll_back
from kafkalog.streaming.store.replicas import open_nodes
from kafkalog.streaming.store.replicas.open_nodes import QuorumSession
from kafkalog.streaming.store.replicas.quorum import Quorum
from kafkalog.streaming.store.session import opened_set

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.checkpoints.intent import IntendedPartition
    from kafkalog.streaming.commit.staging.staged_run import StagedRun
    from kafkalog.streaming.store.log_set import LogSet


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in "abc"]
    append(found, 0, ["first", "second"])
    return found


@pytest.fixture
def writer(nodes: list[Path]) -> Writer:
    return Writer(*nodes, path=path_of(nodes), topic="t")


def staged(node: Path) -> list[Path]:
    return list(node.glob(f"{STAGED_PREFIX}*"))


def check_whole(nodes: list[Path]) -> None:
    append(nodes, 90, ["later"])
    append(nodes, 91, ["last"])
    assert values(nodes) == sorted(["first", "second", "later", "last"])
    check_in_sync(nodes)
    check_equal(nodes)
    check_clean(nodes)
    assert recover([path_of(nodes)]).problems == []


def cut_off(writer: Writer, patch: pytest.MonkeyPatch) -> list[StagedRun]:
    """Leave a commit where all records are in the logs, and nothing is published."""

    def fails(*_: Any, **__: Any) -> None:
        raise CommitError("cut off")

    runs = writer.stage(0, rows(["lost"]))
    with patch.context() as within:
        within.setattr(Quorum, "publish", fails)
        within.setattr(Committer, "_try_to_roll_back", lambda *_: None)
        with pytest.raises(CommitError, match="cut off"):
            writer.commit(0, runs)
    return runs


def test_nothing_is_published_once_a_majority_is_away_whichever_error_comes_first(
    nodes: list[Path], writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off(writer, monkeypatch)
    before = []
    away = [node.with_suffix(".away") for node in nodes]
    nodes[2].rename(away[2])
    original = roll_back._roll_back_partition

    def vanishes(log_set: LogSet, each: IntendedPartition, **named: bool) -> None:
        if log_set.node.node_of(each.member_id) == 1:
            before.append((nodes[0] / STATE_FILE).read_bytes())
            nodes[1].rename(away[1])
            with suppress(NotEnoughReplicasError):
                log_set.check_current()  # as another thread does, whose error is not raised
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(nodes[1]))
        original(log_set, each, **named)

    monkeypatch.setattr(roll_back, "_roll_back_partition", vanishes)
    with pytest.raises(NotEnoughReplicasError, match="1 of 3 nodes are left"):
        append(nodes, 1, ["by one node"])
    monkeypatch.undo()
    assert [(nodes[0] / STATE_FILE).read_bytes()] == before
    for node in (1, 2):
        away[node].rename(nodes[node])
    check_whole(nodes)


def killed_before_it_prepares(node: int, action: Callable[[], object]) -> None:
    """Do something in a process that is killed when a state is to be prepared on a node."""
    child = os.fork()
    if child == 0:
        prepare = Quorum._prepare

        def prepare_or_die(self: Quorum, at: int, state: CommitState) -> bool:
            if at == node:
                os.kill(os.getpid(), signal.SIGKILL)
            return prepare(self, at, state)

        Quorum._prepare = prepare_or_die  # type: ignore[method-assign]
        try:
            action()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("topic", ["t", "new"])
def test_a_commit_whose_finisher_was_killed_too_is_rolled_back_without_the_node_that_had_it(
    nodes: list[Path], topic: str
) -> None:
    def write() -> None:
        append(nodes, 1, ["third"], topic)

    killed_before_it_prepares(1, write)  # all of it is in the logs, and prepared on node 0
    killed_before_it_prepares(1, write)  # who finishes it prepares it there again
    away = nodes[0].with_suffix(".away")
    nodes[0].rename(away)
    write()
    away.rename(nodes[0])
    write()
    assert values(nodes, topic) == [*(["first", "second"] if topic == "t" else []), "third"]
    append(nodes, 2, ["fourth"], topic)
    append(nodes, 3, ["fifth"], topic)
    assert values(nodes, topic)[-1:] == ["third"]
    assert len(values(nodes, topic)) == (5 if topic == "t" else 3)
    check_in_sync(nodes)
    check_equal(nodes)
    check_clean(nodes)
    assert [file for node in nodes for file in staged(node)] == []


@pytest.fixture
def opened(nodes: list[Path]) -> Iterator[LogSet]:
    """Give a set whose nodes 0 and 1 are out, though nobody was told."""
    with opened_set(nodes, SetPolicy(), holder="a test") as log_set:
        assert isinstance(log_set.node, Quorum)
        log_set.node.failed.update({0: "gone", 1: "gone"})
        yield log_set


def test_who_asks_for_the_locks_learns_that_too_few_nodes_are_left(opened: LogSet) -> None:
    with pytest.raises(NotEnoughReplicasError, match="1 of 3 nodes are left"):
        opened.check_current()


def test_too_few_nodes_publish_nothing(opened: LogSet, nodes: list[Path]) -> None:
    assert isinstance(opened.node, Quorum)
    before = (nodes[2] / STATE_FILE).read_bytes()
    with pytest.raises(CommitError, match="1 of 3 nodes are left"):
        opened.node.publish(opened.state.following(), lambda: None)
    assert (nodes[2] / STATE_FILE).read_bytes() == before


def test_what_a_node_needs_is_not_dropped_though_it_comes_back_meanwhile(
    nodes: list[Path], writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = cut_off(writer, monkeypatch)
    gone = away(nodes[2])
    needed = staged(gone)
    opened = QuorumSession.open

    def comes_back(self: QuorumSession, *conditions: Any, **named: Any) -> Any:
        log_set = opened(self, *conditions, **named)
        gone.rename(nodes[2])
        return log_set

    committer = Committer(writer.plan().commit_plan, writer.identity(0))
    with monkeypatch.context() as patch:
        patch.setattr(QuorumSession, "open", comes_back)
        committer.abort(runs)
    assert [path.name for path in staged(nodes[2])] == [path.name for path in needed]
    check_whole(nodes)


def test_a_replica_that_lags_is_compared_though_nothing_proves_what_is_to_go(
    nodes: list[Path], writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off(writer, monkeypatch)
    for path in staged(nodes[2]):
        path.unlink()
    recover([path_of(nodes)])  # the node leaves the in-sync sets
    assert (nodes[2] / INTENT_FILE).exists()
    assert recover([path_of(nodes)]).problems == []
    check_in_sync(nodes)
    check_equal(nodes)
    check_whole(nodes)


def test_what_a_node_was_left_with_is_compared_though_the_commit_is_published(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    append_all = applying._apply

    def loses_power(files: Any, appends: Any) -> None:
        append_all(files, appends)
        logs = sorted(nodes[2].glob("t-0/*.log"))
        if appends[0].plan.directory == logs[0].parent:
            data = bytearray(logs[-2].read_bytes())
            data[-1] ^= 1
            logs[-2].write_bytes(data)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    small = {"segment.bytes": "200"}
    with monkeypatch.context() as patch:
        patch.setattr(applying, "_apply", loses_power)
        append(nodes, 1, [f"{n:020d}" for n in range(20)], **small)
    append(nodes, 2, ["more"], **small)
    append(nodes, 3, ["more"], **small)
    check_in_sync(nodes)
    check_equal(nodes)


def test_a_state_that_is_repeated_with_other_leaders_counts_more_than_before(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any, **__: Any) -> None:
        raise RuntimeError

    lagging = away(nodes[2])
    append(nodes, 1, ["more"])
    lagging.rename(nodes[2])
    leader = away(nodes[0])
    with monkeypatch.context() as patch:
        patch.setattr(open_nodes, "remove_moved", dies)
        with pytest.raises(RuntimeError):  # one of two had the newest state: it is there again
            recover([path_of(nodes)])
    leader.rename(nodes[0])
    there = load_state(nodes[1])
    assert there is not None
    for node in nodes[1:]:
        gone = away(node)
        assert known_state([path_of(nodes)]).topics == there.topics
        gone.rename(node)
    append(nodes, 2, ["later"])
    append(nodes, 3, ["last"])
    check_in_sync(nodes)
    check_equal(nodes)


def test_who_is_back_is_in_sync_though_it_was_taken_out_by_what_is_finished_first(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any, **__: Any) -> None:
        raise RuntimeError

    gone = away(nodes[2])
    with monkeypatch.context() as patch:
        patch.setattr(Quorum, "_decide", dies)
        with pytest.raises(RuntimeError):  # what takes node 2 out is prepared
            recover([path_of(nodes)])
    gone.rename(nodes[2])
    assert recover([path_of(nodes)]).problems == []
    check_in_sync(nodes)
    check_equal(nodes)


def test_a_state_that_is_made_durable_without_a_node_counts_more_than_before(
    nodes: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any, **__: Any) -> None:
        raise RuntimeError

    shutil.copytree(nodes[0], tmp_path / "older")
    with monkeypatch.context() as patch:
        patch.setattr(Committer, "_finish", dies)
        with pytest.raises(RuntimeError):
            append(nodes, 1, ["more"])
    shutil.rmtree(nodes[0])
    (tmp_path / "older").rename(nodes[0])
    decide = Quorum._decide

    def without_one(self: Quorum, state: Any, prepared: list[int]) -> OSError | None:
        return decide(self, state, [node for node in prepared if node != 1])

    with monkeypatch.context() as patch:
        patch.setattr(Quorum, "_decide", without_one)
        patch.setattr(open_nodes, "remove_moved", dies)
        with pytest.raises(RuntimeError):  # it was published, and is made durable now
            recover([path_of(nodes)])
    states = [state for node in nodes if (state := load_state(node)) is not None]
    assert len({state.rank for state in states}) == 2
    by_rank = {state.rank: state.topics for state in states}
    assert all(by_rank[state.rank] == state.topics for state in states)
    gone = away(nodes[2])
    append(nodes, 2, ["later"])
    gone.rename(nodes[2])
    append(nodes, 3, ["last"])
    assert values(nodes) == sorted(["first", "second", "more", "later", "last"])
    check_in_sync(nodes)
    check_equal(nodes)
