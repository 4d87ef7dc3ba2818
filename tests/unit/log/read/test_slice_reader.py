"""A planned slice is read to its end, whatever became of its file meanwhile, or fails."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from tests.support.log_files import (
    FLIGHTS,
    append,
    cut,
    flip,
    grow_with_zeros,
    make_batches,
    scan,
)
from tests.support.logs import Row, batch_bytes

from kafkalog.errors import (
    ChecksumMismatchError,
    CorruptRecordError,
    DataLossError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.read.slice_reader import read_slice
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.records.columns import Columns, RecordDecoder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kafkalog.streaming.log.read.slice_reader import SegmentSlice

SMALL = LogConfig(segment_bytes=3700, index_interval_bytes=400)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A partition with offsets 0 to 199; the segments begin at 0, 50, 100 and 150."""
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [5] * 40), SMALL)
    assert [int(path.stem) for path in _logs(directory)] == [0, 50, 100, 150]
    return directory


def _logs(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def _log(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}.log"


def _plan(directory: Path, start: int, end: int) -> SegmentSlice:
    with PartitionLog(directory, FLIGHTS) as log:
        (planned,) = log.slices(start, end)
    return planned


def _read(planned: SegmentSlice, committed_end: int | None = None) -> list[int]:
    decoder = RecordDecoder(Columns.OFFSET)
    batches = read_slice(FLIGHTS, planned, decoder, committed_end=committed_end)
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_small_batches_share_an_arrow_batch(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [1] * 3000, value_bytes=1000))
    planned = _plan(directory, 0, 3000)
    sizes = [b.num_rows for b in read_slice(FLIGHTS, planned, RecordDecoder(Columns.OFFSET))]
    assert sizes == [3000]


