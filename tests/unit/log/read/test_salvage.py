"""Behind damage, reading goes on; nothing else is left out, and nothing without a word."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.log_files import FLIGHTS, append, cut, flip, make_batches, scan
from tests.support.logs import Row, batch_bytes
from tests.support.record_batches import patched

from kafkalog.errors import CorruptRecordError, DataLossError
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.read.salvage import Salvage
from kafkalog.streaming.log.read.slice_reader import read_slice
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.records.batch_rows import BatchDescriber
from kafkalog.streaming.records.columns import Columns, RecordDecoder

if TYPE_CHECKING:
    from pathlib import Path

END = 100
SMALL = LogConfig(segment_bytes=3700, index_interval_bytes=700)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A partition with offsets 0 to 99 in batches of five; the segments begin at 0 and 50."""
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [5] * 20), SMALL)
    assert [int(path.stem) for path in sorted(directory.glob("*.log"))] == [0, 50]
    return directory


def _log(directory: Path, base_offset: int = 0) -> Path:
    return directory / f"{base_offset:020d}.log"


def _batch(path: Path, number: int) -> tuple[int, int]:
    _, table = scan(path.read_bytes())
    return int(table.position[number]), int(table.size[number])


def _replace(path: Path, number: int, batch: bytes) -> None:
    position, size = _batch(path, number)
    data = path.read_bytes()
    path.write_bytes(data[:position] + batch + data[position + size :])


def _read(
    directory: Path, start: int = 0, end: int = END, *, pieces: int = 1
) -> tuple[list[int], Salvage]:
    salvage = Salvage(FLIGHTS)
    with PartitionLog(directory, FLIGHTS) as log:
        slices = [
            piece for whole in log.slices(start, end) for piece in log.split_slice(whole, pieces)
        ]
    decoder = RecordDecoder(Columns.OFFSET)
    rows = [
        offset
        for planned in slices
        for batch in read_slice(FLIGHTS, planned, decoder, salvage=salvage)
        for offset in batch.column("offset").to_pylist()
    ]
    return rows, salvage


def _without(*gone: range) -> list[int]:
    return [offset for offset in range(END) if not any(offset in each for each in gone)]


@pytest.mark.parametrize("pieces", [1, 4])
def test_a_sound_log_is_read_in_full_without_a_word(
    directory: Path, caplog: pytest.LogCaptureFixture, pieces: int
) -> None:
    rows, salvage = _read(directory, pieces=pieces)
    assert rows == list(range(END))
    assert (salvage.places, salvage.bytes, caplog.messages) == (0, 0, [])
    assert _read(directory, 7, 93, pieces=pieces)[0] == list(range(7, 93))


