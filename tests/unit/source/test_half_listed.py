"""A commit that makes partitions while they are listed."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests.support.sinking import Writer, rows

from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.store.ends.tracker import LogEndTracker

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory


def test_a_batch_that_is_committed_during_the_listing_is_seen_in_all_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, halfway = tmp_path / "whole", tmp_path / "halfway"
    Writer(whole, topic="t", numPartitions="2").write(0, rows(["a", "b"], partitions=[0, 1]))
    shutil.copytree(whole, halfway, ignore=shutil.ignore_patterns("t-1", "kafkalog.commit"))
    tail = EndOffsets([str(halfway)], lambda _: True)
    original = LogEndTracker._take_listing

    def listed(self: LogEndTracker, found: Mapping[TopicPartition, PartitionDirectory]) -> None:
        original(self, found)
        monkeypatch.undo()
        shutil.copytree(whole, halfway, dirs_exist_ok=True)

    monkeypatch.setattr(LogEndTracker, "_take_listing", listed)
    assert {str(key): end for key, end in tail.look().offsets.items()} == {"t-0": 1, "t-1": 1}
