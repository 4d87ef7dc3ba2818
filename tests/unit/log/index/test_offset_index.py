"""The offset index: right answers from few pages, whatever the file holds."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
from benchmarks.index_pages import INDEX_SIZES, plain_lookup, write_index
from benchmarks.page_counts import counted_pages
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.log_files import cut, grow_with_zeros

from kafkalog.errors import CorruptIndexError, LogDirectoryError
from kafkalog.files.open_file import LocalFile
from kafkalog.streaming.log.indexes import OFFSET_ENTRY, OffsetIndex, OffsetPosition

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000050.index"


def _write(path: Path, *entries: tuple[int, int]) -> None:
    path.write_bytes(np.array(list(entries), OFFSET_ENTRY).tobytes())


def test_offsets_are_stored_relative_to_the_base_offset(path: Path) -> None:
    path.write_bytes(bytes.fromhex("00000005 00001075"))
    with OffsetIndex(path, 50) as index:
        assert index.last_entry() == OffsetPosition(55, 4213)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(0, (50, 0)), (59, (50, 0)), (60, (60, 100)), (61, (60, 100)), (80, (80, 300)), (2**62, 2)],
)
def test_a_lookup_gives_the_last_entry_not_above(
    path: Path, offset: int, expected: tuple[int, int] | int
) -> None:
    _write(path, (10, 100), (20, 200), (30, 300))
    with OffsetIndex(path, 50) as index:
        assert index.lookup(offset) == (expected if isinstance(expected, tuple) else (80, 300))


def test_an_empty_index_sends_to_the_beginning(path: Path) -> None:
    path.touch()
    with OffsetIndex(path, 50) as index:
        assert index.lookup(99) == index.last_entry() == OffsetPosition(50, 0)
        assert index.end_position(0) is None
        assert index.between(0, 1000).tolist() == []


@pytest.mark.parametrize(
    ("end", "expected"),
    [(50, 200), (61, 200), (62, 300), (71, 300), (72, None), (100, None)],
)
def test_nothing_below_an_end_offset_lies_at_or_behind_its_end_position(
    path: Path, end: int, expected: int | None
) -> None:
    # the batch at 100 ends at offset 60, so that what follows it starts above 60
    _write(path, (10, 100), (20, 200), (30, 300))
    with OffsetIndex(path, 50) as index:
        assert index.end_position(end) == expected


def test_entries_between_positions_are_given_with_absolute_offsets(path: Path) -> None:
    _write(path, (10, 100), (20, 200), (30, 300))
    with OffsetIndex(path, 50) as index:
        assert index.between(100, 300).tolist() == [[70, 200]]
        assert index.between(99, 301).tolist() == [[60, 100], [70, 200], [80, 300]]
        assert index.between(300, 300).tolist() == []


@pytest.mark.parametrize("entries", [0, 1, 2, 511, 512, 1023, 1024, 1025, 4000])
@pytest.mark.parametrize("slots", [4096, 1310720])
def test_written_entries_are_found_in_a_preallocated_file(
    path: Path, entries: int, slots: int
) -> None:
    write_index(path, entries)
    grow_with_zeros(path, slots * 8)
    with counted_pages() as read, OffsetIndex(path, 0) as index:
        assert len(index) == entries
        assert read.bytes_read < 1000
        for offset in (0, 99, 100, 51_234, 102_400, 400_000, 2**40):
            assert index.lookup(offset) == plain_lookup(index, offset)


def test_bytes_of_half_an_entry_are_left_out(path: Path) -> None:
    write_index(path, 3)
    cut(path, 19)
    with OffsetIndex(path, 0) as index:
        assert len(index) == 2


@pytest.mark.parametrize("entries", INDEX_SIZES)
def test_hot_lookups_touch_three_pages_at_most_and_cold_ones_few(path: Path, entries: int) -> None:
    write_index(path, entries)
    with OffsetIndex(path, 0) as index, counted_pages() as read:
        for entry in range(max(0, entries - 1024), entries + 1):
            assert index.lookup(entry * 100 + 7).position == entry * 1024
        hot = read.pages
        read.reset()
        index.lookup(0)
        cold = read.pages
        read.reset()
        plain_lookup(index, entries * 100)
        plain = read.pages
    assert hot <= 3
    assert cold <= hot + max(1, entries.bit_length() - 7)
    assert hot <= max(3, plain)
    if entries == INDEX_SIZES[-1]:
        assert plain == 12


def test_the_warm_section_is_one_read(path: Path) -> None:
    write_index(path, 5000)
    with OffsetIndex(path, 0) as index, counted_pages() as read:
        index.lookup(5000 * 100)
        assert (read.calls, read.bytes_read) == (2, 8200 + 8)


_ascending = st.lists(st.integers(1, 50), max_size=60).map(lambda steps: np.cumsum(steps).tolist())


@pytest.mark.long
@settings(max_examples=200)
@given(
    offsets=_ascending,
    repeat=st.sampled_from([1, 40, 400]),
    zeros=st.integers(0, 3000),
    targets=st.lists(st.integers(0, 70_000), min_size=1, max_size=20),
)
def test_the_warm_search_answers_as_a_plain_search(
    tmp_path_factory: pytest.TempPathFactory,
    offsets: list[int],
    repeat: int,
    zeros: int,
    targets: list[int],
) -> None:
    path = tmp_path_factory.getbasetemp() / "00000000000000001000.index"
    many = [offset + 3000 * turn for turn in range(repeat) for offset in offsets]
    entries = np.array([(o, 7 * i + 7) for i, o in enumerate(many)], OFFSET_ENTRY)
    path.write_bytes(entries.tobytes() + bytes(8 * zeros))
    with OffsetIndex(path, 1000) as index:
        assert len(index) == len(many)
        for target in (*targets, *(1000 + t % 3000 * repeat for t in targets)):
            expected = plain_lookup(index, target)
            assert index.lookup(target) == expected


def test_an_index_that_a_search_reads_whole_is_read_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(path, (1, 100), (2, 200), (3, 300))
    reads = []
    read = LocalFile.read
    monkeypatch.setattr(LocalFile, "read", lambda *given: reads.append(given) or read(*given))
    with OffsetIndex(path, 50) as index:
        index.limit(1000)
        assert (index.lookup(52), index.end_position(51)) == (OffsetPosition(52, 200), 200)
    assert len(reads) == 1


def test_entries_beyond_the_end_of_the_log_are_forgotten(path: Path) -> None:
    write_index(path, 3000)
    with OffsetIndex(path, 0) as index:
        index.limit(2000 * 1024 + 1)
        assert len(index) == 2000
        index.limit(2000 * 1024)
        assert len(index) == 1999
        index.limit(0)
        assert len(index) == 0


@pytest.mark.parametrize("entry", [(-1, 100), (10, -100)])
def test_a_negative_last_entry_is_refused(path: Path, entry: tuple[int, int]) -> None:
    _write(path, (5, 50), entry)
    with pytest.raises(CorruptIndexError, match="makes it anew"):
        OffsetIndex(path, 50)


@pytest.mark.parametrize("entries", [3, 3000])
def test_entries_that_do_not_ascend_are_refused_where_they_are_read(
    path: Path, entries: int
) -> None:
    write_index(path, entries)
    content = np.fromfile(path, OFFSET_ENTRY)
    content["offset"][-2] = content["offset"][-3]
    path.write_bytes(content.tobytes())
    with OffsetIndex(path, 0) as index, pytest.raises(CorruptIndexError, match="does not follow"):
        index.lookup(entries * 100)


def test_a_file_that_shrinks_under_a_reader_is_an_error_with_a_name(path: Path) -> None:
    write_index(path, 3000)
    with OffsetIndex(path, 0) as index:
        cut(path, 16384)
        with pytest.raises(CorruptIndexError, match="truncated it meanwhile"):
            index.lookup(300_000)


def test_a_file_that_shrinks_while_it_is_opened_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(path, (1, 100), (2, 200))
    monkeypatch.setattr(OffsetIndex, "_check_size", lambda *_: path.write_bytes(b""))
    with pytest.raises(CorruptIndexError, match="truncated it meanwhile"):
        OffsetIndex(path, 50)


def test_a_link_is_no_index(path: Path) -> None:
    path.symlink_to("/dev/zero")
    with pytest.raises(LogDirectoryError):
        OffsetIndex(path, 50)


@settings(max_examples=300)
@given(content=st.binary(max_size=400), targets=st.lists(st.integers(0, 2**63 - 1), max_size=5))
def test_any_bytes_are_answered_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, targets: list[int]
) -> None:
    path = tmp_path_factory.getbasetemp() / "00000000000000000000.index"
    path.write_bytes(content)
    with contextlib.suppress(CorruptIndexError), OffsetIndex(path, 0) as index:
        for target in targets:
            with contextlib.suppress(CorruptIndexError):
                index.lookup(target)
            with contextlib.suppress(CorruptIndexError):
                index.end_position(target)
            with contextlib.suppress(CorruptIndexError):
                index.between(0, target % 2**31)
        with contextlib.suppress(CorruptIndexError):
            index.limit(100)


def test_an_index_that_no_broker_would_open_is_not_read(path: Path) -> None:
    """Kafka's sizes are int32: what is larger has a hole, and a last entry at its end may lie."""
    _write(path, (1, 100))
    with path.open("r+b") as file:
        file.seek(1 << 40)
        file.write(b"\1" * 8)
    with pytest.raises(CorruptIndexError, match="an index has at most 2147483647; readers do"):
        OffsetIndex(path, 50)
