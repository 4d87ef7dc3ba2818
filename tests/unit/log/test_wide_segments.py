"""Segments that span more offsets than an index can express, as brokers before 2.0 made them.

Copies of compacted topics, and cleaners that joined segments, did (KAFKA-5413, KAFKA-6264). Offsets
in the log are absolute; in the indexes, which keep the lower 32 bits of their distance from the
base offset, they wrap around.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from tests.support.log_files import FLIGHTS, append
from tests.support.logs import Row, batch_bytes
from tests.support.message_sets import GZIP, gzip_stream, message
from tests.support.reading import read_batch, read_stream

from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.recovery import rebuild_partition
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.options.topic_settings import LogConfig

if TYPE_CHECKING:
    from pathlib import Path

BASE = 100
DISTANCES = [0, 5, 2**31 - 8, 2**31, 2**31 + 40, 3 * 2**30, 2**32 - 2, 2**32 + 3, 2**33 + 1]
"""Of the batches' first offsets from the segment's."""
COUNT = 3
OFFSETS = [BASE + distance + number for distance in DISTANCES for number in range(COUNT)]
NOW = 1_700_000_000_000


def _entry(magic: int, first: int, timestamp: int) -> bytes:
    """Make a batch of three records, or in magic 0 and 1 a compressed message with three inside."""
    if magic == 2:
        return batch_bytes(first, [Row(timestamp=timestamp)] * COUNT)
    base = first if magic == 0 else 0
    inner = b"".join(
        message(base + number, None, b"v", magic=magic, timestamp=timestamp)
        for number in range(COUNT)
    )
    return message(
        first + COUNT - 1,
        None,
        gzip_stream(inner),
        magic=magic,
        attributes=GZIP,
        timestamp=timestamp,
    )


def _wrapped(distance: int) -> int:
    return (distance + 2**31) % 2**32 - 2**31


@pytest.fixture(params=[(0, 0, 0), (1, 1, 1), (2, 2, 2), (0, 1, 2)], ids=str)
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A log directory with one such segment and its indexes as an old broker wrote them."""
    magics = [request.param[number * 3 // len(DISTANCES)] for number in range(len(DISTANCES))]
    folder = tmp_path / "flights-0"
    folder.mkdir()
    log, index, times = b"", b"", b""
    for number, (magic, distance) in enumerate(zip(magics, DISTANCES, strict=True)):
        last = _wrapped(distance + COUNT - 1)
        index += struct.pack(">ii", last, len(log)) if log else b""
        times += struct.pack(">qi", NOW + number, last) if magic else b""
        log += _entry(magic, BASE + distance, NOW + number)
    (folder / f"{BASE:020d}.log").write_bytes(log)
    (folder / f"{BASE:020d}.index").write_bytes(index)
    (folder / f"{BASE:020d}.timeindex").write_bytes(times)
    return tmp_path


def _given(directory: Path) -> dict[str, str]:
    return {"path": str(directory), "subscribe": "flights"}


def test_every_record_is_read_once(directory: Path) -> None:
    for more in ({}, {"splitBytes": "50"}, {"onCorruptRecord": "skip"}, {"minPartitions": "4"}):
        rows = read_batch(**_given(directory), **more)
        assert [row["offset"] for row in rows] == OFFSETS, more
    (directory / "flights-0" / f"{BASE:020d}.index").unlink()
    assert [row["offset"] for row in read_batch(**_given(directory))] == OFFSETS


def test_a_stream_reads_on_from_any_of_its_offsets(directory: Path) -> None:
    rows = read_stream(2**30, **_given(directory))
    assert [row["offset"] for row in rows] == OFFSETS
    for offset in [*OFFSETS, BASE + 2**32]:
        starting = f'{{"flights":{{"0":{offset}}}}}'
        rows = read_batch(**_given(directory), startingOffsets=starting)
        assert [row["offset"] for row in rows] == [each for each in OFFSETS if each >= offset]


def test_a_seek_finds_the_batch_of_every_offset(directory: Path) -> None:
    with LogSegment(directory / "flights-0", BASE) as segment:
        positions = [header.position for header in segment.headers(0)]
        for row, offset in enumerate(OFFSETS):
            assert segment.translate_offset(offset) == positions[row // COUNT]


def test_timestamps_are_found_in_it(directory: Path) -> None:
    rows = read_batch(**_given(directory))
    with PartitionLog(directory / "flights-0", FLIGHTS) as log:
        for number in range(len(DISTANCES)):
            expected = next((r["offset"] for r in rows if r["timestamp"] >= NOW + number), None)
            found = log.offset_for_timestamp(NOW + number)
            assert (found and found.offset) == expected
        found = log.max_timestamp()
        greatest = max(row["timestamp"] for row in rows)
        assert (found and found.timestamp) == (greatest if greatest >= 0 else None)


def test_its_batches_are_shown(directory: Path) -> None:
    log = directory / "flights-0" / f"{BASE:020d}.log"
    with LogSegment(log.parent, BASE) as segment:
        assert [header.last_offset - BASE for header in segment.headers(0)] == [
            distance + COUNT - 1 for distance in DISTANCES
        ]


def test_rebuilt_indexes_hold_what_they_can_express(directory: Path) -> None:
    folder = directory / "flights-0"
    (rebuilt,) = rebuild_partition(folder, index_interval_bytes=0)
    assert rebuilt.problem is None
    entries = struct.iter_unpack(">ii", (folder / f"{BASE:020d}.index").read_bytes())
    assert [offset for offset, _ in entries] == [5 + COUNT - 1, 2**31 - 8 + COUNT - 1]
    assert [row["offset"] for row in read_batch(**_given(directory))] == OFFSETS


def test_what_is_appended_begins_another_segment(directory: Path) -> None:
    folder = directory / "flights-0"
    end = OFFSETS[-1] + 1
    append(folder, batch_bytes(end, [Row()]), LogConfig())
    assert (folder / f"{end:020d}.log").exists()
    assert [row["offset"] for row in read_batch(**_given(directory))] == [*OFFSETS, end]
