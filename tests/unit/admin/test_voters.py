"""Nodes that are taken into a set, and nodes in the place of others."""

from __future__ import annotations

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

import kafkalog
from kafkalog.checkpoints.broker import LOG_START_OFFSET, read_offset_checkpoint
from kafkalog.checkpoints.commit_state import STATE_FILE
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import CommitError, KafkaLogError, LogDirectoryError, OptionError
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.nodes.replicas import inspect_replicas
from kafkalog.streaming.admin.nodes.voters import add_node, replace_node
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.retention import delete_records
from kafkalog.streaming.store.replicas.quorum import Quorum

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState

ROWS = [f"a{n}" for n in range(20)]
ONE_EACH = {"replication.factor": "1", "min.insync.replicas": "1", "numPartitions": "3"}


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in "abc"]
    append(found, 0, ROWS)
    return found


def away(node: Path) -> Path:
    return node.rename(node.with_suffix(".away"))


def back(node: Path) -> None:
    node.with_suffix(".away").rename(node)


def ids(nodes: list[Path]) -> list[int]:
    return [node.node_id for node in newest_state(nodes).nodes]


def check_whole(nodes: list[Path]) -> None:
    check_in_sync(nodes)
    check_equal(nodes)
    check_clean(nodes)


def test_a_new_node_gets_the_replicas_of_the_one_that_is_lost(
    nodes: list[Path], tmp_path: Path
) -> None:
    away(nodes[1])
    done = replace_node([path_of(nodes)], "1", str(tmp_path / "d"))
    assert (done.node, done.replaces, done.replicas) == (3, 1, 2)
    now = [nodes[0], nodes[2], tmp_path / "d"]
    assert ids(now) == [0, 3, 2]
    for topic in newest_state(now).topics.values():
        for each in topic.replicas.values():
            assert sorted(each.replicas) == [0, 2, 3]
            assert sorted(each.isr) == [0, 2]
    append(now, 1, ["b"])
    append(now, 2, ["c"])
    check_whole(now)
    for node in now:
        away(node)
        assert values(now) == sorted([*ROWS, "b", "c"])
        back(node)


def test_recover_brings_the_new_node_in_sync(nodes: list[Path], tmp_path: Path) -> None:
    away(nodes[0])
    replace_node([path_of(nodes)], str(nodes[0]), str(tmp_path / "d"))
    now = [tmp_path / "d", *nodes[1:]]
    assert recover([path_of(now)]).problems == []
    check_whole(now)


def test_what_was_deleted_stays_so_on_the_new_node(nodes: list[Path], tmp_path: Path) -> None:
    starts = {TopicPartition("t", 0): 3, TopicPartition("t", 1): 2}
    delete_records([path_of(nodes)], starts)
    away(nodes[1])
    replace_node([path_of(nodes)], "1", str(tmp_path / "d"))
    recover([path_of([*nodes, tmp_path / "d"])])
    assert read_offset_checkpoint(tmp_path / "d", LOG_START_OFFSET) == starts


def test_an_empty_disk_at_the_same_place_is_another_node(nodes: list[Path]) -> None:
    away(nodes[1])
    nodes[1].mkdir()
    replace_node([path_of(nodes)], str(nodes[1]), str(nodes[1]))
    assert ids(nodes) == [0, 3, 2]
    recover([path_of(nodes)])
    check_whole(nodes)
    again = replace_node([path_of(nodes)], str(nodes[1]), str(nodes[1]))
    assert again.was_there
    assert ids(nodes) == [0, 3, 2]


def test_a_node_that_was_replaced_never_votes_again(nodes: list[Path], tmp_path: Path) -> None:
    away(nodes[1])
    replace_node([path_of(nodes)], "1", str(tmp_path / "d"))
    back(nodes[1])
    now = [nodes[0], nodes[2], tmp_path / "d"]
    append(now, 1, ["b"])
    (problem,) = inspect_replicas([path_of([*now, nodes[1]])]).problems
    assert "is no node of set" in problem
    append([*now, nodes[1]], 2, ["c"])
    check_whole(now)
    for left in (nodes[0], nodes[2]):
        with pytest.raises(LogDirectoryError, match="1 of the 3 nodes"):
            append([nodes[1], left], 3, ["lost"])
        with pytest.raises(LogDirectoryError, match="1 of the 3 nodes"):
            values([nodes[1], left])
    with pytest.raises(LogDirectoryError, match=r"older than commit|1 of the 3 nodes"):
        values([nodes[1]])


