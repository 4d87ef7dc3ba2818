"""A view of batches is what Kafka's dump tool prints of the batches, and it tells damage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.corpus import CORPUS, UnpackedCase
from tests.support.dumped_batches import comparable, dumped_batches, file_of
from tests.support.log_files import make_batches, scan
from tests.support.message_sets import gzip_stream, message
from tests.support.record_batches import batch_of, patched, record_of

from kafkalog.errors import CorruptRecordError
from kafkalog.model import MAX_OFFSET
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.records.batch_rows import BATCH_ROW_SCHEMA, BatchDescriber
from kafkalog.streaming.store.log_dirs import LogDirs

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from kafkalog.streaming.log.segment import LogSegment

CASES = sorted(path.parent.name for path in CORPUS.glob("*/logdir.tar.gz"))


def describe(
    data: bytes, start_offset: int = 0, end_offset: int = MAX_OFFSET, **settings: int
) -> list[dict[str, Any]]:
    describer = BatchDescriber(**settings)
    array, table = scan(data)
    bounds = {"start_offset": start_offset, "end_offset": end_offset}
    batches = [*describer.feed(array, table, path="a.log", **bounds), *describer.flush()]
    assert all(batch.schema == BATCH_ROW_SCHEMA for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_rows_are_what_the_dump_tool_prints(name: str, tmp_path: Path) -> None:
    case = UnpackedCase(name, tmp_path)
    dumped = dumped_batches(name)
    compared = 0
    for key, where in LogDirs(case.path.split(",")).partitions().items():
        with PartitionLog(where.path, key) as log:
            for segment in log.segments:
                rows = _rows_of(segment)
                expected = dumped.get(file_of(str(segment.path)), [])
                assert [comparable(row) for row in rows] == expected
                assert all(row["error"] is None for row in rows)
                compared += len(rows)
    assert compared > 0


def _rows_of(segment: LogSegment) -> list[dict[str, Any]]:
    describer = BatchDescriber()
    found: list[pa.RecordBatch] = []
    try:
        for chunk in segment.chunks(0):
            bounds = {"start_offset": 0, "end_offset": MAX_OFFSET}
            found += describer.feed(
                chunk.data,
                chunk.table,
                file_position=chunk.file_position,
                path=str(segment.path),
                **bounds,
            )
    except CorruptRecordError:
        pass  # the zeros at the end of a preallocated segment
    found += describer.flush()
    return [row for batch in found for row in batch.to_pylist()]


def test_a_batch_belongs_to_the_range_with_its_last_offset() -> None:
    data = make_batches(0, [5, 5, 5])
    pieces = [describe(data, start, end) for start, end in [(0, 4), (4, 12), (12, 15)]]
    assert [[row["baseOffset"] for row in piece] for piece in pieces] == [[], [0, 5], [10]]


@pytest.mark.parametrize("magic", [0, 1])
def test_a_compressed_message_tells_its_first_offset_and_count(magic: int) -> None:
    inner = b"".join(
        message(7 + n if magic == 0 else n, None, b"v", magic=magic) for n in (0, 2, 5)
    )
    (row,) = describe(message(12, None, gzip_stream(inner), magic=magic, attributes=1))
    assert (row["baseOffset"], row["lastOffset"], row["count"]) == (7, 12, 3)
    assert (row["codec"], row["error"]) == ("gzip", None)


def test_a_compressed_message_that_cannot_be_opened_has_an_error() -> None:
    inner = message(0, None, b"v" * 100, magic=1)
    sound = message(12, None, gzip_stream(inner), magic=1, attributes=1)
    torn = message(13, None, b"no gzip", magic=1, attributes=1)
    rows = describe(sound + torn)
    assert [row["count"] for row in rows] == [1, None]
    assert rows[1]["baseOffset"] is None
    assert rows[1]["crcValid"]
    assert f"a.log: the message at byte {len(sound)} (offset 13" in rows[1]["error"]
    (large,) = describe(sound, max_decompressed_bytes=50)
    assert "50" in large["error"]


def test_a_batch_that_does_not_match_its_checksum_has_an_error() -> None:
    data = bytearray(make_batches(0, [5, 5, 5]))
    size = len(data) // 3
    data[2 * size - 1] ^= 1
    rows = describe(bytes(data))
    assert [row["crcValid"] for row in rows] == [True, False, True]
    assert rows[1]["error"] == f"its bytes do not match its checksum {rows[1]['crc']:08x}"
    assert (rows[1]["baseOffset"], rows[1]["lastOffset"]) == (5, 9)


def test_a_codec_that_nobody_knows_is_said() -> None:
    (row,) = describe(batch_of(record_of(), 1, attributes=6))
    assert (row["codec"], row["error"]) == ("unknown", "codec 6 is not known")


def test_sequences_go_on_at_zero() -> None:
    batch = batch_of(record_of(), 1, last_offset_delta=3)
    batch = patched(batch, 53, (2**31 - 2).to_bytes(4, "big"))
    (row,) = describe(batch)
    assert (row["baseSequence"], row["lastSequence"]) == (2**31 - 2, 1)


def test_times_are_as_they_are_stored() -> None:
    batch = batch_of(record_of(), 1, attributes=0x48, base_timestamp=-(2**63), max_timestamp=2**62)
    (row,) = describe(batch)
    assert (row["baseTimestamp"], row["maxTimestamp"]) == (-(2**63), 2**62)
    assert (row["deleteHorizonMs"], row["timestampType"]) == (-(2**63), 1)
