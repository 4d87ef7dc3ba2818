"""``view=latest`` gives what the newest of all records are, key by key."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import tempfile
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    In,
    IsNotNull,
    LessThan,
    Not,
)
from tests.support.compacting import compacted, updates, writer
from tests.support.corpus import CAPTURED_LIVE, CASES, CORPUS, UnpackedCase
from tests.support.counted_reads import counted_reads
from tests.support.indexed_logs import write_indexed_segment
from tests.support.log_files import flip
from tests.support.logs import Row, batch_bytes, write_segment
from tests.support.newest import by_key, latest_of, newest_of, open_spills, spilling
from tests.support.reading import read_batch

import kafkalog
from kafkalog.errors import CorruptRecordError, DataLossError, OptionError, SpillError
from kafkalog.streaming.lookup import latest
from kafkalog.streaming.lookup import latest as newest_rows
from kafkalog.streaming.lookup.latest import plan_latest, read_latest
from kafkalog.streaming.lookup.seen_keys import SpilledKeys
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.schema import RowSchema, source_schema
from kafkalog.streaming.source.stream_control import StreamControl
from kafkalog.streaming.spark.datasource import KafkaLogDataSource
from kafkalog.streaming.spark.readers import LatestPushdownReader

if TYPE_CHECKING:
    from collections.abc import Sequence

START = 1_700_000_000_000
LEVELS = ("read_uncommitted", "read_committed")
SCHEMA = source_schema(include_headers=False)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read pieces of few batches."""
    monkeypatch.setattr(latest, "PIECE", 300)
    monkeypatch.setattr(latest, "FIRST_PIECE", 300)


def both(**options: str) -> tuple[Any, Any]:
    """Give what is found and what is expected, deleted keys too."""
    kept = options | {"tombstones": "true"}
    return latest_of(**kept), newest_of(read_batch(**options), tombstones=True)


@pytest.mark.parametrize("name", CASES)
def test_logs_of_brokers_give_the_newest_record_of_each_key(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest, "PIECE", 10_000)
    case = UnpackedCase(name, tmp_path / "case")
    options = {"path": case.path, "subscribe": case.topics, "table.memory": "64k"}
    options["readUpTo"] = "logEnd" if name in CAPTURED_LIVE else "highWatermark"
    has_aborted = not pc.all(pq.read_table(CORPUS / name / "expected.parquet")["committed"]).as_py()
    for level in LEVELS if has_aborted else LEVELS[:1]:
        options |= {"kafka.isolation.level": level}
        found, expected = both(**options)
        assert found == expected
        with monkeypatch.context() as patch:
            spilling(patch)
            assert latest_of(**options, tombstones="true") == expected


KEYS = st.sampled_from([None, b"", *(b"key %d" % n for n in range(7))])
VALUES = st.sampled_from([None, b"", b"v", b"w" * 100])
ROWS = st.lists(
    st.builds(Row, VALUES, KEYS, st.integers(START, START + 20)), min_size=1, max_size=6
)
LOGS = st.lists(st.tuples(ROWS, st.just(0)), min_size=1, max_size=30)


