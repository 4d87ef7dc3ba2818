"""One segment: seeking costs little, whole batches come, indexes are only hints."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
from benchmarks.page_counts import counted_pages
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.log_files import append, cut, flip, grow_with_zeros, make_batches, scan
from tests.support.logs import write_segment
from tests.support.message_sets import GZIP, gzip_stream, message

from kafkalog.errors import CorruptRecordError, LogDirectoryError
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.options.topic_settings import LogConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kafkalog.streaming.log.segment import Chunk


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A partition of 40 batches of 5 records, with an index entry for every second batch."""
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [5] * 40), LogConfig(index_interval_bytes=400))
    return directory


def _offsets(chunks: list[Chunk]) -> list[int]:
    return [base for chunk in chunks for base in chunk.table.base_offset.tolist()]


def test_an_offset_is_translated_to_the_first_batch_that_reaches_it(directory: Path) -> None:
    _, table = scan((directory / f"{0:020d}.log").read_bytes())
    with LogSegment(directory, 0) as segment:
        for offset in range(200):
            assert segment.translate_offset(offset) == table.position[offset // 5]
        assert segment.translate_offset(200) is None


def test_an_offset_in_a_gap_is_translated_to_the_batch_behind_it(tmp_path: Path) -> None:
    data = make_batches(10, [5]) + make_batches(100, [5])
    (tmp_path / f"{0:020d}.log").write_bytes(data)
    with LogSegment(tmp_path, 0) as segment:
        assert segment.translate_offset(0) == 0
        assert segment.translate_offset(15) == len(data) // 2
        assert segment.translate_offset(105) is None


def test_seeking_reads_no_more_than_headers(directory: Path) -> None:
    with LogSegment(directory, 0) as segment, counted_pages() as read:
        assert segment.offset_index() is not None
        headers: list[int] = []
        walk = segment.header_at
        segment.header_at = lambda p: headers.append(p) or walk(p)  # type: ignore[method-assign, func-returns-value]
        for offset in range(200):
            headers.clear()
            read.reset()
            segment.translate_offset(offset)
            assert len(headers) <= 4
            assert read.pages <= 3


def test_chunks_hold_whole_batches_in_order(directory: Path) -> None:
    size = (directory / f"{0:020d}.log").stat().st_size
    for chunk_bytes in (1, 100, 1000, size - 1, size, 1 << 20):
        with LogSegment(directory, 0) as segment:
            chunks = list(segment.chunks(0, chunk_bytes=chunk_bytes))
        assert _offsets(chunks) == list(range(0, 200, 5))
        assert sum(len(chunk.data) for chunk in chunks) == size
        assert all(chunk.table.position[0] == chunk.file_position for chunk in chunks)
        assert max(len(chunk.data) for chunk in chunks) <= max(chunk_bytes, size // 40)


def test_the_batch_that_straddles_the_end_is_the_last(directory: Path) -> None:
    with LogSegment(directory, 0) as segment:
        size = segment.size // 40
        for end in range(1, 3 * size):
            expected = [0, 5, 10][: -(-end // size)]
            assert _offsets(list(segment.chunks(0, end))) == expected
        assert list(segment.chunks(size, size)) == []


def test_a_batch_larger_than_a_chunk_comes_alone(tmp_path: Path) -> None:
    data = make_batches(0, [1, 1]) + make_batches(2, [1], value_bytes=5000) + make_batches(3, [1])
    (tmp_path / f"{0:020d}.log").write_bytes(data)
    with LogSegment(tmp_path, 0) as segment:
        chunks = list(segment.chunks(0, chunk_bytes=400))
    assert [chunk.table.base_offset.tolist() for chunk in chunks] == [[0, 1], [2], [3]]


def test_a_length_beyond_the_file_allocates_nothing(tmp_path: Path) -> None:
    data = bytearray(make_batches(0, [1, 1]))
    data[8:12] = struct.pack(">i", 2**31 - 1)
    (tmp_path / f"{0:020d}.log").write_bytes(data)
    with LogSegment(tmp_path, 0) as segment:
        assert list(segment.chunks(0)) == []
        assert list(segment.headers(0)) == []


def test_a_torn_batch_ends_the_chunks_without_a_word(directory: Path) -> None:
    path = directory / f"{0:020d}.log"
    size = path.stat().st_size
    for missing in (1, 50, size // 40 - 1):
        cut(path, size - missing)
        with LogSegment(directory, 0) as segment:
            assert _offsets(list(segment.chunks(0))) == list(range(0, 195, 5))


def test_bytes_that_cannot_be_a_batch_are_an_error_behind_those_before(directory: Path) -> None:
    path = directory / f"{0:020d}.log"
    size = path.stat().st_size
    grow_with_zeros(path, size + 1000)
    seen: list[Chunk] = []
    with LogSegment(directory, 0) as segment, pytest.raises(CorruptRecordError) as raised:
        seen.extend(segment.chunks(0))
    assert raised.value.position == size
    assert raised.value.path == str(path)


@pytest.mark.parametrize("base_offset", [0, 9, 10, 2**40, -5])
def test_offsets_that_do_not_ascend_are_an_error(tmp_path: Path, base_offset: int) -> None:
    data = bytearray(make_batches(10, [5, 5, 5]))
    struct.pack_into(">q", data, len(data) // 3, base_offset)
    (tmp_path / f"{10:020d}.log").write_bytes(data)
    with LogSegment(tmp_path, 10) as segment:
        chunks = segment.chunks(0)
        assert next(chunks).table.base_offset.tolist() == [10]
        with pytest.raises(CorruptRecordError) as raised:
            next(chunks)
    assert raised.value.position == len(data) // 3


@settings(max_examples=100)
@given(st.binary(max_size=300), st.integers(0, 100), st.integers(1, 500))
def test_any_bytes_are_walked_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, start: int, chunk_bytes: int
) -> None:
    directory = tmp_path_factory.getbasetemp()
    (directory / f"{0:020d}.log").write_bytes(content)
    with LogSegment(directory, 0) as segment:
        list(segment.headers(start))
        try:
            chunks = list(segment.chunks(start, chunk_bytes=chunk_bytes))
        except CorruptRecordError as error:
            assert error.position >= start  # noqa: PT017 - either way is fine
            return
    assert sum(len(chunk.data) for chunk in chunks) <= max(0, len(content) - start)


# Indexes that are missing, stale or wrong


def _without_index(directory: Path) -> None:
    (directory / f"{0:020d}.index").unlink()


def _with_a_wrong_position(directory: Path) -> None:
    path = directory / f"{0:020d}.index"
    entries = np.fromfile(path, ">i4").reshape(-1, 2)
    entries[:, 1] += 3
    path.write_bytes(entries.tobytes())


def _with_a_wrong_offset(directory: Path) -> None:
    path = directory / f"{0:020d}.index"
    entries = np.fromfile(path, ">i4").reshape(-1, 2)
    entries[:, 0] -= 9
    path.write_bytes(entries.tobytes())


def _in_disorder(directory: Path) -> None:
    path = directory / f"{0:020d}.index"
    entries = np.fromfile(path, ">i4").reshape(-1, 2)
    path.write_bytes(entries[::-1].tobytes())


def _of_garbage(directory: Path) -> None:
    (directory / f"{0:020d}.index").write_bytes(b"\xa5" * 800)


@pytest.mark.parametrize(
    "harm",
    [_without_index, _with_a_wrong_position, _with_a_wrong_offset, _in_disorder, _of_garbage],
)
def test_a_bad_index_costs_a_scan_and_a_warning_and_no_wrong_answer(
    directory: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    _, table = scan((directory / f"{0:020d}.log").read_bytes())
    harm(directory)
    for offset in range(0, 200, 7):
        with LogSegment(directory, 0) as segment:
            assert segment.translate_offset(offset) == table.position[offset // 5]
            assert segment.end_position(offset) > table.position[max(0, offset - 1) // 5]
    assert str(directory) in caplog.text
    assert len(caplog.records) == len(set(caplog.messages))


def test_a_preallocated_index_is_as_good_as_a_trimmed_one(directory: Path) -> None:
    _, table = scan((directory / f"{0:020d}.log").read_bytes())
    grow_with_zeros(directory / f"{0:020d}.index", 10485760)
    with LogSegment(directory, 0) as segment:
        for offset in range(200):
            assert segment.translate_offset(offset) == table.position[offset // 5]
        index = segment.offset_index()
        assert index is not None
        assert len(index) > 10


def test_an_index_that_is_ahead_of_a_copied_log_is_used_as_far_as_it_fits(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = directory / f"{0:020d}.log"
    _, table = scan(path.read_bytes())
    cut(path, int(table.position[20]))
    with LogSegment(directory, 0) as segment:
        assert segment.translate_offset(99) == table.position[19]
        assert segment.translate_offset(100) is None
        assert segment.end_position(150) == table.position[20]
    assert not caplog.records


def test_damage_on_the_way_to_an_offset_is_an_error(directory: Path) -> None:
    path = directory / f"{0:020d}.log"
    _, table = scan(path.read_bytes())
    (directory / f"{0:020d}.index").unlink()
    flip(path, int(table.position[3]) + 16)  # its magic
    with LogSegment(directory, 0) as segment:
        assert segment.translate_offset(14) == table.position[2]
        with pytest.raises(CorruptRecordError):
            segment.translate_offset(15)


def test_a_torn_tail_is_not_taken_for_a_gap(directory: Path) -> None:
    path = directory / f"{0:020d}.log"
    cut(path, path.stat().st_size - 1)
    for _ in range(2):
        with LogSegment(directory, 0) as segment:
            assert segment.translate_offset(194) is not None
            with pytest.raises(CorruptRecordError, match="no whole batch"):
                segment.translate_offset(199)
        (directory / f"{0:020d}.index").unlink(missing_ok=True)


# Files that change or are none


def test_a_segment_stays_readable_when_it_is_renamed_or_unlinked(directory: Path) -> None:
    path = directory / f"{0:020d}.log"
    with LogSegment(directory, 0) as segment:
        assert segment.size
        path.rename(path.with_suffix(".log.deleted"))
        assert _offsets(list(segment.chunks(0))) == list(range(0, 200, 5))
        path.with_suffix(".log.deleted").unlink()
        assert segment.translate_offset(100) is not None


def test_a_file_that_shrinks_under_a_reader_ends_earlier(directory: Path) -> None:
    path = directory / f"{0:020d}.log"
    with LogSegment(directory, 0) as segment:
        chunks = segment.chunks(0, chunk_bytes=500)
        first = next(chunks)
        cut(path, len(first.data) + 10)
        assert list(chunks) == []


def _link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _link_inside(path: Path) -> None:
    path.symlink_to("elsewhere")


def _use_everything(segment: LogSegment) -> None:
    segment.translate_offset(50)
    segment.time_index()


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
@pytest.mark.parametrize("plant", [os.mkfifo, _link_to_a_device, _link_inside])
def test_what_is_no_regular_file_is_refused(
    directory: Path, suffix: str, plant: Callable[[Path], None]
) -> None:
    path = directory / f"{0:020d}{suffix}"
    path.rename(directory / "elsewhere")
    plant(path)
    with LogSegment(directory, 0) as segment, pytest.raises(LogDirectoryError, match=path.name):
        _use_everything(segment)


def test_a_missing_segment_is_said_to_be_missing(tmp_path: Path) -> None:
    with LogSegment(tmp_path, 0) as segment, pytest.raises(FileNotFoundError):
        _ = segment.size


@pytest.mark.parametrize("magic", [0, 1])
def test_an_entry_with_the_first_offset_of_a_wrapper_is_followed(
    magic: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Brokers up to 1.1 wrote that; a wrapper's own offset is its last message's."""
    wrappers = [wrapper(first, 10, magic) for first in range(0, 50, 10)]
    starts = np.cumsum([0, *map(len, wrappers)]).tolist()
    entries = [(first, starts[first // 10]) for first in (20, 40)]
    path = write_segment(tmp_path, 0, b"".join(wrappers))
    path.with_suffix(".index").write_bytes(b"".join(struct.pack(">ii", *e) for e in entries))
    with LogSegment(tmp_path, 0) as segment:
        for offset in range(50):
            assert segment.floor_position(offset) == starts[offset // 20 * 2]
            assert segment.translate_offset(offset) == starts[offset // 10]
    assert caplog.text == ""


@pytest.mark.parametrize("magic", [0, 1])
def test_an_entry_below_the_first_offset_of_a_wrapper_is_not_followed(
    magic: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is of another log: what lies before the wrapper would be passed over."""
    wrappers = [wrapper(first, 10, magic) for first in range(0, 50, 10)]
    path = write_segment(tmp_path, 0, b"".join(wrappers))
    entry = struct.pack(">ii", 5, sum(map(len, wrappers[:3])))
    path.with_suffix(".index").write_bytes(entry)
    with LogSegment(tmp_path, 0) as segment:
        assert segment.translate_offset(15) == len(wrappers[0])
    assert "where no batch with that offset starts" in caplog.text


def test_a_negative_position_in_an_index_costs_a_scan(directory: Path) -> None:
    path = directory / f"{0:020d}.index"
    first, *rest = struct.iter_unpack(">ii", path.read_bytes())
    entries = [(first[0], -first[1]), *rest]
    path.write_bytes(b"".join(struct.pack(">ii", *entry) for entry in entries))
    _, table = scan((directory / f"{0:020d}.log").read_bytes())
    with LogSegment(directory, 0) as segment:
        for offset in range(200):
            assert segment.translate_offset(offset) == table.position[offset // 5]


def wrapper(first: int, count: int, magic: int) -> bytes:
    """Make a compressed message set; of magic 1 with relative offsets inside."""
    inner = b"".join(
        message(number if magic else first + number, b"k", b"value", magic=magic, timestamp=7)
        for number in range(count)
    )
    last = first + count - 1
    return message(last, None, gzip_stream(inner), magic=magic, timestamp=7, attributes=GZIP)
