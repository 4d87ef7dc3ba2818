"""A batch whose base offset is damaged, which no checksum covers: never a row less without a word.

What stands in its place, and in the way of the others, is told by the batches around it.
"""

from __future__ import annotations

import json
import struct
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.logs import Row, batch_bytes, write_checkpoint, write_segment
from tests.support.message_sets import GZIP, gzip_stream, message
from tests.support.reading import read_batch, read_stream

from kafkalog.checkpoints.broker import HIGH_WATERMARK
from kafkalog.errors import CorruptRecordError
from kafkalog.model import Intervals, TopicPartition
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.read.slice_reader import read_slice
from kafkalog.streaming.log.read.timestamps import thin_slice
from kafkalog.streaming.records.columns import Columns, RecordDecoder

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 5
SEALED = 10
"""Batches in the first segment; the second one has two."""
END = SIZE * (SEALED + 2)
NOW = 1_700_000_000_000


def _batch(base_offset: int) -> bytes:
    times = range(NOW + base_offset, NOW + base_offset + SIZE)
    return batch_bytes(base_offset, [Row(timestamp=time) for time in times])


def _wrapper(base_offset: int) -> bytes:
    inner = b"".join(
        message(number, None, b"v", magic=1, timestamp=NOW + base_offset + number)
        for number in range(SIZE)
    )
    last = base_offset + SIZE - 1
    stamp = NOW + last
    return message(last, None, gzip_stream(inner), magic=1, attributes=GZIP, timestamp=stamp)


MAKERS = {"v2": _batch, "wrapper": _wrapper}


def _batches(kind: str) -> list[bytes]:
    return [MAKERS[kind](offset) for offset in range(0, END, SIZE)]


def _write(root: Path, batches: list[bytes], *, index: bool = False) -> Path:
    path = write_segment(root / "t-0", 0, b"".join(batches[:SEALED]), index=index)
    write_segment(root / "t-0", SIZE * SEALED, b"".join(batches[SEALED:]))
    write_checkpoint(root, HIGH_WATERMARK, {"t-0": END})
    return path


def _harm(path: Path, batches: list[bytes], number: int, shift: int) -> int:
    """Shift the offset of a batch in the file; give its position."""
    position = sum(map(len, batches[:number]))
    data = bytearray(path.read_bytes())
    (offset,) = struct.unpack_from(">q", data, position)
    struct.pack_into(">q", data, position, offset + shift)
    path.write_bytes(data)
    return position


def _offsets(rows: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


LEAPS = [
    # The header of a wrapper does not have its first offset: by less than its length, none shows.
    *(("wrapper", shift) for shift in (7, 20, 1000, 2**31)),
    *(("v2", shift) for shift in (1, 7, 20, 45, 1000, 2**31, 2**40)),
]


IN_PLACE = [(*leap, number) for leap in LEAPS for number in (0, 4, SEALED - 1)]
# This one looks like a message that the next segment has, too.
IN_PLACE.remove(("wrapper", 7, SEALED - 1))


@pytest.mark.parametrize(("kind", "shift", "number"), IN_PLACE)
def test_a_batch_that_leaps_over_others_is_the_one_that_is_wrong(
    kind: str, number: int, shift: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    batches = _batches(kind)
    path = _write(tmp_path, batches)
    position = _harm(path, batches, number, shift)
    given = {"path": str(tmp_path), "subscribe": "t"}
    with pytest.raises(CorruptRecordError, match="do not fit between") as caught:
        read_batch(**given)
    assert (caught.value.path, caught.value.position) == (str(path), position)
    # up to an end inside of what it claims, too
    with pytest.raises(CorruptRecordError, match=f"the batch at position {position} has offsets"):
        read_batch(**given, endingOffsets=json.dumps({"t": {"0": SIZE * (number + 1) + 1}}))
    with pytest.raises(CorruptRecordError, match=f"the batch at position {position} has offsets"):
        read_stream(7, **given)
    caplog.clear()
    rows = read_batch(**given, onCorruptRecord="skip")
    gone = range(SIZE * number, SIZE * (number + 1))
    assert _offsets(rows) == [offset for offset in range(END) if offset not in gone]
    assert f"skipped the batch at position {position} of {path}" in caplog.text


@pytest.mark.parametrize("shift", [-1, -4, -SIZE, -17])
@pytest.mark.parametrize("number", [4, SEALED - 1])
def test_a_batch_that_falls_back_is_an_error(number: int, shift: int, tmp_path: Path) -> None:
    batches = _batches("v2")
    path = _write(tmp_path, batches)
    _harm(path, batches, number, shift)
    given = {"path": str(tmp_path), "subscribe": "t"}
    with pytest.raises(CorruptRecordError, match=str(path)):
        read_batch(**given)
    rows = _offsets(read_batch(**given, onCorruptRecord="skip"))
    assert rows == [offset for offset in range(END) if offset // SIZE != number]


def test_compaction_leaves_gaps_of_any_size_that_are_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bases = [3, 50, 10**6, 2**31 + 7, 2**33, 2**33 + 5]
    batches = b"".join(map(_batch, bases))
    write_segment(tmp_path / "t-0", 0, batches)
    write_segment(tmp_path / "t-0", 2**34, _batch(2**34))
    given = {"path": str(tmp_path), "subscribe": "t"}
    expected = [base + number for base in [*bases, 2**34] for number in range(SIZE)]
    assert _offsets(read_batch(**given)) == expected
    assert _offsets(read_batch(**given, onCorruptRecord="skip")) == expected
    assert "skipped" not in caplog.text


@pytest.mark.parametrize(("kind", "shift", "number"), IN_PLACE)
def test_a_leap_hides_nothing_from_a_reader_of_some_timestamps(
    kind: str, number: int, shift: int, tmp_path: Path
) -> None:
    batches = _batches(kind)
    path = _write(tmp_path, batches)
    _harm(path, batches, number, shift)
    key = TopicPartition("t", 0)
    with PartitionLog(tmp_path / "t-0", key) as log:
        (whole, *_) = log.slices(0, END)
    wanted = Intervals.between(NOW + SIZE * (number + 1), None)
    pieces = thin_slice(whole, wanted)
    decoder = RecordDecoder(Columns.OFFSET)
    with pytest.raises(CorruptRecordError):
        list(chain.from_iterable(read_slice(key, piece, decoder) for piece in pieces))


@pytest.mark.parametrize("entries", [[9, 4, 24, 29], [9, 30, 24, 29], [-(2**31) + 4, 9, 14, 19]])
def test_an_index_in_disorder_cuts_no_slice(entries: list[int], tmp_path: Path) -> None:
    batches = _batches("v2")
    path = _write(tmp_path, batches)
    positions = [sum(map(len, batches[:number])) for number in (2, 4, 5, 6)]
    pairs = zip(entries, positions, strict=True)
    path.with_suffix(".index").write_bytes(b"".join(struct.pack(">ii", *pair) for pair in pairs))
    given = {"path": str(tmp_path), "subscribe": "t", "splitBytes": "100"}
    assert sorted(_offsets(read_batch(**given))) == list(range(END))