@settings(deadline=None, max_examples=40)
@given(LOGS, st.integers(1, 400), st.integers(1, 3), st.booleans(), st.data())
def test_any_log_as_of_any_offset_or_time_gives_the_newest_record_of_each_key(
    batches: list[tuple[list[Row], int]],
    piece: int,
    tasks: int,
    spills: bool,
    data: st.DataObject,
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(latest, "PIECE", piece)
        patch.setattr(newest_rows, "KEPT_BYTES", 600)
        if spills:
            spilling(patch)
        middle = len(batches) // 2
        path = Path(folder) / "t-0"
        end = write_indexed_segment(path, 0, batches[:middle] or batches, interval=100)
        end = write_indexed_segment(path, end, batches[middle:], interval=100) if middle else end
        bound = data.draw(
            st.one_of(
                st.just({}),
                st.integers(0, end).map(lambda n: {"endingOffsets": f'{{"t":{{"0":{n}}}}}'}),
                st.integers(START, START + 21).map(lambda ms: {"endingTimestamp": str(ms)}),
                st.integers(0, end).map(lambda n: {"startingOffsets": f'{{"t":{{"0":{n}}}}}'}),
            )
        )
        options = {"path": folder, "subscribe": "t", "minPartitions": str(tasks)} | bound
        found, expected = both(**options)
        assert found == expected


def keyed(*pairs: tuple[str, str | None]) -> list[Row]:
    return [Row(None if v is None else v.encode(), k.encode()) for k, v in pairs]


def simple_log(folder: Path, *batches: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """Write ``t-0``, a batch of each of the lists; gives the options that read it."""
    data, offset = b"", 0
    for batch in batches:
        data += batch_bytes(offset, keyed(*batch))
        offset += len(batch)
    write_segment(folder / "t-0", 0, data, index=True)
    return {"path": str(folder), "subscribe": "t"}


def values(found: dict[Any, dict[str, Any]]) -> dict[bytes, bytes | None]:
    return {row["key"]: row["value"] for row in found.values()}


def test_a_deleted_key_is_gone_unless_tombstones_are_asked_for(tmp_path: Path) -> None:
    log = simple_log(tmp_path, [("a", "1"), ("b", "2")], [("a", None), ("c", None)], [("c", "3")])
    assert values(latest_of(**log)) == {b"b": b"2", b"c": b"3"}
    kept = latest_of(**log, tombstones="true")
    assert values(kept) == {b"a": None, b"b": b"2", b"c": b"3"}


def test_records_without_a_key_are_counted_in_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [Row(b"v", b"k" if n % 3 else None) for n in range(30)]
    for folder in ("t-0", "t-1"):
        write_segment(tmp_path / folder, 0, batch_bytes(0, rows))
    with caplog.at_level(logging.WARNING):
        found = latest_of(path=str(tmp_path), subscribe="t", minPartitions="6")
    assert len(found) == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"t-{n}: left out 10 records without a key: view=latest gives a row for each key"
        for n in (0, 1)
    ]


def test_keys_beyond_table_memory_are_all_there_and_a_warning_says_why_it_takes_longer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    batches = [
        [(f"key {n * 37 % 6000}", str(n)) for n in range(m, m + 100)] for m in range(0, 9000, 100)
    ]
    log = simple_log(tmp_path, *batches)
    with caplog.at_level(logging.WARNING):
        found, expected = both(**log, **{"table.memory": "64k"})
    assert found == expected
    assert len(found) == 6000
    assert sum("table.memory (65536 bytes)" in text for text in caplog.messages) <= 1


def test_columns_that_are_not_asked_for_are_not_built_and_text_is_text(tmp_path: Path) -> None:
    log = simple_log(tmp_path, [("a", "1")], [("a", "2"), ("b", "3")])
    reader = kafkalog.read(
        log["path"], "t", columns=["value", "offset"], strings=["value"], options={"view": "latest"}
    )
    assert sorted(reader.read_all().to_pylist(), key=str) == [
        {"value": "2", "offset": 1},
        {"value": "3", "offset": 2},
    ]


def test_a_piece_that_grows_too_large_is_read_again_in_smaller_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest_rows, "KEPT_BYTES", 2000)
    rows = [[(f"k{n % 7}", "x" * (n * 37 % 900)) for n in range(m, m + 3)] for m in range(0, 90, 3)]
    log = simple_log(tmp_path, *rows)
    (tmp_path / "t-0" / f"{0:020d}.index").unlink()
    found, expected = both(**log)
    assert found == expected


def test_a_piece_of_more_records_than_are_found_at_once_gives_the_newest(tmp_path: Path) -> None:
    rows = [[(f"k{n % 7}", str(n)) for n in range(m, m + 1000)] for m in range(0, 20_000, 1000)]
    log = simple_log(tmp_path, *rows)
    expected = {f"k{n % 7}".encode(): str(n).encode() for n in range(19_993, 20_000)}
    assert values(latest_of(**log)) == expected


# More keys than memory


