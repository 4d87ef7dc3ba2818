"""SIGKILL at each call of a commit on three nodes; then one of them is away, and comes back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.killing import run_and_kill
from tests.support.replicated import append, check_clean, check_equal, check_in_sync, values

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.crash

STRIDE: Final = int(os.environ.get("KAFKALOG_KILL_STRIDE", "83"))
AWAY: Final = (None, 0, 1, 2)
BEFORE, ADDED = [f"a{n}" for n in range(8)], [f"b{n}" for n in range(6)]
AFTER, LAST = ["c0", "c1", "c2"], ["d0", "d1"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder in memory where there is one: a killed process loses nothing there either."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="nodes-") as name:
        yield Path(name)


def nodes_in(folder: Path) -> list[Path]:
    return [folder / name for name in "abc"]


def without(nodes: list[Path], away: int | None) -> None:
    if away is not None:
        nodes[away].rename(nodes[away].with_suffix(".away"))


def back(nodes: list[Path], away: int | None) -> None:
    if away is not None:
        nodes[away].with_suffix(".away").rename(nodes[away])


@pytest.mark.parametrize("away", AWAY, ids=["all there", "without a", "without b", "without c"])
@pytest.mark.parametrize("is_new", [False, True], ids=["a log that is there", "a new topic"])
def test_whichever_call_a_commit_is_killed_at_each_row_is_there_once(
    away: int | None, is_new: bool, folder: Path
) -> None:
    template = nodes_in(folder / "template")
    append(template, 0, BEFORE, topic="u" if is_new else "t")
    call, died = AWAY.index(away), True
    before = [] if is_new else BEFORE
    while died:
        nodes = nodes_in(folder / str(call))
        shutil.copytree(folder / "template", folder / str(call))
        died = run_and_kill(lambda nodes=nodes: append(nodes, 1, ADDED), call, half=True)  # type: ignore[misc]
        without(nodes, away)
        append(nodes, 1, ADDED)
        assert values(nodes) == sorted(before + ADDED)
        append(nodes, 2, AFTER)
        assert values(nodes) == sorted(before + ADDED + AFTER)
        back(nodes, away)
        assert values(nodes) == sorted(before + ADDED + AFTER)
        append(nodes, 3, LAST)
        append(nodes, 4, ["e"])
        assert values(nodes) == sorted([*before, *ADDED, *AFTER, *LAST, "e"])
        check_in_sync(nodes)
        check_equal(nodes)
        check_clean(nodes)
        shutil.rmtree(folder / str(call))
        call += STRIDE
    assert call > 60


@pytest.mark.parametrize("is_set", [False, True], ids=["nothing there", "a set of one node"])
def test_whichever_call_the_start_of_a_set_is_killed_at_it_starts_once(
    is_set: bool, folder: Path
) -> None:
    call, died = int(is_set), True
    before = BEFORE if is_set else []
    while died:
        nodes = nodes_in(folder / str(call))
        if is_set:
            append(nodes[:1], 0, BEFORE)
        died = run_and_kill(lambda nodes=nodes: append(nodes, 1, ADDED), call)  # type: ignore[misc]
        append(nodes, 1, ADDED)
        append(nodes, 2, AFTER)
        append(nodes, 3, LAST)
        assert values(nodes) == sorted([*before, *ADDED, *AFTER, *LAST])
        check_in_sync(nodes)
        check_equal(nodes)
        check_clean(nodes)
        call += STRIDE
    assert call > 60