@pytest.mark.parametrize("old", [1, 2])
def test_one_that_is_still_there_knows_that_it_was_replaced(
    old: int, nodes: list[Path], tmp_path: Path
) -> None:
    replace_node([path_of(nodes)], str(old), str(tmp_path / "d"))
    state = load_state(nodes[old])
    assert state is not None
    assert old not in {node.node_id for node in state.nodes}
    with pytest.raises(LogDirectoryError, match="0 of the 3 nodes"):
        values([nodes[old]])


def test_without_a_majority_of_the_old_voters_nothing_changes(
    nodes: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Node 2 is lost, and node 1 fails amid the change: 0 and 3 are a majority of the new voters.
    prepare = Quorum._prepare

    def failing(self: Quorum, node: int, state: CommitState) -> bool:
        if node == 1 and state.former:
            self.fail(1, OSError(5, "Input/output error"))
            return False
        return prepare(self, node, state)

    away(nodes[2])
    monkeypatch.setattr(Quorum, "_prepare", failing)
    with pytest.raises(CommitError, match="is not known"):
        replace_node([path_of(nodes)], "2", str(tmp_path / "d"))
    monkeypatch.undo()
    assert ids([*nodes[:2], tmp_path / "d"]) == [0, 1, 2]
    away(nodes[0])
    back(nodes[2])
    append(nodes, 1, ["b"])  # 1 and 2 know of no change
    back(nodes[0])
    append(nodes, 2, ["c"])
    append(nodes, 3, ["d"])
    assert ids(nodes) == [0, 1, 2]
    assert values(nodes) == sorted([*ROWS, "b", "c", "d"])
    check_whole(nodes)
    replace_node([path_of(nodes)], "2", str(tmp_path / "d"))
    assert ids([*nodes[:2], tmp_path / "d"]) == [0, 1, 3]


def test_what_a_change_is_decided_by_is_a_majority_of_old_and_new_ones(
    nodes: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The change is in place on the new node alone: whoever reaches it waits for the old ones.
    decide = Quorum._decide

    def cut_off(self: Quorum, state: CommitState, prepared: list[int]) -> OSError | None:
        if state.former:
            decide(self, state, [3])
            raise OSError(5, "cut off")
        return decide(self, state, prepared)

    monkeypatch.setattr(Quorum, "_decide", cut_off)
    new = tmp_path / "d"
    with pytest.raises(CommitError):
        replace_node([path_of(nodes)], "0", str(new))
    monkeypatch.undo()
    for node in nodes[:2]:
        away(node)
    with pytest.raises(KafkaLogError, match="a majority of the former ones"):
        append([nodes[2], new], 1, ["b"])
    back(nodes[0])
    append([nodes[0], nodes[2], new], 1, ["b"])
    back(nodes[1])
    append([*nodes[1:], new], 2, ["c"])
    now = [*nodes[1:], new]
    append(now, 3, ["d"])
    assert ids(now) == [3, 1, 2]
    assert newest_state(now).former == ()
    assert values(now) == sorted([*ROWS, "b", "c", "d"])
    check_whole(now)


def test_a_new_voter_that_missed_the_change_is_one_all_the_same(
    nodes: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = Quorum._decide

    def cut_off(self: Quorum, state: CommitState, prepared: list[int]) -> OSError | None:
        if state.former:
            decide(self, state, [0])
            raise OSError(5, "cut off")
        return decide(self, state, prepared)

    monkeypatch.setattr(Quorum, "_decide", cut_off)
    new = tmp_path / "d"
    with pytest.raises(CommitError):
        replace_node([path_of(nodes)], "1", str(new))
    monkeypatch.undo()
    append(nodes, 1, ["b"])  # it is not named
    append([nodes[0], nodes[2], new], 2, ["c"])
    append([nodes[0], nodes[2], new], 3, ["d"])
    check_whole([nodes[0], nodes[2], new])


def test_a_node_that_is_added_votes_and_gets_new_partitions_only(
    nodes: list[Path], tmp_path: Path
) -> None:
    now = [*nodes, tmp_path / "d"]
    assert add_node([path_of(nodes)], str(tmp_path / "d")).replaces is None
    append(now, 1, ["b"])
    assert ids(now) == [0, 1, 2, 3]
    assert not list((tmp_path / "d").glob("t-*"))
    append(now, 2, ROWS, topic="u", numPartitions="4")
    assert list((tmp_path / "d").glob("u-*"))
    away(nodes[0])
    append(now, 3, ["c"])
    away(nodes[1])
    with pytest.raises(LogDirectoryError, match="2 of the 4 nodes"):
        append(now, 4, ["d"])
    back(nodes[0])
    back(nodes[1])
    append(now, 4, ["d"])
    check_in_sync(now)


def test_a_witness_may_be_added_and_replaced(nodes: list[Path], tmp_path: Path) -> None:
    path = path_of(nodes)
    assert add_node([path], f"witness:{tmp_path / 'w'}").is_witness
    path += f";witness:{tmp_path / 'w'}"
    replace_node([path], "3", f"witness:{tmp_path / 'v'}")
    assert [node.is_witness for node in newest_state(nodes).nodes] == [False] * 3 + [True]
    assert ids(nodes) == [0, 1, 2, 4]
    with pytest.raises(OptionError, match="a witness holds no partitions"):
        replace_node([path_of(nodes) + f";{tmp_path / 'v'}"], "1", f"witness:{tmp_path / 'x'}")


def test_a_node_may_have_several_directories(nodes: list[Path], tmp_path: Path) -> None:
    new = [tmp_path / "d1", tmp_path / "d2"]
    replace_node([path_of(nodes)], "2", ",".join(map(str, new)))
    path = f"{path_of(nodes[:2])};{new[0]},{new[1]}"
    recover([path])
    check_in_sync([*nodes[:2], *new])
    assert all(list(each.glob("t-*")) for each in new)
    away(nodes[0])
    assert sorted(
        kafkalog.read(path, "t", columns=["value"], strings=["value"])
        .read_all()
        .column("value")
        .to_pylist()
    ) == sorted(ROWS)


def test_a_dry_run_changes_nothing(nodes: list[Path], tmp_path: Path) -> None:
    before = newest_state(nodes).stamp
    done = replace_node([path_of(nodes)], "1", str(tmp_path / "d"), dry_run=True)
    assert (done.node, done.replaces, done.replicas) == (3, 1, 2)
    assert add_node([path_of(nodes)], str(tmp_path / "d"), dry_run=True).node == 3
    assert newest_state(nodes).stamp == before
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("7", "d", "is no node of the set"),
        ("nowhere", "d", "is no node of the set"),
        ("7", "c", "is no node of the set"),
        ("1", "c", "is of node 2 of the set already"),
        ("1", "d;e", "is not one node"),
        ("1", "d,d", "is listed twice"),
        ("1", "c,d", "some of these are of a node"),
        ("1", "broker", "a broker lived there"),
        ("1", "full", "holds partitions"),
        ("1", "other", "belong to different sets"),
        ("1", "a/t-0", "folder of a partition"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_changes(
    old: str, new: str, text: str, nodes: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "meta.properties").write_text("version=1\n")
    (tmp_path / "full" / "x-0").mkdir(parents=True)
    append([tmp_path / name for name in ("other", "others", "third")], 0, ["x"])
    before = newest_state(nodes).stamp
    places = ";".join(
        ",".join(str(tmp_path / each) for each in node.split(",")) for node in new.split(";")
    )
    given = old if old.isdecimal() else str(tmp_path / old)
    with pytest.raises((OptionError, LogDirectoryError), match=text):
        replace_node([path_of(nodes)], given, places)
    assert newest_state(nodes).stamp == before


def test_the_last_replica_in_sync_is_not_given_up(nodes: list[Path], tmp_path: Path) -> None:
    append(nodes, 1, ROWS, topic="one", **ONE_EACH)
    away(nodes[1])
    with pytest.raises(LogDirectoryError, match="is in sync on node 1 only"):
        replace_node([path_of(nodes)], "1", str(tmp_path / "d"))
    assert not (tmp_path / "d" / STATE_FILE).exists()


def test_a_majority_of_the_old_ones_has_to_be_there(nodes: list[Path], tmp_path: Path) -> None:
    away(nodes[1])
    away(nodes[2])
    with pytest.raises(LogDirectoryError, match="1 of the 3 nodes"):
        replace_node([path_of(nodes)], "1", str(tmp_path / "d"))


def test_a_set_of_one_node_is_told_how_to_get_more(tmp_path: Path) -> None:
    kafkalog.append(str(tmp_path / "log"), "t", pa.table({"value": ["x"]}))
    with pytest.raises(LogDirectoryError, match="no replicated set"):
        add_node([str(tmp_path / "log")], str(tmp_path / "d"))