@pytest.mark.parametrize("number", [0, 4, 9])
def test_a_batch_that_does_not_match_its_checksum_is_skipped(
    directory: Path, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    position, size = _batch(_log(directory), number)
    flip(_log(directory), position + size - 1)
    rows, salvage = _read(directory)
    assert rows == _without(range(5 * number, 5 * number + 5))
    assert (salvage.places, salvage.bytes) == (1, size)
    (said,) = caplog.messages
    assert f"flights-0: skipped the batch at position {position} of {_log(directory)}" in said
    assert f"(offsets {5 * number} to {5 * number + 4} as its header says, {size} bytes)" in said
    assert "do not match its checksum" in said


def test_a_last_offset_that_is_damaged_hides_no_other_batch(directory: Path) -> None:
    position, _ = _batch(_log(directory), 3)
    flip(_log(directory), position + 23, 0x7F)  # the first byte of its last offset delta
    assert _read(directory)[0] == _without(range(15, 20))


@pytest.mark.parametrize(
    ("position", "replacement"),
    [(21, b"\0\4"), (61, b"\xff\xff\xff\xff\xff\xff"), (57, b"\0\0\0\6")],
    ids=["no zstd", "no length", "one record too few"],
)
def test_a_batch_with_records_that_cannot_be_decoded_is_skipped_whole(
    directory: Path, caplog: pytest.LogCaptureFixture, position: int, replacement: bytes
) -> None:
    row = Row(value=b"v" * 50)
    _replace(_log(directory), 3, patched(batch_bytes(15, [row] * 5), position, replacement))
    rows, salvage = _read(directory)
    assert rows == _without(range(15, 20))
    assert salvage.places == 1
    assert "is damaged: " in caplog.messages[0]


@pytest.mark.parametrize("offset", [0, 3, 1000, 2**40])
def test_a_batch_whose_offsets_do_not_fit_is_skipped(
    directory: Path, caplog: pytest.LogCaptureFixture, offset: int
) -> None:
    _replace(_log(directory), 3, batch_bytes(offset, [Row(value=b"v" * 50)] * 5))
    rows, _ = _read(directory)
    assert rows == _without(range(15, 20))
    assert "its offsets do not fit" in caplog.messages[0]


@pytest.mark.parametrize(
    ("at", "damage"),
    [(8, b"\0\0\0\0"), (8, b"\x7f\xff\xff\xff"), (8, b"\xff\xff\xff\xff"), (16, b"\x09")],
    ids=["size 0", "too large a size", "negative size", "no magic"],
)
def test_behind_bytes_without_a_size_the_index_says_where_to_go_on(
    directory: Path, caplog: pytest.LogCaptureFixture, at: int, damage: bytes
) -> None:
    path = _log(directory)
    position, _ = _batch(path, 3)
    with PartitionLog(directory, FLIGHTS) as log, log.segments[0] as segment:
        index = segment.offset_index()
        assert index is not None
        target = int(index.between(position, segment.size)[0, 1])
        header = segment.header_at(target)
        assert header is not None
    data = bytearray(path.read_bytes())
    data[position + at : position + at + len(damage)] = damage
    path.write_bytes(data)
    rows, salvage = _read(directory)
    assert rows == _without(range(15, header.offset))
    assert salvage.bytes == target - position
    (said,) = caplog.messages
    assert f"skipped {salvage.bytes} bytes at positions {position} to {target}" in said
    assert f"from 15 on and below {header.offset}" in said


def test_without_an_index_the_next_segment_is_where_to_go_on(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = _log(directory)
    position, _ = _batch(path, 3)
    path.with_suffix(".index").unlink()
    flip(path, position + 8)
    rows, _ = _read(directory)
    assert rows == _without(range(15, 50))
    assert any("below the next segment's first" in said for said in caplog.messages)


def test_splits_find_each_sound_row_once(directory: Path) -> None:
    for number in (2, 6):
        position, size = _batch(_log(directory), number)
        flip(_log(directory), position + size - 1)
    rows, _ = _read(directory, 3, 97, pieces=4)
    expected = _without(range(10, 15), range(30, 35))
    assert rows == [offset for offset in expected if 3 <= offset < 97]


def test_damage_at_the_end_of_the_log_is_said_as_well(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = _log(directory, 50)
    position, size = _batch(path, 9)
    cut(path, position + size - 3)
    rows, _ = _read(directory)
    assert rows == list(range(95))
    assert f"skipped {size - 3} bytes at positions {position}" in caplog.messages[0]
    assert "offsets [95, 100) are gone with the damage" in caplog.messages[1]


def test_a_truncated_log_is_a_loss_all_the_same(directory: Path) -> None:
    path = _log(directory, 50)
    cut(path, _batch(path, 9)[0])
    with pytest.raises(DataLossError, match=r"offsets \[95, 100\) are missing"):
        _read(directory)


def test_a_view_of_batches_shows_damaged_batches_and_passes_what_is_none(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = _log(directory)
    (first, size), (second, _) = _batch(path, 1), _batch(path, 9)
    flip(path, first + size - 1)
    flip(path, second + 8)
    with PartitionLog(directory, FLIGHTS) as log:
        planned = log.slices(0, END)[0]
    salvage = Salvage(FLIGHTS, check_records=False)
    rows = [
        row
        for batch in read_slice(FLIGHTS, planned, BatchDescriber(), salvage=salvage)
        for row in batch.to_pylist()
    ]
    assert [row["baseOffset"] for row in rows] == list(range(0, 45, 5))
    assert [row["crcValid"] for row in rows] == [True, False, *[True] * 7]
    assert len(caplog.messages) == 1
    with pytest.raises(CorruptRecordError):
        list(read_slice(FLIGHTS, planned, BatchDescriber()))


@pytest.mark.long
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 2**20), damage=st.binary(min_size=1, max_size=40))
def test_whatever_the_damage_is_reading_ends_and_what_lies_before_it_is_there(
    directory: Path, place: int, damage: bytes
) -> None:
    path = _log(directory)
    sound = path.read_bytes()
    _, table = scan(sound)
    place %= len(sound) - len(damage)
    path.write_bytes(sound[:place] + damage + sound[place + len(damage) :])
    try:
        rows, _ = _read(directory, pieces=3)
    finally:
        path.write_bytes(sound)
    before = 5 * int((table.end_position <= place).sum())
    assert rows[:before] == list(range(before))
    assert rows == sorted(set(rows))
    assert rows[-50:] == list(range(50, END))
