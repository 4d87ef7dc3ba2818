"""What a row costs by how many tasks share a read, and how many cores run them.

The same topic, whole, seven columns, to Spark's noop sink: with 1 to 16 tasks, on 1 to 16 cores, as
many as the machine has. CPU ns a row, of Spark's JVM and of Python by themselves. If tasks stood in
each other's way, a row would cost more with more of them.

    python -m benchmarks.scaling
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.asking import costs_of
from benchmarks.segments import write_topic
from benchmarks.session import scratch, spark_session
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

_TOPIC: Final = "rows"
_MOST: Final = (1, 2, 4, 8, 16)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each number of cores and tasks."""
    parser = argparse.ArgumentParser(prog="benchmarks.scaling", description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args(argv)
    available = len(os.sched_getaffinity(0))
    table = Table(
        *("cores", "tasks", "wall s", "JVM, ns a row", "Python, ns a row"),
        title=f"{asked.rows:,} rows, median of {asked.rounds}",
    )
    with scratch() as work:
        log = work / "log"
        rows = write_topic(log, _TOPIC, asked.rows)
        for cores in [number for number in _MOST if number <= available]:
            with spark_session(cores, work) as spark:
                reads = {tasks: partial(_read, spark, log, tasks) for tasks in _MOST}
                for tasks, cost in costs_of(reads, asked.rounds).items():
                    table.add_row(str(cores), str(tasks), *cost.shown(rows))
            table.add_section()
    Console(width=100).print(table)
    return 0


def _read(spark: SparkSession, log: Path, tasks: int) -> None:
    """Read everything; four partitions take at least four tasks, unless these are put together."""
    reader = spark.read.format("kafkalog").option("subscribe", _TOPIC)
    frame = reader.option("minPartitions", tasks).load(str(log))
    frame.coalesce(tasks).write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    raise SystemExit(main())
