"""Readers of a replicated set: they continue on another replica when a node goes away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.replicated import append, away, path_of, values

import kafkalog
from kafkalog.errors import LogDirectoryError
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.stream_control import StreamControl

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    nodes = [tmp_path / name for name in "abc"]
    append(nodes, 1, [f"1.{n}" for n in range(9)])
    return nodes


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_tail_continues_though_any_node_goes_away_under_it(lost: int, nodes: list[Path]) -> None:
    rows = kafkalog.tail(
        path_of(nodes),
        "t",
        columns=["value"],
        strings=["value"],
        idle_timeout=5,
        options={"startingOffsets": "earliest"},
    )
    seen = []
    for batch in rows:
        seen += batch.column(0).to_pylist()
        if len(seen) == 9:
            nodes[lost].rename(nodes[lost].with_name("away"))
            append(nodes, 2, [f"2.{n}" for n in range(9)])
        if len(seen) == 18:
            break
    assert sorted(seen) == sorted(f"{v}.{n}" for v in (1, 2) for n in range(9))


def test_a_damaged_batch_is_read_from_another_replica_and_no_row_twice(tmp_path: Path) -> None:
    """The batches before it have come from the damaged one by then, all in the same chunk."""
    nodes = [tmp_path / name for name in "abc"]
    whole = {"numPartitions": "1", "segment.bytes": "1048576"}
    for version in range(1, 9):
        append(nodes, version, [f"{version}.{n}" for n in range(9)], **whole)
    expected = values(nodes)
    for node in nodes:
        (log,) = node.glob("t-*/*.log")
        sound = log.read_bytes()
        log.write_bytes(sound.replace(b"5.3", b"5.x"))
        assert values(nodes) == expected
        log.write_bytes(sound)


def test_an_empty_folder_in_place_of_a_node_is_not_read(nodes: list[Path]) -> None:
    nodes[0].rename(nodes[0].with_name("away"))
    nodes[0].mkdir()
    assert len(values(nodes)) == 9


def test_a_replica_that_is_not_in_sync_is_never_read(nodes: list[Path]) -> None:
    away = nodes[0].rename(nodes[0].with_name("away"))
    append(nodes, 2, [f"2.{n}" for n in range(9)])
    away.rename(nodes[0])
    assert len(values(nodes)) == 18
    for node in nodes[1:]:
        assert len(values([nodes[0], node])) == 18


def test_without_a_majority_nothing_is_read_unless_loss_is_accepted(nodes: list[Path]) -> None:
    with pytest.raises(LogDirectoryError, match=r"1 of the 3 nodes .* 2 are needed"):
        values(nodes[:1])
    assert len(values(nodes[:1], options={"failOnDataLoss": "false"})) == 9


def test_nodes_may_be_named_in_any_order(nodes: list[Path]) -> None:
    assert len(values([nodes[2], nodes[0], nodes[1]])) == 9
    found = kafkalog.read([str(node) for node in nodes], "t", columns=["value"]).read_all()
    assert len(found) == 9


def test_a_query_waits_where_it_was_while_too_few_nodes_know_what_is_committed(
    nodes: list[Path],
) -> None:
    older = away(nodes[2])
    append(nodes, 2, ["later"])
    text = {"path": path_of(nodes), "subscribe": "t", "failOnDataLoss": "false"}
    control = StreamControl(ReadOptions.parse({**text, "startingOffsets": "earliest"}))
    reached = control.next_end(control.initial(), take_all=True)
    control.plan(control.initial(), reached)
    control.batch_ran()
    newer = [away(node) for node in nodes[:2]]
    older.rename(nodes[2])
    assert control.next_end(reached, take_all=True) == reached
    for node, there in zip(newer, nodes[:2], strict=True):
        node.rename(there)
    append(nodes, 3, ["last"])
    end = control.next_end(reached, take_all=True)
    assert sum(end.values()) == sum(reached.values()) + 1
