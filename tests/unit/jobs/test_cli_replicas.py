"""Commands on a set of several nodes: ``replicas``, ``elect``, ``recover``, and others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.handed_nodes import format_nodes, know
from tests.support.replicated import (
    append,
    check_equal,
    check_in_sync,
    newest_state,
    path_of,
    values,
)
from typer.testing import CliRunner

from kafkalog.jobs.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path


def call(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


def lines(*words: object) -> list[dict[str, Any]]:
    _, text = call(*words, "--json")
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    """Give three nodes with two batches in two partitions."""
    nodes = [tmp_path / name for name in "abc"]
    for version in (1, 2):
        append(nodes, version, [f"{version}.{n}" for n in range(9)])
    return nodes


def test_each_partition_has_a_line_with_its_replicas(nodes: list[Path]) -> None:
    found = lines("replicas", path_of(nodes))
    assert call("replicas", path_of(nodes))[0] == 0
    assert [(each["topic"], each["partition"]) for each in found] == [("t", 0), ("t", 1)]
    first = found[0]
    assert first["leader"] == 0
    assert first["replicas"] == first["isr"] == [0, 1, 2]
    assert first["leaderEpoch"] == 0
    ends = first["logEndOffsets"]
    assert set(ends) == {"0", "1", "2"}
    assert set(ends.values()) == {first["highWatermark"]}
    assert sum(each["highWatermark"] for each in found) == 18


def test_a_node_that_is_not_there_is_a_problem_and_told(nodes: list[Path]) -> None:
    nodes[1].rename(nodes[1].with_name("away"))
    code, text = call("replicas", path_of(nodes))
    assert code == 1
    assert "node 1 is not there" in text
    assert values(nodes) == sorted(f"{v}.{n}" for v in (1, 2) for n in range(9))
    append(nodes, 3, ["3"])
    (first, second) = lines("replicas", path_of(nodes))
    assert first["isr"] == [0, 2]
    assert second["isr"] == [2, 0]
    assert (second["leader"], second["leaderEpoch"]) == (2, 1)


def test_recover_brings_a_node_in_sync_that_is_back(nodes: list[Path]) -> None:
    away = nodes[1].rename(nodes[1].with_name("away"))
    append(nodes, 3, [f"3.{n}" for n in range(50)])
    away.rename(nodes[1])
    code, text = call("recover", path_of(nodes), "--dry-run")
    assert code == 0
    assert "would be brought in sync on node 1" in text
    assert newest_state(nodes).topics
    code, text = call("recover", path_of(nodes))
    assert code == 0, text
    assert "is in sync on node 1" in text
    check_in_sync(nodes)
    check_equal(nodes)


def test_preferred_leaders_come_back_when_asked(nodes: list[Path]) -> None:
    away = nodes[1].rename(nodes[1].with_name("away"))
    append(nodes, 3, ["3"])
    away.rename(nodes[1])
    assert call("recover", path_of(nodes))[0] == 0
    assert lines("replicas", path_of(nodes))[1]["leader"] == 2
    code, text = call("elect", path_of(nodes), "--preferred")
    assert code == 0, text
    second = lines("replicas", path_of(nodes))[1]
    assert (second["leader"], second["leaderEpoch"]) == (1, 2)
    append(nodes, 4, [f"4.{n}" for n in range(9)])
    check_in_sync(nodes)
    check_equal(nodes)


def test_an_unclean_election_says_what_it_loses_and_asks(tmp_path: Path) -> None:
    nodes = [tmp_path / name for name in "abc"]
    options = {"min.insync.replicas": "1", "replication.factor": "2", "numPartitions": "1"}
    append(nodes, 1, ["old"], **options)
    back = nodes[1].rename(tmp_path / "away")
    append(nodes, 2, ["new"], **options)
    back.rename(nodes[1])
    nodes[0].rename(tmp_path / "lost")
    asked = ("elect", path_of(nodes), "--unclean", "--topic", "t")
    code, text = call(*asked, "--dry-run")
    assert code == 0, text
    assert "1" in text
    for answer in ("", "n\n"):  # nobody is there, or says no
        done = CliRunner().invoke(app, list(asked), input=answer)
        assert done.exit_code == 1
        assert done.stderr.endswith("nothing was changed: --yes loses them without asking\n")
    assert lines("replicas", path_of(nodes))[0]["leader"] == 0
    code, text = call(*asked, "--yes")
    assert code == 0, text
    assert values(nodes) == ["old"]
    append(nodes, 3, ["after"], **options)
    assert values(nodes) == ["after", "old"]


def test_what_a_node_has_that_an_unclean_election_lost_is_replaced_though_it_has_the_size(
    tmp_path: Path,
) -> None:
    nodes = [tmp_path / name for name in "abc"]
    options = {"min.insync.replicas": "1", "replication.factor": "2", "numPartitions": "1"}
    options["segment.bytes"] = "100"
    append(nodes, 1, ["old"], **options)
    back = nodes[1].rename(tmp_path / "away")
    append(nodes, 2, ["new"], **options)
    back.rename(nodes[1])
    lost = nodes[0].rename(tmp_path / "lost")
    assert call("elect", path_of(nodes), "--unclean", "--topic", "t", "--yes")[0] == 0
    append(nodes, 3, ["now"], **options)
    append(nodes, 4, ["end"], **options)
    lost.rename(nodes[0])
    append(nodes, 5, ["more"], **options)
    append(nodes, 6, ["last"], **options)
    check_in_sync(nodes)
    check_equal(nodes[:2])
    assert values(nodes) == ["end", "last", "more", "now", "old"]


def test_records_are_deleted_on_all_replicas(nodes: list[Path]) -> None:
    append(nodes, 3, [f"3.{n}" for n in range(40)])
    end = lines("replicas", path_of(nodes))[0]["highWatermark"]
    code, text = call("delete-records", path_of(nodes), "--offsets", json.dumps({"t": {"0": end}}))
    assert code == 0, text
    check_equal(nodes)
    append(nodes, 4, ["4"])
    check_in_sync(nodes)


def test_what_does_not_know_nodes_says_so_and_changes_nothing(nodes: list[Path]) -> None:
    before = newest_state(nodes).stamp
    code, text = call("salvage", path_of(nodes), "--drop", "t-0@0")
    assert code in {1, 2}
    assert "replicated set" in text.replace("\n", " ") or "does not know" in text
    assert newest_state(nodes).stamp == before
    check_equal(nodes)


def test_nodes_are_handed_over_and_taken_over_again(nodes: list[Path], tmp_path: Path) -> None:
    path = path_of(nodes)
    code, text = call("handover", path)
    assert (code, "of node 0 has no meta.properties" in text) == (1, True)
    assert call("takeover", path)[0] == 2
    format_nodes(nodes)
    copy = "--cluster-metadata", know(tmp_path / "metadata", nodes)
    code, text = call("handover", path, *copy)
    assert code == 0, text
    assert "written: given: node 0 to broker 1, node 1 to broker 2" in text
    assert "was handed over" in call("recover", path)[1]
    code, text = call("takeover", path, *copy)
    assert code == 0, text
    append(nodes, 3, ["3"], allowBrokerDirectory="true")
    check_in_sync(nodes)
    check_equal(nodes)


def test_topics_are_created_altered_and_deleted_on_all_nodes(nodes: list[Path]) -> None:
    path = path_of(nodes)
    assert call("create", path, "--topic", "u", "--partitions", 2)[0] == 0
    assert {each["topic"] for each in lines("replicas", path)} == {"t", "u"}
    assert call("alter", path, "--topic", "u", "--partitions", 3)[0] == 0
    append(nodes, 9, [str(n) for n in range(20)], topic="u", numPartitions="3")
    check_in_sync(nodes)
    check_equal(nodes)
    code, text = call("delete", path, "--topic", "u")
    assert code == 0, text
    assert {each["topic"] for each in lines("replicas", path)} == {"t"}
    assert not [each for node in nodes for each in node.glob("u-[0-9]")]


def test_a_node_is_put_in_the_place_of_another_one(nodes: list[Path], tmp_path: Path) -> None:
    new = tmp_path / "d"
    asked = ("reassign", path_of(nodes), "--replace", f"1={new}")
    code, text = call(*asked, "--dry-run")
    assert code == 0, text
    assert "dry run" in text
    assert not new.exists()
    (row,) = lines(*asked)
    assert (row["node"], row["replaces"], row["replicas"]) == (3, 1, 2)
    code, text = call(*asked)
    assert code == 0, text
    assert f"name {new} in the path" in text
    now = [nodes[0], new, nodes[2]]
    assert call("recover", path_of(now))[0] == 0
    code, text = call("replicas", path_of([*now, nodes[1]]))
    assert code == 1
    assert f"{nodes[1]} is no node of set" in text
    (added,) = lines("reassign", path_of(now), "--add", f"witness:{tmp_path / 'w'}")
    assert added["witness"]


def test_partitions_move_and_are_shown_while_they_do(nodes: list[Path], tmp_path: Path) -> None:
    assert call("reassign", path_of(nodes), "--add", tmp_path / "d")[0] == 0
    path = path_of([*nodes, tmp_path / "d"])
    plan = tmp_path / "plan.json"
    moves = [{"topic": "t", "partition": 0, "replicas": [3, 2]}]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    assert call("reassign", path, "--plan", plan, "--verify")[0] == 1
    away = nodes[2].rename(nodes[2].with_name("away"))
    assert call("reassign", path, "--plan", plan, "--throttle", 100_000)[0] == 1
    first, _ = lines("replicas", path)
    assert (first["replicas"], first["adding"], first["removing"]) == ([3, 2, 0, 1], [3], [0, 1])
    assert "adding" in call("replicas", path)[1]
    away.rename(nodes[2])
    code, text = call("reassign", path)
    assert code == 0, text
    assert call("reassign", path, "--plan", plan, "--verify")[0] == 0
    code, text = call("replicas", path)
    assert code == 0, text
    assert "adding" not in text
    first, _ = lines("replicas", path)
    assert (first["replicas"], first["isr"], first["leader"]) == ([3, 2], [3, 2], 3)
    assert call("reassign", path, "--topic", "t", "--to", "0,1")[0] == 0
    assert [each["replicas"] for each in lines("replicas", path)] == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    "words",
    [
        ("--to", "0"),
        ("--topic", "t"),
        ("--topic", "t", "--to", "x"),
        ("--topic", "t", "--to", "0", "--add", "d"),
        ("--cancel", "--verify"),
        ("--replace", "1"),
        ("--add", "d", "--throttle", "5"),
        ("--plan", "/nowhere/plan"),
    ],
    ids=" ".join,
)
def test_what_does_not_go_together_is_told(words: tuple[str, ...], nodes: list[Path]) -> None:
    before = newest_state(nodes).stamp
    assert call("reassign", path_of(nodes), *words)[0] == 2
    assert newest_state(nodes).stamp == before


def test_a_topic_moves_to_another_directory_of_its_node(tmp_path: Path) -> None:
    one = f"{tmp_path / 'one'},{tmp_path / 'two'}"
    append([one], 0, ["a", "b"], **{"min.insync.replicas": "1"})  # type: ignore[list-item]
    asked = ("reassign", one, "--topic", "t", "--to-dir", tmp_path / "two")
    code, text = call(*asked, "--dry-run")
    assert code == 0, text
    assert (tmp_path / "one" / "t-0").exists()
    (row,) = lines(*asked)
    assert row == {
        "topic": "t",
        "partition": 0,
        "from": str(tmp_path / "one"),
        "to": str(tmp_path / "two"),
    }
    assert (tmp_path / "two" / "t-0").exists()
    code, text = call("reassign", one, "--topic", "t", "--to-dir", tmp_path / "three")
    assert code == 2
    assert "no log directory of the set" in text


def test_a_plan_may_name_log_directories(nodes: list[Path], tmp_path: Path) -> None:
    new = f"{tmp_path / 'd1'},{tmp_path / 'd2'}"
    assert call("reassign", path_of(nodes), "--add", new)[0] == 0
    path = f"{path_of(nodes)};{new}"
    for home in ("d1", "d2"):
        log_dirs = ["any", str(tmp_path / home)]
        move = {"topic": "t", "partition": 0, "replicas": [0, 3], "log_dirs": log_dirs}
        (tmp_path / "plan").write_text(json.dumps({"version": 1, "partitions": [move]}))
        code, text = call("reassign", path, "--plan", tmp_path / "plan")
        assert code == 0, text
        assert (tmp_path / home / "t-0").exists()
    move["log_dirs"] = [str(tmp_path / "d1"), "any"]
    (tmp_path / "plan").write_text(json.dumps({"version": 1, "partitions": [move]}))
    code, text = call("reassign", path, "--plan", tmp_path / "plan")
    assert code == 2
    assert "no log directory of node 0" in text


def test_nothing_to_do_is_said(nodes: list[Path]) -> None:
    path = path_of(nodes)
    told = "no partition moves between nodes"
    for words, said in (
        (("elect", path, "--preferred"), "nothing is elected"),
        (("elect", path, "--unclean", "--topic", "t"), "nothing is elected: each partition of t"),
        (("reassign", path), told),
        (("reassign", path, "--verify"), told),
    ):
        code, text = call(*words)
        assert (code, said in text) == (0, True), text


def test_what_is_there_is_named_where_something_else_was_asked_for(nodes: list[Path]) -> None:
    path = path_of(nodes)
    for words, said in (
        (("elect", path, "--unclean", "--topic", "u"), "the set has no u. Topics there: t"),
        (("elect", path, "--unclean", "--topic", "t", "--partition", 7), "t there: 0, 1"),
        (("reassign", path, "--topic", "u", "--to", "0"), "the set has no u. Topics there: t"),
        (("reassign", path, "--topic", "t", "--partition", 7, "--to", "0"), "t there: 0, 1"),
    ):
        code, text = call(*words)
        assert (code, said in text) == (2, True), text
