"""Whatever is wrong with a segment or an index of it is found, and nothing else."""

from __future__ import annotations

import struct
from itertools import zip_longest
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c
from tests.support.corpus import CAPTURED_LIVE, CASES, UnpackedCase
from tests.support.indexed_logs import LOG_APPEND_TIME, write_indexed_segment
from tests.support.logs import Row, write_segment
from tests.support.message_sets import gzip_stream, message

from kafkalog.errors import KafkaLogError
from kafkalog.streaming.log.read import verification
from kafkalog.streaming.log.read.verification import (
    RecordCheck,
    SegmentCheck,
    check_segment,
    check_segments,
)
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segments import LogSegments
from kafkalog.streaming.store.log_dirs import LogDirs

if TYPE_CHECKING:
    from collections.abc import Iterator
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


# ----------------------------------------------------------------------------------------------
# Small segments, of which many are checked at once, find what each would find alone.


def check_alone(segment: LogSegment, follower: LogSegment | None) -> SegmentCheck:
    try:
        return check_segment(segment, follower and follower.base_offset, records=RECORDS)
    except (KafkaLogError, OSError) as error:
        return SegmentCheck([str(error)], 0, 0, is_broken=True)


def check_together(*folders: Path) -> tuple[list[SegmentCheck], int]:
    """Check the segments of logs; also say how many of them were checked alone."""
    alone = []

    def counted(segment: LogSegment, follower: LogSegment | None) -> SegmentCheck:
        alone.append(segment)
        return check_alone(segment, follower)

    checked = check_segments(pairs_of(*folders), counted, RECORDS)
    return [check for _, check in checked], len(alone)


def each_alone(*folders: Path) -> list[SegmentCheck]:
    return [check_alone(*pair) for pair in pairs_of(*folders)]


def pairs_of(*folders: Path) -> Iterator[tuple[LogSegment, LogSegment | None]]:
    for folder in folders:
        segments = LogSegments.of(folder)
        yield from zip_longest(segments, segments[1:])


def write_small_segments(folder: Path) -> Path:
    """Write four segments of two batches, one of them of messages of magic 1 with a wrapper.

    The last two lie behind gaps, as a cleaner leaves them.
    """
    offset = 0
    for number in range(4):
        rows = [Row(b"v", timestamp=1000 + 10 * number + each) for each in range(2)]
        if number == 2:
            offset = _write_messages(folder, offset + 1)
        else:
            batches = [([row], LOG_APPEND_TIME * (number % 2)) for row in rows]
            offset += 3 * (number == 3)
            offset = write_indexed_segment(folder, offset, batches, interval=1)
    return folder


def _write_messages(folder: Path, base: int) -> int:
    plain = message(base, b"k", b"v", magic=1, timestamp=1020)
    inner = b"".join(message(n, b"k", b"v", magic=1, timestamp=1020 + n) for n in (0, 1))
    wrapper = message(base + 2, None, gzip_stream(inner), magic=1, timestamp=1021, attributes=1)
    path = write_segment(folder, base, plain + wrapper)
    path.with_suffix(INDEX).write_bytes(struct.pack(">ii", 2, len(plain)))
    path.with_suffix(TIMES).write_bytes(struct.pack(">qiqi", 1020, 0, 1021, 2))
    return base + 3


def damaged(data: bytes) -> Iterator[bytes]:
    """Give what may become of a small file: a byte that is wrong, a cut, more bytes."""
    for place in range(len(data)):
        for mask in (1, 128):
            yield data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :]
        yield data[:place]
    for more in (b"\0", bytes(8), bytes(12), bytes(24), b"\1" * 12, data):
        yield data + more


def overwrite(path: Path, data: bytes) -> None:
    """Give a file other bytes; one that is emptied first would be written to the disk."""
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()


def test_small_segments_are_checked_at_once(tmp_path: Path) -> None:
    folder = write_small_segments(tmp_path / "t-0")
    found, alone = check_together(folder)
    assert alone == 0
    assert found == each_alone(folder)
    assert [(len(check.problems), check.batches) for check in found] == [(0, 2)] * 4


