"""A move ends when its steps bring nothing about any more, and not before."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.replicated import append, check_in_sync, newest_state, path_of, values

from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.nodes import reassign as module
from kafkalog.streaming.admin.nodes.reassign import Move, reassign
from kafkalog.streaming.admin.nodes.replicas import catch_up_replicas
from kafkalog.streaming.store.replicas import copying, in_sync

TOPIC = {"replication.factor": "2", "segment.bytes": "200"}
ROWS = [f"{n:050d}" for n in range(12)]
MOVE = [Move(TopicPartition("t", 0), (0, 2))]
LIMIT = 30
"""So many attempts are many more than there is work for."""


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    """Give three nodes; t-0 lies on 0 and 1, in several segments."""
    found = [tmp_path / name for name in "abc"]
    for number, row in enumerate(ROWS):
        append(found, number, [row], numPartitions="1", **TOPIC)
    return found


def test_a_full_disk_ends_it_and_a_later_call_continues(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, tried = copying.write_all, []

    def on_a_full_disk(file: int, data: Any, position: int) -> None:
        if Path(f"/proc/self/fd/{file}").readlink().is_relative_to(nodes[2]):
            tried.append(position)
            assert len(tried) < LIMIT, "it never ends"
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(file, data, position)

    monkeypatch.setattr(copying, "write_all", on_a_full_disk)
    (moving,) = reassign([path_of(nodes)], MOVE)
    assert not moving.is_done
    assert tried
    append(nodes, len(ROWS), ["one more"], **TOPIC)
    monkeypatch.undo()
    (moving,) = reassign([path_of(nodes)])
    assert moving.is_done
    check_in_sync(nodes)
    assert values(nodes) == sorted([*ROWS, "one more"])


def test_steps_that_only_compare_are_progress(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(nodes[0] / "t-0", nodes[2] / "t-0")
    monkeypatch.setattr(module, "COPIED_BYTES", 100)
    monkeypatch.setattr(in_sync, "COPIED_BYTES", 100)
    (moving,) = reassign([path_of(nodes)], MOVE)
    assert moving.is_done
    check_in_sync(nodes)
    assert values(nodes) == sorted(ROWS)


def test_maintain_leaves_a_throttled_move_to_its_own_command(nodes: list[Path]) -> None:
    nodes[2].rename(nodes[2].with_suffix(".away"))
    reassign([path_of(nodes)], MOVE, rate=100)
    nodes[2].with_suffix(".away").rename(nodes[2])
    assert catch_up_replicas([path_of(nodes)]).problems == []
    (topic,) = newest_state(nodes).topics.values()
    assert topic.replicas[0].adding == (2,)