def test_gaps_are_no_loss(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    directory.mkdir()
    holes = batch_bytes(10, [Row()] * 3, deltas=[0, 4, 9])
    _log(directory, 5).write_bytes(holes + batch_bytes(40, [Row()]))
    _log(directory, 60).touch()
    _log(directory, 80).write_bytes(batch_bytes(85, [Row()]))
    with PartitionLog(directory, FLIGHTS) as log:
        slices = log.slices(5, 86)
    assert [_read(planned) for planned in slices] == [[10, 14, 19, 40], [85]]
    assert [(s.start_offset, s.end_offset) for s in slices] == [(5, 60), (80, 86)]


# Files that were replaced


def _compact(directory: Path, base_offset: int, *, keep: Callable[[int], bool]) -> None:
    """Put a compacted file in a segment's place, as a cleaner does."""
    path = _log(directory, base_offset)
    data, table = scan(path.read_bytes())
    kept = b"".join(
        data[position : position + size].tobytes()
        for position, size, base in zip(
            table.position.tolist(), table.size.tolist(), table.base_offset.tolist(), strict=True
        )
        if keep(base)
    )
    swap = path.with_suffix(".log.swap")
    swap.write_bytes(kept)
    path.rename(path.with_suffix(".log.deleted"))
    swap.rename(path)
    path.with_suffix(".index").write_bytes(b"")


def test_a_segment_that_was_compacted_since_is_sought_again_by_offset(directory: Path) -> None:
    planned = _plan(directory, 72, 96)
    _compact(directory, 50, keep=lambda base: base in {60, 80, 85})
    assert _read(planned) == list(range(80, 90))


def test_a_segment_that_was_emptied_since_is_a_gap(directory: Path) -> None:
    planned = _plan(directory, 72, 96)
    _compact(directory, 50, keep=lambda base: False)
    assert _read(planned) == []


def test_segments_that_were_merged_since_are_found_in_the_first(directory: Path) -> None:
    planned = _plan(directory, 72, 96)
    merged = _log(directory, 0).read_bytes() + _log(directory, 50).read_bytes()
    for base in (0, 50):
        for path in directory.glob(f"{base:020d}.*"):
            path.unlink()
    _log(directory, 0).write_bytes(merged)
    assert _read(planned) == list(range(72, 96))


def test_a_swap_that_a_killed_broker_left_is_what_it_would_finish(directory: Path) -> None:
    """Old files of the range are dead, though some have their names still."""
    swap = _log(directory, 0).with_suffix(".log.swap")
    swap.write_bytes(make_batches(0, [5]) + make_batches(95, [5]))
    _log(directory, 0).unlink()
    with PartitionLog(directory, FLIGHTS) as log:
        slices = log.slices(0, 200)
        assert [s.base_offset for s in slices] == [0, 100, 150]
        found = [offset for planned in slices for offset in _read(planned)]
    assert found == [*range(5), *range(95, 200)]
    swap.rename(_log(directory, 0))
    assert _read(slices[0]) == [*range(5), *range(95, 100)]


def test_a_swap_that_is_not_decided_yet_is_none(directory: Path) -> None:
    _log(directory, 0).with_suffix(".log.cleaned").write_bytes(b"")
    _log(directory, 50).with_suffix(".log.swap").write_bytes(b"")
    with PartitionLog(directory, FLIGHTS) as log:
        assert [segment.base_offset for segment in log.segments] == [0, 50, 100, 150]
        assert log.segments[1].size > 0


def test_a_file_renamed_after_it_was_opened_is_read_on(directory: Path) -> None:
    planned = _plan(directory, 50, 100)
    batches = read_slice(FLIGHTS, planned, RecordDecoder(Columns.OFFSET, max_rows=10))
    first = next(batches).num_rows
    _log(directory, 50).rename(directory / "gone.deleted")
    assert first + sum(batch.num_rows for batch in batches) == 50


def test_another_file_with_the_same_inode_is_sought_again_by_offset(directory: Path) -> None:
    """File systems give the inode of a deleted file to the next one that is made."""
    planned = _plan(directory, 72, 96)
    assert planned.start_position > 0
    path = _log(directory, 50)
    data, table = scan(path.read_bytes())
    batch = int(table.size[0])
    # compacted: at the planned position a later batch starts now
    path.write_bytes(data[: 2 * batch].tobytes() + data[4 * batch :].tobytes())
    path.with_suffix(".index").write_bytes(b"")
    assert _read(planned) == list(range(72, 96))
    path.write_bytes(data[:batch].tobytes())
    assert _read(planned) == []


def test_a_gap_at_the_end_of_a_segment_stays_one_when_retention_deletes_it(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    directory.mkdir()
    _log(directory, 0).write_bytes(batch_bytes(0, [Row()]) + batch_bytes(5, [Row()]))
    _log(directory, 60).write_bytes(batch_bytes(60, [Row()]))
    planned = _plan(directory, 0, 60)
    batches = read_slice(FLIGHTS, planned, RecordDecoder(Columns.OFFSET, max_rows=1))
    assert next(batches).column("offset").to_pylist() == [0]
    _log(directory, 0).unlink()
    assert [batch.num_rows for batch in batches] == [1]


def test_a_segment_that_retention_deleted_is_out_of_range(directory: Path) -> None:
    planned = _plan(directory, 52, 96)
    _log(directory, 0).unlink()
    _log(directory, 50).unlink()
    with pytest.raises(OffsetOutOfRangeError, match="flights-0: offset 52 is gone") as raised:
        _read(planned)
    assert (raised.value.offset, raised.value.log_start_offset) == (52, 100)


def test_a_log_without_segments_any_more_is_out_of_range(directory: Path) -> None:
    planned = _plan(directory, 52, 96)
    for path in _logs(directory):
        path.unlink()
    with pytest.raises(OffsetOutOfRangeError, match="no segments"):
        _read(planned)


def test_a_partition_that_is_gone_is_unknown(directory: Path) -> None:
    planned = _plan(directory, 52, 96)
    directory.rename(directory.with_name("flights-0.0123-delete"))
    with pytest.raises(UnknownTopicOrPartitionError):
        _read(planned)


# Ranges that cannot be read to their end


def test_a_truncated_log_is_a_loss_with_its_place(directory: Path) -> None:
    planned = _plan(directory, 152, 196)
    _, table = scan(_log(directory, 150).read_bytes())
    cut(_log(directory, 150), int(table.end_position[4]))
    with pytest.raises(DataLossError) as raised:
        _read(planned)
    message = str(raised.value)
    assert "flights-0: offsets [175, 196) are missing" in message
    assert f"{_log(directory, 150)} ends at position {table.end_position[4]}" in message


def test_rows_before_an_error_come_first(directory: Path) -> None:
    planned = _plan(directory, 152, 196)
    _, table = scan(_log(directory, 150).read_bytes())
    cut(_log(directory, 150), int(table.end_position[4]))
    batches = read_slice(FLIGHTS, planned, RecordDecoder(Columns.OFFSET))
    assert next(batches).column("offset").to_pylist() == list(range(152, 175))
    with pytest.raises(DataLossError):
        next(batches)


@pytest.mark.parametrize("base_offset", [50, 150])
def test_a_torn_batch_in_a_planned_range_is_an_error(directory: Path, base_offset: int) -> None:
    planned = _plan(directory, base_offset, base_offset + 50)
    path = _log(directory, base_offset)
    cut(path, path.stat().st_size - 1)
    with pytest.raises(CorruptRecordError, match="flights-0: offsets") as raised:
        _read(planned)
    assert raised.value.path == str(path)
    assert raised.value.position == scan(path.read_bytes()[: raised.value.position])[1].size.sum()


@pytest.mark.parametrize("base_offset", [50, 150])
def test_a_wrong_checksum_in_a_planned_range_is_an_error(directory: Path, base_offset: int) -> None:
    planned = _plan(directory, base_offset, base_offset + 50)
    _, table = scan(_log(directory, base_offset).read_bytes())
    flip(_log(directory, base_offset), int(table.position[3]) + 80)
    with pytest.raises(ChecksumMismatchError, match="flights-0: offsets") as raised:
        _read(planned)
    assert raised.value.position == table.position[3]
    assert raised.value.offset == base_offset + 15


def test_zeros_in_a_planned_range_are_an_error(directory: Path) -> None:
    planned = _plan(directory, 150, 200)
    _, table = scan(_log(directory, 150).read_bytes())
    cut(_log(directory, 150), int(table.position[3]))
    grow_with_zeros(_log(directory, 150), 10_000)
    with pytest.raises(CorruptRecordError) as raised:
        _read(planned)
    assert raised.value.position == table.position[3]


def test_zeros_behind_a_planned_range_are_nothing(directory: Path) -> None:
    grow_with_zeros(_log(directory, 150), 100_000)
    assert _read(_plan(directory, 150, 200)) == list(range(150, 200))


def test_offsets_that_go_back_are_an_error(directory: Path) -> None:
    planned = _plan(directory, 50, 100)
    path = _log(directory, 50)
    content = bytearray(path.read_bytes())
    _, table = scan(bytes(content))
    struct.pack_into(">q", content, int(table.position[2]), 51)
    path.write_bytes(content)
    with pytest.raises(CorruptRecordError, match="do not fit between"):
        _read(planned)


@pytest.mark.parametrize("tail", [b"", b"torn", b"\0" * 400])
def test_above_the_committed_end_a_bad_tail_is_the_end_of_the_log(
    directory: Path, tail: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    planned = _plan(directory, 152, 196)
    path = _log(directory, 150)
    content = path.read_bytes()
    _, table = scan(content)
    path.write_bytes(content[: int(table.end_position[4])] + tail)
    assert _read(planned, committed_end=170) == list(range(152, 175))
    assert "the log ends at offset 175, above the committed end 170" in caplog.text
    with pytest.raises((CorruptRecordError, DataLossError)):
        _read(planned, committed_end=176)


def test_a_log_that_was_truncated_and_has_grown_again_is_read_by_offset(directory: Path) -> None:
    """A recovering broker cuts a log, and what it appends next begins a new segment."""
    planned = _plan(directory, 152, 196)
    _, table = scan(_log(directory, 150).read_bytes())
    cut(_log(directory, 150), int(table.end_position[4]))
    _log(directory, 175).write_bytes(make_batches(175, [5] * 6))
    assert _read(planned) == list(range(152, 196))
