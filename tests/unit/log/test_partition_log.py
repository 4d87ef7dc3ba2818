"""The log of a partition: its ends, its slices, and what a fetch reads."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.support.log_files import (
    FLIGHTS,
    append,
    cut,
    flip,
    grow_with_zeros,
    make_batches,
    read_offsets,
    scan,
)

from kafkalog.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from kafkalog.streaming.log.partition_log import LogEnd, PartitionLog
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.options.topic_settings import LogConfig

if TYPE_CHECKING:
    from pathlib import Path

SMALL = LogConfig(segment_bytes=4000, index_interval_bytes=400)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A partition with offsets 0 to 199 in several segments."""
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [5] * 40), SMALL)
    return directory


def _logs(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


# Ends


def test_the_log_starts_at_the_checkpoint_or_the_first_segment(directory: Path) -> None:
    assert PartitionLog(directory, FLIGHTS).log_start_offset == 0
    assert PartitionLog(directory, FLIGHTS, 17).log_start_offset == 17
    _logs(directory)[0].unlink()
    first = int(_logs(directory)[0].stem)
    assert PartitionLog(directory, FLIGHTS, 17).log_start_offset == first > 17


def test_the_log_ends_behind_its_last_batch(directory: Path) -> None:
    last = _logs(directory)[-1]
    with PartitionLog(directory, FLIGHTS) as log:
        assert log.log_end() == LogEnd(200, int(last.stem), last.stat().st_size)


def test_finding_the_end_reads_no_more_than_the_last_index_entry_leaves(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [5] * 400), LogConfig(index_interval_bytes=1000))
    log = _logs(directory)[0]
    flip(log, 30)  # the first batch is wrong, and nobody looks
    with PartitionLog(directory, FLIGHTS) as partition:
        assert partition.log_end_offset() == 2000


@pytest.mark.parametrize("missing", [1, 30, 300])
def test_a_torn_tail_is_the_end_of_the_log(directory: Path, missing: int) -> None:
    last = _logs(directory)[-1]
    _, table = scan(last.read_bytes())
    cut(last, int(table.end_position[-1]) - missing)
    with PartitionLog(directory, FLIGHTS) as log:
        assert log.log_end()[:3] == (195, int(last.stem), table.position[-1])


def test_the_zeros_of_a_preallocated_segment_are_the_end_of_the_log(directory: Path) -> None:
    last = _logs(directory)[-1]
    size = last.stat().st_size
    grow_with_zeros(last, 100_000)
    with PartitionLog(directory, FLIGHTS) as log:
        assert log.log_end()[:3] == (200, int(last.stem), size)


def test_a_wrong_checksum_is_the_end_of_the_log(directory: Path) -> None:
    last = _logs(directory)[-1]
    _, table = scan(last.read_bytes())
    flip(last, int(table.end_position[-1]) - 1)
    with PartitionLog(directory, FLIGHTS) as log:
        assert log.log_end_offset() == 195
        assert log.log_end_offset(committed_end=195) == 195
        with pytest.raises(CorruptRecordError) as raised:
            log.log_end_offset(committed_end=196)
    assert raised.value.position == table.position[-1]


def test_damage_at_the_last_index_entry_is_seen_from_the_beginning(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [5] * 40), LogConfig(index_interval_bytes=3000))
    with PartitionLog(directory, FLIGHTS) as log:
        index = log.segments[0].offset_index()
        assert index is not None
        entry = index.last_entry()
    flip(_logs(directory)[0], entry.position + 70)
    with PartitionLog(directory, FLIGHTS) as log:
        assert log.log_end_offset() == entry.offset - 4


def test_from_an_offset_on_everything_is_verified(directory: Path) -> None:
    logs = _logs(directory)
    middle = len(logs) // 2
    _, table = scan(logs[middle].read_bytes())
    broken = int(table.base_offset[1])
    flip(logs[middle], int(table.position[1]) + 70)
    with PartitionLog(directory, FLIGHTS) as log:
        assert log.log_end_offset() == 200
        assert log.log_end_offset(verify_from=0) == broken
        assert log.log_end_offset(verify_from=broken) == broken
        assert log.log_end_offset(verify_from=broken + 50) == 200
        assert log.log_end_offset(verify_from=10_000) == 200
        with pytest.raises(CorruptRecordError):
            log.log_end_offset(verify_from=0, committed_end=200)


