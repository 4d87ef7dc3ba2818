"""Starts and ends by timestamp in damaged logs, under the options that reading them goes by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.logs import Row, batch_bytes, write_checkpoint, write_segment
from tests.support.message_sets import GZIP, gzip_stream, message
from tests.support.reading import read_batch, read_stream
from tests.support.record_batches import batch_of, record_of, varint

from kafkalog.checkpoints.broker import HIGH_WATERMARK
from kafkalog.errors import CorruptRecordError, DecompressedTooLargeError
from kafkalog.streaming.records.compression import Codec, compress

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SIZE, BATCHES = 5, 8
"""Records of a batch, and batches of each of the two segments."""
SECOND = SIZE * BATCHES
END = 2 * SECOND
NOW = 1_700_000_000_000
"""The timestamp of offset 0; each offset is a millisecond later."""


def _batch(base_offset: int) -> bytes:
    return batch_bytes(
        base_offset, [Row(timestamp=NOW + base_offset + number) for number in range(SIZE)]
    )


def _position(offset: int) -> int:
    return sum(len(_batch(base)) for base in range(offset // SECOND * SECOND, offset, SIZE))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    for base in (0, SECOND):
        batches = b"".join(map(_batch, range(base, base + SECOND, SIZE)))
        write_segment(tmp_path / "t-0", base, batches, index=base > 0)
    write_checkpoint(tmp_path, HIGH_WATERMARK, {"t-0": END})
    return tmp_path


def _flip_a_record(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position + 70] ^= 0xFF
    path.write_bytes(data)


def _take_the_size(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position + 8 : position + 12] = bytes(4)
    path.write_bytes(data)


def _raise_the_timestamp(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position + 35 : position + 43] = (NOW * 2).to_bytes(8, "big")
    path.write_bytes(data)


def _offsets(log: Path, first: int, **given: str) -> list[int]:
    rows = read_batch(path=str(log), subscribe="t", startingTimestamp=str(NOW + first), **given)
    return [row["offset"] for row in rows]


HARMS = [_flip_a_record, _take_the_size, _raise_the_timestamp]


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("damaged", [0, 10, SECOND - SIZE, SECOND, END - SIZE])
@pytest.mark.parametrize("asked", [0, 2, 11, SECOND - 2, SECOND + 3, END - SIZE - 2])
def test_a_start_by_timestamp_passes_over_damage_where_reading_does(
    harm: Callable[[Path, int], None],
    damaged: int,
    asked: int,
    log: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = log / "t-0" / f"{damaged // SECOND * SECOND:020d}.log"
    sound_rows = set(_offsets(log, asked))
    harm(path, _position(damaged))
    read = {
        row["offset"] for row in read_batch(path=str(log), subscribe="t", onCorruptRecord="skip")
    }
    caplog.clear()
    found = _offsets(log, asked, onCorruptRecord="skip")
    assert found == sorted(read & sound_rows)
    if damaged // SIZE == asked // SIZE and harm is not _take_the_size:
        assert f"skipped the batch at position {_position(damaged)} of {path}" in caplog.text
    if damaged // SIZE == asked // SIZE:
        with pytest.raises(CorruptRecordError, match=str(path)):
            _offsets(log, asked)


def test_a_stream_that_ends_by_timestamp_passes_over_damage(log: Path) -> None:
    path = log / "t-0" / f"{0:020d}.log"
    _flip_a_record(path, _position(20))
    given = {"path": str(log), "subscribe": "t", "endingTimestamp": str(NOW + 22)}
    rows = read_stream(7, **given, onCorruptRecord="skip")
    assert [row["offset"] for row in rows] == list(range(20))
    with pytest.raises(CorruptRecordError, match=str(path)):
        read_stream(7, **given)


def _large() -> bytes:
    value = bytes(1 << 20)
    body = record_of(varint(-1) + varint(len(value)) + value + varint(0))
    return batch_of(compress(Codec.GZIP, body), 1, attributes=int(Codec.GZIP))


def _large_v1() -> bytes:
    inner = message(0, None, bytes(1 << 20), magic=1, timestamp=NOW)
    return message(0, None, gzip_stream(inner), magic=1, attributes=GZIP, timestamp=NOW)


@pytest.mark.parametrize("make", [_large, _large_v1], ids=lambda make: make.__name__)
def test_a_search_decompresses_no_more_than_it_may(
    make: Callable[[], bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_segment(tmp_path / "t-0", 0, make() + _batch(1))
    given = {"path": str(tmp_path), "subscribe": "t", "startingTimestamp": "0"}
    with pytest.raises(DecompressedTooLargeError) as caught:
        read_batch(**given, maxDecompressedBytes="64k")
    assert f"beyond the limit of {64 << 10} for a batch" in str(caught.value)
    assert str(path) in str(caught.value)
    rows = read_batch(**given, maxDecompressedBytes="64k", onCorruptRecord="skip")
    assert [row["offset"] for row in rows] == list(range(1, 1 + SIZE))
    assert f"beyond the limit of {64 << 10}" in caplog.text
    assert len(read_batch(**given)) == 1 + SIZE
