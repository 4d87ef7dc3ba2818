"""The main job: a year of flights streams into a log while a second query tails it into Delta.

    python -m kafkalog.jobs.demo [--work-dir DIR]

Two queries run at once. The first appends every flight that left New York City in 2013 to the topic
``flights``: key = carrier, value = the flight as JSON, timestamp = its scheduled hour. The second
tails the topic into a Delta table while it grows. When all has arrived, both are checked: each
flight once, in offset order. Killed in the middle and started again with the same ``--work-dir``,
it goes on from the queries' checkpoints.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kafkalog.jobs.archive import start_archive
from kafkalog.jobs.checks import compare_contents, find_disorder, find_gaps
from kafkalog.jobs.flights import FLIGHTS, ID, NULL, SCHEMA, write_flights
from kafkalog.jobs.ingest import InputFormat, read_files, start_ingest, to_records
from kafkalog.jobs.session import build_session
from kafkalog.jobs.topic_report import render, report_partitions, topic_tail

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Demo"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

TOPIC: Final = "flights"
KEY: Final = "carrier"
TIMESTAMP: Final = "time_hour"
FILES: Final = 24

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
        appended = progress.add_task("flights → log", total=self.flights)
        archived = progress.add_task("log → Delta", total=self.flights)
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

    def findings(self) -> list[str]:
        """Say what is wrong with log and table: nothing, if each flight arrived once, in order."""
        flights = to_records(
            self.spark.read.options(**_CSV).schema(SCHEMA).csv(self.input),
            key=KEY,
            timestamp=TIMESTAMP,
        )
        identity = f"$.{ID}"
        log, table = self.read_log(), self.read_table()
        return [
            *compare_contents(flights, log, identity=identity, name="the log"),
            *compare_contents(flights, table, identity=identity, name="the Delta table"),
            *find_gaps(log, name="the log"),
            *find_gaps(table, name="the Delta table"),
            *find_disorder(table, name="the Delta table"),
        ]

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


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


@app.command(help=__doc__)
def main(
    work_dir: Annotated[
        Path | None,
        typer.Option(help="Where everything goes; default: a new folder in build/demo."),
    ] = None,
    flights: Annotated[
        int, typer.Option(min=1, max=FLIGHTS, help="How many of the flights to take.")
    ] = FLIGHTS,
) -> None:
    """Run the demo; the exit code is 1 if a check fails."""
    console = Console()
    if work_dir is None:
        Path("build/demo").mkdir(parents=True, exist_ok=True)
        work_dir = Path(tempfile.mkdtemp(dir="build/demo"))
    work = work_dir.resolve()
    console.print(f"working in {work}")
    spark = build_session(
        "kafkalog demo",
        delta=True,
        settings=_SPARK | {"spark.sql.warehouse.dir": str(work / "warehouse")},
    )
    demo = Demo(spark, work, flights)
    with _progress(console) as progress:
        demo.run(progress)
    console.print(render(TOPIC, report_partitions(demo.log, TOPIC, demo.read_table())))
    findings = demo.findings()
    spark.stop()
    for finding in findings:
        console.print(f"[red]wrong:[/red] {finding}")
    if findings:
        raise typer.Exit(1)
    console.print(f"log and Delta table hold each of {flights:,} flights once, in offset order")


if __name__ == "__main__":
    app()
