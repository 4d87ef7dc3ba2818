"""Sets of three nodes, one of which was away, is an older copy, or fails in the middle."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.replicated import (
    append,
    check_clean,
    check_equal,
    check_in_sync,
    newest_state,
    path_of,
    values,
)
from tests.support.sinking import Writer, adopt_small_files, rows

import kafkalog
from kafkalog.checkpoints.commit_state import NO_LEADER, PREPARED_FILE, STATE_FILE
from kafkalog.checkpoints.state_file import load_state, state_bytes
from kafkalog.errors import CommitError, LogDirectoryError, NotEnoughReplicasError
from kafkalog.streaming.commit import committer
from kafkalog.streaming.store.replicas.quorum import Quorum

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.checkpoints.intent import Intent
    from kafkalog.streaming.store.nodes import Node

ONE_EACH = {"replication.factor": "1", "min.insync.replicas": "1", "numPartitions": "3"}


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in "abc"]
    append(found, 0, ["first", "second"])
    return found


def away(node: Path) -> Path:
    return node.rename(node.with_suffix(".away"))


def back(node: Path) -> None:
    node.with_suffix(".away").rename(node)


def put_prepared(node: Path, state: CommitState) -> None:
    own = load_state(node)
    assert own is not None
    (node / PREPARED_FILE).write_bytes(state_bytes(state.of_member(own.member_id)))


def check_whole(nodes: list[Path]) -> None:
    check_in_sync(nodes)
    check_equal(nodes)
    check_clean(nodes)


def test_an_older_copy_is_not_in_sync_though_the_state_says_so(
    nodes: list[Path], tmp_path: Path
) -> None:
    shutil.copytree(nodes[0], tmp_path / "copy")
    append(nodes, 1, [f"r{n}" for n in range(30)])
    shutil.rmtree(nodes[0])
    shutil.copytree(tmp_path / "copy", nodes[0])
    append(nodes, 2, ["u"], topic="u")  # touches no partition of the other topic
    check_whole(nodes)
    for node in nodes:
        away(node)
        assert len(values(nodes)) == 32
        back(node)


def test_a_copy_of_which_a_majority_would_be_older_is_refused(
    nodes: list[Path], tmp_path: Path
) -> None:
    for node in nodes[:2]:
        shutil.copytree(node, tmp_path / f"copy-{node.name}")
    for version in (1, 2):
        append(nodes, version, ["more"])
    for node in nodes[:2]:
        shutil.rmtree(node)
        shutil.copytree(tmp_path / f"copy-{node.name}", node)
    with pytest.raises(LogDirectoryError, match="restored from old copies"):
        append(nodes, 3, ["x"])


def test_the_only_replica_in_sync_leads_again_when_it_is_back(nodes: list[Path]) -> None:
    append(nodes, 1, [f"r{n}" for n in range(20)], topic="single", **ONE_EACH)
    away(nodes[1])
    append(nodes, 2, ["one", "two"])
    append(nodes, 3, ["three"])
    (topic,) = (t for t in newest_state(nodes[::2]).topics.values() if t.name == "single")
    alone = next(number for number, each in topic.replicas.items() if each.isr == (1,))
    assert topic.replicas[alone].leader == NO_LEADER
    back(nodes[1])
    append(nodes, 4, [f"s{n}" for n in range(20)], topic="single", **ONE_EACH)
    assert len(values(nodes, "single")) == 40
    (topic,) = (t for t in newest_state(nodes).topics.values() if t.name == "single")
    assert topic.replicas[alone].leader == 1


def test_a_partition_without_a_leader_is_in_nobody_elses_way(nodes: list[Path]) -> None:
    append(nodes, 1, [f"r{n}" for n in range(20)], topic="single", **ONE_EACH)
    (topic,) = (t for t in newest_state(nodes).topics.values() if t.name == "single")
    alone = next(number for number, each in topic.replicas.items() if each.isr == (1,))
    away(nodes[1])

    def to(partition: int) -> None:
        table = pa.table({"value": ["v"], "partition": pa.array([partition], pa.int32())})
        kafkalog.append(path_of(nodes), "single", table, options=ONE_EACH)

    to((alone + 1) % 3)
    append(nodes, 2, ["others"])
    with pytest.raises(NotEnoughReplicasError, match="has no leader"):
        to(alone)


def test_a_topic_that_was_made_again_while_a_node_was_away_counts_alone(
    nodes: list[Path],
) -> None:
    append(nodes, 1, ["old"] * 9, topic="again")
    away(nodes[0])
    (key,) = (k for k, t in newest_state(nodes[1:]).topics.items() if t.name == "again")
    for node in nodes[1:]:  # as a deletion that has come to its end
        state = load_state(node)
        assert state is not None
        topics = {k: t for k, t in state.topics.items() if k != key}
        left = replace(state, topics=topics, sequence=state.sequence + 1, commit_id="deleted")
        (node / STATE_FILE).write_bytes(state_bytes(left))
        for folder in node.glob("again-*"):
            shutil.rmtree(folder)
    append(nodes, 2, ["new"], topic="again")
    back(nodes[0])
    assert values(nodes, "again") == ["new"]
    append(nodes, 3, ["newer"], topic="again")
    assert values(nodes, "again") == ["new", "newer"]
    check_whole(nodes)


def test_a_deleted_topic_does_not_come_back_with_a_node(nodes: list[Path]) -> None:
    append(nodes, 1, ["old"] * 9, topic="gone")
    away(nodes[0])
    (key,) = (k for k, t in newest_state(nodes[1:]).topics.items() if t.name == "gone")
    for node in nodes[1:]:
        state = load_state(node)
        assert state is not None
        topics = {k: t for k, t in state.topics.items() if k != key}
        left = state.following(topics=topics)
        left = replace(left, commit_id="deleted")
        (node / STATE_FILE).write_bytes(state_bytes(left))
        for folder in node.glob("gone-*"):
            shutil.rmtree(folder)
    back(nodes[0])
    append(nodes, 2, ["more"])
    assert not [*nodes[0].glob("gone-[0-9]")]
    assert len([*nodes[0].glob("gone-*-stray")]) == 2


def test_what_an_older_controller_has_prepared_is_not_finished(nodes: list[Path]) -> None:
    state = newest_state(nodes)
    away(nodes[0])
    late = replace(state, sequence=state.sequence + 1, commit_id="late", topics={})
    append(nodes, 1, ["more"])
    back(nodes[0])
    put_prepared(nodes[0], replace(late, sequence=state.sequence + 9, controller_epoch=1))
    for node in nodes[1:]:
        own = load_state(node)
        assert own is not None
        (node / STATE_FILE).write_bytes(state_bytes(replace(own, controller_epoch=5)))
    append(nodes, 2, ["last"])
    assert values(nodes) == ["first", "last", "more", "second"]
    check_clean(nodes)


def test_what_the_newest_controller_has_prepared_is_finished(nodes: list[Path]) -> None:
    state = newest_state(nodes)
    following = replace(state, sequence=state.sequence + 1, commit_id="newest")
    put_prepared(nodes[1], replace(following, commit_id="older"))
    put_prepared(nodes[2], replace(following, controller_epoch=state.controller_epoch + 1))
    append(nodes, 1, ["more"])
    assert newest_state(nodes).sequence == state.sequence + 2
    assert newest_state(nodes).controller_epoch > state.controller_epoch + 1
    check_whole(nodes)


def test_two_controllers_never_prepare_under_one_epoch(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second may not see what the first has prepared: so it must see what it has declared."""

    def fails(nodes: Quorum, state: CommitState, prepared: list[int]) -> None:
        raise OSError("its disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Quorum, "_decide", fails)
        with pytest.raises(CommitError, match="is not known"):
            kafkalog.append(
                path_of(nodes), "t", pa.table({"value": ["x"]}), transactional_id="w", version=1
            )
    epochs = [load_state(node, PREPARED_FILE) for node in nodes]
    assert all(epochs)
    first = max(state.controller_epoch for state in epochs if state)
    append(nodes, 1, ["more"])
    assert newest_state(nodes).controller_epoch > first


def test_a_commit_that_changes_no_log_is_declared_too(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    declared: list[int] = []
    original = Quorum.declare

    def noted(several: Quorum, intent: Intent) -> None:
        declared.append(len(intent.partitions))
        original(several, intent)

    monkeypatch.setattr(Quorum, "declare", noted)
    writer = Writer(*nodes, topic="t", path=path_of(nodes))
    writer.write(0, rows(["a"]))
    declared.clear()
    again = Writer(*nodes, topic="t", path=path_of(nodes), run="run-2")
    again.stamp_ms *= 2
    again.write(0, rows(["a"]))  # is committed: only the run is noted
    assert declared == [0]
    check_clean(nodes)


@pytest.mark.parametrize("adopts", [False, True], ids=["copied", "adopted"])
def test_no_file_of_one_node_is_anothers(
    adopts: bool, nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if adopts:
        adopt_small_files(monkeypatch)
    declare, pairs = Quorum.declare, set[bool]()

    def noted(several: Quorum, intent: Intent) -> None:
        pairs.update(
            several.node_of(each.member_id) == several.node_of(piece.file.member_id)
            for each in intent.partitions
            for piece in each.pieces
        )
        declare(several, intent)

    monkeypatch.setattr(Quorum, "declare", noted)
    rolls = {"segment.bytes": "1000"}
    append(nodes, 1, [f"a{n}" for n in range(90)], topic="new", **rolls)
    append(nodes, 2, [f"b{n}" for n in range(90)], topic="new", **rolls)
    assert pairs == {True}
    logs = [path for node in nodes for path in node.rglob("*.log")]
    assert len({path.stat().st_ino for path in logs}) == len(logs) > 6
    assert {path.stat().st_nlink for path in logs} == {1}
    check_whole(nodes)


def test_sets_that_the_commit_compresses_need_no_certain_node(nodes: list[Path]) -> None:
    options = {"message.format": "v0", "compression.type": "gzip"}
    append(nodes, 1, ["a", "b"], topic="old", **options)
    away(nodes[0])
    append(nodes, 2, ["c"], topic="old", **options)
    back(nodes[0])
    append(nodes, 3, ["d"], topic="old", **options)
    assert values(nodes, "old") == ["a", "b", "c", "d"]
    append(nodes, 4, ["e"])
    check_whole(nodes)


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "kafkalog.intent"])
def test_a_node_on_which_a_file_cannot_be_written_is_left_out(
    name: str, nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kafkalog.files import atomic

    original = atomic.prepare

    def full(path: Path, *arguments: object, **named: object) -> None:
        if path.parent == nodes[1] and path.name == name:
            raise OSError(28, "No space left on device")
        original(path, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(atomic, "prepare", full)
    append(nodes, 1, ["a"])
    append(nodes, 2, ["b"])
    assert values(nodes) == ["a", "b", "first", "second"]
    monkeypatch.undo()
    append(nodes, 3, ["c"])
    append(nodes, 4, ["d"])
    check_whole(nodes)


def test_a_node_that_vanishes_between_two_looks_is_left_out(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    boot_of = committer.boot_of

    def vanishing(node: Node) -> str | None:
        if nodes[1].exists():
            away(nodes[1])
        return boot_of(node)

    monkeypatch.setattr(committer, "boot_of", vanishing)
    append(nodes, 1, ["a"])
    monkeypatch.undo()
    back(nodes[1])
    append(nodes, 2, ["b"])
    append(nodes, 3, ["c"])
    assert values(nodes) == ["a", "b", "c", "first", "second"]
    check_whole(nodes)


def test_what_was_seen_stays_though_whoever_finishes_it_is_killed(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = Quorum._decide

    def on_one_node(self: Quorum, state: CommitState, _: list[int]) -> OSError | None:
        decide(self, state, [2])
        raise OSError(5, "cut off")

    with monkeypatch.context() as patch:
        patch.setattr(Quorum, "_decide", on_one_node)
        with pytest.raises(CommitError):
            append(nodes, 1, ["seen"])
    assert values(nodes) == ["first", "second", "seen"]
    away(nodes[2])

    def killed(self: Quorum, node: int, state: CommitState) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Quorum, "_prepare", killed)
        with pytest.raises(KeyboardInterrupt):
            append(nodes, 2, ["cut off"])  # it has declared that it finishes the batch before
    with pytest.raises(LogDirectoryError, match="is not known"):
        values(nodes)
    append(nodes, 3, ["after"])
    assert values(nodes) == ["after", "first", "second", "seen"]
    back(nodes[2])
    append(nodes, 4, ["last"])
    append(nodes, 5, ["end"])
    assert values(nodes) == ["after", "end", "first", "last", "second", "seen"]
    check_whole(nodes)
