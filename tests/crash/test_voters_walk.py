"""SIGKILL at each call of a change of voters; then one node is away, and writers continue."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.killing import run_and_kill
from tests.support.replicated import (
    append,
    check_clean,
    check_equal,
    check_in_sync,
    newest_state,
    path_of,
    values,
)

from kafkalog.checkpoints.commit_state import STATE_FILE
from kafkalog.streaming.admin.nodes.voters import add_node, replace_node
from kafkalog.streaming.admin.recovery import recover

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.crash

STRIDE: Final = int(os.environ.get("KAFKALOG_KILL_STRIDE", "127"))
ROWS, MORE = [f"a{n}" for n in range(8)], ["b0", "b1", "b2"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder in memory where there is one: a killed process loses nothing there either."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="voters-") as name:
        yield Path(name)


def away(node: Path) -> None:
    node.rename(node.with_suffix(".away"))


def back(node: Path) -> None:
    node.with_suffix(".away").rename(node)


def with_new(nodes: list[Path], new: Path) -> list[Path]:
    """Name the new node, too, if it has a state: an empty folder beside a set is refused."""
    return [*nodes, new] if (new / STATE_FILE).exists() else nodes


def worlds(folder: Path) -> Iterator[tuple[list[Path], Path, int]]:
    """Give three nodes with some rows, an empty one, and a call to be killed at, again and again.

    They are gone when the next ones are asked for.
    """
    template = [folder / "template" / name for name in "abc"]
    append(template, 0, ROWS)
    call = 0
    while True:
        world = folder / str(call)
        shutil.copytree(folder / "template", world)
        yield [world / name for name in "abc"], world / "d", call
        shutil.rmtree(world)
        call += STRIDE


# With a lost one and another one missing, no majority of the old nodes would be left.
@pytest.mark.parametrize(
    ("lost", "missing"),
    [(True, None), (False, None), (False, 0), (False, 2)],
    ids=["a lost one", "one that is there", "one that is there, without a", "..., without c"],
)
def test_a_replacement_killed_at_any_call_can_be_made_again(
    lost: bool, missing: int | None, folder: Path
) -> None:
    for nodes, new, call in worlds(folder):
        path = path_of(nodes)
        if lost:
            away(nodes[1])
        died = run_and_kill(lambda p=path, n=new: replace_node([p], "1", str(n)), call, half=True)  # type: ignore[misc]
        if missing is not None:
            away(nodes[missing])
        append(with_new(nodes, new), 1, MORE)
        assert values(with_new(nodes, new)) == sorted(ROWS + MORE)
        replace_node([path], "1", str(new))
        if missing is not None:
            back(nodes[missing])
        now = [nodes[0], new, nodes[2]]
        assert recover([path_of(now)]).problems == []
        append(now, 2, ["c"])
        assert [node.node_id for node in newest_state(now).nodes] == [0, 3, 2]
        check_in_sync(now)
        check_equal(now)
        check_clean(now)
        for node in now:
            away(node)
            assert values(now) == sorted([*ROWS, *MORE, "c"])
            back(node)
        if not died:
            assert call > 50
            return


@pytest.mark.parametrize("gone", ["ab", "bc", "ad", "cd"])
def test_two_nodes_that_are_left_continue_one_history_or_none(gone: str, folder: Path) -> None:
    """Whatever two are left of old and new ones: what one pair has written, the others find."""
    for nodes, new, call in worlds(folder):
        path = path_of(nodes)
        died = run_and_kill(lambda p=path, n=new: replace_node([p], "1", str(n)), call, half=True)  # type: ignore[misc]
        four = with_new(nodes, new)
        pair = [node for node in four if node.name in gone]
        others = [node for node in four if node.name not in gone]
        written = [*ROWS]
        for version, some in enumerate((pair, others), 1):
            try:
                append(some, version, [f"r{version}"])
            except Exception:  # noqa: BLE001 - it may be refused
                continue
            written.append(f"r{version}")
        assert len(written) < len(ROWS) + 2, "both halves have written"
        append(four, 3, ["last"])
        assert values(four) == sorted([*written, "last"])
        if not died:
            return


def test_an_addition_killed_at_any_call_can_be_made_again(folder: Path) -> None:
    for nodes, new, call in worlds(folder):
        path = path_of(nodes)
        died = run_and_kill(lambda p=path, n=new: add_node([p], str(n)), call, half=True)  # type: ignore[misc]
        append(with_new(nodes, new), 1, MORE)
        add_node([path], str(new))
        now = [*nodes, new]
        assert len(newest_state(now).nodes) == 4
        append(now, 2, ["c"])
        check_in_sync(now)
        check_equal(nodes)
        check_clean(now)
        for node in now:
            away(node)
            assert values(now) == sorted([*ROWS, *MORE, "c"])
            back(node)
        if not died:
            assert call > 50
            return