def write_small_logs(folder: Path) -> list[Path]:
    """Write three logs of a few batches each; the second starts below the first's end."""
    for number, base in enumerate((9, 3, 4)):
        for first in (base, base + 5):
            batches = [([Row(b"v", timestamp=1000 + first)] * 2, 0)] * 2
            write_indexed_segment(folder / f"t-{number}", first, batches, interval=1)
    return sorted(folder.iterdir())


def test_small_logs_are_checked_at_once(tmp_path: Path) -> None:
    folders = write_small_logs(tmp_path)
    found, alone = check_together(*folders)
    assert alone == 0
    assert found == each_alone(*folders)
    assert [(len(check.problems), check.batches) for check in found] == [(0, 2)] * 6


def write_empty_segment(folder: Path, base: int) -> LogSegment:
    """Write what a broker or the sink makes before the first record."""
    write_segment(folder, base, b"")
    segment = LogSegment(folder, base)
    for kind in (INDEX, TIMES):
        segment.file(kind).touch()
    return segment


def test_empty_segments_are_checked_with_the_others(tmp_path: Path) -> None:
    """Before, between and behind others of a log, and alone in logs."""
    folders = write_small_logs(tmp_path / "filled")
    for folder, base in (*zip(folders, (2, 7, 99), strict=True), (folders[0], 99)):
        write_empty_segment(folder, base)
    folders = [*folders, *(tmp_path / f"e-{number}" for number in range(2))]
    for folder in folders[-2:]:
        write_empty_segment(folder, 5)
    for logs in (folders, folders[-2:], [folders[-1], *folders]):
        found, alone = check_together(*logs)
        assert alone == 0
        assert found == each_alone(*logs)
        assert not any(check.problems for check in found)


@pytest.mark.parametrize("kind", [INDEX, TIMES])
def test_entries_of_an_empty_segment_are_told(tmp_path: Path, kind: str) -> None:
    folders = [tmp_path / f"t-{number}" for number in range(3)]
    segments = [write_empty_segment(folder, 5) for folder in folders]
    segments[1].file(kind).write_bytes(struct.pack(">qi" if kind == TIMES else ">ii", 7, 3))
    assert [bool(check.problems) for check in check_together(*folders)[0]] == [False, True, False]


def test_a_missing_index_of_an_empty_segment_is_told(tmp_path: Path) -> None:
    folders = [tmp_path / f"t-{number}" for number in range(3)]
    segments = [write_empty_segment(folder, 5) for folder in folders]
    segments[1].file(INDEX).unlink()
    assert check_together(*folders)[0] == each_alone(*folders)
    assert [bool(check.problems) for check in each_alone(*folders)] == [False, True, False]


@pytest.mark.parametrize("suffix", [".log", INDEX, TIMES])
@pytest.mark.parametrize("number", [0, 3])
def test_small_logs_together_find_what_each_finds(tmp_path: Path, number: int, suffix: str) -> None:
    folders = write_small_logs(tmp_path)
    path = sorted(tmp_path.glob(f"t-*/*{suffix}"))[number]
    odd = 0
    whole = path.read_bytes()
    sound = each_alone(folders[0])
    for data in damaged(whole):
        overwrite(path, data)
        expected = [
            check
            for folder in folders
            for check in (each_alone(folder) if folder == path.parent else sound)
        ]
        assert check_together(*folders)[0] == expected, (path, data.hex())
        odd += any(check.problems or check.headers for check in expected)
    assert odd > len(whole)


def test_logs_of_old_messages_and_of_far_offsets_are_checked(tmp_path: Path) -> None:
    """What they hold is added up to more than 64 bits; offsets in messages cannot be moved."""
    far = tmp_path / "t-0"
    for base in (5, (1 << 63) - 9):
        write_indexed_segment(far, base, [([Row(b"v", timestamp=1000)], 0)])
    folders = [far, *(write_small_segments(tmp_path / f"t-{number}") for number in (1, 2))]
    for logs in ([folders[0]] * 2, folders[1:], folders):
        found, alone = check_together(*logs)
        assert alone == len(found)
        assert found == each_alone(*logs)
        assert not any(check.problems for check in found)


