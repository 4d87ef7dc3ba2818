"""The job that looks after log directories, on three nodes, without its Spark."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from tests.support.replica_compacting import LATEST, check_no_swap, newest, update, updates
from tests.support.replicated import append, check_clean, check_equal, check_in_sync, path_of
from tests.unit.jobs.test_maintain import clean_here

from kafkalog.jobs.maintain import Maintenance, Scope
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.store.replicas import open_nodes

if TYPE_CHECKING:
    from pathlib import Path

OLD = {"retention.bytes": "1", "segment.bytes": "100", "numPartitions": "1"}


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in "abc"]
    updates(found)
    return found


def maintained(nodes: list[Path], said: list[str] | None = None, **options: str) -> list[str]:
    """Do a round, and return the problems that it found."""
    scope = Scope(log=path_of(nodes), config=options)
    scope.check()
    return Maintenance(scope, clean_here, say=(said or []).append).round()


def check_whole(nodes: list[Path]) -> None:
    check_in_sync(nodes)
    check_equal(nodes)
    check_clean(nodes)


def away(node: Path) -> Path:
    return node.rename(node.with_suffix(".away"))


def back(node: Path) -> None:
    node.with_suffix(".away").rename(node)


def test_a_round_compacts_and_deletes_on_all_nodes(nodes: list[Path]) -> None:
    for version in range(4):
        append(nodes, version, [f"{version}{n}" for n in range(3)], topic="u", **OLD)
    ratio = {"min.cleanable.dirty.ratio": "0"}
    assert maintained(nodes, **ratio) == []
    check_whole(nodes)
    assert newest(nodes) == LATEST
    assert list_base_offsets(nodes[0] / "u-0")[0] > 0
    sizes = [(node / "t-0" / f"{0:020}.log").stat().st_size for node in nodes]
    assert sizes == [0, 0, 0]


def test_a_node_that_comes_back_is_caught_up_without_a_writer(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    away(nodes[1])
    for version in range(5, 12):
        update(nodes, version, {"f": str(version)})
    said: list[str] = ["something before"]
    assert maintained(nodes, said) == []
    assert any(line.startswith("node 1 is not there") for line in said)
    back(nodes[1])
    monkeypatch.setattr(open_nodes, "COPIED_BYTES", 50)
    said = ["something before"]
    assert maintained(nodes, said) == []
    assert said[1] == "t-0 is in sync on node 1"
    check_whole(nodes)
    check_no_swap(nodes)


def test_what_cannot_be_caught_up_is_a_problem_and_the_round_goes_on(
    nodes: list[Path], tmp_path: Path
) -> None:
    away(nodes[1])
    update(nodes, 5, {"f": "1"})
    (tmp_path / "b.away" / "t-0").rename(tmp_path / "elsewhere")
    (tmp_path / "b.away" / "t-0").symlink_to(tmp_path / "elsewhere")
    back(nodes[1])
    said: list[str] = ["something before"]
    assert maintained(nodes, said) == ["t-0 stays out of sync on node 1"]
    assert said[-1].endswith("compacted")
    (nodes[1] / "t-0").unlink()
    assert maintained(nodes) == []
    check_whole(nodes)


def test_an_old_copy_is_caught_up_though_the_state_says_that_it_is_in_sync(
    nodes: list[Path], tmp_path: Path
) -> None:
    shutil.copytree(nodes[2], tmp_path / "copy")
    update(nodes, 5, {"f": "1"})
    shutil.rmtree(nodes[2])
    (tmp_path / "copy").rename(nodes[2])
    check_in_sync(nodes)
    assert maintained(nodes) == []
    check_whole(nodes)
