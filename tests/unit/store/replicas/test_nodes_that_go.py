"""Nodes that go away, or lose their locks, while a commit is under way."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.replicated import (
    append,
    away,
    check_equal,
    check_in_sync,
    newest_state,
    values,
    without_mount,
)

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.checkpoints.commit_state import LOCK_FILE, PREPARED_FILE, STATE_FILE
from kafkalog.checkpoints.committed import load_committed
from kafkalog.checkpoints.state_file import load_state
from kafkalog.checkpoints.voters import FoundStates
from kafkalog.errors import CommitError, KafkaLogError, NotEnoughReplicasError, OptionError
from kafkalog.files.system import system
from kafkalog.streaming.admin.topics import create
from kafkalog.streaming.log import segments
from kafkalog.streaming.store import nodes as store_nodes
from kafkalog.streaming.store import open_set
from kafkalog.streaming.store.ends.tracker import LogEndTracker
from kafkalog.streaming.store.log_dirs import LogDirs
from kafkalog.streaming.store.policy import TopicPolicy
from kafkalog.streaming.store.recovery import partition_states as recovery_points
from kafkalog.streaming.store.replicas import in_sync
from kafkalog.streaming.store.replicas.quorum import Quorum
from kafkalog.streaming.store.topics import TopicCatalog

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in "abc"]
    append(found, 0, ["a"])
    return found


def sequence(node: Path) -> int:
    state = load_state(node)
    return -1 if state is None else state.sequence


def once_prepared(monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
    """Let something happen when a state lies prepared on the last node."""
    prepare = Quorum._prepare

    def prepare_and(self: Quorum, node: int, state: Any) -> bool:
        done = prepare(self, node, state)
        if node == 2:
            then()
        return done

    monkeypatch.setattr(Quorum, "_prepare", prepare_and)


def test_a_node_that_lost_its_locks_after_it_was_prepared_gets_no_state(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sequence(nodes[2])
    once_prepared(monkeypatch, (nodes[2] / LOCK_FILE).unlink)
    append(nodes, 1, ["b"])
    monkeypatch.undo()
    assert [sequence(node) for node in nodes] == [before + 1, before + 1, before]
    assert values(nodes) == ["a", "b"]


def test_a_replica_that_held_nothing_is_opened_as_it_may_have_left_the_isr_by_now(
    nodes: list[Path],
) -> None:
    watch = LogEndTracker(nodes)
    ends = watch.look().offsets
    starts = {key: watch.seen_start(key).offset for key in ends}
    assert starts
    assert [watch.seen_empty(key, start) for key, start in starts.items()] == [None] * len(starts)


def test_a_replica_that_was_copied_below_a_mount_that_failed_is_not_in_sync(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mount is back when the next replica is looked at, and so is the lock that is held."""
    node = nodes[2]
    away(node)
    append(nodes, 1, ["b", "c", "d", "e"])
    node.with_suffix(".away").rename(node)
    original = in_sync.catch_up
    copied: list[Path] = []

    def copied_below(source: Path, target: Path, *given: Any, **named: Any) -> Any:
        if target.parent != node or copied:
            return original(source, target, *given, **named)
        copied.append(target)
        with without_mount(node):
            return original(source, target, *given, **named)

    monkeypatch.setattr(in_sync, "catch_up", copied_below)
    append(nodes, 2, ["of another topic"], topic="u")  # so nobody looks where the log ends
    assert copied
    (topic,) = (each for each in newest_state(nodes).topics.values() if each.name == "t")
    assert 2 not in topic.replicas[int(copied[0].name[-1])].isr
    append(nodes, 3, ["f"])
    append(nodes, 4, ["g"])
    check_in_sync(nodes)
    check_equal(nodes)
    assert values(nodes) == list("abcdefg")


