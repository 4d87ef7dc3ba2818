"""Answers in SQL over one topic: in this process, and by the command in a fresh one.

CPU is what the kernel counts for the process and its threads. Each statement runs once before it is
measured, so that kernels are loaded and files are in the page cache.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from benchmarks.machine import facts
from benchmarks.report import write_section
from benchmarks.session import scratch

import kafkalog
from kafkalog.jobs.sql import SqlSession

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["main"]

_SECTION: Final = "What it costs"
_PAGE: Final = "sql.md"
_AT_ONCE: Final = 100_000
_KEYS: Final = 1000
_VALUE: Final = 100
_START: Final = 1_700_000_000_000
_ROUNDS: Final = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; with ``--docs`` put it on the page."""
    parser = argparse.ArgumentParser(prog="benchmarks.sql", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--docs", type=Path, help=f"a folder whose {_PAGE} gets the figures")
    parser.add_argument("--quick", action="store_true", help="whether it works, not how fast")
    asked = parser.parse_args(argv)
    if asked.quick:
        asked.rows = 2 * _AT_ONCE
    with scratch() as directory:
        _write(directory, asked.rows)
        text = "\n".join(_measured(directory, asked.rows)) + "\n"
    print(text)
    if asked.docs:
        write_section(asked.docs, _SECTION, text, page=_PAGE)
    return 0


def _write(log: Path, rows: int) -> None:
    """Write a row a millisecond, in batches of a producer's usual size."""
    draw = np.random.default_rng(7)
    for first in range(0, rows, _AT_ONCE):
        count = min(_AT_ONCE, rows - first)
        half = draw.integers(97, 123, (count, _VALUE // 2), np.uint8)
        values = np.concatenate([half, np.full_like(half, 107)], axis=1)
        column = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(_VALUE), count, [None, pa.py_buffer(values)]
        )
        keys = pa.array([f"key-{n}" for n in draw.integers(0, _KEYS, count)])
        stamps = pa.array(np.arange(first, first + count) + _START, pa.timestamp("ms"))
        table = pa.table({"key": keys, "value": column.cast(pa.binary()), "timestamp": stamps})
        options = {"numPartitions": "4", "compression.type": "lz4", "flush": "os"}
        kafkalog.append(log, "rows", table, options=options)


def _statements(rows: int) -> dict[str, str]:
    late = f"timestamp >= make_timestamp({(_START + rows * 99 // 100) * 1000})"
    return {
        "count": "select count(*) from rows",
        "count by key": "select key, count(*) from rows group by 1",
        "count by key, the last hundredth by time": (
            f"select key, count(*) from rows where {late} group by 1"
        ),
        "text in values": "select count(*) from rows where value_text like '%abcd%'",
        "batches, bytes by codec": "select codec, count(*), sum(size) from batches group by 1",
    }


def _measured(log: Path, rows: int) -> list[str]:
    lines = [
        (
            f"{rows:,} records of 4 partitions, keys of 7 bytes, values of {_VALUE} bytes, lz4 "
            f"({facts()['processor']}): medians of {_ROUNDS} (`python -m benchmarks.sql`). "
            "Time is shared with whatever else the machine does; CPU is of the answer alone."
        ),
        "",
        "| statement | CPU | time |",
        "| --- | ---: | ---: |",
    ]
    statements = _statements(rows)
    with SqlSession([str(log)], {}) as session:
        for name, statement in statements.items():
            lines.append(_line(name, lambda text=statement: [*session.run(text)]))
    command = [sys.executable, "-c", "from kafkalog.jobs.cli.app import main; main()", "sql"]
    command += [str(log), statements["count by key"], "--json"]
    run: Callable[[], object] = lambda: subprocess.run(command, check=True, stdout=-3)  # noqa: E731
    return [*lines, _line("the command, count by key", run)]


def _line(name: str, work: Callable[[], object]) -> str:
    work()
    costs = []
    for _ in range(_ROUNDS):
        cpu, begun = _cpu(), time.perf_counter()
        work()
        costs.append((_cpu() - cpu, time.perf_counter() - begun))
    cpu, wall = (statistics.median(each) for each in zip(*costs, strict=True))
    return f"| {name} | {cpu:.2f} s | {wall:.2f} s |"


def _cpu() -> float:
    """Return the CPU seconds of this process and of those that it has waited for."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    raise SystemExit(main())
