"""What a broker finds when it starts on directories that the sink wrote."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.sinking import Writer, rows

from kafkalog.streaming.operate.handover import hand_over

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
