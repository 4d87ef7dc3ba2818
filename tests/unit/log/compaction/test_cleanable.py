"""How far a log can be cleaned, and when: as Kafka's ``LogCleanerManagerTest`` has it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.support.cleaning import NOW, CleanableLog, batch

from kafkalog.streaming.log.compaction.cleanable import (
    SourceSegment,
    find_cleanable,
    group_segments,
)
from kafkalog.streaming.options.topic_settings import LogConfig

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86_400_000


def one(base: int, time: int = NOW, **fields: int) -> bytes:
    return batch(base, [(b"k", b"v")], times=[time], **fields)


@pytest.fixture
def log(tmp_path: Path) -> CleanableLog:
    made = CleanableLog(tmp_path / "t-0")
    made.write([one(0), one(1)], [one(2), one(3)], [one(4), one(5)])
    return made


def test_all_but_the_active_segment_can_be_cleaned(log: CleanableLog) -> None:
    found = log.cleanable()
    assert (found.first_dirty_offset, found.end_offset) == (0, 4)
    assert (found.clean_bytes, found.dirty_bytes) == (0, 4 * len(one(0)))
    assert (found.dirty_ratio, found.checkpoint_is_void) == (1.0, False)


def test_what_was_cleaned_is_clean(log: CleanableLog) -> None:
    log.clean_to = 2
    found = log.cleanable()
    assert (found.first_dirty_offset, found.end_offset, found.dirty_ratio) == (2, 4, 0.5)
    assert not found.is_due(0.5)
    assert found.is_due(0.49)
    log.clean_to = 4
    assert log.cleanable().dirty_ratio == 0
    assert not log.cleanable().is_due(0.0)


def test_a_segment_that_is_partly_clean_counts_as_both(log: CleanableLog) -> None:
    log.clean_to = 3
    found = log.cleanable()
    assert (found.clean_bytes, found.dirty_bytes) == (4 * len(one(0)), 2 * len(one(0)))


@pytest.mark.parametrize(
    ("clean_to", "log_start", "void"), [(7, 0, True), (1, 2, True), (6, 0, False)]
)
def test_a_checkpoint_outside_of_the_log_is_void(
    log: CleanableLog, clean_to: int, log_start: int, void: bool
) -> None:
    found = log.cleanable(clean_to=clean_to, log_start=log_start)
    assert found.checkpoint_is_void is void
    assert found.first_dirty_offset == (log_start if void else clean_to)


@pytest.mark.parametrize(
    ("high_watermark", "end"), [(0, 0), (1, 0), (2, 2), (3, 2), (4, 4), (6, 4)]
)
def test_nothing_from_the_high_watermark_on_is_cleaned(
    log: CleanableLog, high_watermark: int, end: int
) -> None:
    assert log.cleanable(high_watermark=high_watermark).end_offset == end


def test_an_open_transaction_ends_what_can_be_cleaned(tmp_path: Path) -> None:
    log = CleanableLog(tmp_path / "t-0")
    log.write(
        [one(0)], [one(1, attributes=0x10, producer_id=7, producer_epoch=0)], [one(2)], [one(3)]
    )
    assert log.cleanable().end_offset == 1


def test_young_records_hold_their_segment_back(tmp_path: Path) -> None:
    log = CleanableLog(tmp_path / "t-0", {"min.compaction.lag.ms": "1000"})
    log.write(
        [one(0, NOW - 2000)],
        [one(1, NOW - 1000)],
        [one(2, NOW - 999)],
        [one(3, NOW - 5000)],
        [one(4)],
    )
    assert log.cleanable().end_offset == 2
    log.now += 1
    assert log.cleanable().end_offset == 4


def test_a_segment_without_timestamps_is_as_young_as_its_file(tmp_path: Path) -> None:
    log = CleanableLog(tmp_path / "t-0", {"min.compaction.lag.ms": "1000"})
    log.write([one(0, -1)], [one(1)])
    path = log.folder / f"{0:020d}.log"
    os.utime(path, ns=((NOW - 1000) * 10**6,) * 2)
    assert log.cleanable().end_offset == 1
    os.utime(path, ns=((NOW - 999) * 10**6,) * 2)
    assert log.cleanable().end_offset == 0


def test_the_maximum_lag_makes_a_log_due(tmp_path: Path) -> None:
    log = CleanableLog(tmp_path / "t-0", {"max.compaction.lag.ms": "1000"})
    log.write([one(0, NOW - 9999)], [one(1, NOW - 1200)], [one(2, NOW - 1500)], [one(3, 1)])
    log.clean_to = 1
    found = log.cleanable()
    assert found.delay_ms == 500
    assert found.is_due(1.0)
    log.clean_to = 3
    assert log.cleanable().delay_ms == 0
    assert not log.cleanable().is_due(1.0)


def test_a_folder_without_segments_has_nothing_to_clean(tmp_path: Path) -> None:
    arguments = {"clean_to": None, "log_start": 0, "log_end": 0, "high_watermark": 0}
    assert find_cleanable(tmp_path, LogConfig(), **arguments, now_ms=NOW) is None


def source(base: int, size: int = 10, index: int = 8, times: int = 12) -> SourceSegment:
    return SourceSegment(base, size, index, times, 0, None)  # type: ignore[arg-type]


def grouped(sources: list[SourceSegment], **limits: int) -> list[list[int]]:
    defaults = {"max_size": 1 << 30, "max_index_size": 1 << 30, "end_offset": 100}
    groups = group_segments(sources, **defaults | limits)
    return [[one.base_offset for one in group] for group in groups]


def test_groups_keep_each_limit() -> None:
    sources = [source(base) for base in range(5)]
    assert grouped(sources) == [[0, 1, 2, 3, 4]]
    assert grouped(sources, max_size=1) == [[0], [1], [2], [3], [4]]
    assert grouped(sources, max_index_size=1) == [[0], [1], [2], [3], [4]]
    assert grouped(sources, max_size=30) == [[0, 1, 2], [3, 4]]
    assert grouped(sources, max_index_size=24) == [[0, 1], [2, 3], [4]]
    assert grouped([source(b, times=0) for b in range(5)], max_index_size=24) == [[0, 1, 2], [3, 4]]
    assert grouped([]) == []


def test_groups_span_no_more_offsets_than_an_index() -> None:
    most = 2**31 - 1
    assert grouped([source(0), source(1)], end_offset=most + 1) == [[0, 1]]
    assert grouped([source(0), source(1)], end_offset=most + 2) == [[0], [1]]
    assert grouped([source(0), source(1), source(most + 1)], end_offset=1 << 40) == [
        [0, 1],
        [most + 1],
    ]
    assert grouped([source(0), source(1), source(most + 2)], end_offset=1 << 40) == [
        [0],
        [1],
        [most + 2],
    ]


def test_empty_segments_join_whatever_their_offsets() -> None:
    far = 2**33
    assert grouped([source(0), source(far, size=0), source(far + 1)], end_offset=far + 2) == [
        [0, far],
        [far + 1],
    ]
