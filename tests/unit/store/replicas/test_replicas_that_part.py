"""Replicas that part: under other files or indexes, or with another history after a restore."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest
from tests.support.replicated import (
    append,
    away,
    check_equal,
    check_in_sync,
    newest_state,
    path_of,
    values,
)

from kafkalog.errors import LogDirectoryError, NotEnoughReplicasError
from kafkalog.streaming.admin.nodes.voters import replace_node
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.log.recovery import start_segment

if TYPE_CHECKING:
    from pathlib import Path

ALL = {
    "numPartitions": "1",
    "min.insync.replicas": "3",
    "segment.bytes": "100000",
    "index.interval.bytes": "0",
}


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in "abc"]
    for version in range(3):
        append(found, version, [f"{version}"], **ALL)
    return found


def followers(nodes: list[Path]) -> list[Path]:
    (topic,) = newest_state(nodes).topics.values()
    return [node for number, node in enumerate(nodes) if number != topic.replicas[0].leader]


def test_a_replica_that_ends_in_another_segment_fails_one_batch_and_no_more(
    nodes: list[Path],
) -> None:
    start_segment(followers(nodes)[0] / "t-0", 3)
    with pytest.raises(NotEnoughReplicasError, match="2 of its 3 replicas are in sync"):
        append(nodes, 3, ["3"], **ALL)
    append(nodes, 3, ["3"], **ALL)
    check_in_sync(nodes)
    check_equal(nodes)
    assert values(nodes) == ["0", "1", "2", "3"]


def test_an_index_that_lost_entries_gets_them_again(nodes: list[Path]) -> None:
    for number, node in enumerate(followers(nodes)):
        index = node / "t-0" / f"{0:020}.index"
        index.write_bytes(index.read_bytes()[: 8 * number])
    append(nodes, 3, ["3"], **ALL)
    check_in_sync(nodes)
    found = {(node / "t-0" / f"{0:020}.index").read_bytes() for node in nodes}
    assert len(found) == 1
    assert values(nodes) == ["0", "1", "2", "3"]


TWO = {"numPartitions": "1", "min.insync.replicas": "2"}


def part(nodes: list[Path], alone: int, together: int) -> None:
    """Put two nodes back to version 1 while the third is away, which has some of its own."""
    append(nodes, 1, ["old"], **TWO)
    copies = [shutil.copytree(node, node.with_suffix(".copy")) for node in nodes[:2]]
    for version in range(2, 2 + alone):
        append(nodes, version, [f"alone{version}"], **TWO)
    third = away(nodes[2])
    for node, copy in zip(nodes, copies, strict=False):
        shutil.rmtree(node)
        copy.rename(node)
    for version in range(2, 2 + together):
        append(nodes, version, [f"together{version}"], **TWO)
    third.rename(nodes[2])


@pytest.mark.parametrize(("alone", "together"), [(1, 1), (2, 1), (1, 2)])
def test_nodes_that_were_put_back_and_written_to_are_refused_with_a_way_on_that_works(
    tmp_path: Path, alone: int, together: int
) -> None:
    nodes = [tmp_path / name for name in "abc"]
    part(nodes, alone, together)
    for act in (
        lambda: values(nodes),
        lambda: append(nodes, 9, ["more"], **TWO),
        lambda: recover([path_of(nodes)]),
    ):
        with pytest.raises(LogDirectoryError, match="have each made another commit") as error:
            act()
    assert f"To go on with nodes [0, 1], move {nodes[2]} away" in str(error.value)
    (old,) = re.findall(r"--replace (\d+)=NEW", str(error.value))
    moved = away(nodes[2])
    replace_node([path_of(nodes)], old, str(nodes[2]))
    append(nodes, 9, ["more"], **TWO)
    recover([path_of(nodes)])
    check_in_sync(nodes)
    check_equal(nodes)
    kept = [f"together{version}" for version in range(2, 2 + together)]
    assert values(nodes) == ["more", "old", *kept]
    alone_there = values([moved], options={"failOnDataLoss": "false"})
    assert alone_there == [*(f"alone{version}" for version in range(2, 2 + alone)), "old"]