def test_an_empty_active_segment_ends_at_its_base_offset(directory: Path) -> None:
    (directory / f"{200:020d}.log").touch()
    with PartitionLog(directory, FLIGHTS) as log:
        assert log.log_end() == LogEnd(200, 200, 0)


def test_a_folder_without_segments_ends_where_it_starts(tmp_path: Path) -> None:
    with PartitionLog(tmp_path, FLIGHTS, 7) as log:
        assert log.log_end() == LogEnd(7, -1, 0)
        assert log.slices(7, 7) == []


def test_a_folder_that_is_gone_is_an_unknown_partition(tmp_path: Path) -> None:
    with pytest.raises(UnknownTopicOrPartitionError), PartitionLog(tmp_path / "x", FLIGHTS) as log:
        log.log_end()


def test_dead_and_unborn_segments_are_none(directory: Path) -> None:
    for name in (f"{500:020d}.log.deleted", f"{600:020d}.log.cleaned", "700.log", "notes.txt"):
        (directory / name).write_bytes(b"x")
    with PartitionLog(directory, FLIGHTS) as log:
        assert log.log_end_offset() == 200


# Slices


@pytest.mark.parametrize("pieces", [1, 2, 3, 7, 100])
def test_any_range_is_read_exactly(directory: Path, pieces: int) -> None:
    with PartitionLog(directory, FLIGHTS) as log:
        for start, end in ((0, 200), (1, 199), (7, 8), (34, 36), (50, 50), (99, 143), (199, 200)):
            assert read_offsets(log, start, end, pieces=pieces) == list(range(start, end))


@pytest.mark.parametrize("harm", [".index", ".timeindex", ""])
def test_any_range_is_read_exactly_without_indexes(directory: Path, harm: str) -> None:
    for path in directory.glob("*" + harm if harm else "*.*index"):
        path.unlink()
    with PartitionLog(directory, FLIGHTS) as log:
        for start in range(0, 200, 11):
            end = min(200, start + 37)
            assert read_offsets(log, start, end, pieces=3) == list(range(start, end))


def test_slices_follow_each_other_without_overlap(directory: Path) -> None:
    with PartitionLog(directory, FLIGHTS) as log:
        slices = log.slices(3, 197)
        pieces = [piece for whole in slices for piece in log.split_slice(whole, 3)]
    for parts in (slices, pieces):
        offsets = [part.start_offset for part in parts] + [parts[-1].end_offset]
        assert [part.end_offset for part in parts] == offsets[1:]
        assert (offsets[0], offsets[-1]) == (3, 197)
    assert len(pieces) > len(slices) > 3


def test_slices_hold_few_bytes_beside_their_offsets(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [5] * 400), LogConfig(index_interval_bytes=1000))
    batch = _logs(directory)[0].stat().st_size // 400
    with PartitionLog(directory, FLIGHTS) as log:
        for start, end in ((500, 1000), (503, 504), (0, 5), (1995, 2000)):
            (found,) = log.slices(start, end)
            wanted = -(-end // 5) * batch - start // 5 * batch
            assert wanted <= found.size <= wanted + 2 * (1000 + 2 * batch)


def test_pieces_are_of_about_equal_size(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [5] * 400), LogConfig(index_interval_bytes=1000))
    with PartitionLog(directory, FLIGHTS) as log:
        (whole,) = log.slices(0, 2000)
        pieces = log.split_slice(whole, 4)
    assert len(pieces) == 4
    assert all(abs(piece.size - whole.size / 4) < 3000 for piece in pieces)
    # every cut is behind a batch
    assert all(piece.end_offset % 5 == 0 for piece in pieces)


def test_a_slice_that_is_gone_is_not_split(directory: Path) -> None:
    with PartitionLog(directory, FLIGHTS) as log:
        whole = log.slices(0, 200)[0]
        _logs(directory)[0].unlink()
        assert log.split_slice(whole, 4) == [whole]


def test_a_start_below_the_log_start_is_out_of_range(directory: Path) -> None:
    with PartitionLog(directory, FLIGHTS, 20) as log:
        with pytest.raises(OffsetOutOfRangeError) as raised:
            log.slices(19, 50)
        assert raised.value.log_start_offset == 20
        assert read_offsets(log, 22, 50) == list(range(22, 50))


def test_empty_segments_in_between_are_passed_over(directory: Path) -> None:
    emptied = _logs(directory)[1]
    cut(emptied, 0)
    following = int(_logs(directory)[2].stem)
    with PartitionLog(directory, FLIGHTS) as log:
        found = read_offsets(log, 0, 200)
    assert found == [*range(int(emptied.stem)), *range(following, 200)]