@pytest.fixture
def spills(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let tasks spill into a folder, which is given."""
    spilling(monkeypatch)
    folder = tmp_path_factory.mktemp("spills")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(folder))
    return folder


def many_keys(folder: Path) -> dict[str, str]:
    rows = [[(f"k{n * 37 % 701}", str(n)) for n in range(m, m + 20)] for m in range(0, 2000, 20)]
    return simple_log(folder, *rows)


@pytest.mark.usefixtures("small_pieces")
def test_spilled_keys_are_looked_for_by_name_and_deleted_ones_are_gone(
    tmp_path: Path, spills: Path
) -> None:
    rows = [[(f"k{n % 40}", None if n % 3 else str(n)) for n in range(m, m + 9)] for m in range(90)]
    log = simple_log(tmp_path, *rows)
    expected = newest_of(read_batch(**log))
    assert latest_of(**log) == expected
    assert latest_of(**log, tombstones="true") == newest_of(read_batch(**log), tombstones=True)
    names = tuple(f"k{n}".encode() for n in range(0, 40, 2))
    reader, _ = pushed(In(("key",), names), **log)
    assert found_by(reader) == {k: v for k, v in values(expected).items() if k in names}
    assert open_spills(spills) == []


@pytest.mark.usefixtures("small_pieces")
def test_only_batches_with_rows_of_spilled_keys_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [([Row(b"x" * 500, b"k%d" % (n // 900))] * 3, 0) for n in range(1000)]
    write_indexed_segment(tmp_path / "t-0", 0, rows, interval=600)
    log = {"path": str(tmp_path), "subscribe": "t"}
    log |= {"endingOffsets": '{"t":{"0":2999}}'}
    with counted_reads() as once:
        expected = latest_of(**log)
    spilling(monkeypatch)
    monkeypatch.setattr("kafkalog.streaming.lookup.seen_keys._FIRST_SLOTS", 2)
    with counted_reads() as twice:
        assert latest_of(**log) == expected
    assert once[".log"] < twice[".log"] < 1.1 * once[".log"]


def test_a_query_that_is_not_read_to_its_end_leaves_no_file_open(
    tmp_path: Path, spills: Path
) -> None:
    many_keys(tmp_path)
    options = ReadOptions.parse({"path": str(tmp_path), "subscribe": "t", "view": "latest"})
    (split,) = plan_latest(options)
    batches = read_latest(split, options, RowSchema.of(SCHEMA))
    batches_of_the_other = read_latest(split, options, RowSchema.of(SCHEMA))
    first = next(batches)
    assert open_spills(spills)
    batches.close()
    assert open_spills(spills) == []
    assert sum(batch.num_rows for batch in batches_of_the_other) == 701 >= first.num_rows
    assert open_spills(spills) == []


def test_two_queries_at_once_in_one_process_give_their_own_rows(
    tmp_path: Path, spills: Path
) -> None:
    log = many_keys(tmp_path)
    expected = values(newest_of(read_batch(**log)))
    options = [
        ReadOptions.parse(log | {"view": "latest"} | more)
        for more in ({}, {"endingOffsets": '{"t":{"0":900}}'})
    ]
    readers = [read_latest(*plan_latest(each), each, RowSchema.of(SCHEMA)) for each in options]
    rows: tuple[list[Any], list[Any]] = ([], [])
    for pair in zip_longest(*readers):
        assert list(spills.iterdir()) == []
        for mine, batch in zip(rows, pair, strict=True):
            mine.extend(batch.to_pylist() if batch is not None else [])
    assert values(by_key(rows[0])) == expected
    assert len(by_key(rows[1])) == 701


def test_a_full_disk_is_a_clear_error_and_leaves_nothing(
    tmp_path: Path, spills: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = many_keys(tmp_path)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(SpillError, match="No space left on device; make room there"):
        latest_of(**log)
    assert open_spills(spills) == []


# Compaction


def test_a_compacted_log_gives_what_it_gave_before(tmp_path: Path) -> None:
    batches = [{f"k{n % 5}": str(n), f"o{n % 3}": None if n % 4 == 0 else "x"} for n in range(6)]
    updates(writer(tmp_path), batches)
    log = {"path": str(tmp_path), "subscribe": "t"}
    before = latest_of(**log)
    compacted(tmp_path)
    assert latest_of(**log) == before == newest_of(read_batch(**log))


class Read:
    """A view as it is read by a task while others change the log."""

    def __init__(self, log: Path, **given: str) -> None:
        parsed = {"path": str(log), "subscribe": "t", "view": "latest"} | given
        self.options = ReadOptions.parse(parsed)
        (self.split,) = plan_latest(self.options)

    def rows(self) -> dict[bytes, bytes | None]:
        batches = read_latest(self.split, self.options, RowSchema.of(SCHEMA))
        return values(by_key(row for batch in batches for row in batch.to_pylist()))


def test_a_compaction_below_the_views_end_takes_no_row_from_it(tmp_path: Path) -> None:
    updates(writer(tmp_path), [{"a": str(n), f"k{n}": "x"} for n in range(8)])
    expected = values(latest_of(path=str(tmp_path), subscribe="t"))
    view = Read(tmp_path)
    compacted(tmp_path)
    assert view.rows() == expected


@pytest.fixture
def overtaken(tmp_path: Path) -> Read:
    """Give a view of which a compaction has removed a row in favour of one that is newer."""
    into = writer(tmp_path)
    updates(into, [{"a": str(n), f"k{n}": "x"} for n in range(8)])
    view = Read(tmp_path, failOnDataLoss="true")
    updates(into, [{"a": "later", f"l{n}": "x"} for n in range(3)], first=8)
    compacted(tmp_path)
    return view


def test_a_compaction_by_newer_records_than_the_views_is_an_error(overtaken: Read) -> None:
    with pytest.raises(DataLossError, match=r"compacted while they were read.*read again"):
        overtaken.rows()


def test_a_spilled_row_that_a_compaction_takes_before_it_is_read_is_an_error(
    tmp_path: Path, spills: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = writer(tmp_path)
    updates(into, [{f"k{n % 9}": str(n), f"o{n % 9}": "x"} for n in range(18)])
    view = Read(tmp_path, failOnDataLoss="true")
    made = SpilledKeys.newest

    def compact_first(*given: Any, **options: Any) -> Any:
        updates(into, [{f"k{n}": "later", f"l{n}": "x"} for n in range(9)], first=18)
        compacted(tmp_path)
        return made(*given, **options)

    monkeypatch.setattr(SpilledKeys, "newest", compact_first)
    with pytest.raises(DataLossError, match=r"gone when they were read.*read again"):
        view.rows()
    assert open_spills(spills) == []


def test_without_fail_on_data_loss_it_is_a_warning(
    overtaken: Read, caplog: pytest.LogCaptureFixture
) -> None:
    overtaken.options = ReadOptions.parse(
        {"path": overtaken.options.paths[0], "subscribe": "t", "view": "latest"}
        | {"failOnDataLoss": "false"}
    )
    assert b"k3" in overtaken.rows()
    assert "compacted while they were read" in caplog.text


# Damage


@pytest.mark.usefixtures("small_pieces")
def test_damage_is_an_error_or_left_out_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [[(f"k{n % 4}", str(n)), ("last", str(n))] for n in range(40)]
    log = simple_log(tmp_path, *batches)
    flip(tmp_path / "t-0" / f"{0:020d}.log", 39 * 77 + 70)
    with pytest.raises(CorruptRecordError, match="its bytes do not match its checksum"):
        latest_of(**log)
    monkeypatch.setattr(newest_rows, "KEPT_BYTES", 400)
    skip = log | {"onCorruptRecord": "skip"}
    expected = newest_of(read_batch(**skip))
    caplog.clear()
    assert latest_of(**skip) == expected
    assert [("skipped the batch" in text) for text in caplog.messages] == [True, False]


# Filters and options


def pushed(*filters: Any, **given: str) -> tuple[LatestPushdownReader, list[Any]]:
    options = {"subscribe": "t", "view": "latest", "filterPushdown": "true"} | given
    reader = KafkaLogDataSource(options).reader(SCHEMA)
    assert isinstance(reader, LatestPushdownReader)
    return reader, list(reader.pushFilters(list(filters)))


def found_by(reader: LatestPushdownReader) -> dict[bytes, bytes | None]:
    rows: list[dict[str, Any]] = []
    for partition in reader.partitions():
        task, split = pickle.loads(pickle.dumps((reader, partition)))
        rows += [row for batch in task.read(split) for row in batch.to_pylist()]
    return values(by_key(rows))


def test_only_filters_on_key_topic_and_partition_choose_what_is_read(tmp_path: Path) -> None:
    log = simple_log(tmp_path, [("a", "1"), ("b", "2")], [("a", "3")])
    kept = [
        LessThan(("offset",), 2),  # the newest row of a fails it, an older one passes
        EqualTo(("value",), b"1"),
        GreaterThan(("timestamp",), None),
        Not(EqualTo(("key",), b"a")),
        IsNotNull(("key",)),
    ]
    reader, left = pushed(EqualTo(("topic",), "t"), In(("partition",), (0, 1)), *kept, **log)
    assert left == kept
    assert found_by(reader) == {b"a": b"3", b"b": b"2"}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([EqualTo(("key",), b"a")], {b"a"}),
        ([EqualNullSafe(("key",), b"zz")], set()),
        ([In(("key",), (b"a", b"c", None, b"deleted"))], {b"a", b"c"}),
        ([In(("key",), (b"a", b"c")), EqualTo(("key",), bytearray(b"c"))], {b"c"}),
        ([EqualTo(("key",), b"a"), EqualTo(("key",), b"c")], set()),
        ([EqualTo(("key",), b"")], {b""}),
        ([EqualTo(("key",), b"a"), EqualTo(("partition",), 5)], set()),
    ],
)
@pytest.mark.usefixtures("small_pieces")
def test_keys_that_filters_name_are_looked_for_alone(
    filters: list[Any], expected: set[bytes], tmp_path: Path
) -> None:
    log = simple_log(
        tmp_path,
        [("a", "old"), ("", "e"), ("deleted", "x")],
        *([(f"k{n}", "x")] for n in range(20)),
        [("a", "1"), ("c", "2"), ("deleted", None)],
    )
    reader, left = pushed(*filters, **log)
    assert left == [entry for entry in filters if entry.attribute == ("key",)]
    assert set(found_by(reader)) == expected


def test_reading_for_a_key_ends_where_it_is_found(tmp_path: Path) -> None:
    rows = [([Row(b"x" * 1000, b"k%d" % n)] * 10, 0) for n in range(1000)]
    write_indexed_segment(tmp_path / "t-0", 0, rows)
    size = (tmp_path / "t-0" / f"{0:020d}.log").stat().st_size
    reader, _ = pushed(EqualTo(("key",), b"k995"), path=str(tmp_path))
    with counted_reads() as fetched:
        assert set(found_by(reader)) == {b"k995"}
    assert fetched[".log"] < 200_000 < size / 40


@pytest.mark.parametrize("name", ["maxRecordsPerPartition", "splitBytes"])
def test_options_that_cut_partitions_are_refused(name: str, tmp_path: Path) -> None:
    log = simple_log(tmp_path, [("a", "1")])
    with pytest.raises(OptionError, match="view=latest reads each one whole"):
        KafkaLogDataSource(log | {"view": "latest", name: "7"}).reader(SCHEMA)
    with pytest.raises(OptionError, match="minPartitions"):
        kafkalog.read(tmp_path, "t", options={"view": "latest", name: "7"})


def test_tombstones_are_for_this_view() -> None:
    with pytest.raises(OptionError, match="tombstones"):
        ReadOptions.parse({"path": "/log", "subscribe": "t", "tombstones": "true"})


def test_a_stream_refuses_the_view_and_says_what_to_do(tmp_path: Path) -> None:
    log = simple_log(tmp_path, [("a", "1")])
    with pytest.raises(OptionError, match=r"MERGE.*foreachBatch"):
        StreamControl(ReadOptions.parse(log | {"view": "latest"}))
    with pytest.raises(OptionError, match=r"MERGE.*foreachBatch"):
        next(kafkalog.tail(tmp_path, "t", options={"view": "latest"}))
