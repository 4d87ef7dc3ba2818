"""Each call of a commit in turn does not return, on each of three nodes; then it does."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.replicated import (
    append,
    check_clean,
    check_equal,
    check_in_sync,
    newest_state,
    values,
)
from tests.support.stalling import stalling

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.crash

STRIDE: Final = int(os.environ.get("KAFKALOG_STALL_STRIDE", "401"))
LAG: Final = {"replica.lag.time.max.ms": "1000"}
BEFORE, ADDED = [f"a{n}" for n in range(8)], [f"b{n}" for n in range(6)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder in memory where there is one: what stalls is the test's alone."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="stall-") as name:
        yield Path(name)


def nodes_in(folder: Path) -> list[Path]:
    return [folder / name for name in "abc"]


@pytest.mark.parametrize("node", [0, 1, 2])
@pytest.mark.parametrize("is_new", [False, True], ids=["a log that is there", "a new topic"])
def test_whichever_call_of_a_commit_stalls_the_others_continue(
    node: int, is_new: bool, folder: Path
) -> None:
    template = nodes_in(folder / "template")
    append(template, 0, BEFORE, topic="u" if is_new else "t")
    rows = sorted(ADDED if is_new else BEFORE + ADDED)
    call, where = node, ""
    while where is not None:
        nodes = nodes_in(folder / str(call))
        shutil.copytree(folder / "template", folder / str(call))
        with stalling(nodes[node], call) as stall:
            append(nodes, 1, ADDED, **LAG)
            append(nodes, 2, ["c"], **LAG)
            where = stall.where
            if where is not None:
                there = [each for each in nodes if each != nodes[node]]
                append(nodes, 3, ["d"], **LAG)  # it may have stalled after the second one
                assert values(there) == sorted([*rows, "c", "d"]), where
                for topic in newest_state(there).topics.values():
                    assert all(node not in each.isr for each in topic.replicas.values()), where
        append(nodes, 3, ["d"])
        append(nodes, 4, ["e"])
        append(nodes, 5, ["f"])
        assert values(nodes) == sorted([*rows, "c", "d", "e", "f"]), where
        check_in_sync(nodes)
        check_equal(nodes)
        check_clean(nodes)
        shutil.rmtree(folder / str(call))
        call += STRIDE
    assert call > 200
