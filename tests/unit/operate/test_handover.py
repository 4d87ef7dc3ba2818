"""What a broker finds when it starts on directories that the sink wrote."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.logs import Row, batch_bytes, write_segment
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.broker import CLEAN_SHUTDOWN
from kafkalog.streaming.operate.handover import hand_over, take_over

if TYPE_CHECKING:
    import pytest


def test_all_files_of_a_partition_are_on_the_disk_when_a_broker_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Writer(tmp_path, topic="t", flush="os").write(0, rows(["a"]))
    (tmp_path / "t-0" / f"{1:020d}.snapshot").touch()
    synced = set()
    original = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    hand_over([str(tmp_path)])
    assert {*(tmp_path / "t-0").iterdir(), tmp_path / "t-0"} <= synced


def test_a_topic_that_lacks_a_partition_is_not_handed_over(tmp_path: Path) -> None:
    """As in the directories of a broker whose cluster had others."""
    folder = tmp_path / "t-1"
    folder.mkdir()
    write_segment(folder, 0, batch_bytes(0, [Row(b"a")]))
    assert take_over([str(tmp_path)]).problems == []
    (problem,) = hand_over([str(tmp_path)]).problems
    assert "topic 't' has partition 1 and lacks [0]" in problem
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()
