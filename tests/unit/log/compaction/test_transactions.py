"""What an index of aborted transactions that is missing or bad means to a cleaner: nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.cleaning import ABORT, COMMIT, CleanableLog, batch, marker
from tests.support.transactions import index_bytes

from kafkalog.streaming.log.indexes import TxnIndex

if TYPE_CHECKING:
    from pathlib import Path


def sent(base: int, key: bytes, producer: int) -> bytes:
    return batch(base, [(key, b"v")], attributes=0x10, producer_id=producer, producer_epoch=0)


@pytest.mark.parametrize("index", ["whole", "missing", "torn"])
def test_the_new_index_has_the_entries_of_the_markers_that_stay(tmp_path: Path, index: str) -> None:
    log = CleanableLog(tmp_path / "t-0")
    log.write(
        [sent(0, b"a", 1), sent(1, b"b", 2), sent(2, b"c", 3)],
        [marker(3, 2, ABORT), marker(4, 3, COMMIT), sent(5, b"d", 4), marker(6, 1, ABORT)],
        [marker(7, 4, COMMIT)],
        [batch(8, [(b"x", b"v")])],
    )
    entries = [(2, 1, 3, 0), (1, 0, 6, 5)]
    if index != "missing":
        data = index_bytes(*entries)
        path = log.folder / f"{3:020d}.txnindex"
        path.write_bytes(data if index == "whole" else data[:-1])
    log.clean(expiration_ms=0)
    with TxnIndex(log.folder / f"{0:020d}.txnindex", 0) as found:
        assert [tuple(entry) for entry in found] == entries
    assert list(log.records()) == [2, 5, 8]


def test_each_segment_gets_the_entries_of_its_markers(tmp_path: Path) -> None:
    log = CleanableLog(tmp_path / "t-0", {"segment.bytes": "14"})
    log.write(
        [sent(0, b"a", 1)],
        [marker(1, 1, ABORT), sent(2, b"b", 2)],
        [marker(3, 2, ABORT)],
        [batch(4, [(b"x", b"v")])],
    )
    log.clean(expiration_ms=0)
    assert sorted(path.name for path in log.folder.glob("*.txnindex")) == [
        f"{1:020d}.txnindex",
        f"{3:020d}.txnindex",
    ]
    with TxnIndex(log.folder / f"{1:020d}.txnindex", 1) as found:
        assert [tuple(entry) for entry in found] == [(1, 0, 1, 2)]
