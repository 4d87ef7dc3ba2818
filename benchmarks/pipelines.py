"""Pipelines beside a plain read and write of the same rows.

The plain way of `archive` is a batch read of the log, written to Delta in files as they come. That
of `restore` is a read of the table, written to a log without its offsets. That of `mirror` is a
batch read of the log, written to another one without its offsets.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.machine import facts
from benchmarks.measure import Contender, Goal, Workload, measure, timed
from benchmarks.report import PIPELINES, section_table, table, write_section
from benchmarks.rows import Shape, make_rows
from benchmarks.session import scratch
from rich.console import Console

from kafkalog.jobs.archiving import Archive
from kafkalog.jobs.mirroring import Mirror
from kafkalog.jobs.pipelines.inputs import with_header_lists
from kafkalog.jobs.restoring import Restore
from kafkalog.jobs.session import session
from kafkalog.model import many

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.measure import Measured
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["main"]

_TOPIC: Final = "rows"
_QUICK_ROWS: Final = 20_000
_SETTINGS: Final = {"spark.driver.memory": "4g"}
_GOAL: Final = 0.5
_COMMITTED: Final = {"kafka.isolation.level": "read_committed"}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each pipeline and print a table; with ``--docs`` put it on the page.

    The exit code says whether the goals are reached.
    """
    parser = argparse.ArgumentParser(prog="benchmarks.pipelines", description=__doc__)
    parser.add_argument("--rows", type=int, default=Shape().rows)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--docs", type=Path, help="a folder whose benchmarks.md gets the figures")
    parser.add_argument("--quick", action="store_true", help="whether it works, not how fast")
    asked = parser.parse_args(argv)
    shape = Shape(rows=_QUICK_ROWS if asked.quick else asked.rows)
    rounds = 1 if asked.quick else asked.rounds
    console = Console()
    with scratch() as work, session("benchmarks", delta=True, settings=_SETTINGS) as spark:
        runs = _Runs(spark, work, shape)
        found = [
            measure(each, rounds, lambda who, seconds: console.log(f"{who}: {seconds:.1f} s"))
            for each in (runs.archive(), runs.restore(), runs.mirror())
        ]
    console.print(table(found))
    if asked.docs:
        write_section(asked.docs, PIPELINES, _section(shape, rounds, found))
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

    def mirror(self) -> Workload:
        return self._workload("mirror", self._plain_mirror, self._mirror)

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
        self._write(self._spark.read.format("delta").load(self._table))

    def _plain_mirror(self) -> None:
        reader = self._spark.read.format("kafkalog").option("includeHeaders", "true")
        self._write(reader.options(**_COMMITTED).option("subscribe", _TOPIC).load(self._log))

    def _write(self, rows: DataFrame) -> None:
        kept = rows.select("partition", "timestamp", "key", "value", "headers")
        kept = with_header_lists(kept)  # else the plain way takes three times as long
        options = {
            "topic": _TOPIC,
            "numPartitions": self._shape.partitions,
            "compression.type": self._shape.codec,
        }
        kept.write.format("kafkalog").options(**options).mode("append").save(self._fresh("log"))

    def _restore(self) -> None:
        log = self._fresh("log")
        Restore(table=self._table, log=log, topics=(_TOPIC,), config={}).run(self._spark)

    def _mirror(self) -> None:
        one = Mirror(
            source=self._log,
            target=self._fresh("log"),
            topics=(_TOPIC,),
            checkpoint=self._fresh("c"),
            options=_COMMITTED,
        )
        one.check()
        one.prepare()
        one.start(self._spark).awaitTermination()
        one.finish()


def _is_reached(measured: Measured) -> bool:
    return all(measured.reached(goal) for goal in measured.workload.goals)


def _section(shape: Shape, rounds: int, found: Sequence[Measured]) -> str:
    missed = [each.workload.title for each in found if not _is_reached(each)]
    verdict = f"Under half: {', '.join(missed)}." if missed else "None is under half."
    return (
        f"{shape}; {facts()['processor']}; {many(rounds, 'round')} after a warm-up, "
        "in turns. Each is to reach half the speed of the plain way: for archive a batch read of "
        "the log, written to Delta in files as they come; for restore a read of the table, and for "
        "mirror a batch read of the log, both written to a new log without the offsets. CPU is "
        "that of all processes, in the median run. The session is warm "
        f"(`python -m benchmarks.pipelines --docs docs`).\n\n{section_table(*found)}\n\n"
        f"{verdict}\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
