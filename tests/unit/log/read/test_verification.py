"""Whatever is wrong with a segment or an index of it is found, and nothing else."""

from __future__ import annotations

import struct
from itertools import zip_longest
from typing import TYPE_CHECKING

import pytest
from tests.support.corpus import CAPTURED_LIVE, CASES, UnpackedCase
from tests.support.indexed_logs import write_indexed_segment
from tests.support.logs import Row, write_segment
from tests.support.message_sets import gzip_stream, message

from kafkalog.streaming.log.read import verification
from kafkalog.streaming.log.read.verification import RecordCheck, check_segment
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segments import LogSegments
from kafkalog.streaming.store.log_dirs import LogDirs

if TYPE_CHECKING:
    from pathlib import Path

INDEX, TIMES = ".index", ".timeindex"


RECORDS = RecordCheck()
"""Shared by all tests: what is found in one segment is said of no other."""


def find_problems(segment: LogSegment, next_base_offset: int | None) -> list[str]:
    checked = check_segment(segment, next_base_offset, records=RECORDS)
    return [*checked.problems, *checked.headers]


@pytest.fixture
def segment(tmp_path: Path) -> LogSegment:
    """Give 20 batches of five records from offset 100 on, all but the first with entries."""
    batches = [([Row(b"x" * 100, timestamp=1000 + n)] * 5, 0) for n in range(20)]
    write_indexed_segment(tmp_path / "t-0", 100, batches, interval=1)
    return LogSegment(tmp_path / "t-0", 100)


def test_nothing_is_wrong_with_what_is_right(segment: LogSegment) -> None:
    assert find_problems(segment, None) == []
    assert find_problems(segment, 200) == []


def test_nothing_to_decode_into_is_made_for_each_segment(
    segment: LogSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = RecordCheck()
    for name in ("BatchGroups", "RecordDecoder"):
        monkeypatch.delattr(verification, name)
    for _ in range(2):
        assert check_segment(segment, None, records=records).problems == []


def test_a_segment_that_reaches_into_the_next_one_is_told(segment: LogSegment) -> None:
    (problem,) = find_problems(segment, 199)
    assert "ends at offset 200, but the next segment begins at 199" in problem


def test_a_damaged_batch_ends_the_check(segment: LogSegment) -> None:
    data = bytearray(segment.path.read_bytes())
    data[-1] ^= 1
    segment.path.write_bytes(data)
    (problem,) = find_problems(segment, 150)
    assert "has a wrong checksum" in problem


def test_wrong_batches_are_told_from_wrong_indexes(segment: LogSegment) -> None:
    assert not check_segment(segment, 200).is_broken
    assert check_segment(segment, 199).is_broken
    segment.file(INDEX).unlink()
    checked = check_segment(segment, 200)
    assert (len(checked.problems), checked.is_broken) == (1, False)
    segment.path.write_bytes(segment.path.read_bytes()[:-1])
    assert check_segment(segment, 200).is_broken


def test_what_was_checked_is_counted(segment: LogSegment) -> None:
    checked = check_segment(segment, None)
    assert (checked.batches, checked.bytes) == (20, segment.size)


@pytest.mark.parametrize("follower", [None, 200])
def test_zeros_at_the_end_of_a_copy_of_a_live_log_are_no_damage(
    segment: LogSegment, follower: int | None
) -> None:
    size = segment.path.stat().st_size
    with segment.path.open("ab") as file:
        file.write(bytes(3_000_000))
    assert check_segment(segment, follower) == ([], 20, size, False, ())


def test_zeros_with_offsets_missing_after_them_are_damage(segment: LogSegment) -> None:
    with segment.path.open("ab") as file:
        file.write(bytes(500))
    assert len(find_problems(segment, 201)) == 1


def test_zeros_before_other_bytes_are_damage(segment: LogSegment) -> None:
    with segment.path.open("ab") as file:
        file.write(bytes(500) + b"x")
    assert len(find_problems(segment, None)) == 1


@pytest.mark.parametrize("suffix", [INDEX, TIMES])
def test_a_missing_index_is_told(segment: LogSegment, suffix: str) -> None:
    path = segment.file(suffix)
    path.unlink()
    (problem,) = find_problems(segment, None)
    assert problem.startswith(f"{path} is missing; readers do without it")


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


def test_entries_with_first_offsets_of_appends_are_right(segment: LogSegment) -> None:
    """Brokers up to 1.1 wrote them."""
    path = segment.file(INDEX)
    entries = [*struct.iter_unpack(">ii", path.read_bytes())]
    for back, right in ((4, True), (5, False)):
        moved = [(offset - back, position) for offset, position in entries]
        path.write_bytes(b"".join(struct.pack(">ii", *entry) for entry in moved))
        assert (find_problems(segment, None) == []) is right


@pytest.mark.parametrize("first", [3, 4, 5])
def test_entries_lead_to_messages_of_old_wherever_these_begin(first: int, tmp_path: Path) -> None:
    """A wrapper's header has its last offset; with LogAppendTime, magic 0 has entries of time."""
    plain = message(3, b"k", b"v", magic=0)
    inner = b"".join(message(offset, b"k", b"v", magic=0) for offset in (4, 5, 6))
    wrapper = message(6, None, gzip_stream(inner), magic=0, attributes=1)
    path = write_segment(tmp_path, 0, plain + wrapper)
    path.with_suffix(INDEX).write_bytes(struct.pack(">ii", first, len(plain)))
    path.with_suffix(TIMES).write_bytes(struct.pack(">qi", 4000, 3))
    problems = find_problems(LogSegment(tmp_path, 0), None)
    assert len(problems) == (1 if first == 3 else 0)


@pytest.mark.parametrize("name", sorted(set(CASES) - CAPTURED_LIVE))
def test_nothing_is_wrong_with_what_brokers_left_in_order(name: str, tmp_path: Path) -> None:
    case = UnpackedCase(name, tmp_path)
    count = 0
    for found in LogDirs(case.path.split(",")).partitions().values():
        segments = LogSegments.of(found.path)
        for segment, follower in zip_longest(segments, segments[1:]):
            count += 1
            assert find_problems(segment, follower and follower.base_offset) == []
    assert count
