"""What ``flush=os`` had left unsynced, and a loss of power took on some of three nodes."""

from __future__ import annotations

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

from kafkalog.errors import CommitError
from kafkalog.files.system import system
from kafkalog.streaming.admin.recovery import recover

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = [f"row {n}" for n in range(30)]
LEFT = {"flush": "os", "numPartitions": "1"}


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Give a set of which all but 10 rows were left unsynced, in the machine's next run."""
    runs = ["first"]
    monkeypatch.setattr(system, "boot_id", lambda: runs[-1])
    found = [tmp_path / name for name in "abc"]
    append(found, 0, ROWS[:10], numPartitions="1")
    append(found, 1, ROWS[10:20], **LEFT)
    append(found, 2, ROWS[20:], **LEFT)
    runs.append("second")
    system.memory.clear()
    return found


def leader_of(nodes: list[Path]) -> int:
    (topic,) = newest_state(nodes).topics.values()
    return topic.replicas[0].leader


def lose(node: Path, kept: float = 0.5) -> None:
    """Lose what comes last in the active segment."""
    path = max((node / "t-0").glob("*.log"))
    with path.open("r+b") as file:
        file.truncate(int(path.stat().st_size * kept))


def torn_index(node: Path) -> tuple[Path, bytes]:
    """Tear an index of a segment that is sealed by now; returns what it held."""
    path = sorted((node / "t-0").glob("*.timeindex"))[-2]
    content = path.read_bytes()
    path.write_bytes(bytes(len(content)))
    return path, content


def by_commit(nodes: list[Path]) -> list[str]:
    append(nodes, 3, ["last"])
    return ["last"]


def by_recover(nodes: list[Path]) -> list[str]:
    assert not recover(path_of(nodes).split(";")).problems
    return []


@pytest.mark.parametrize("mended", [by_commit, by_recover])
@pytest.mark.parametrize("of_leader", [True, False], ids=["the leader", "another"])
def test_a_replica_that_lost_records_gets_them_from_one_that_has_them(
    nodes: list[Path], of_leader: bool, mended: Callable[[list[Path]], list[str]]
) -> None:
    leader = leader_of(nodes)
    loser = leader if of_leader else (leader + 1) % 3
    lose(nodes[loser])
    more = mended(nodes)
    assert (leader_of(nodes) != leader) is of_leader
    check_in_sync(nodes)
    assert values(nodes) == sorted([*ROWS, *more])
    check_equal(nodes)


def test_two_lost_some_and_the_third_has_all(nodes: list[Path]) -> None:
    leader = leader_of(nodes)
    for node in {0, 1, 2} - {(leader + 2) % 3}:
        lose(nodes[node], 0.3)
    append(nodes, 3, ["last"], **{"min.insync.replicas": "1"})
    append(nodes, 4, ["more"])
    check_in_sync(nodes)
    assert values(nodes) == sorted([*ROWS, "last", "more"])
    check_equal(nodes)


def test_what_none_has_is_lost_once_a_person_accepts_that(nodes: list[Path]) -> None:
    for slot, node in enumerate(nodes):
        lose(node, 0.3 + 0.3 * slot)
    with pytest.raises(CommitError, match="recover --accept-os-loss"):
        append(nodes, 3, ["last"])
    done = recover(path_of(nodes).split(";"), accept_lost_tail=True)
    assert done.lost
    append(nodes, 3, ["last"])
    check_in_sync(nodes)
    found = values(nodes)
    assert {*ROWS[:10], "last"} <= {*found}
    assert len(found) == len({*found})
    check_equal(nodes)


def test_indexes_that_are_torn_are_mended_on_each_node(nodes: list[Path]) -> None:
    torn = [torn_index(node) for node in nodes]
    by_commit(nodes)
    check_in_sync(nodes)
    check_equal(nodes)
    for path, content in torn:
        assert content.strip(b"\0")
        assert path.read_bytes() == content
