"""The main job: a year of flights streams into a log while a second query tails it into Delta.

    python -m kafkalog.jobs.demo [--work-dir DIR]

Two queries run at once. The first appends every flight that left New York City in 2013 to the topic
``flights``: key = carrier, value = the flight as JSON, timestamp = its scheduled hour. The second
tails the topic into a Delta table while it grows. When all has arrived, both are checked: each
flight once, in offset order. Log and table are kept, in ``build/demo`` until the next run replaces
them. Killed in the middle and started again with the same ``--work-dir``, it continues from the
queries' checkpoints.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import sys
import sysconfig
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from kafkalog.jobs.archive import start_archive
from kafkalog.jobs.checks import compare_contents, find_disorder, find_gaps
from kafkalog.jobs.flights import FLIGHTS, ID, NULL, SCHEMA, write_flights
from kafkalog.jobs.ingest import InputFormat, read_files, start_ingest, to_records
from kafkalog.jobs.running import run
from kafkalog.jobs.session import build_session
from kafkalog.jobs.topic_report import render, report_partitions, topic_tail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from rich.progress import Task

__all__ = ["Demo"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

TOPIC: Final = "flights"
KEY: Final = "carrier"
TIMESTAMP: Final = "time_hour"
FILES: Final = 24
DEFAULT: Final = Path("build/demo")

_CSV: Final = {"header": "true", "nullValue": NULL}
_STREAM: Final = _CSV | {"maxFilesPerTrigger": "2"}
_SINK: Final = {
    "numPartitions": "4",
    "compression.type": "lz4",
    "segment.bytes": "1m",
    # Time that segments span is counted in event time, and this input spans a year.
    "segment.ms": "365d",
}

_SPARK: Final = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.noDataProgressEventInterval": "1s",
    "spark.databricks.delta.snapshotPartitions": "2",
}

_POLL_SECONDS: Final = 0.2


@dataclass(frozen=True)
class Demo:
    """A run, or the rest of one; ``work`` holds the input, the log, the table, the checkpoints."""

    spark: SparkSession
    work: Path
    flights: int

    @property
    def input(self) -> str:
        """The folder of CSV files."""
        return str(self.work / "input")

    @property
    def log(self) -> str:
        """The log directory."""
        return str(self.work / "log")

    @property
    def table(self) -> str:
        """The folder of the Delta table."""
        return str(self.work / "delta")

    def run(self, progress: Progress) -> None:
        """Run both queries until every flight is in the table.

        Raises:
            StreamingQueryException: one of them failed.
        """
        write_flights(Path(self.input), flights=self.flights, files=FILES)
        Path(self.log).mkdir(exist_ok=True)
        tail = topic_tail(self.log, TOPIC)
        counts = not any(tail.look().values())  # what was there before would be no rate
        appended = progress.add_task("flights → log", total=self.flights, counts=counts)
        archived = progress.add_task("log → Delta", total=self.flights, counts=counts)
        queries = {appended: self._start_ingest()}
        while True:
            ends_here = not queries[appended].isActive  # asked first: nothing is appended later
            end = sum(tail.look().values())
            # A query that names a topic wants to find it, and the first micro-batch makes it.
            if end > 0 and archived not in queries:
                queries[archived] = self._start_archive()
            position = _position(queries[archived]) if archived in queries else 0
            progress.update(appended, completed=end)
            progress.update(archived, completed=position)
            for query in queries.values():
                _raise_if_failed(query)
            if ends_here and position == end:
                break
            time.sleep(_POLL_SECONDS)
        for query in queries.values():
            query.stop()

    def findings(self, progress: Progress) -> list[str]:
        """Say what is wrong with log and table: nothing, if each flight arrived once, in order."""
        log, table = self.read_log(), self.read_table()
        checks: dict[str, Callable[[], list[str]]] = {
            "each flight once in the log": lambda: self._compare(log, "the log"),
            "each flight once in Delta": lambda: self._compare(table, "the Delta table"),
            "offsets of the log": lambda: find_gaps(log, name="the log"),
            "offsets in Delta": lambda: find_gaps(table, name="the Delta table"),
            "order in Delta": lambda: find_disorder(table, name="the Delta table"),
        }
        task = progress.add_task("checks", total=len(checks))
        found = []
        for name, check in checks.items():
            progress.update(task, description=f"check: {name}")
            found += check()
            progress.advance(task)
        progress.update(task, description="checks")
        return found

    def _compare(self, records: DataFrame, name: str) -> list[str]:
        flights = to_records(
            self.spark.read.options(**_CSV).schema(SCHEMA).csv(self.input),
            key=KEY,
            timestamp=TIMESTAMP,
        )
        return compare_contents(flights, records, identity=f"$.{ID}", name=name)

    def read_log(self) -> DataFrame:
        """Read the topic as it is now."""
        columns = "partition INT, offset BIGINT, timestamp TIMESTAMP, key STRING, value STRING"
        return (
            self.spark.read.format("kafkalog")
            .schema(columns)
            .option("subscribe", TOPIC)
            .load(self.log)
        )

    def read_table(self) -> DataFrame:
        """Read the Delta table as it is now."""
        return self.spark.read.format("delta").load(self.table)

    def _start_ingest(self) -> StreamingQuery:
        rows = read_files(self.spark, self.input, InputFormat.CSV, schema=SCHEMA, options=_STREAM)
        return start_ingest(
            to_records(rows, key=KEY, timestamp=TIMESTAMP),
            self.log,
            topic=TOPIC,
            checkpoint=str(self.work / "checkpoints" / "ingest"),
            options=_SINK,
        )

    def _start_archive(self) -> StreamingQuery:
        return start_archive(
            self.spark,
            self.log,
            self.table,
            topic=TOPIC,
            checkpoint=str(self.work / "checkpoints" / "archive"),
            text=True,
            follow=True,
        )


def _position(query: StreamingQuery) -> int:
    """Give how many records a query over the topic has read in all, as of its last progress."""
    progress = query.lastProgress
    offsets = json.loads(progress["sources"][0]["endOffset"] or "{}") if progress else {}
    return sum(offsets.get(TOPIC, {}).values())


def _raise_if_failed(query: StreamingQuery) -> None:
    error = query.exception()
    if error is not None:
        raise error


class _Rate(ProgressColumn):
    """How many flights came in a second on average; nothing where an earlier run had begun."""

    def render(self, task: Task) -> Text:
        seconds = task.finished_time or task.elapsed
        if not seconds or not task.fields.get("counts"):
            return Text()
        return Text(f"{task.completed / seconds:,.0f} flights/s")


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
        console=console,
    )


@contextmanager
def _work_of_its_own(chosen: Path | None) -> Iterator[Path]:
    """Give the folder to work in; without a choice `DEFAULT`, emptied of what an earlier run left.

    Raises:
        BadParameter: another demo works there.
    """
    if chosen is not None:
        chosen.mkdir(parents=True, exist_ok=True)
        yield chosen.resolve()
        return
    DEFAULT.parent.mkdir(parents=True, exist_ok=True)
    with DEFAULT.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise typer.BadParameter(
                f"another demo works in {DEFAULT}: wait for it, or give a --work-dir"
            ) from None
        shutil.rmtree(DEFAULT, ignore_errors=True)
        DEFAULT.mkdir()
        yield DEFAULT.resolve()


@contextmanager
def _stderr_of_children_in(path: Path) -> Iterator[None]:
    """Let processes that are started within (Spark's) write their stderr to a file."""
    kept = os.dup(2)
    with path.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _next_steps(work: Path) -> list[str]:
    """Say where everything lies, and how to look at it: commands that work as they are."""
    here = Path.cwd()
    home = work.relative_to(here) if work.is_relative_to(here) else work
    log, table = home / "log", home / "delta"
    kafkalog = [_short(Path(sysconfig.get_path("scripts")) / "kafkalog", here)]
    python = [_short(Path(sys.executable), here), "-c"]
    rows = (
        f'import kafkalog; rows = kafkalog.read("{log}", "{TOPIC}", strings=["value"]); '
        'print(rows.read_next_batch()["value"][:3])'
    )
    files = f'import pyarrow.dataset as d; print(d.dataset("{table}").head(3).select(["value"]))'
    commands = [[*kafkalog, "offsets", str(log)], [*python, rows], [*python, files]]
    return [
        f"the log:   {log}",
        f"the table: {table}",
        "",
        "Look at the partitions, at the first records, at the first rows of the table:",
        *(f"  {shlex.join(command)}" for command in commands),
    ]


def _short(path: Path, here: Path) -> str:
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


@app.command(help=__doc__)
def main(
    work_dir: Annotated[
        Path | None,
        typer.Option(help="Where everything goes and stays; default: build/demo, emptied before."),
    ] = None,
    flights: Annotated[
        int, typer.Option(min=1, max=FLIGHTS, help="How many of the flights to take.")
    ] = FLIGHTS,
) -> None:
    """Run the demo; the exit code is 1 if a check fails."""
    console = Console()
    with _work_of_its_own(work_dir) as work:
        findings = _run(console, work, flights)
        for finding in findings:
            console.print(f"[red]wrong:[/red] {finding}")
        if findings:
            raise typer.Exit(1)
        console.print(f"log and Delta table hold each of {flights:,} flights once, in offset order")
        if work_dir is None:
            for leftover in ("input", "checkpoints", "warehouse"):
                shutil.rmtree(work / leftover, ignore_errors=True)
        for line in _next_steps(work):
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def _run(console: Console, work: Path, flights: int) -> list[str]:
    """Run the queries and the checks; give what is wrong."""
    log = work / "spark.log"
    console.print(f"working in {work}; what Spark says is in {log.name}", soft_wrap=True)
    with console.status("starting Spark"), _stderr_of_children_in(log):
        spark = build_session(
            "kafkalog demo",
            delta=True,
            settings=_SPARK | {"spark.sql.warehouse.dir": str(work / "warehouse")},
        )
    demo = Demo(spark, work, flights)
    with _progress(console) as progress:
        demo.run(progress)
        findings = demo.findings(progress)
    console.print(render(TOPIC, report_partitions(demo.log, TOPIC, demo.read_table())))
    spark.stop()
    return findings


if __name__ == "__main__":
    run(app)
