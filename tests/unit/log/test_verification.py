"""Whatever is wrong with a segment or an index of it is found, and nothing else."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

import pytest
from tests.support.corpus import CAPTURED_LIVE, CASES, UnpackedCase
from tests.support.indexed_logs import write_indexed_segment
from tests.support.logs import Row

from kafkalog.streaming.log.log_dir import LogDirs
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segment_files import list_segments
from kafkalog.streaming.log.verification import find_problems

if TYPE_CHECKING:
    from pathlib import Path

INDEX, TIMES = ".index", ".timeindex"


@pytest.fixture
def segment(tmp_path: Path) -> LogSegment:
    """Give 20 batches of five records from offset 100 on, all but the first with entries."""
    batches = [([Row(b"x" * 100, timestamp=1000 + n)] * 5, 0) for n in range(20)]
    write_indexed_segment(tmp_path / "t-0", 100, batches, interval=1)
    return LogSegment(tmp_path / "t-0", 100)


def test_nothing_is_wrong_with_what_is_right(segment: LogSegment) -> None:
    assert find_problems(segment, None) == []
    assert find_problems(segment, 200) == []


def test_a_segment_that_reaches_into_the_next_one_is_told(segment: LogSegment) -> None:
    (problem,) = find_problems(segment, 199)
    assert "ends at offset 200, but the next segment begins at 199" in problem


def test_a_damaged_batch_ends_the_check(segment: LogSegment) -> None:
    data = bytearray(segment.path.read_bytes())
    data[-1] ^= 1
    segment.path.write_bytes(data)
    (problem,) = find_problems(segment, 150)
    assert "has a wrong checksum" in problem


@pytest.mark.parametrize("suffix", [INDEX, TIMES])
def test_a_missing_index_is_told(segment: LogSegment, suffix: str) -> None:
    path = segment.file(suffix)
    path.unlink()
    assert find_problems(segment, None) == [f"{path} is missing"]


def test_no_byte_of_an_index_may_be_other_than_it_is(segment: LogSegment) -> None:
    for suffix, size in ((INDEX, 8), (TIMES, 12)):
        path = segment.file(suffix)
        whole = path.read_bytes()
        for place in (*range(size), *range(8 * size, 9 * size), *range(-size, 0)):
            data = bytearray(whole)
            data[place] ^= 16
            path.write_bytes(data)
            problems = find_problems(segment, None)
            assert len(problems) == 1, (suffix, place)
            assert str(path) in problems[0]
        path.write_bytes(whole)


def test_entries_beyond_the_last_batch_are_told(segment: LogSegment) -> None:
    data = segment.path.read_bytes()
    segment.path.write_bytes(data[: len(data) // 20 * 18])
    found = " ".join(find_problems(segment, None))
    assert "entry 17 of 19 (offset 194, position" in found
    assert "entry 17 of 19 (offset 194, timestamp 1018)" in found


def test_the_zeros_of_a_preallocated_index_are_no_entries(segment: LogSegment) -> None:
    for suffix in (INDEX, TIMES):
        with segment.file(suffix).open("ab") as file:
            file.write(bytes(480))
    assert find_problems(segment, None) == []


@pytest.mark.parametrize("name", sorted(set(CASES) - CAPTURED_LIVE))
def test_nothing_is_wrong_with_what_brokers_left_in_order(name: str, tmp_path: Path) -> None:
    case = UnpackedCase(name, tmp_path)
    count = 0
    for found in LogDirs(case.path.split(",")).partitions().values():
        segments = list_segments(found.path)
        for segment, follower in zip_longest(segments, segments[1:]):
            count += 1
            assert find_problems(segment, follower and follower.base_offset) == []
    assert count
