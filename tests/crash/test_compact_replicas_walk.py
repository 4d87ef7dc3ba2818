"""SIGKILL at each call of a compaction on three nodes; then one of them is away, and comes back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.killing import run_and_kill
from tests.support.replica_compacting import (
    BATCHES,
    LATEST,
    check_no_swap,
    compacted,
    newest,
    update,
    updates,
)
from tests.support.replicated import check_clean, check_equal, check_in_sync, path_of

from kafkalog.errors import LogDirectoryError
from kafkalog.streaming.admin.recovery import recover

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.crash

STRIDE: Final = int(os.environ.get("KAFKALOG_KILL_STRIDE", "211"))
AWAY: Final = (None, 0, 1, 2)
ADDED: Final = {"f": "1"}


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder in memory where there is one: a killed process loses nothing there either."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="nodes-") as name:
        yield Path(name)


def nodes_in(folder: Path) -> list[Path]:
    return [folder / name for name in "abc"]


def check_whole(nodes: list[Path]) -> None:
    check_in_sync(nodes)
    check_equal(nodes)
    check_clean(nodes)
    check_no_swap(nodes)


@pytest.mark.parametrize("away", AWAY, ids=["all there", "without a", "without b", "without c"])
def test_whichever_call_a_compaction_is_killed_at_all_keys_are_there(
    away: int | None, folder: Path
) -> None:
    template = nodes_in(folder / "template")
    updates(template, BATCHES)
    call, died = AWAY.index(away), True
    while died:
        nodes = nodes_in(folder / str(call))
        shutil.copytree(folder / "template", folder / str(call))
        died = run_and_kill(lambda nodes=nodes: compacted(nodes), call, half=True)  # type: ignore[misc]
        assert newest(nodes) == LATEST
        _each_alone_has_all(nodes)
        if away is None:
            assert recover([path_of(nodes)]).problems == []
            check_equal(nodes)
            update(nodes, 5, ADDED)
        else:
            nodes[away].rename(nodes[away].with_suffix(".away"))
            _is_read(nodes)
            update(nodes, 5, ADDED)
            if call % 2:
                compacted(nodes)
            assert newest(nodes) == LATEST | ADDED
            nodes[away].with_suffix(".away").rename(nodes[away])
        update(nodes, 6, ADDED)
        update(nodes, 7, ADDED)
        assert newest(nodes) == LATEST | ADDED
        compacted(nodes)
        assert newest(nodes) == LATEST | ADDED
        check_whole(nodes)
        shutil.rmtree(folder / str(call))
        call += STRIDE
    assert call > 200


def _each_alone_has_all(nodes: list[Path]) -> None:
    """Each replica is in sync meanwhile, and a reader may have come to any of them."""
    for node in nodes:
        bare = node.parent / "bare"
        shutil.copytree(node / "t-0", bare / "t-0")
        assert newest([bare]) == LATEST, node
        shutil.rmtree(bare)


def _is_read(nodes: list[Path]) -> None:
    """Readers see all, or wait for the next write: it tells what a missing node may have."""
    try:
        found = newest(nodes)
    except LogDirectoryError as error:
        if "is not known" not in str(error):
            raise
    else:
        assert found == LATEST