def test_an_older_copy_that_holds_a_repeated_commit_prepared_is_not_in_sync(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had no part in that commit: who repeats it gives it to all nodes that are there."""
    older = nodes[2].with_suffix(".older")
    shutil.copytree(nodes[2], older)
    append(nodes, 1, ["b", "c", "d", "e"])

    def fails(*_: Any) -> None:
        raise OSError(errno.EIO, "failed")

    for name in ("publish", "_decide"):  # an unfinished commit; then one that repeats the last
        with monkeypatch.context() as patched:
            patched.setattr(Quorum, name, fails)
            with pytest.raises((OSError, KafkaLogError)):
                append(nodes, 2, ["of another topic"], topic="u")
        system.memory.clear()
        if older.exists():
            nodes[2].rename(nodes[2].with_suffix(".newer"))
            older.rename(nodes[2])
    append(nodes, 2, ["of another topic"], topic="u")
    append(nodes, 3, ["of another topic"], topic="u")
    check_in_sync(nodes)
    check_equal(nodes)


@pytest.mark.parametrize("node", [0, 1, 2])
def test_nothing_is_appended_where_nothing_says_what_is_about_to_happen(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch, node: int
) -> None:
    def logs() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in nodes[node].glob("t-*/*.log")}

    def keeps_out(folder: Path) -> None:
        if folder == nodes[node]:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(folder))
        keep_brokers_out(folder)

    keep_brokers_out, before = store_nodes.keep_brokers_out, logs()
    monkeypatch.setattr(store_nodes, "keep_brokers_out", keeps_out)
    with pytest.raises(NotEnoughReplicasError):
        append(nodes, 1, ["b", "c", "d"], **{"min.insync.replicas": "3"})
    assert logs() == before
    monkeypatch.undo()
    append(nodes, 2, ["e"])
    assert values(nodes) == ["a", "e"]


def test_a_set_is_written_though_a_node_fails_right_after_it_was_found(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_on_one(folder: Path, policy: Any) -> None:
        if folder == nodes[0]:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(folder))
        check(folder, policy)

    check = open_set.check_no_broker_lived
    monkeypatch.setattr(open_set, "check_no_broker_lived", fails_on_one)
    append(nodes, 1, ["b"])
    assert values(nodes) == ["a", "b"]


def test_who_cannot_finish_an_earlier_commit_is_not_told_that_its_rows_are_there(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in nodes[1:]:
        node.rename(node.with_suffix(".away"))
        shutil.copytree(node.with_suffix(".away"), node)
    append(nodes, 1, ["b"])
    for node in nodes[1:]:  # the newest commit is on one node only
        shutil.rmtree(node)
        node.with_suffix(".away").rename(node)
    monkeypatch.setattr(Quorum, "_decide", lambda *_: OSError("gone"))
    with pytest.raises(CommitError, match="an earlier commit could not be brought"):
        append(nodes, 2, ["c"])


def test_what_lies_prepared_in_an_empty_folder_is_no_first_state(nodes: list[Path]) -> None:
    state = (nodes[2] / STATE_FILE).read_bytes()
    shutil.rmtree(nodes[2])
    nodes[2].mkdir()
    (nodes[2] / PREPARED_FILE).write_bytes(state)
    append(nodes, 1, ["b"])
    assert sequence(nodes[2]) in {-1, sequence(nodes[0])}  # as the others say, or nothing
    assert values(nodes) == ["a", "b"]


def test_a_batch_goes_on_where_the_leaders_directory_vanishes_while_it_is_planned(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = LogDirs.partition_counts

    def vanish(self: LogDirs) -> Any:
        monkeypatch.undo()
        nodes[0].rename(nodes[0].with_suffix(".away"))
        return counts(self)

    monkeypatch.setattr(LogDirs, "partition_counts", vanish)
    append(nodes, 1, ["b"])
    assert values(nodes) == ["a", "b"]


def test_a_batch_goes_on_though_a_leaders_directory_comes_and_goes(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, tries = LogDirs.partition_counts, []

    def vanish(self: LogDirs) -> Any:
        tries.append(self)
        if len(tries) < 3:  # and it is back before anybody looks
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(nodes[0]))
        return counts(self)

    monkeypatch.setattr(LogDirs, "partition_counts", vanish)
    append(nodes, 1, ["b"])
    assert values(nodes) == ["a", "b"]


@pytest.mark.parametrize("step", ["planned", "made durable"])
@pytest.mark.parametrize("node", [0, 1, 2])
def test_a_batch_goes_on_where_a_folder_is_gone_when_it_is(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch, step: str, node: int
) -> None:
    append(nodes, 1, ["b"], flush="os")
    monkeypatch.setattr(system, "memory", {})  # another process has appended that
    module = segments if step == "planned" else recovery_points
    name = "segment_names" if step == "planned" else "list_base_offsets"
    original = getattr(module, name)

    def gone(directory: Path) -> Any:
        if directory.parent == nodes[node] and directory.exists():
            shutil.rmtree(directory.parent)
        return original(directory)

    with monkeypatch.context() as within:
        within.setattr(module, name, gone)
        append(nodes, 2, ["c"], flush="commit")
    assert values(nodes) == ["a", "b", "c"]
    assert not nodes[node].exists()


def test_a_topic_has_its_id_though_a_node_vanishes_while_it_is_read(nodes: list[Path]) -> None:
    catalog = TopicCatalog.load(nodes, TopicPolicy())
    known = TopicCatalog.load(nodes, TopicPolicy()).topic("t").topic_id
    nodes[0].rename(nodes[0].with_suffix(".away"))
    assert catalog.topic("t").topic_id == known


@pytest.mark.parametrize("number", range(3))
def test_a_topic_has_its_id_though_a_node_fails_while_it_is_read(
    nodes: list[Path], number: int
) -> None:
    known = TopicCatalog.load(nodes, TopicPolicy()).topic("t").topic_id

    def read(folder: Path) -> str | None:
        if nodes[number] in folder.parents:
            raise OSError(5, "Input/output error")
        return read_topic_id(folder)

    catalog = TopicCatalog(LogDirs(nodes).partitions(), load_committed(nodes), TopicPolicy(), read)
    assert catalog.topic("t").topic_id == known


def test_a_node_that_cannot_be_looked_at_is_missing_with_its_reason(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> bool:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(type(nodes[0]), "is_dir", fail)
    assert "Input/output error" in FoundStates({}, {}, nodes[:1]).away[nodes[0]]


def test_a_topic_whose_nodes_are_away_is_not_made_again(tmp_path: Path) -> None:
    nodes = [tmp_path / name for name in "abcde"]
    two = {"replication.factor": "2", "min.insync.replicas": "1", "numPartitions": "1"}
    append(nodes, 0, ["a"], **two)
    away = [node for node in nodes if (node / "t-0").exists()]
    assert len(away) == 2
    for node in away:
        node.rename(node.with_suffix(".away"))
    with pytest.raises(NotEnoughReplicasError, match="t-0"):
        append(nodes, 1, ["b"], **two)
    with pytest.raises(OptionError, match="exists"):
        create([";".join(map(str, nodes))], "t")
    for node in away:
        node.with_suffix(".away").rename(node)
    append(nodes, 1, ["b"], **two)
    assert values(nodes) == ["a", "b"]
