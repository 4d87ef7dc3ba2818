"""What writing costs, counted in bytes written, system calls, compressions, calls and memory."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from tests.support.counted_work import calls_of, folders_read, io_of, traced_peak
from tests.support.sinking import Writer

import kafkalog
from kafkalog.files.deferred_signals import run_as
from kafkalog.files.system import system
from kafkalog.streaming.records.jit.inline import INTERPRETED
from kafkalog.streaming.sink.task_writer import TaskWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kafkalog.streaming.commit.staging.staged_run import StagedRun

ROWS = 10_000
"""In a batch, as Spark hands them over."""

BATCHES = 6
RECORD_BYTES = 120
SINKS_BATCH = 256 << 10
BLOCK = 64 << 10

pytestmark = [
    pytest.mark.skipif(INTERPRETED, reason="kernels run as Python"),
    pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/io is Linux's"),
]


@pytest.fixture(scope="module")
def batch() -> pa.RecordBatch:
    random = np.random.default_rng(3)
    keys = pa.array([b"%010d" % number for number in range(ROWS)])
    values = pa.array([random.bytes(25).hex().encode() + b" kafkalog " * 5 for _ in range(ROWS)])
    return pa.RecordBatch.from_pydict({"key": keys, "value": values})


class Staging:
    """Stages batches again and again, as a task does, after a run that loads kernels."""

    def __init__(self, folder: Path, batch: pa.RecordBatch, **options: str) -> None:
        self.writer = Writer(folder, topic="t", flush="os", **options)
        self.batch = batch
        self.runs: tuple[StagedRun, ...] = ()
        self.stage(1)

    def stage(self, batches: int, batch_id: int = 0) -> None:
        task = TaskWriter(self.writer.plan(), self.writer.identity(batch_id))
        self.runs = task.write([self.batch] * batches).runs

    @property
    def size(self) -> int:
        return sum(run.size for run in self.runs)


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_task_writes_each_encoded_byte_once_and_in_large_pieces(
    tmp_path: Path, batch: pa.RecordBatch, codec: str
) -> None:
    staging = Staging(tmp_path, batch, numPartitions="4", compression__type=codec)
    counted = io_of(lambda: staging.stage(BATCHES))
    assert staging.size > BATCHES * ROWS * 60
    assert staging.size <= counted["wchar"] <= 1.01 * staging.size
    assert counted["syscw"] <= 8 + staging.size // (64 << 10)
    assert counted["rchar"] <= 64 << 10  # what tells of the topic


def test_a_task_compresses_each_block_once_and_makes_few_calls(
    tmp_path: Path, batch: pa.RecordBatch
) -> None:
    staging = Staging(tmp_path, batch, numPartitions="4", compression__type="lz4")
    calls = calls_of(lambda: staging.stage(BATCHES))
    encoded = BATCHES * ROWS * RECORD_BYTES
    made = -(-encoded // SINKS_BATCH) + 4
    assert encoded // BLOCK <= calls["module.compress"] <= encoded // BLOCK + 2 * made
    # a batch of the log, with its blocks, and what each of four groups of a batch of rows costs
    assert sum(calls.values()) <= 120 * made + 4 * 120 * BATCHES + 2000


@pytest.mark.parametrize("batches", [BATCHES, 4 * BATCHES])
def test_memory_does_not_grow_with_what_a_task_writes(
    tmp_path: Path, batch: pa.RecordBatch, batches: int
) -> None:
    staging = Staging(tmp_path, batch, numPartitions="4", compression__type="lz4")
    assert traced_peak(lambda: staging.stage(batches)) < 12 << 20


@pytest.mark.parametrize("partitions", [1, 200])
def test_memory_is_bounded_over_many_partitions(
    tmp_path: Path, batch: pa.RecordBatch, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = 2 << 20
    monkeypatch.setattr("kafkalog.streaming.sink.task_writer.BUDGET_BYTES", budget)
    staging = Staging(tmp_path, batch, numPartitions=str(partitions), compression__type="none")
    assert traced_peak(lambda: staging.stage(2 * BATCHES)) < 10 * budget


def test_a_commit_reads_and_writes_each_staged_byte_once(
    tmp_path: Path, batch: pa.RecordBatch
) -> None:
    staging = Staging(tmp_path, batch, numPartitions="4", compression__type="lz4")
    commit = committing(staging)
    counted = io_of(commit)
    assert counted["rchar"] <= 2.05 * staging.size + (256 << 10)
    assert counted["wchar"] <= 1.05 * staging.size + (64 << 10)
    assert counted["syscw"] <= 100


def test_a_commit_of_files_that_become_segments_copies_nothing(
    tmp_path: Path, batch: pa.RecordBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkalog.streaming.commit.staging.staged_files.OWN_FILE_BYTES", 0)
    monkeypatch.setattr("kafkalog.streaming.log.growth.ADOPTED_BYTES", 0)
    fitting = {"numPartitions": "1", "segment__bytes": "4000000"}
    staging = Staging(tmp_path, batch, compression__type="lz4", **fitting)
    commit = committing(staging)
    counted = io_of(commit)
    assert counted["wchar"] <= 0.02 * staging.size + (64 << 10)


def test_what_a_new_partition_begins_with_is_not_copied(
    tmp_path: Path, batch: pa.RecordBatch
) -> None:
    staging = Staging(tmp_path, batch, numPartitions="1", compression__type="lz4")
    staging.stage(2 * BATCHES)
    counted = io_of(lambda: staging.writer.commit(0, staging.runs))
    assert staging.size > 1 << 20
    assert counted["wchar"] <= 0.02 * staging.size + (64 << 10)


def committing(staging: Staging) -> Callable[[], object]:
    """Give what commits staged batches to a topic that has some already."""
    staging.writer.commit(0, staging.runs)
    staging.stage(BATCHES, batch_id=1)
    return lambda: staging.writer.commit(1, staging.runs)


def test_a_row_appended_again_costs_the_same_in_a_large_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders are not listed again while none comes or goes, and one thread does all."""
    threads: list[object] = []

    def start(act: Callable[[], object], arguments: tuple[()]) -> int:
        threads.append(act)
        act(*arguments)
        run_as(None)
        return 0

    monkeypatch.setattr(system, "start_thread", start)
    row = pa.table({"value": ["x"]})
    for limit in (  # by which a set is a large one
        "kafkalog.streaming.log.log_dir._MANY_FOLDERS",
        "kafkalog.checkpoints.state_file.FEW_ENTRIES",
        "kafkalog.streaming.store.broker_files._LARGE_CHECKPOINT",
    ):
        monkeypatch.setattr(limit, 0)
    read, called = [], []
    for partitions in (50, 150):
        root = tmp_path / str(partitions)
        options = {"numPartitions": partitions, "flush": "os"}

        def append(root: Path = root, options: dict[str, int] = options) -> None:
            kafkalog.append(root, "t", row, options=options)

        for _ in range(4):
            append()
        threads.clear()
        read.append(folders_read(tmp_path, append)[str(partitions)])
        assert len(threads) == 1
        called.append(calls_of(append).total())
    assert read[1] <= read[0] <= 20
    assert called[1] <= called[0] + 20
