"""What a row costs a reading task, beside what nobody can save: liblz4, the CRC, and one copy.

A task's read of a partition, without Spark's pipe, and the three by themselves over the same bytes:
liblz4 called by a kernel, frame after frame; the CRC library, batch after batch; a copy of the
decompressed bytes. All take turns in one process. CPU ns a row, system time included.

    python -m benchmarks.floor
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Final

import crc32c
import numpy as np
from benchmarks.segments import PRODUCER_BATCH_BYTES, commit_ends, encoded_rows, write_partition
from benchmarks.session import scratch
from rich.console import Console
from rich.table import Table

from kafkalog.model import TopicPartition
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.records.batch import BatchTable, scan_batches
from kafkalog.streaming.records.batch_layout import ATTRIBUTES_POSITION, HEADER_SIZE
from kafkalog.streaming.records.columns import Bodies, KernelDecompressor
from kafkalog.streaming.records.compression import Codec
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import RowSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

_ROWS: Final = 100_000
_TIMES: Final = 20
_LARGE_BATCH_BYTES: Final = 256 << 10
_STEP: Final = 1 << 20
_PLACE: Final = TopicPartition("t", 0)
_COLUMNS: Final[dict[str, tuple[str, ...]]] = {"7": (), "value": ("value",)}
_GOALS: Final = {_LARGE_BATCH_BYTES: 1.0, PRODUCER_BATCH_BYTES: 1.5}
"""By bytes of a batch: at most how many times the three the rest should take."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each size of batch and choice of columns."""
    parser = argparse.ArgumentParser(prog="benchmarks.floor", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--times", type=int, default=_TIMES, help=f"times {_ROWS:,} rows")
    asked = parser.parse_args(argv)
    table = Table(
        *("a batch", "columns", "a task", "liblz4", "CRC", "copy", "the rest", "goal"),
        title=f"CPU ns a row, {asked.times * _ROWS:,} rows, median of {asked.rounds}",
    )
    for size, goal in _GOALS.items():
        with scratch() as folder:
            run = encoded_rows(_ROWS, size)
            end = write_partition(folder, _PLACE, run, asked.times * len(run))
            commit_ends(folder, [(_PLACE, end)])
            for name, columns in _COLUMNS.items():
                costs = _measured(folder, run, columns, asked.rounds, asked.times)
                whole, *floors = costs
                rest = whole - sum(floors)
                table.add_row(
                    f"{size >> 10} KiB",
                    name,
                    *(f"{cost:.1f}" for cost in costs),
                    f"{rest:.1f}: {rest / sum(floors):.2f} x the three",
                    f"{goal} x",
                )
    Console(width=120).print(table)
    return 0


def _measured(
    folder: Path, run: Bytes, columns: Sequence[str], rounds: int, times: int
) -> list[float]:
    """Return the medians, in ns a row, of a task, liblz4, the CRC and the copy, in turns."""
    table = scan_batches(run).table
    works: list[Callable[[], object]] = [
        lambda: _read(folder, columns),
        lambda: [_decompress(run, table) for _ in range(times)],
        lambda: [_check(run, table) for _ in range(times)],
        _copier(times * _decompress(run, table)),
    ]
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(rounds + 1):
        for work, seconds in zip(works, taken, strict=True):
            start = time.process_time()
            work()
            seconds.append(time.process_time() - start)
    return [statistics.median(one[1:]) * 1e9 / (times * _ROWS) for one in taken]


def _read(folder: Path, columns: Sequence[str]) -> None:
    options = ReadOptions.parse({"path": str(folder), "subscribe": _PLACE.topic})
    rows = RowSchema.named(columns)
    for split in plan_batch(options):
        for _ in read_split(split, options, rows):
            pass


def _decompress(run: Bytes, table: BatchTable) -> int:
    """Decompress all batches, a group's bytes at a time; return how many bytes they hold."""
    decompressor = KernelDecompressor(2 * _STEP, _STEP)
    assert decompressor.can(Codec.LZ4), "no liblz4 that kernels can call"
    out = np.empty(2 * _STEP, np.uint8)
    starts, sizes = table.position + HEADER_SIZE, table.size - HEADER_SIZE
    bodies = Bodies(run, starts, sizes, np.ones(len(table), np.uint8))
    done = size = 0
    while done < len(table):
        ends = np.empty(len(table) - done, np.int64)
        count = decompressor.decompress(Codec.LZ4, bodies.after(done), out, 0, ends)
        done += count
        size += int(ends[count - 1])
    return size


def _check(run: Bytes, table: BatchTable) -> None:
    data = run.data
    facts = table.position.tolist(), table.size.tolist(), table.crc.tolist()
    for position, size, crc in zip(*facts, strict=True):
        assert crc32c.crc32c(data[position + ATTRIBUTES_POSITION : position + size]) == crc


def _copier(size: int) -> Callable[[], None]:
    """Return what copies so many bytes, from and to memory that a core's cache holds in part."""
    source, target = np.ones(_STEP, np.uint8), np.empty(_STEP, np.uint8)

    def copy() -> None:
        for _ in range(-(-size // _STEP)):
            np.copyto(target, source)

    return copy


if __name__ == "__main__":
    raise SystemExit(main())
