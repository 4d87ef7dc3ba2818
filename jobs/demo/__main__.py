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
import logging
import os
import shlex
import shutil
import sys
import sysconfig
from contextlib import contextmanager
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

from kafkalog.jobs.demo.queries import FLIGHTS, TOPIC, Demo, render, report_partitions
from kafkalog.jobs.process.running import Command, run
from kafkalog.jobs.session import build_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Task


__all__ = ["next_steps", "progress_on", "stderr_of_children_in", "work_folder"]


# ----------------------------------------------------------------------------------------------
# Where the demo works: a folder that no other demo uses, and a file for what Spark says.


DEFAULT: Final = Path("build/demo")


@contextmanager
def work_folder(chosen: Path | None) -> Iterator[Path]:
    """Return the folder to work in: the chosen one, or `DEFAULT`, emptied of an earlier run.

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
def stderr_of_children_in(path: Path) -> Iterator[None]:
    """Let processes that are started within (Spark's) write their stderr to a file."""
    kept = os.dup(2)
    with path.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


# ----------------------------------------------------------------------------------------------
# What the demo shows: progress with rates, and commands that look at what it left.


class _Rate(ProgressColumn):
    """How many flights came in a second on average; nothing if an earlier run had begun."""

    def render(self, task: Task) -> Text:
        seconds = task.finished_time or task.elapsed
        if not seconds or not task.fields.get("counts"):
            return Text()
        return Text(f"{task.completed / seconds:,.0f} flights/s")


def progress_on(console: Console) -> Progress:
    """Show a bar, counts, rate and time for each task."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
        console=console,
    )


def next_steps(work: Path) -> list[str]:
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


# ----------------------------------------------------------------------------------------------

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
