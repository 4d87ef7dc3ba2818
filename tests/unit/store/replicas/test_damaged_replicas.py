"""A replica is damaged on the disk: what is right on another node stays, and is copied."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.replicated import (
    append,
    check_equal,
    check_in_sync,
    newest_state,
    path_of,
    values,
)

from kafkalog.checkpoints.broker import PARTITION_METADATA
from kafkalog.streaming.admin.nodes.replicas import compare_replicas
from kafkalog.streaming.admin.recovery import recover

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = [f"row {n}" for n in range(40)]


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in "abc"]
    for version in range(4):
        append(found, version, ROWS[10 * version : 10 * version + 10], numPartitions="1")
    return found


def leader_of(nodes: list[Path]) -> int:
    (topic,) = newest_state(nodes).topics.values()
    return topic.replicas[0].leader


def follower_of(nodes: list[Path]) -> int:
    return (leader_of(nodes) + 1) % 3


def log_of(node: Path, slot: int) -> Path:
    return sorted((node / "t-0").glob("*.log"))[slot]


def flip(path: Path, place: float = 0.9) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 0xFF
    path.write_bytes(data)


def contents(node: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((node / "t-0").glob("*.log"))}


def recovered(nodes: list[Path]) -> list[str]:
    done = recover(path_of(nodes).split(";"))
    assert not done.problems
    return done.written


@pytest.mark.parametrize("slot", [0, 1, -1], ids=["first", "sealed", "active"])
def test_where_a_leader_is_damaged_another_one_leads_and_is_copied(
    nodes: list[Path], slot: int
) -> None:
    leader, good = leader_of(nodes), contents(nodes[follower_of(nodes)])
    flip(log_of(nodes[leader], slot))
    written = recovered(nodes)
    assert any(f"t-0 on node {leader}, as a copy of node" in line for line in written)
    assert any("it was damaged: " in line for line in written)
    assert leader_of(nodes) != leader
    assert [contents(node) for node in nodes] == [good] * 3
    check_in_sync(nodes)
    check_equal(nodes)
    append(nodes, 9, ["last"])
    assert values(nodes) == sorted([*ROWS, "last"])


@pytest.mark.parametrize("slot", [0, 1, -1], ids=["first", "sealed", "active"])
def test_where_a_follower_is_damaged_the_leader_is_copied(nodes: list[Path], slot: int) -> None:
    leader, follower, good = leader_of(nodes), follower_of(nodes), contents(nodes[leader_of(nodes)])
    damaged = log_of(nodes[follower], slot)
    flip(damaged)
    ((_, text),) = compare_replicas([path_of(nodes)])
    assert text.startswith(f"node {follower} differs from node {leader}: {damaged.name} from byte ")
    previewed = recover(path_of(nodes).split(";"), dry_run=True)
    written = recovered(nodes)
    (line,) = [each for each in written if damaged.name in each]
    assert line.startswith(f"t-0 on node {follower}, as a copy of node {leader}'s: it differed: ")
    assert line in previewed.written
    assert not any("differed" in each for each in recovered(nodes))
    assert leader_of(nodes) == leader
    assert [contents(node) for node in nodes] == [good] * 3
    check_in_sync(nodes)


def test_leader_and_follower_are_damaged_in_two_places(nodes: list[Path]) -> None:
    leader, follower = leader_of(nodes), follower_of(nodes)
    good = contents(nodes[3 - leader - follower])
    flip(log_of(nodes[leader], 0))
    flip(log_of(nodes[follower], 1))
    recovered(nodes)
    assert [contents(node) for node in nodes] == [good] * 3
    check_in_sync(nodes)


def test_a_leader_that_ends_too_early_is_not_what_others_are_cut_to(nodes: list[Path]) -> None:
    leader, good = leader_of(nodes), contents(nodes[follower_of(nodes)])
    for path in (nodes[leader] / "t-0").glob(f"{log_of(nodes[leader], -1).stem}.*"):
        path.unlink()
    recovered(nodes)
    assert [contents(node) for node in nodes] == [good] * 3
    check_in_sync(nodes)


def test_a_replica_whose_folder_is_gone_is_copied(nodes: list[Path]) -> None:
    leader, good = leader_of(nodes), contents(nodes[follower_of(nodes)])
    (nodes[leader] / "t-0").rename(nodes[leader] / "elsewhere")
    recovered(nodes)
    assert [contents(node) for node in nodes] == [good] * 3
    check_in_sync(nodes)


def test_where_all_are_damaged_each_stays_as_it_is(nodes: list[Path]) -> None:
    for slot, node in enumerate(nodes):
        flip(log_of(node, slot % 2), 0.5 + slot / 10)
    before = [contents(node) for node in nodes]
    done = recover(path_of(nodes).split(";"))
    assert any("damaged on all nodes" in problem for problem in done.problems)
    assert [contents(node) for node in nodes] == before


@pytest.mark.parametrize("slot", [0, -1], ids=["sealed", "active"])
def test_a_commit_copies_no_damage_to_a_node_that_is_back(
    nodes: list[Path], slot: int, caplog: pytest.LogCaptureFixture
) -> None:
    follower = follower_of(nodes)
    nodes[follower].rename(nodes[follower].with_suffix(".away"))
    append(nodes, 4, ["meanwhile"])
    nodes[follower].with_suffix(".away").rename(nodes[follower])
    for path in nodes[follower].glob("recovery-point-offset-checkpoint"):
        path.unlink()  # so that all of it is compared
    before = contents(nodes[follower])
    flip(log_of(nodes[leader_of(nodes)], slot))
    with caplog.at_level(logging.WARNING, "kafkalog.sink"):
        append(nodes, 5, ["other topic"], topic="u", numPartitions="1")
    assert any("Run `kafkalog recover`" in message for message in caplog.messages)
    after = contents(nodes[follower])
    assert all(after[name].startswith(data) for name, data in before.items())
    recovered(nodes)
    assert values(nodes) == sorted([*ROWS, "meanwhile"])
    check_in_sync(nodes)


def _torn(path: Path) -> None:
    path.write_text("version: 0\n")


def _of_another(path: Path) -> None:
    path.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("of", [leader_of, follower_of])
@pytest.mark.parametrize("damage", [Path.unlink, _torn, _of_another, _fifo])
def test_a_replica_whose_topic_id_is_lost_does_not_count_and_is_copied(
    nodes: list[Path],
    of: Callable[[list[Path]], int],
    damage: Callable[[Path], None],
) -> None:
    node = of(nodes)
    damage(nodes[node] / "t-0" / PARTITION_METADATA)
    append(nodes, 4, ["last"])
    assert values(nodes) == sorted([*ROWS, "last"])
    ((key, text),) = compare_replicas([path_of(nodes)])
    assert (key.topic, key.partition) == ("t", 0)
    assert text.startswith(f"node {node} is in sync, and ")
    assert PARTITION_METADATA in text
    recovered(nodes)
    assert not list(compare_replicas([path_of(nodes)]))
    check_in_sync(nodes)
    check_equal(nodes)
    append(nodes, 5, ["really last"])
    assert values(nodes) == sorted([*ROWS, "last", "really last"])


def test_replicas_that_have_all_lost_their_topic_ids_are_left_alone(nodes: list[Path]) -> None:
    before = [contents(node) for node in nodes]
    for node in nodes:
        (node / "t-0" / PARTITION_METADATA).unlink()
    done = recover(path_of(nodes).split(";"))
    assert any("is missing" in each for each in done.problems)
    assert [contents(node) for node in nodes] == before
