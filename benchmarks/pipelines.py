"""Pipelines beside a plain read and write of the same rows.

The plain way of `archive` is a batch read of the log, written to Delta in files as they come. That
of `restore` is a read of the table, written to a log without its offsets.
"""

from __future__ import annotations

import argparse
import itertools
from typing import TYPE_CHECKING

from benchmarks.measure import Contender, Goal, Workload, measure, timed
from benchmarks.rows import Shape, make_rows
from benchmarks.session import scratch
from rich.console import Console
from rich.table import Table

from kafkalog.jobs.archiving import Archive
from kafkalog.jobs.restoring import Restore
from kafkalog.jobs.session import session

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.measure import Measured
    from pyspark.sql import SparkSession

__all__ = ["main"]

_TOPIC = "rows"
_QUICK_ROWS = 20_000
_SETTINGS = {"spark.driver.memory": "4g"}
_GOAL = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each pipeline and print a table; the exit code says whether the goals are reached."""
    parser = argparse.ArgumentParser(prog="benchmarks.pipelines", description=__doc__)
    parser.add_argument("--rows", type=int, default=Shape().rows)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="whether it works, not how fast")
    asked = parser.parse_args(argv)
    shape = Shape(rows=_QUICK_ROWS if asked.quick else asked.rows)
    rounds = 1 if asked.quick else asked.rounds
    console = Console()
    with scratch() as work, session("benchmarks", delta=True, settings=_SETTINGS) as spark:
        runs = _Runs(spark, work, shape)
        found = [
            measure(each, rounds, lambda who, seconds: console.log(f"{who}: {seconds:.1f} s"))
            for each in (runs.archive(), runs.restore())
        ]
    console.print(_table(found))
    return int(not asked.quick and not all(_is_reached(each) for each in found))


class _Runs:
    """A log and a table with the same rows, and ways between them."""

    def __init__(self, spark: SparkSession, work: Path, shape: Shape) -> None:
        self._spark = spark
        self._work = work
        self._shape = shape
        self._numbers = itertools.count()
        self._log = str(work / "log")
        rows = make_rows(spark, shape)
        options = {
            "topic": _TOPIC,
            "numPartitions": shape.partitions,
            "compression.type": shape.codec,
        }
        rows.write.format("kafkalog").options(**options).mode("append").save(self._log)
        rows.unpersist()
        self._table = self._archive()

    def archive(self) -> Workload:
        return self._workload("archive", self._plain_archive, self._archive)

    def restore(self) -> Workload:
        return self._workload("restore", self._plain_restore, self._restore)

    def _workload(self, name: str, plain: object, pipeline: object) -> Workload:
        assert callable(plain)
        assert callable(pipeline)
        return Workload(
            title=name,
            contenders=(
                Contender(f"plain {name}", lambda: timed(plain)),
                Contender(name, lambda: timed(pipeline)),
            ),
            goals=(Goal(name, f"plain {name}", _GOAL),),
            rows=self._shape.rows,
        )

    def _fresh(self, name: str) -> str:
        return str(self._work / f"{name}-{next(self._numbers)}")

    def _plain_archive(self) -> None:
        reader = self._spark.read.format("kafkalog").option("includeHeaders", "true")
        rows = reader.option("subscribe", _TOPIC).load(self._log)
        rows.write.format("delta").save(self._fresh("plain"))

    def _archive(self) -> str:
        table = self._fresh("table")
        one = Archive(log=self._log, table=table, topics=(_TOPIC,), checkpoint=self._fresh("c"))
        one.start(self._spark).awaitTermination()
        one.finish(self._spark)
        return table

    def _plain_restore(self) -> None:
        rows = self._spark.read.format("delta").load(self._table)
        kept = rows.select("partition", "timestamp", "key", "value", "headers")
        options = {
            "topic": _TOPIC,
            "numPartitions": self._shape.partitions,
            "compression.type": self._shape.codec,
        }
        kept.write.format("kafkalog").options(**options).mode("append").save(self._fresh("log"))

    def _restore(self) -> None:
        log = self._fresh("log")
        Restore(table=self._table, log=log, topics=(_TOPIC,), config={}).run(self._spark)


def _is_reached(measured: Measured) -> bool:
    return all(measured.reached(goal) for goal in measured.workload.goals)


def _table(found: Sequence[Measured]) -> Table:
    table = Table("pipeline", "seconds", "rows/s", "beside the plain way")
    for measured in found:
        plain, pipeline = (each.name for each in measured.workload.contenders)
        for name in (plain, pipeline):
            seconds = measured.samples[name].median
            rate = (measured.workload.rows or 0) / seconds
            speed = f"{measured.speed(name, plain):.2f}"
            table.add_row(name, f"{seconds:.1f}", f"{rate:,.0f}", speed)
    return table


if __name__ == "__main__":
    raise SystemExit(main())
