"""A directory is away while a commit says what is about to happen, and is back for the records."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.replicated import append, check_clean, check_equal, check_in_sync, values

from kafkalog.errors import LogDirectoryError
from kafkalog.streaming.store.nodes import Node

if TYPE_CHECKING:
    from pathlib import Path


def away_meanwhile(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Let the intent of the next commit be written below the mount point of a directory."""
    original, moved = Node.declare, folder.with_suffix(".away")

    def declare(self: Node, intent: Any) -> None:
        if self.directories != [folder] or moved.exists():
            original(self, intent)
            return
        folder.rename(moved)
        folder.mkdir()
        try:
            original(self, intent)
        finally:
            shutil.rmtree(folder)
            moved.rename(folder)

    patch.setattr(Node, "declare", declare)


def sizes(node: Path) -> list[int]:
    return sorted(path.stat().st_size for path in node.glob("t-*/*.log"))


def test_nothing_is_appended_that_nobody_would_roll_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    append([log], 0, ["first"])
    before = sizes(log)
    with monkeypatch.context() as patch:
        away_meanwhile(log, patch)
        with pytest.raises(LogDirectoryError, match=r"kafkalog.intent, .* is not there: was"):
            append([log], 1, ["second"])
    assert sizes(log) == before
    append([log], 1, ["second"])
    assert values([log]) == ["first", "second"]
    check_clean([log])


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_node_that_was_away_then_is_out(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [tmp_path / name for name in "abc"]
    append(nodes, 0, ["first"])
    before = sizes(nodes[number])
    with monkeypatch.context() as patch:
        away_meanwhile(nodes[number], patch)
        append(nodes, 1, ["second"])
    assert sizes(nodes[number]) == before
    append(nodes, 2, ["third"])
    append(nodes, 3, ["last"])
    assert values(nodes) == sorted(["first", "second", "third", "last"])
    check_in_sync(nodes)
    check_equal(nodes)
    check_clean(nodes)