@pytest.mark.parametrize("suffix", [".log", INDEX, TIMES])
@pytest.mark.parametrize("number", range(4))
def test_small_segments_together_find_what_each_finds(
    tmp_path: Path, number: int, suffix: str
) -> None:
    folder = write_small_segments(tmp_path / "t-0")
    path = sorted(folder.glob(f"*{suffix}"))[number]
    whole = path.read_bytes()
    odd = 0
    for data in damaged(whole):
        overwrite(path, data)
        expected = each_alone(folder)
        assert check_together(folder)[0] == expected, (path.name, data.hex())
        odd += any(check.problems or check.headers for check in expected)
    assert odd > len(whole)


@pytest.mark.parametrize(
    ("suffix", "entries"),
    [
        (TIMES, struct.pack(">qiqi", 1001, -1, 1010, 0)),  # of the segment before
        (TIMES, struct.pack(">qi", -1, 1)),
        (TIMES, struct.pack(">qi", 1011, 9)),
        (INDEX, struct.pack(">ii", 1, 0)),
        (INDEX, struct.pack(">ii", 1, -8)),
        (INDEX, struct.pack(">ii", 5, 1 << 20)),
    ],
)
def test_entries_of_small_segments_lead_to_no_other_segment(
    tmp_path: Path, suffix: str, entries: bytes
) -> None:
    folder = write_small_segments(tmp_path / "t-0")
    sorted(folder.glob(f"*{suffix}"))[1].write_bytes(entries)
    found, _ = check_together(folder)
    assert found == each_alone(folder)


def test_an_entry_before_1970_is_told_though_a_batch_has_that_time(tmp_path: Path) -> None:
    for base in (0, 2, 4):
        write_indexed_segment(tmp_path / "t-0", base, [([Row(b"v", timestamp=-5)] * 2, 0)])
        (tmp_path / "t-0" / f"{base:020d}{TIMES}").write_bytes(struct.pack(">qi", -5, 1))
    found, _ = check_together(tmp_path / "t-0")
    assert found == each_alone(tmp_path / "t-0")
    assert all(check.problems for check in found)


def test_headers_of_small_segments_are_held_against_their_records(tmp_path: Path) -> None:
    folder = write_small_segments(tmp_path / "t-0")
    path = min(folder.glob("*.log"))
    data = bytearray(path.read_bytes())
    size = len(data) // 2
    data[35:43] = struct.pack(">q", 1007)  # the largest timestamp
    data[17:21] = struct.pack(">I", crc32c(data[21:size]))
    path.write_bytes(data)
    for segment in (path.with_suffix(TIMES), path.with_suffix(INDEX)):
        segment.write_bytes(b"")
    found, _ = check_together(folder)
    assert found == each_alone(folder)
    assert "has maximum timestamp 1007" in found[0].headers[0]


def test_a_batch_does_not_go_on_in_the_next_small_segment(tmp_path: Path) -> None:
    folder = write_small_segments(tmp_path / "t-0")
    first, second, *_ = sorted(folder.glob("*.log"))
    data = first.read_bytes()
    first.write_bytes(data[:-30])
    second.write_bytes(data[-30:] + second.read_bytes())
    for path in (first, second):
        path.with_suffix(INDEX).write_bytes(b"")
        path.with_suffix(TIMES).write_bytes(b"")
    found, _ = check_together(folder)
    assert found == each_alone(folder)
    assert all(check.problems for check in found[:2])


def test_a_segment_that_loses_a_file_or_its_place_is_told_amid_small_ones(tmp_path: Path) -> None:
    folder = write_small_segments(tmp_path / "t-0")
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        path.unlink()
        assert check_together(folder)[0] == each_alone(folder)
        path.write_bytes(data)
    second = sorted(folder.glob("*.log"))[1]
    for suffix in (".log", INDEX, TIMES):  # offsets that the one after it has, too
        second.with_suffix(suffix).rename(folder / f"{3:020d}{suffix}")
    for suffix in (INDEX, TIMES):
        (folder / f"{3:020d}{suffix}").write_bytes(b"")
    found, _ = check_together(folder)
    assert found == each_alone(folder)
    assert any(check.problems for check in found)
