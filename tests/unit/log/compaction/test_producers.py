"""Which batches tell the last sequence of a producer, by snapshots and batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.cleaning import ABORT, COMMIT, NOW, CleanableLog, batch, marker
from tests.support.log_files import flip
from tests.support.transactions import snapshot_bytes

from kafkalog.errors import CorruptRecordError
from kafkalog.streaming.log.compaction.transactions import LastRecords

if TYPE_CHECKING:
    from pathlib import Path

FOREVER = 1 << 60


@pytest.fixture
def log(tmp_path: Path) -> CleanableLog:
    return CleanableLog(tmp_path / "t-0")


def sent(base: int, producer: int, *, transactional: bool = False, epoch: int = 0) -> bytes:
    return batch(
        base,
        [(b"k", b"v"), (b"k", b"v")],
        attributes=0x10 if transactional else 0,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=0,
    )


def read(log: CleanableLog, end: int, now: int = NOW, expiration: int = FOREVER) -> list[list[int]]:
    found = LastRecords.read(log.folder, end_offset=end, now_ms=now, expiration_ms=expiration)
    columns = (found.producer_ids, found.data_offsets, found.epochs)
    return [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def test_the_last_batch_of_each_producer_counts(log: CleanableLog) -> None:
    log.write([sent(0, 7), sent(2, 3)], [sent(4, 7), batch(6, [(b"k", b"v")])])
    assert read(log, 7) == [[3, 3, 0], [7, 5, 0]]


def test_a_marker_of_the_same_epoch_leaves_it_and_one_of_another_does_not(
    log: CleanableLog,
) -> None:
    log.write(
        [sent(0, 1, transactional=True), sent(2, 2, transactional=True)],
        [marker(4, 1, COMMIT), marker(5, 2, ABORT, epoch=1)],
    )
    assert read(log, 6) == [[1, 1, 0], [2, -1, 1]]


def test_nothing_after_the_committed_end_counts_or_must_be_sound(log: CleanableLog) -> None:
    log.write([sent(0, 7)], [sent(2, 7), sent(4, 7)])
    flip(log.folder / f"{2:020d}.log", len(sent(2, 7)) + 16)  # the magic of the last batch
    assert read(log, 4) == [[7, 3, 0]]
    assert read(log, 2) == [[7, 1, 0]]
    with pytest.raises(CorruptRecordError):
        read(log, 6)


def test_a_producer_expires_unless_its_transaction_is_open(log: CleanableLog) -> None:
    log.write([sent(0, 1), sent(2, 2, transactional=True)])
    assert read(log, 4, NOW + 9, 10) == [[1, 1, 0], [2, 3, 0]]
    assert read(log, 4, NOW + 10, 10) == [[2, 3, 0]]


def test_the_newest_usable_snapshot_below_the_end_saves_reading(log: CleanableLog) -> None:
    log.write([sent(0, 7)], [sent(2, 8)])
    (log.folder / f"{2:020d}.snapshot").write_bytes(snapshot_bytes({}, [5]))
    (log.folder / f"{3:020d}.snapshot").write_bytes(b"torn")
    (log.folder / f"{9:020d}.snapshot").write_bytes(snapshot_bytes({}, [6]))
    assert [row[0] for row in read(log, 4)] == [5, 8]
