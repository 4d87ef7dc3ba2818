"""What a fresh process pays before its first row: imports, and kernels with and without a cache.

Each line is a process of its own, run some times; CPU time, so that other work on the machine
hardly shows.

    python -m benchmarks.startup
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from benchmarks.segments import PartitionWriter, commit_ends, encoded_rows
from benchmarks.session import scratch
from rich.console import Console
from rich.table import Table

from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["main"]

_SPARK: Final = "import pyspark.worker, pyspark.sql.worker.plan_data_source_read"
_PLAN: Final = """
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.stream_control import StreamControl
options = ReadOptions.parse({"path": path, "subscribe": "t", "startingOffsets": "earliest"})
control = StreamControl(options)
start = control.initial()
splits = control.plan(start, control.next_end(start, take_all=True))
"""
_READ: Final = """
from kafkalog.streaming.records.jit.kernel import load_without_compiler
from kafkalog.streaming.source.schema import RowSchema, source_schema
from kafkalog.streaming.source.reading import read_split
load_without_compiler()  # as tasks do
rows = RowSchema.of(source_schema(include_headers=False))
assert sum(len(batch) for split in splits for batch in read_split(split, options, rows)) == 1000
"""
_APPEND: Final = """
import kafkalog, pyarrow
rows = pyarrow.table({"key": ["k"] * 10, "value": ["v"] * 10})
kafkalog.append(path + "-own", "fresh", rows, options={"flush": "os"})
"""
_TIMED: Final = """
import sys, time
path = sys.argv[1]
{before}
began = time.process_time()
{work}
print(time.process_time() - began)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.startup", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args(argv).rounds
    shown = Table("in a fresh process", "CPU seconds", "least to most", title="Start-up")
    with scratch() as folder:
        log = folder / "log"
        log.mkdir()
        (folder / "log-own").mkdir()
        place = TopicPartition("t", 0)
        commit_ends(log, [(place, PartitionWriter(log, place).append(encoded_rows(1000)))])
        kept = {"KAFKALOG_KERNEL_CACHE": str(folder / "kernels")}
        none = {"KAFKALOG_KERNEL_CACHE": "/proc/none", "TMPDIR": "/proc/none"}
        lines: list[tuple[str, str, str, Mapping[str, str], int]] = [
            ("Spark's own imports", "", _SPARK, kept, rounds),
            ("plan what a query reads", _SPARK, _PLAN, kept, rounds),
            ("read 1,000 rows, nothing compiled yet", _SPARK + _PLAN, _READ, kept, 1),
            ("read 1,000 rows, kernels from the cache", _SPARK + _PLAN, _READ, kept, rounds),
            (
                "read 1,000 rows, cache in /tmp, as no other folder can be written",
                _SPARK + _PLAN,
                _READ,
                none,
                rounds,
            ),
            ("append 10 rows, kernels from the cache", _SPARK, _APPEND, kept, rounds),
        ]
        for name, before, work, environment, runs in lines:
            if work is _APPEND:
                _seconds(before, work, log, environment)
            taken = [_seconds(before, work, log, environment) for _ in range(runs)]
            spread = f"{min(taken):.2f} to {max(taken):.2f}"
            shown.add_row(name, f"{statistics.median(taken):.2f}", spread)
    Console().print(shown)
    return 0


def _seconds(before: str, work: str, log: Path, environment: Mapping[str, str]) -> float:
    script = _TIMED.format(before=before, work=work)
    words = [sys.executable, "-W", "ignore", "-c", script, str(log)]
    done = subprocess.run(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return float(done.stdout)


if __name__ == "__main__":
    raise SystemExit(main())
