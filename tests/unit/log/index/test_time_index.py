"""The time index: right answers from few pages, whatever the file holds."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
from benchmarks.page_counts import counted_pages
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.log_files import grow_with_zeros

from kafkalog.errors import CorruptIndexError
from kafkalog.streaming.log.indexes import TIME_ENTRY, TimeIndex, TimestampOffset

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000050.timeindex"


def _write(path: Path, *entries: tuple[int, int]) -> None:
    path.write_bytes(np.array(list(entries), TIME_ENTRY).tobytes())


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (-5, (-1, 50)),
        (999, (-1, 50)),
        (1000, (1000, 60)),
        (1999, (1000, 60)),
        (2000, (2000, 75)),
        (2**62, (2000, 75)),
    ],
)
def test_a_lookup_gives_the_last_entry_not_after(
    path: Path, timestamp: int, expected: tuple[int, int]
) -> None:
    _write(path, (1000, 10), (2000, 25))
    with TimeIndex(path, 50) as index:
        assert index.lookup(timestamp) == expected
        assert index.last_entry() == TimestampOffset(2000, 75)


def test_an_empty_index_knows_no_timestamp(path: Path) -> None:
    path.touch()
    with TimeIndex(path, 50) as index:
        assert index.lookup(5) == index.last_entry() == TimestampOffset(-1, 50)


@pytest.mark.parametrize("first", [(0, 3), (5, 0), (1_700_000_000_000, 0)])
@pytest.mark.parametrize("entries", [1, 2, 682, 683, 5000])
def test_written_entries_are_found_in_a_preallocated_file(
    path: Path, first: tuple[int, int], entries: int
) -> None:
    timestamp, offset = first
    _write(path, *((timestamp + i, offset + i) for i in range(entries)))
    grow_with_zeros(path, 10485756)
    with TimeIndex(path, 50) as index:
        assert len(index) == entries
        assert index.last_entry() == (timestamp + entries - 1, 50 + offset + entries - 1)


def test_a_preallocated_file_without_entries_has_none(path: Path) -> None:
    path.touch()
    grow_with_zeros(path, 10485756)
    with TimeIndex(path, 50) as index:
        assert len(index) == 0


@pytest.mark.parametrize(
    ("offset", "expected"), [(59, 0), (60, 1), (74, 1), (75, 2), (2**40, 2), (0, 0)]
)
def test_entries_up_to_an_offset_are_counted(path: Path, offset: int, expected: int) -> None:
    _write(path, (1000, 10), (2000, 25))
    with TimeIndex(path, 50) as index:
        assert index.count_through(offset) == expected


def test_hot_lookups_touch_three_pages_at_most(path: Path) -> None:
    _write(path, *((i * 10, i) for i in range(1, 200_000)))
    with TimeIndex(path, 0) as index, counted_pages() as read:
        for entry in range(199_999 - 682, 200_000):
            assert index.lookup(entry * 10 + 3).offset == entry
        assert read.pages <= 3


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(st.integers(1, 9), max_size=50),
    repeat=st.sampled_from([1, 30, 200]),
    zeros=st.integers(0, 2000),
    targets=st.lists(st.integers(-2, 60_000), min_size=1, max_size=20),
)
def test_lookups_answer_as_a_walk_over_all_entries(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[int],
    repeat: int,
    zeros: int,
    targets: list[int],
) -> None:
    path = tmp_path_factory.getbasetemp() / "00000000000000000050.timeindex"
    times = np.cumsum(steps * repeat).tolist()
    entries = [(time, slot) for slot, time in enumerate(times)]
    path.write_bytes(np.array(entries, TIME_ENTRY).tobytes() + bytes(12 * zeros))
    with TimeIndex(path, 50) as index:
        assert len(index) == len(entries)
        for target in targets:
            below = [(time, 50 + offset) for time, offset in entries if time <= target]
            assert index.lookup(target) == (below[-1] if below else (-1, 50))


@settings(max_examples=300, deadline=None)
@given(content=st.binary(max_size=400), target=st.integers(-(2**63), 2**63 - 1))
def test_any_bytes_are_answered_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, target: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "00000000000000000000.timeindex"
    path.write_bytes(content)
    with contextlib.suppress(CorruptIndexError), TimeIndex(path, 0) as index:
        with contextlib.suppress(CorruptIndexError):
            index.lookup(target)
        with contextlib.suppress(CorruptIndexError):
            index.count_through(target)
        index.last_entry()
