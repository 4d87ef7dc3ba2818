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

import logging
import shutil
from pathlib import Path  # noqa: TC003 - typer reads annotations
from typing import Annotated, Final

import typer
from rich.console import Console

from kafkalog.jobs.commands import Command
from kafkalog.jobs.demo.checks import render, report_partitions
from kafkalog.jobs.demo.flights import FLIGHTS
from kafkalog.jobs.demo.queries import TOPIC, Demo
from kafkalog.jobs.demo.screen import next_steps, progress_on, stderr_of_children_in, work_folder
from kafkalog.jobs.running import run
from kafkalog.jobs.session import build_session

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

_SPARK: Final = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.noDataProgressEventInterval": "1s",
    "spark.databricks.delta.snapshotPartitions": "2",
}


@app.command(cls=Command, help=__doc__)
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
    with work_folder(work_dir) as work:
        findings = _run(console, work, flights)
        for finding in findings:
            console.print(f"[red]wrong:[/red] {finding}")
        if findings:
            raise typer.Exit(1)
        console.print(f"log and Delta table hold each of {flights:,} flights once, in offset order")
        if work_dir is None:
            for leftover in ("input", "checkpoints", "warehouse"):
                shutil.rmtree(work / leftover, ignore_errors=True)
        for line in next_steps(work):
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def _run(console: Console, work: Path, flights: int) -> list[str]:
    """Run the queries and the checks; return what is wrong."""
    log = work / "spark.log"
    console.print(f"working in {work}; what Spark says is in {log.name}", soft_wrap=True)
    with console.status("starting Spark"), stderr_of_children_in(log):
        spark = build_session(
            "kafkalog demo",
            delta=True,
            settings=_SPARK | {"spark.sql.warehouse.dir": str(work / "warehouse")},
        )
    # Who looks at a log amid a commit may find a new segment whose index is not there yet.
    logging.getLogger("kafkalog.log").setLevel(logging.ERROR)
    demo = Demo(spark, work, flights)
    with progress_on(console) as progress:
        demo.run(progress)
        findings = demo.findings(progress)
    console.print(render(TOPIC, report_partitions(demo.log, TOPIC, demo.read_table())))
    spark.stop()
    return findings


if __name__ == "__main__":
    run(app)
