"""Producer state from a log: what brokers wrote into their snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.corpus import CASES, UnpackedCase

from kafkalog.streaming.admin.old_segments import snapshot_at
from kafkalog.streaming.log.files import SNAPSHOT, file_name
from kafkalog.streaming.log.producer_state import list_snapshots, read_snapshot
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.store.log_dirs import LogDirs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WRITTEN = ("p05-segments", "p06-transactions")


def entries(path: Path) -> list[tuple[int, ...]]:
    return sorted(tuple(int(field) for field in entry) for entry in read_snapshot(path))


def pairs(folder: Path) -> Iterator[tuple[int, int]]:
    """Give the offsets of snapshots, each with that of the one before, or with the log's start."""
    found = list_snapshots(folder)
    start = list_base_offsets(folder)[0]
    yield from zip([start, *found], found, strict=False)


@pytest.mark.parametrize("case", WRITTEN)
def test_replayed_batches_give_the_snapshots_that_a_broker_wrote(tmp_path: Path, case: str) -> None:
    assert case in CASES
    unpacked = UnpackedCase(case, tmp_path / "case")
    compared = producers = 0
    for where in LogDirs(unpacked.path.split(",")).partitions().values():
        for before, offset in list(pairs(where.path)):
            path = where.path / file_name(offset, SNAPSHOT)
            kept = path.rename(tmp_path / "kept")
            data = snapshot_at(where.path, offset, since=before)
            kept.rename(path)
            assert data is not None
            replayed = tmp_path / "replayed"
            replayed.write_bytes(data)
            assert entries(replayed) == entries(path), path
            compared, producers = compared + 1, producers + len(entries(path))
    assert compared
    assert producers or case != "p06-transactions"
