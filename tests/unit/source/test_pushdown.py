"""Filters that decide what is read leave the rows that the same filters leave afterwards."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import StructType
from tests.support.indexed_logs import LOG_APPEND_TIME, write_indexed_segment
from tests.support.logs import Row, batch_bytes
from tests.support.read_bytes import ReadBytes
from tests.support.row_filters import passes

from kafkalog.errors import OptionError
from kafkalog.files.system import system
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.records.batch import scan_batches
from kafkalog.streaming.source.reading import _decoder
from kafkalog.streaming.source.schema import RowSchema, source_schema
from kafkalog.streaming.spark.datasource import KafkaLogDataSource
from kafkalog.streaming.spark.readers import LogBatchReader, PushdownReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql.datasource import DataSourceReader, Filter

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = 1_700_000_000_000
TOPICS = ("a", "ab", "b")


def at(milliseconds: float) -> datetime:
    return EPOCH + timedelta(microseconds=round(milliseconds * 1000))


def reader(log: Path, schema: StructType | None = None, **given: str) -> DataSourceReader:
    options = {"path": str(log), "subscribePattern": "."} | given
    return KafkaLogDataSource(options).reader(schema or source_schema(include_headers=False))


def rows_of(opened: DataSourceReader) -> list[dict[str, Any]]:
    """Plan, and read as tasks do: with a copy of the reader as it is when planning is over."""
    partitions = list(opened.partitions())
    found = []
    for partition in partitions:
        copy = pickle.loads(pickle.dumps((opened, partition)))
        for batch in copy[0].read(copy[1]):
            found += batch.to_pylist()
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def pushed(log: Path, filters: Sequence[Filter], **given: str) -> list[dict[str, Any]]:
    """Give the rows that Spark would show: what is read, without what other filters take."""
    opened = reader(log, filterPushdown="true", **given)
    left = list(opened.pushFilters(list(filters)))
    assert all(any(entry is one for one in filters) for entry in left)
    return [row for row in rows_of(opened) if passes(row, left)]


# Any log, any filters


@st.composite
def _batches(draw: st.DrawFn) -> list[tuple[list[Row], int]]:
    times = st.integers(0, 40)
    batches = []
    for _ in range(draw(st.integers(1, 6))):
        stamps = draw(st.lists(times, min_size=1, max_size=4))
        attributes = draw(st.sampled_from([0, 0, LOG_APPEND_TIME]))
        pad = draw(st.sampled_from([1, 70_000]))  # some batches are worth leaving out alone
        rows = [Row(b"v" * pad, timestamp=START + stamp) for stamp in stamps]
        batches.append((rows, attributes))
    return batches


def _values(name: str) -> st.SearchStrategy[Any]:
    numbers = {
        "topic": st.sampled_from([*TOPICS, "", "abc"]),
        "partition": st.integers(-1, 2),
        "offset": st.integers(-1, 25),
        "timestamp": st.builds(
            lambda ms, us: at(START + ms + us / 1000),
            st.integers(-1, 41),
            st.sampled_from([0, 0, 1, 500, 999]),
        ),
    }
    return numbers[name]


@st.composite
def _filters(draw: st.DrawFn) -> list[Filter]:
    found: list[Filter] = []
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(["topic", "partition", "offset", "timestamp", "timestamp"]))
        column, value = (name,), _values(name)
        compared = [EqualTo, LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual]
        if name == "topic":
            compared += [StringStartsWith, StringEndsWith, StringContains]
        kind = draw(st.sampled_from([*compared, EqualNullSafe, In, IsNull, IsNotNull]))
        entry: Filter
        if kind is In:
            entry = In(column, tuple(draw(st.lists(value | st.none(), max_size=4))))
        elif kind in {IsNull, IsNotNull}:
            entry = kind(column)
        else:
            entry = kind(column, draw(value | st.none() if draw(st.booleans()) else value))
        found.append(Not(entry) if draw(st.booleans()) else entry)
    return found


@pytest.mark.long
@given(
    log=st.lists(
        st.tuples(st.sampled_from(TOPICS), st.integers(0, 1), st.lists(_batches(), max_size=3)),
        min_size=1,
        max_size=3,
        unique_by=lambda entry: entry[:2],
    ),
    filters=st.lists(_filters(), min_size=4, max_size=4),
    split_bytes=st.sampled_from(["1", "100000", "64m"]),
)
@settings(max_examples=15, deadline=None)
def test_rows_are_the_same_with_and_without(
    log: list[tuple[str, int, list[Any]]], filters: list[list[Filter]], split_bytes: str
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="kafkalog-pushdown-"))
    try:
        for topic, partition, segments in log:
            offset = 0
            for batches in segments or [[]]:
                where = folder / f"{topic}-{partition}"
                offset = write_indexed_segment(where, offset, batches, interval=1)
        everything = rows_of(reader(folder))
        disorder = {"maxTimestampDisorder": str(disorder_of(everything))}
        for entry in filters:
            expected = [row for row in everything if passes(row, entry)]
            assert pushed(folder, entry, splitBytes=split_bytes) == expected
            assert pushed(folder, entry, splitBytes=split_bytes, **disorder) == expected
    finally:
        shutil.rmtree(folder)


def disorder_of(rows: list[dict[str, Any]]) -> int:
    """Give by how many ms a timestamp lies, at most, below an earlier one of its partition."""
    worst, latest = timedelta(0), {}
    for row in rows:
        key = row["topic"], row["partition"]
        latest[key] = max(row["timestamp"], latest.get(key, EPOCH))
        worst = max(worst, latest[key] - row["timestamp"])
    return worst // timedelta(milliseconds=1)


def test_what_is_out_of_order_within_bounds_is_not_missed(tmp_path: Path) -> None:
    stamps = (0, 9, 5, 12, 8, 20, 16, 30)  # never more than 4 below an earlier one
    batches = [([Row(timestamp=START + stamp)] * 2, 0) for stamp in stamps]
    write_indexed_segment(tmp_path / "t-0", 0, batches, interval=1)
    for stamp in range(31):
        wanted = [EqualTo(("timestamp",), at(START + stamp))]
        found = pushed(tmp_path, [*wanted], maxTimestampDisorder="4")
        assert [row["offset"] // 2 for row in found] == [
            place for place, other in enumerate(stamps) for _ in range(2) if other == stamp
        ]


@pytest.mark.parametrize(
    ("name", "there"), [("topic", "a"), ("partition", 0), ("offset", 1), ("timestamp", at(START))]
)
def test_null_is_neither_equal_nor_different(tmp_path: Path, name: str, there: object) -> None:
    write_indexed_segment(tmp_path / "a-0", 0, [([Row(timestamp=START)] * 3, 0)])
    everything = rows_of(reader(tmp_path))
    column = (name,)
    kinds: list[Filter] = [
        In(column, (there, None)),
        In(column, (None,)),
        In(column, ()),
        EqualTo(column, None),
        LessThan(column, None),
        EqualNullSafe(column, None),
        EqualNullSafe(column, there),
        IsNull(column),
        IsNotNull(column),
    ]
    for entry in [*kinds, *map(Not, kinds)]:
        expected = [row for row in everything if passes(row, [entry])]
        assert pushed(tmp_path, [entry]) == expected, entry


def test_timestamps_that_are_shown_as_null_are_left_to_spark(tmp_path: Path) -> None:
    stamps = (START, 2**60, START + 5)  # the second one has no place in a Spark timestamp
    batches = [([Row(timestamp=stamp)], 0) for stamp in stamps]
    write_indexed_segment(tmp_path / "a-0", 0, batches, interval=1)
    shown = {"onTimestampOverflow": "null"}
    everything = rows_of(reader(tmp_path, **shown))
    assert [row["timestamp"] for row in everything] == [at(START), None, at(START + 5)]
    for value in (None, at(START)):
        for kind in (EqualNullSafe, EqualTo, LessThan, GreaterThanOrEqual):
            for entry in (kind(("timestamp",), value), Not(kind(("timestamp",), value))):
                expected = [row for row in everything if passes(row, [entry])]
                assert pushed(tmp_path, [entry], **shown) == expected, entry
    for entry in (IsNull(("timestamp",)), IsNotNull(("timestamp",))):
        expected = [row for row in everything if passes(row, [entry])]
        assert pushed(tmp_path, [entry], **shown) == expected


# What Spark need not do again


def returned(log: Path, *filters: Filter, **given: str) -> list[Filter]:
    return list(reader(log, filterPushdown="true", **given).pushFilters(list(filters)))


def test_filters_on_topic_partition_and_offset_are_taken_over(tmp_path: Path) -> None:
    taken = [
        EqualTo(("topic",), "a"),
        Not(In(("topic",), ("a", "b"))),
        StringStartsWith(("topic",), "a"),
        EqualTo(("partition",), 1),
        IsNotNull(("partition",)),
        GreaterThan(("offset",), 5),
        In(("offset",), (1, 5, None)),
    ]
    left = [
        GreaterThan(("timestamp",), at(START)),
        IsNotNull(("timestamp",)),
        EqualTo(("value",), b"v"),
        EqualTo(("offset",), 2.5),
        In(("offset",), tuple(range(0, 500, 2))),
        EqualTo(("offset", "nested"), 1),
        StringContains(("offset",), "1"),
    ]
    assert returned(tmp_path, *taken, *left) == left


def test_names_are_those_of_the_user_s_schema(tmp_path: Path) -> None:
    write_indexed_segment(tmp_path / "a-0", 0, [([Row()], 0), ([Row()], 0)])
    schema = StructType().add("OFFSET", "long")
    opened = reader(tmp_path, schema, filterPushdown="true")
    assert opened.pushFilters([EqualTo(("OFFSET",), 1)]) == []
    (partition,) = opened.partitions()
    assert [row["OFFSET"] for b in opened.read(partition) for row in b.to_pylist()] == [1]


def test_without_the_option_there_is_no_method_that_spark_would_refuse(tmp_path: Path) -> None:
    assert type(reader(tmp_path)) is LogBatchReader
    assert type(reader(tmp_path, filterPushdown="true")) is PushdownReader
    with pytest.raises(OptionError, match=r"filterPushdown.*view=batches"):
        reader(tmp_path, filterPushdown="true", view="batches")


def test_a_warning_says_once_that_a_load_is_for_one_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_indexed_segment(tmp_path / "a-0", 0, [([Row()], 0)])
    monkeypatch.setattr(system, "memory", {})
    for _ in range(2):
        pushed(tmp_path, [EqualTo(("topic",), "a")])
    assert caplog.text.count("Load again for each query") == 1


# What is not read


def write_day(folder: Path, attributes: int = LOG_APPEND_TIME) -> Path:
    """Write 1440 batches of ten records, one batch a minute, in six segments of four hours."""
    offset = 0
    for hour in range(0, 24, 4):
        minutes = range(hour * 60, hour * 60 + 240)
        batches = [
            ([Row(b"x" * 1000, timestamp=START + m * 60_000) for _ in range(10)], attributes)
            for m in minutes
        ]
        offset = write_indexed_segment(folder / "day-0", offset, batches)
    return folder


DAY_BYTES = 1440 * 10_000
MINUTE = 700 * 60_000
ONE_MINUTE = [
    GreaterThanOrEqual(("timestamp",), at(START + MINUTE)),
    LessThan(("timestamp",), at(START + MINUTE + 60_000)),
]


def bytes_of(log: Path, filters: Sequence[Filter], **given: str) -> tuple[int, int]:
    """Give the rows and the bytes that a query reads, indexes, headers and listings included."""
    with ReadBytes() as first:
        rows = pushed(log, filters, **given) if filters else rows_of(reader(log, **given))
    with ReadBytes() as second:  # the first time may import something
        again = pushed(log, filters, **given) if filters else rows_of(reader(log, **given))
    assert rows == again
    return len(rows), min(first.count, second.count)


def test_one_minute_of_a_day_reads_the_batches_of_that_minute(tmp_path: Path) -> None:
    log = write_day(tmp_path)
    rows, everything = bytes_of(log, [])
    assert rows == 14_400
    assert everything > DAY_BYTES
    rows, count = bytes_of(log, ONE_MINUTE)
    assert rows == 10
    # one batch, the headers of 740 later ones, indexes and listings
    assert count < 0.02 * DAY_BYTES


def test_timestamps_of_producers_end_the_reading_by_their_known_disorder(tmp_path: Path) -> None:
    log = write_day(tmp_path, attributes=0)
    rows, count = bytes_of(log, ONE_MINUTE)
    # any later batch may hold a record of that minute
    assert (rows, 0.5 < count / DAY_BYTES < 0.6) == (10, True)
    rows, count = bytes_of(log, ONE_MINUTE, maxTimestampDisorder="5m")
    assert rows == 10
    assert count < 0.02 * DAY_BYTES


def test_options_for_timestamps_read_no_more_than_that_either(tmp_path: Path) -> None:
    log = write_day(tmp_path, attributes=0)
    given = {"startingTimestamp": START + MINUTE, "endingTimestamp": START + MINUTE + 60_000}
    rows, count = bytes_of(log, [], **{name: str(value) for name, value in given.items()})
    assert rows == 10
    assert count < 0.02 * DAY_BYTES


def test_a_few_offsets_and_one_partition_read_what_lies_around_them(tmp_path: Path) -> None:
    log = write_day(tmp_path)
    write_indexed_segment(tmp_path / "other-0", 0, [([Row(b"x" * 50_000)], 0)] * 40)
    filters = [In(("offset",), (5, 7_000, 7_001, 14_399)), EqualTo(("topic",), "day")]
    rows, count = bytes_of(log, filters)
    assert rows == 4
    assert count < 0.02 * DAY_BYTES


def test_what_no_row_can_pass_reads_no_record(tmp_path: Path) -> None:
    log = write_day(tmp_path)
    for nothing in (
        [LessThan(("timestamp",), at(START))],
        [EqualTo(("topic",), "none")],
        [IsNull(("offset",))],
        [GreaterThan(("offset",), 5), LessThan(("offset",), 6)],
    ):
        rows, count = bytes_of(log, nothing)
        assert rows == 0
        assert count < 0.02 * DAY_BYTES


def test_many_small_ranges_are_put_together_into_few_tasks(tmp_path: Path) -> None:
    log = write_day(tmp_path)
    opened = reader(log, filterPushdown="true")
    assert not opened.pushFilters([In(("offset",), tuple(range(0, 14_000, 200)))])
    assert len(list(opened.partitions())) == 1
    opened = reader(log, filterPushdown="true", minPartitions="3")
    assert not opened.pushFilters([LessThan(("offset",), 3_000)])
    assert len(list(opened.partitions())) == 3


def test_tasks_that_many_partitions_share_leave_out_what_timestamps_cannot_select(
    tmp_path: Path,
) -> None:
    times = range(START, START + 3)
    for partition in range(200):
        batches = [([Row(b"x" * 100, timestamp=time)], LOG_APPEND_TIME) for time in times]
        write_indexed_segment(tmp_path / f"many-{partition}", 0, batches)
    opened = reader(tmp_path, filterPushdown="true")
    opened.pushFilters([GreaterThanOrEqual(("timestamp",), at(times[1])), LessThan(("offset",), 2)])
    assert len(list(opened.partitions())) <= 5 * (os.cpu_count() or 1)
    rows = [(row["partition"], row["offset"]) for row in rows_of(opened)]
    assert rows == [(partition, 1) for partition in range(200)]


# Witnesses that lie


def corrupt_time_index(folder: Path, entries: Iterable[tuple[int, int]]) -> None:
    (path,) = folder.glob("*.timeindex")
    path.write_bytes(
        b"".join(time.to_bytes(8, "big") + offset.to_bytes(4, "big") for time, offset in entries)
    )


@pytest.mark.parametrize(
    "entries",
    [
        [(START + 1, 3)],  # says that nothing up to offset 3 is later
        [(START + 5, 3)],
        [(START + 1, 900)],  # beyond the log
        [],
    ],
)
def test_a_time_index_that_no_batch_bears_out_is_not_followed(
    tmp_path: Path, entries: list[tuple[int, int]]
) -> None:
    batches = [([Row(timestamp=START + stamp)], 0) for stamp in (1, 9, 2, 3, 7)]
    write_indexed_segment(tmp_path / "t-0", 0, batches, interval=1)
    corrupt_time_index(tmp_path / "t-0", entries)
    found = pushed(tmp_path, [GreaterThan(("timestamp",), at(START + 6))])
    assert [row["offset"] for row in found] == [1, 4]


def test_from_damage_on_everything_is_read(tmp_path: Path) -> None:
    batches = [([Row(b"x" * 100_000, timestamp=START + n)], 0) for n in range(6)]
    write_indexed_segment(tmp_path / "t-0", 0, batches, interval=1)
    path = tmp_path / "t-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2 + 16] = 9  # the magic of the fourth of six batches
    path.write_bytes(data)
    filters = [EqualTo(("timestamp",), at(START + 5))]
    found = pushed(tmp_path, filters, onCorruptRecord="skip", readUpTo="logEnd")
    assert [row["offset"] for row in found] in ([5], [3, 4, 5], [4, 5])


def test_columns_that_nobody_asks_for_are_not_built() -> None:
    rows = RowSchema.of(StructType().add("timestamp", "timestamp").add("topic", "string"))
    options = ReadOptions.parse({"path": "/logs", "subscribe": "t"})
    data = np.frombuffer(batch_bytes(0, [Row(b"v" * 5000, b"k")]), np.uint8)
    (built,) = _decoder(options, rows).decode(data, scan_batches(data).table)
    assert built.schema.names == ["timestamp"]
    assert built.nbytes < 100
