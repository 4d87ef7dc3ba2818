"""What reading costs, counted in bytes fetched, system calls, decompressions and Python calls."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from benchmarks.segments import PartitionWriter, commit_ends, encoded_rows
from tests.support.counted_work import calls_of, io_of, traced_peak

import kafkalog
from kafkalog.model import TopicPartition
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.records.compression import lz4_kernels
from kafkalog.streaming.records.jit.inline import INTERPRETED
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import RowSchema, source_schema

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = 40_000
T0 = TopicPartition("t", 0)

pytestmark = [
    pytest.mark.skipif(INTERPRETED, reason="kernels run as Python"),
    pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/io is Linux's"),
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a partition of rows of 110 bytes in lz4 batches of 256 KiB."""
    run = encoded_rows(ROWS, target_bytes=256 << 10)
    commit_ends(tmp_path, [(T0, PartitionWriter(tmp_path, T0).append(run))])
    return tmp_path


def reader(log: Path, *columns: str) -> Callable[[], list[pa.RecordBatch]]:
    """Give what reads the topic as a task does, after a run that loads kernels."""
    options = ReadOptions.parse({"path": str(log), "subscribe": "t"})
    schema = source_schema(include_headers=False)
    wanted = type(schema)([field for field in schema if field.name in columns or not columns])
    (split,) = plan_batch(options)

    def read() -> list[pa.RecordBatch]:
        return list(read_split(split, options, RowSchema.of(wanted)))

    assert sum(batch.num_rows for batch in read()) == ROWS
    return read


def test_a_task_fetches_the_file_once_and_in_large_pieces(log: Path) -> None:
    size = next((log / "t-0").glob("*.log")).stat().st_size
    counted = io_of(reader(log))
    # a batch that a piece cuts is fetched again with the next one
    assert size <= counted["rchar"] <= size * 1.12 + 4096
    assert counted["syscr"] <= 4 + size // (512 << 10)
    assert counted["wchar"] == counted["syscw"] == 0


def test_a_kernel_decompresses_and_no_block_or_batch_takes_a_call(log: Path) -> None:
    read = reader(log)
    calls = calls_of(read)
    assert calls["module.decompress"] == 0
    assert calls["bytes.join"] <= 3
    assert sum(calls.values()) <= 400 * len(read())


def test_without_the_librarys_function_blocks_are_decompressed_once(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lz4_kernels, "is_exported", lambda: False)
    read = reader(log)
    calls = calls_of(read)
    decompressed = ROWS * 120
    assert 0 < calls["module.decompress"] <= 1.1 * decompressed / (64 << 10)
    assert calls["bytes.join"] <= 3
    assert sum(calls.values()) <= 1000 * len(read())


@pytest.mark.parametrize("times", [1, 4])
def test_memory_does_not_grow_with_what_a_task_reads(tmp_path: Path, times: int) -> None:
    run = encoded_rows(ROWS, target_bytes=256 << 10)
    writer = PartitionWriter(tmp_path, T0)
    commit_ends(tmp_path, [(T0, max(writer.append(run) for _ in range(times)))])
    options = ReadOptions.parse({"path": str(tmp_path), "subscribe": "t"})
    splits = plan_batch(options)
    schema = RowSchema.of(source_schema(include_headers=False))

    def read() -> None:
        batches = (batch for split in splits for batch in read_split(split, options, schema))
        assert sum(len(batch) for batch in batches) == times * ROWS

    read()
    # a piece of the file, a group of it decompressed and joined, and output batches
    assert traced_peak(read) < 9 << 20


def test_columns_that_nobody_asked_for_are_not_built(log: Path) -> None:
    values, everything = reader(log, "value"), reader(log)
    assert sum(calls_of(values).values()) < sum(calls_of(everything).values()) - 20
    assert sum(batch.nbytes for batch in values()) <= ROWS * 105


def test_appending_writes_a_row_to_the_staged_file_and_to_the_log_and_nowhere_else(
    tmp_path: Path,
) -> None:
    rows = pa.table({"key": [b"%010d" % n for n in range(ROWS)], "value": [b"v" * 100] * ROWS})
    options = {"numPartitions": "1", "compression.type": "none", "flush": "os"}

    def append() -> None:
        kafkalog.append(tmp_path, "t", rows, options=options)

    append()
    (path,) = (tmp_path / "t-0").glob("*.log")
    before = path.stat().st_size
    counted = io_of(append)
    written = path.stat().st_size - before
    assert written > ROWS * 110
    assert counted["wchar"] <= 2.05 * written
    assert counted["syscw"] <= 60 + written // (128 << 10)