def test_segments_deleted_since_they_were_listed_are_listed_anew(directory: Path) -> None:
    with PartitionLog(directory, FLIGHTS) as log:
        assert log.segments
        _logs(directory)[0].unlink()
        first = int(_logs(directory)[0].stem)
        with pytest.raises(OffsetOutOfRangeError):
            log.slices(0, 200)
        assert read_offsets(log, first, 200) == list(range(first, 200))


# Fetching


def test_a_fetch_reads_whole_batches_within_its_bytes(directory: Path) -> None:
    batch = _logs(directory)[0].stat().st_size // len(scan(_logs(directory)[0].read_bytes())[1])
    with PartitionLog(directory, FLIGHTS) as log:
        chunk = log.read(7, 200, 3 * batch + 10)
        assert chunk is not None
        assert chunk.table.base_offset.tolist() == [5, 10, 15]
        assert chunk.file_position == batch


def test_a_fetch_never_goes_past_its_end(directory: Path) -> None:
    with PartitionLog(directory, FLIGHTS) as log:
        chunk = log.read(0, 12, 1 << 20)
        assert chunk is not None
        assert chunk.table.base_offset.tolist() == [0, 5, 10]
        assert log.read(12, 12, 1 << 20) is None


def test_a_fetch_gives_at_least_one_batch_unless_told_otherwise(directory: Path) -> None:
    with PartitionLog(directory, FLIGHTS) as log:
        chunk = log.read(0, 200, 1)
        assert chunk is not None
        assert chunk.table.base_offset.tolist() == [0]
        assert log.read(0, 200, 1, min_one_message=False) is None


def test_a_fetch_of_a_batch_that_cannot_be_one_says_so(directory: Path) -> None:
    flip(_logs(directory)[0], 57, bits=0x80)  # a negative count of records
    with PartitionLog(directory, FLIGHTS) as log, pytest.raises(CorruptRecordError, match="claims"):
        log.read(0, 200, 0)


def test_a_fetch_of_a_batch_that_is_rolled_back_meanwhile_gives_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond what is committed a writer may cut its file between two looks of a reader."""
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [5]), SMALL)
    found = LogSegment.translate_offset

    def cut_when_found(segment: LogSegment, offset: int) -> int | None:
        position = found(segment, offset)
        os.truncate(_logs(directory)[0], 0)
        return position

    monkeypatch.setattr(LogSegment, "translate_offset", cut_when_found)
    with PartitionLog(directory, FLIGHTS) as log:
        assert log.read(0, 5, 10_000) is None


def test_a_fetch_in_a_gap_goes_on_in_the_next_segment(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    directory.mkdir()
    (directory / f"{0:020d}.log").write_bytes(make_batches(0, [5]))
    (directory / f"{50:020d}.log").touch()
    (directory / f"{80:020d}.log").write_bytes(make_batches(90, [5]))
    with PartitionLog(directory, FLIGHTS) as log:
        chunk = log.read(5, 95, 1 << 20)
        assert chunk is not None
        assert chunk.table.base_offset.tolist() == [90]
        assert log.read(5, 80, 1 << 20) is None


def test_fetches_one_after_the_other_give_every_record_once(directory: Path) -> None:
    with PartitionLog(directory, FLIGHTS) as log:
        position, bases = 0, []
        while (chunk := log.read(position, 200, 1000)) is not None:
            bases += chunk.table.base_offset.tolist()
            position = int(chunk.table.last_offset[-1]) + 1
    assert bases == list(range(0, 200, 5))


def test_index_entries_of_whole_appends_are_read_as_well(tmp_path: Path) -> None:
    """Kafka before 4.1 wrote an append's last offset with the position of its first batch."""
    directory = tmp_path / "flights-0"
    data = make_batches(0, [5] * 40)
    append(directory, data)
    _, table = scan(data)
    entries = [
        (int(table.last_offset[slot + 3]), int(table.position[slot])) for slot in range(4, 40, 4)
    ]
    (directory / f"{0:020d}.index").write_bytes(
        b"".join(struct.pack(">ii", *entry) for entry in entries)
    )
    with PartitionLog(directory, FLIGHTS) as log:
        for start in range(0, 200, 3):
            for end in (start + 1, start + 30, 200):
                expected = list(range(start, min(end, 200)))
                assert read_offsets(log, start, min(end, 200), pieces=3) == expected
        assert np.array_equal(log.segments[0].translate_offset(33), table.position[6])
