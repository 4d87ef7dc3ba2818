"""SIGKILL at each call of a move between nodes; then writers continue, and the move, too."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.killing import run_and_kill
from tests.support.replicated import append, check_clean, check_in_sync, path_of, values

from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.nodes.reassign import (
    Move,
    cancel_moves,
    inspect_moves,
    move_folders,
    reassign,
)
from kafkalog.streaming.admin.nodes.replicas import compare_replicas
from kafkalog.streaming.admin.recovery import recover

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.crash

STRIDE: Final = int(os.environ.get("KAFKALOG_KILL_STRIDE", "251"))
ROWS, MORE = [f"a{n}" for n in range(20)], ["b0", "b1", "b2"]
TWO: Final = {"replication.factor": "2"}
MOVES: Final = [Move(TopicPartition("t", 0), (3, 1)), Move(TopicPartition("t", 1), (3, 0))]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder in memory where there is one: a killed process loses nothing there either."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="moves-") as name:
        yield Path(name)


def away(node: Path) -> None:
    node.rename(node.with_suffix(".away"))


def back(node: Path) -> None:
    node.with_suffix(".away").rename(node)


def worlds(folder: Path) -> Iterator[tuple[list[Path], int]]:
    """Give four nodes with some rows on two each, and a call to be killed at, again and again."""
    append([folder / "template" / name for name in "abcd"], 0, ROWS, **TWO)
    call = 0
    while True:
        world = folder / str(call)
        shutil.copytree(folder / "template", world)
        yield [world / name for name in "abcd"], call
        shutil.rmtree(world)
        call += STRIDE


def check_there_from_any_others(nodes: list[Path], expected: list[str]) -> None:
    """All rows are there whichever node is away, and replicas are equal."""
    check_in_sync(nodes)
    check_clean(nodes)
    assert list(compare_replicas([path_of(nodes)])) == []
    for node in nodes:
        away(node)
        assert values(nodes) == sorted(expected)
        back(node)


@pytest.mark.parametrize(
    ("rate", "missing"),
    [(0, None), (700, None), (0, 0), (0, 1), (0, 3)],
    ids=["all there", "slowly", "without a", "without b", "without d"],
)
def test_a_move_killed_at_any_call_continues(
    rate: int, missing: int | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkalog.streaming.admin.nodes.reassign.pause", lambda _: None)
    for nodes, call in worlds(folder):
        path = path_of(nodes)
        died = run_and_kill(lambda p=path: reassign([p], MOVES, rate=rate), call, half=True)  # type: ignore[misc]
        if missing is not None:
            away(nodes[missing])
        append(nodes, 1, MORE, **(TWO | {"min.insync.replicas": "1"}))
        assert values(nodes) == sorted(ROWS + MORE)
        if missing is not None:
            back(nodes[missing])
        assert all(each.is_done for each in reassign([path], MOVES))
        append(nodes, 2, ["c"], **TWO)
        append(nodes, 3, ["d"], **TWO)
        assert [each.replicas for each in inspect_moves([path], MOVES)] == [(3, 1), (3, 0)]
        check_there_from_any_others(nodes, [*ROWS, *MORE, "c", "d"])
        names = {node.name: sorted(path.name for path in node.glob("t-*")) for node in nodes}
        assert names == {"a": ["t-1"], "b": ["t-0"], "c": [], "d": ["t-0", "t-1"]}
        if not died:
            assert call > 60
            return


@pytest.mark.parametrize("others", [[], ["b", "c"]], ids=["one node", "three nodes"])
def test_a_move_between_directories_killed_at_any_call_continues(
    others: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkalog.streaming.admin.nodes.reassign.pause", lambda _: None)
    call, died = 0, True
    one = {"min.insync.replicas": "1"}
    while died:
        world = folder / str(call)
        dirs = [world / "one", world / "two"]
        nodes = [Path(",".join(map(str, dirs))), *(world / name for name in others)]
        append(nodes, 0, ROWS, **one)
        append(nodes, 1, MORE, **one)
        home, target = sorted(dirs, key=lambda each: not (each / "t-0").exists())
        path = path_of(nodes)
        died = run_and_kill(
            lambda p=path, t=target: move_folders([p], "t", str(t), rate=300),  # type: ignore[misc]
            call,
            half=True,
        )
        assert recover([path]).problems == []
        append(nodes, 2, ["c"], **one)
        assert values(nodes) == sorted([*ROWS, *MORE, "c"])
        move_folders([path], "t", str(target))
        append(nodes, 3, ["d"], **one)
        assert values(nodes) == sorted([*ROWS, *MORE, "c", "d"])
        assert sorted(each.name for each in target.iterdir() if each.is_dir()) == ["t-0", "t-1"]
        assert not [each for each in home.iterdir() if each.is_dir()]
        assert recover([path]).problems == []
        assert list(compare_replicas([path])) == []
        shutil.rmtree(world)
        call += STRIDE
    assert call > 100


def test_a_move_killed_at_any_call_can_be_given_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkalog.streaming.admin.nodes.reassign.pause", lambda _: None)
    for nodes, call in worlds(folder):
        path = path_of(nodes)
        died = run_and_kill(lambda p=path: reassign([p], MOVES, rate=700), call, half=True)  # type: ignore[misc]
        append(nodes, 1, MORE, **TWO)
        cancel_moves([path])
        append(nodes, 2, ["c"], **TWO)
        append(nodes, 3, ["d"], **TWO)
        check_there_from_any_others(nodes, [*ROWS, *MORE, "c", "d"])
        lies_on = [sorted(path.name for path in node.glob("t-*")) for node in nodes]
        assert sorted(name for names in lies_on for name in names) == ["t-0", "t-0", "t-1", "t-1"]
        if not died:
            return
