from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from tests.support.logs import Row, batch_bytes, write_segment
from tests.support.message_sets import message

from kafkalog.errors import CorruptRecordError, DataLossError, TimestampOutOfRangeError
from kafkalog.model import MAX_OFFSET, OffsetRange, TopicPartition
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.source.loss import LossPolicy
from kafkalog.streaming.source.planner import LogSplit, plan_splits
from kafkalog.streaming.source.reading import join_batches, read_split
from kafkalog.streaming.source.schema import RowSchema, source_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

T0 = TopicPartition("t", 0)
ALL = RowSchema.of(source_schema(include_headers=True))


def options(**given: str) -> ReadOptions:
    return ReadOptions.parse({"path": "/logs", "subscribe": "t"} | given)


def split_of(log: Path, start: int, end: int) -> LogSplit:
    tail = EndOffsets([str(log)], lambda _: True)
    tail.look()
    ranges = [OffsetRange(T0, start, end)]
    (split,) = plan_splits(ranges, options(), tail, LossPolicy(fail=True))
    return split


def read(
    split: LogSplit, rows: RowSchema = ALL, **given: str
) -> tuple[list[pa.RecordBatch], list[dict[str, Any]]]:
    batches = list(read_split(split, options(**given), rows))
    return batches, [row for batch in batches for row in batch.to_pylist()]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give t-0 [0, 20) in two segments of batches of five."""
    for base in (0, 10):
        batches = [
            batch_bytes(base + n, [Row(f"v{base + n + i}".encode(), b"k") for i in range(5)])
            for n in (0, 5)
        ]
        write_segment(tmp_path / "t-0", base, b"".join(batches), index=True)
    return tmp_path


def test_rows_have_the_schema_and_the_split_s_own_offsets(log: Path) -> None:
    batches, rows = read(split_of(log, 3, 17))
    assert all(batch.schema == ALL.to_arrow() for batch in batches)
    assert [row["offset"] for row in rows] == list(range(3, 17))
    assert {(row["topic"], row["partition"], row["key"]) for row in rows} == {("t", 0, b"k")}
    assert rows[0]["value"] == b"v3"
    assert rows[0]["headers"] is None


def test_only_columns_that_are_asked_for_are_given(log: Path) -> None:
    wanted = RowSchema.of(StructType().add("topic", "string").add("value", "string"))
    _, rows = read(split_of(log, 8, 11), wanted)
    assert rows == [{"topic": "t", "value": f"v{n}"} for n in (8, 9, 10)]
    shared = RowSchema.of(StructType().add("partition", "integer"))
    _, rows = read(split_of(log, 0, 20), shared)
    assert rows == [{"partition": 0}] * 20


def test_text_keeps_bytes_that_are_no_utf8(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, batch_bytes(0, [Row(b"\xff\xfe"), Row(None)]))
    wanted = RowSchema.of(StructType().add("value", "string"))
    (batch,) = read_split(split_of(tmp_path, 0, 2), options(), wanted)
    column = batch.column("value")
    assert column.type == pa.string()
    assert column.cast(pa.binary()).to_pylist() == [b"\xff\xfe", None]


def test_segments_that_retention_took_are_a_loss(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    split = split_of(log, 3, 17)
    (log / "t-0" / f"{0:020d}.log").unlink()
    with pytest.raises(DataLossError, match=r"COULD_NOT_READ_OFFSET_RANGE.*\[3, 10\)"):
        read(split)
    with caplog.at_level(logging.WARNING, "kafkalog"):
        _, rows = read(split, failOnDataLoss="false")
    assert [row["offset"] for row in rows] == list(range(10, 17))
    assert "[3, 10)" in caplog.text


def test_a_log_that_was_cut_is_a_loss(log: Path) -> None:
    split = split_of(log, 3, 17)
    last = log / "t-0" / f"{10:020d}.log"
    last.write_bytes(batch_bytes(10, [Row()] * 5))
    with pytest.raises(DataLossError, match=r"\[15, 17\)"):
        read(split)
    _, rows = read(split, failOnDataLoss="false")
    assert [row["offset"] for row in rows] == list(range(3, 15))


def test_a_topic_that_was_deleted_is_a_loss(log: Path) -> None:
    split = split_of(log, 3, 8)
    for file in (log / "t-0").iterdir():
        file.unlink()
    (log / "t-0").rmdir()
    with pytest.raises(DataLossError, match="COULD_NOT_READ_OFFSET_RANGE"):
        read(split)
    assert read(split, failOnDataLoss="false") == ([], [])


def test_corrupt_bytes_are_an_error_whatever_fail_on_data_loss_says(log: Path) -> None:
    split = split_of(log, 0, 10)
    file = log / "t-0" / f"{0:020d}.log"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    with file.open("r+b") as opened:
        opened.write(data)
    with pytest.raises(CorruptRecordError, match=r"t-0: offsets.*checksum"):
        read(split, failOnDataLoss="false")


def test_a_timestamp_beyond_sparks_names_its_record(tmp_path: Path) -> None:
    rows = [Row(), Row(timestamp=MAX_OFFSET // 1000 + 1)]
    write_segment(tmp_path / "t-0", 0, batch_bytes(0, rows))
    split = split_of(tmp_path, 0, 2)
    with pytest.raises(
        TimestampOutOfRangeError,
        match=r"KAFKA_MALFORMED_RECORD_TIMESTAMP\].*t-0: .*offset 1 .*9223372036854776.*onTimes",
    ):
        read(split)
    _, found = read(split, onTimestampOverflow="null")
    assert [row["timestamp"] is None for row in found] == [False, True]
    without = RowSchema.of(StructType().add("offset", "long"))
    assert read(split, without)[1] == [{"offset": 0}, {"offset": 1}]


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("columns", [("offset", "timestamp"), ("offset", "timestamp", "headers")])
def test_rows_before_a_timestamp_beyond_sparks_come_and_its_file_is_named(
    tmp_path: Path, magic: int, columns: tuple[str, ...]
) -> None:
    """In the second of two segments: rows of the first one are kept when it is come across."""
    bad = MAX_OFFSET // 1000 + 1
    for base, times in ((0, [1, 1]), (2, [1, bad, 1])):
        data = batch_bytes(base, [Row(timestamp=time) for time in times])
        if magic == 1:
            data = b"".join(
                message(base + n, None, b"v", magic=1, timestamp=time)
                for n, time in enumerate(times)
            )
        write_segment(tmp_path / "t-0", base, data)
    found: list[pa.RecordBatch] = []
    batches = read_split(split_of(tmp_path, 0, 5), options(), RowSchema.named(columns))
    with pytest.raises(TimestampOutOfRangeError) as raised:
        found.extend(batches)
    assert [n for batch in found for n in batch.column("offset").to_pylist()] == [0, 1, 2]
    place = f"t-0: {tmp_path}/t-0/{2:020d}.log: the record at offset 3 has"
    assert str(raised.value).count(place) == str(raised.value).count("offset 3") == 1


def test_damage_fails_or_is_skipped_and_counted(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = log / "t-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # in the batch [5, 10)
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match="do not match its checksum"):
        read(split_of(log, 0, 20))
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        _, rows = read(split_of(log, 0, 20), onCorruptRecord="skip")
    assert [row["offset"] for row in rows] == [*range(5), *range(10, 20)]
    skipped, counted = caplog.messages
    assert f"skipped the batch at position {len(data) // 2} of {path}" in skipped
    assert counted == f"t-0: skipped damage at 1 place, {len(data) // 2} bytes in all"


# ----------------------------------------------------------------------------------------------
# Small batches are joined.


def rows_of(*numbers: int, size: int = 1) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers), "value": ["x" * size for _ in numbers]})


def counts(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return [batch.num_rows for batch in batches]


def test_small_batches_are_joined_and_large_ones_handed_on_in_order() -> None:
    large = rows_of(*range(2000))
    given = [rows_of(1), rows_of(2, 3), large, rows_of(4), large[:0]]
    joined = list(join_batches(given))
    assert counts(joined) == [3, 2000, 1]
    assert joined[1] is large
    assert pa.Table.from_batches(joined).equals(pa.Table.from_batches(given))
    assert list(join_batches([])) == []


def test_what_is_joined_is_bounded_in_batches_and_in_bytes() -> None:
    assert counts(join_batches(rows_of(n) for n in range(600))) == [256, 256, 88]
    assert max(counts(join_batches(rows_of(n, size=60_000) for n in range(100)))) < 20
    assert counts(join_batches(rows_of(n, size=70_000) for n in range(3))) == [1, 1, 1]


def test_what_comes_before_an_error_is_handed_on_before_it() -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from (rows_of(1), rows_of(2))
        raise CorruptRecordError("damaged")

    batches = join_batches(failing())
    assert next(batches).num_rows == 2
    with pytest.raises(CorruptRecordError, match="damaged"):
        next(batches)
