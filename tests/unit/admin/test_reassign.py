"""Partitions move between nodes: what is in sync in between, what goes, and what continues."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.support.replicated import (
    append,
    check_clean,
    check_in_sync,
    newest_state,
    path_of,
    values,
)

import kafkalog
from kafkalog.errors import KafkaLogError, LogDirectoryError, OptionError
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.nodes import reassign as module
from kafkalog.streaming.admin.nodes.reassign import (
    Move,
    cancel_moves,
    inspect_moves,
    known_state,
    moves_of_topic,
    parse_plan,
    reassign,
)
from kafkalog.streaming.admin.nodes.replicas import compare_replicas
from kafkalog.streaming.admin.nodes.voters import replace_node
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.topics import delete
from kafkalog.streaming.store.replicas import in_sync
from kafkalog.streaming.store.replicas import open_nodes as moved_away

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import ReplicaState
    from kafkalog.streaming.store.replicas.quorum import Quorum

ROWS = [f"a{n}" for n in range(40)]
TWO = {"replication.factor": "2"}


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    """Give four nodes; t-0 lies on 0 and 1, t-1 on 1 and 2."""
    found = [tmp_path / name for name in "abcd"]
    append(found, 0, ROWS, **TWO)
    return found


def away(node: Path) -> Path:
    return node.rename(node.with_suffix(".away"))


def back(node: Path) -> None:
    node.with_suffix(".away").rename(node)


def replicas(nodes: list[Path], number: int = 0) -> ReplicaState:
    (topic,) = (t for t in newest_state(nodes).topics.values() if t.name == "t")
    return topic.replicas[number]


def holders(nodes: list[Path], number: int = 0) -> list[str]:
    return [node.name for node in nodes if list(node.glob(f"t-{number}*"))]


def to(*found: int, number: int = 0) -> list[Move]:
    return [Move(TopicPartition("t", number), found)]


def check_whole(nodes: list[Path]) -> None:
    check_in_sync(nodes)
    check_clean(nodes)
    assert list(compare_replicas([path_of(nodes)])) == []
    for topic in newest_state(nodes).topics.values():
        for number, each in topic.replicas.items():
            where = [
                n for n, node in enumerate(nodes) if list(node.glob(f"{topic.name}-{number}*"))
            ]
            assert sorted(each.replicas) == where
            assert not each.is_moving
            assert not each.removing


def test_a_partition_moves_with_all_of_its_rows(nodes: list[Path]) -> None:
    assert replicas(nodes).replicas == (0, 1)
    (done,) = reassign([path_of(nodes)], to(3, 2))
    assert (done.replicas, done.is_done, done.adding, done.removing) == ((3, 2), True, (), ())
    assert replicas(nodes).replicas == (3, 2)
    assert holders(nodes) == ["c", "d"]
    assert values(nodes) == sorted(ROWS)
    append(nodes, 1, ["b"], **TWO)
    append(nodes, 2, ["c"], **TWO)
    check_whole(nodes)
    for node in nodes:
        away(node)
        assert values(nodes) == sorted([*ROWS, "b", "c"])
        back(node)


def test_the_leader_that_goes_gives_way_under_the_next_epoch(nodes: list[Path]) -> None:
    reassign([path_of(nodes)], to(2, 1))
    (topic,) = newest_state(nodes).topics.values()
    assert topic.replicas[0].leader == 2
    assert topic.partitions[0].leader_epoch == 1
    append(nodes, 1, ["b"], **TWO)
    check_whole(nodes)


def test_more_and_fewer_replicas_and_another_order(nodes: list[Path]) -> None:
    reassign([path_of(nodes)], to(0, 1, 2, 3))
    assert replicas(nodes).isr == (0, 1, 2, 3)
    reassign([path_of(nodes)], to(3, 2, 1, 0))
    assert replicas(nodes).replicas == (3, 2, 1, 0)
    assert replicas(nodes).leader == 0
    reassign([path_of(nodes)], to(1))
    assert replicas(nodes) == replicas(nodes)._replace(leader=1, replicas=(1,), isr=(1,))
    assert values(nodes) == sorted(ROWS)
    check_whole(nodes)


def test_before_all_are_in_sync_nobody_goes(nodes: list[Path]) -> None:
    away(nodes[3])
    (waits,) = reassign([path_of(nodes)], to(2, 3))
    assert not waits.is_done
    assert (waits.adding, waits.removing) == ((2, 3), (0, 1))
    each = replicas(nodes)
    assert each.replicas == (2, 3, 0, 1)
    assert {*each.isr} == {0, 1, 2}
    append(nodes, 1, ["b"], **TWO)
    assert inspect_moves([path_of(nodes)]) == inspect_moves([path_of(nodes)], to(2, 3))
    assert holders(nodes) == ["a", "b", "c"]
    back(nodes[3])
    append(nodes, 2, ["c"], **TWO)  # commits of others continue
    append(nodes, 3, ["d"], **TWO)
    append(nodes, 4, ["e"], **TWO)
    assert replicas(nodes).replicas == (2, 3)
    (done,) = inspect_moves([path_of(nodes)], to(2, 3))
    assert done.is_done
    assert values(nodes) == sorted([*ROWS, "b", "c", "d", "e"])
    check_whole(nodes)


def test_a_node_that_was_away_removes_what_it_has_left_when_it_is_back(nodes: list[Path]) -> None:
    away(nodes[0])
    reassign([path_of(nodes)], to(2, 3))
    assert replicas(nodes).removing == (0,)
    append(nodes, 1, ["b"], **TWO)
    back(nodes[0])
    assert holders(nodes) == ["a", "c", "d"]
    assert values(nodes) == sorted([*ROWS, "b"])
    append(nodes, 2, ["c"], **TWO)
    append(nodes, 3, ["d"], **TWO)
    check_whole(nodes)


def test_it_moves_back_to_where_its_folder_is_left(nodes: list[Path]) -> None:
    away(nodes[0])
    reassign([path_of(nodes)], to(1, 2))
    append(nodes, 1, ["b"], **TWO)
    reassign([path_of(nodes)], to(1, 0))
    back(nodes[0])
    reassign([path_of(nodes)])
    assert values(nodes) == sorted([*ROWS, "b"])
    check_whole(nodes)


def test_a_folder_of_a_recreated_topic_is_not_taken_for_what_is_left(nodes: list[Path]) -> None:
    away(nodes[0])
    reassign([path_of(nodes)], to(1, 2))
    delete([path_of(nodes)], "t")
    append(nodes, 1, ["b"], **(TWO | {"min.insync.replicas": "1"}))
    back(nodes[0])
    append(nodes, 2, ["c"], **TWO)
    append(nodes, 3, ["d"], **TWO)
    assert values(nodes) == ["b", "c", "d"]
    check_in_sync(nodes)


def test_with_a_rate_only_the_command_copies(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    away(nodes[3])
    reassign([path_of(nodes)], to(0, 3), rate=200)
    assert replicas(nodes).rate == 200
    back(nodes[3])
    append(nodes, 1, ["b"], **TWO)
    recover([path_of(nodes)])
    assert holders(nodes) == ["a", "b"]
    sizes, rests = list[int](), list[float]()
    bring = in_sync.bring_in_sync

    def noted(log_set: object, several: Quorum, room: in_sync.CopyBudget, **named: bool) -> None:
        sizes.append(room.left)
        bring(log_set, several, room, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("kafkalog.streaming.store.replicas.open_nodes.bring_in_sync", noted)
    monkeypatch.setattr(module, "pause", rests.append)
    (done,) = reassign([path_of(nodes)])
    assert done.is_done
    assert {*sizes} <= {200, in_sync.COPIED_BYTES}
    assert sizes.count(200) > 2
    assert rests[0] > 0.1
    assert replicas(nodes).rate == 0
    assert values(nodes) == sorted([*ROWS, "b"])
    check_whole(nodes)


def test_the_rate_of_what_moves_can_be_changed(nodes: list[Path]) -> None:
    away(nodes[3])
    reassign([path_of(nodes)], to(0, 3), rate=200)
    reassign([path_of(nodes)], rate=0)
    assert replicas(nodes).rate == 0
    back(nodes[3])
    append(nodes, 1, ["b"], **TWO)
    append(nodes, 2, ["c"], **TWO)
    assert replicas(nodes).replicas == (0, 3)


def test_what_was_begun_is_not_begun_elsewhere_but_may_be_given_up(nodes: list[Path]) -> None:
    away(nodes[3])
    reassign([path_of(nodes)], to(2, 3))
    with pytest.raises(LogDirectoryError, match=r"moves to nodes \[2, 3\] already"):
        reassign([path_of(nodes)], to(0, 3))
    (would,) = cancel_moves([path_of(nodes)], dry_run=True)
    assert would.replicas == (0, 1)
    assert replicas(nodes).is_moving
    (stays,) = cancel_moves([path_of(nodes)])
    assert (stays.replicas, stays.is_done) == ((0, 1), True)
    back(nodes[3])
    append(nodes, 1, ["b"], **TWO)
    append(nodes, 2, ["c"], **TWO)
    assert values(nodes) == sorted([*ROWS, "b", "c"])
    check_whole(nodes)


def test_a_node_is_replaced_while_partitions_move_to_it(nodes: list[Path], tmp_path: Path) -> None:
    away(nodes[3])
    reassign([path_of(nodes)], to(0, 3))
    replace_node([path_of(nodes)], "3", str(tmp_path / "e"))
    now = [*nodes[:3], tmp_path / "e"]
    reassign([path_of(now)])
    assert replicas(now).replicas == (0, 4)
    append(now, 1, ["b"], **TWO)
    assert values(now) == sorted([*ROWS, "b"])
    check_in_sync(now)


def test_a_node_is_replaced_from_which_partitions_move_away(
    nodes: list[Path], tmp_path: Path
) -> None:
    away(nodes[3])
    reassign([path_of(nodes)], to(0, 3))
    away(nodes[1])
    back(nodes[3])
    append(nodes, 1, ["b"], **(TWO | {"min.insync.replicas": "1"}))
    replace_node([path_of(nodes)], "1", str(tmp_path / "e"))
    now = [nodes[0], tmp_path / "e", nodes[2], nodes[3]]
    reassign([path_of(now)])
    recover([path_of(now)])
    assert replicas(now).replicas == (0, 3)
    assert values(now) == sorted([*ROWS, "b"])
    check_in_sync(now)


def test_a_reader_that_has_planned_reads_on_while_its_folder_goes(nodes: list[Path]) -> None:
    reader = kafkalog.read(path_of(nodes), "t", columns=["value"], strings=["value"])
    reassign([path_of(nodes)], [*to(3, 2), *to(0, 3, number=1)])
    found = reader.read_all().column("value").to_pylist()
    assert sorted(found) == sorted(ROWS)


def test_what_is_cut_off_while_it_is_removed_is_removed_next_time(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(folder: Path) -> None:
        raise RuntimeError(folder)

    monkeypatch.setattr(moved_away, "remove_folder", cut_off)
    with pytest.raises(RuntimeError):
        reassign([path_of(nodes)], to(1, 2))
    monkeypatch.undo()
    assert list(nodes[0].glob("t-0.*-delete"))
    assert values(nodes) == sorted(ROWS)
    append(nodes, 1, ["b"], **TWO)
    append(nodes, 2, ["c"], **TWO)
    check_whole(nodes)


def test_a_plan_of_a_topic_spreads_leaders(nodes: list[Path]) -> None:
    moves = moves_of_topic(known_state([path_of(nodes)]), "t", None, (2, 3))
    assert [each.replicas for each in moves] == [(2, 3), (3, 2)]
    would = reassign([path_of(nodes)], moves, dry_run=True)
    assert [each.is_done for each in would] == [False, False]
    assert replicas(nodes).replicas == (0, 1)
    assert all(each.is_done for each in reassign([path_of(nodes)], moves))
    assert [replicas(nodes, n).replicas for n in (0, 1)] == [(2, 3), (3, 2)]
    check_whole(nodes)


@pytest.mark.parametrize(
    ("move", "text"),
    [
        (Move(TopicPartition("u", 0), (0,)), "has no u-0"),
        (Move(TopicPartition("t", 9), (0,)), "has no t-9"),
        (Move(TopicPartition("t", 0), (0, 7)), "on node 7"),
        (Move(TopicPartition("t", 0), (0, 0)), "each node once"),
        (Move(TopicPartition("t", 0), ()), "one at least"),
    ],
)
def test_where_a_partition_cannot_lie_it_does_not_go(
    move: Move, text: str, nodes: list[Path]
) -> None:
    before = newest_state(nodes).stamp
    with pytest.raises(KafkaLogError, match=text):
        reassign([path_of(nodes)], [move])
    assert newest_state(nodes).stamp == before


def test_a_plan_is_that_of_kafka() -> None:
    (move,) = parse_plan(
        '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2],'
        '"log_dirs":["any","/mnt/c"]}]}'
    )
    assert move == Move(TopicPartition("t", 0), (1, 2), (None, "/mnt/c"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version":2,"partitions":[]}',
        '{"partitions":[{"topic":"t","partition":0}]}',
        '{"partitions":[{"topic":"t","partition":"0","replicas":[1]}]}',
        '{"partitions":[{"topic":"t","partition":0,"replicas":["1"]}]}',
        '{"partitions":[{"topic":"t","partition":0,"replicas":[1],"log_dirs":["any","any"]}]}',
        '{"partitions":[{"topic":"t","partition":0,"replicas":[1],"observers":[2]}]}',
        '{"partitions":[{"topic":"t","partition":0,"replicas":[1],"replicas":[2]}]}',
        json.dumps({"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}] * 2}),
    ],
)
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="plan"):
        parse_plan(text)


def test_what_is_wrong_with_a_plan_is_said_in_its_own_words() -> None:
    text = '{"partitions":[{"topic":"t","partition":"0","replicas":[1]}]}'
    with pytest.raises(OptionError) as error:
        parse_plan(text)
    assert '"partition": "0", "replicas": [1]} lacks "partition", a number' in str(error.value)
    with pytest.raises(OptionError, match='no object with a list "partitions"'):
        parse_plan("[]")


def test_a_set_of_one_node_has_nowhere_to_move_to(tmp_path: Path) -> None:
    append([tmp_path / "log"], 0, ROWS)
    with pytest.raises(LogDirectoryError, match="no replicated set"):
        reassign([str(tmp_path / "log")], to(0))
