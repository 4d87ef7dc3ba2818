"""Rows by their keys, from memory and from sorted runs, beside Python's own sorting."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.newest import open_spills

from kafkalog.errors import SpillError
from kafkalog.streaming.lookup import ordered_rows
from kafkalog.streaming.lookup import ordered_rows as sorted_runs
from kafkalog.streaming.lookup.ordered_rows import OrderedRows

if TYPE_CHECKING:
    from pathlib import Path

Row = dict[str, Any]
SCHEMA = pa.schema(
    [
        *(("key", pa.binary()), ("value", pa.binary()), ("partition", pa.int32())),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
SMALL = 1 << 15


@pytest.fixture(autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the local directory."""
    path = tmp_path_factory.mktemp("local")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(path))
    return path


def batches(rows: list[Row], at_once: int) -> list[pa.RecordBatch]:
    whole = pa.RecordBatch.from_pylist(rows, SCHEMA)
    return [whole.slice(first, at_once) for first in range(0, len(rows), at_once)]


def ordered(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["key"], row["partition"]))


def given_back(table: OrderedRows, rows: list[Row], at_once: int) -> list[Row]:
    for batch in batches(rows, at_once):
        table.add(batch)
    return [row for batch in table.take() for row in batch.to_pylist()]


def many(count: int, value: bytes = b"v" * 90) -> list[Row]:
    numbers = (n * 7919 % count for n in range(count))
    return [
        {"key": b"%d" % (n // 3), "value": value, "partition": n % 3, "headers": None}
        for n in numbers
    ]


VALUES = st.one_of(st.none(), st.binary(max_size=5), st.integers(0, 9000).map(bytes))
HEADERS = st.one_of(st.none(), st.lists(st.just({"key": "k", "value": b"h"}), max_size=2))
KEYS = st.one_of(st.binary(max_size=3), st.integers(0, 5).map(lambda n: b"\xff" * n))
ROWS = st.dictionaries(st.tuples(KEYS, st.integers(0, 9)), st.tuples(VALUES, HEADERS), max_size=40)


@pytest.mark.parametrize("fan", [2, 3, 32])
@settings(deadline=None, max_examples=60)
@given(found=ROWS, at_once=st.integers(1, 9), memory=st.sampled_from([1, 900, SMALL, 1 << 20]))
def test_any_rows_come_in_the_order_of_key_and_partition(
    fan: int, found: dict[Any, Any], at_once: int, memory: int
) -> None:
    rows = [
        {"key": key, "value": value, "partition": partition, "headers": headers}
        for (key, partition), (value, headers) in found.items()
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_runs, "FAN", fan)
        patch.setattr(ordered_rows, "_SMALLEST_BLOCK", 50)
        table = OrderedRows(memory)
        assert given_back(table, rows, at_once) == ordered(rows)
        if memory in {1, 1 << 20}:
            assert table.spilled == (memory == 1 and bool(rows))
        table.close()


def test_rows_many_times_larger_than_memory_are_merged_in_levels(folder: Path) -> None:
    rows = many(30_000)
    table = OrderedRows(SMALL)
    assert given_back(table, rows, 1000) == ordered(rows)
    assert len(table._runs._levels) >= 2
    assert open_spills(folder)
    table.close()
    assert open_spills(folder) == []
    assert list(folder.iterdir()) == []


def test_what_fits_makes_no_file(folder: Path) -> None:
    table = OrderedRows(1 << 24)
    assert given_back(table, many(3000), 100) == ordered(many(3000))
    assert not table.spilled
    assert open_spills(folder) == []


def test_memory_stays_within_its_bound() -> None:
    table = OrderedRows(1 << 20)
    before = pa.total_allocated_bytes()
    most = 0
    for batch in batches(many(40_000), 500):
        table.add(batch)
        held = sum(each.get_total_buffer_size() for each in table._batches)
        most = max(most, held + table._table.memory)
    assert most <= (1 << 20) * 3 // 4
    most = 0
    for batch in table.take():
        del batch
        most = max(most, pa.total_allocated_bytes() - before)
    assert most <= 2 << 20
    table.close()


def test_batches_that_are_given_are_of_a_bounded_size() -> None:
    large = {"key": b"large", "value": b"x" * 200_000, "partition": 0, "headers": None}
    rows = [*many(3000), large]
    table = OrderedRows(1 << 20)
    for batch in batches(rows, 700):
        table.add(batch)
    sizes = [(batch.num_rows, batch.nbytes) for batch in table.take()]
    assert sum(count for count, _ in sizes) == 3001
    assert all(size <= 2 * table._block for count, size in sizes if count > 1)
    table.close()


def test_a_full_disk_is_an_error_that_says_so_and_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = os.pwrite
    for most in (0, 3, 40):
        calls = 0

        def full(fd: int, view: memoryview, at: int, most: int = most) -> int:
            nonlocal calls
            calls += 1
            if calls > most:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return written(fd, view, at)

        monkeypatch.setattr(os, "pwrite", full)
        table = OrderedRows(SMALL)
        with pytest.raises(SpillError, match=r"No space left on device; make room there"):
            given_back(table, many(30_000), 1000)
        table.close()
        assert open_spills(folder) == []
    assert list(folder.iterdir()) == []


def test_a_kill_while_rows_are_spilled_or_merged_leaves_no_file(folder: Path) -> None:
    code = """
import os, sys
from tests.unit.lookup.test_ordered_rows import OrderedRows, SMALL, batches, many
table = OrderedRows(SMALL)
for batch in batches(many(9000), 1000):
    table.add(batch)
assert table.spilled
if sys.argv[1] == "merge":
    next(table.take())
os.kill(os.getpid(), 9)
"""
    for when in ("spill", "merge"):
        done = subprocess.run([sys.executable, "-c", code, when], check=False)
        assert done.returncode == -9
        assert list(folder.iterdir()) == []
