"""kafkalog beside Spark's Kafka connector and Spark's Parquet sink: ``make bench`` runs this.

One run on one machine measures everything, contenders in turns, against a real broker on
loopback, and prints a table of medians, spreads and ratios with the goal of each work.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import indexes, machine, reading, report, shapes, tailing, triggers, writing
from benchmarks.environment import Environment, environment
from benchmarks.measure import measure, noise_probe
from benchmarks.rows import Shape
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from kafkalog.model import many

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.measure import Measured, Unit

__all__ = ["main"]

QUICK_ROWS: Final = 50_000
WORKLOADS: Final = {
    **reading.WORKLOADS,
    **writing.WORKLOADS,
    **triggers.WORKLOADS,
    **tailing.WORKLOADS,
    **indexes.WORKLOADS,
    **shapes.WORKLOADS,
}
"""What is measured, by the keys that ``--only`` takes."""

_DOCS: Final = Path(__file__).parent.parent / "docs"
"""Where the figures of a whole run go, if nothing else is asked for."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the page; return the exit code (0 whatever was reached)."""
    asked = _arguments().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the broker is stopped too
    rows = QUICK_ROWS if asked.quick else asked.rows
    rounds = 1 if asked.quick else asked.rounds
    shape = Shape(rows, asked.key_bytes, asked.value_bytes, asked.partitions, asked.codec)
    console = Console(width=None if os.isatty(1) else 180)
    recommended = not asked.default_settings
    with environment(shape, asked.cores, quick=asked.quick, as_recommended=recommended) as env:
        noise = noise_probe()
        measured = _measure_all(env, asked.only, rounds, console)
    console.print(report.table(measured))
    summary = (
        f"{shape}; {many(asked.cores, 'core')} for Spark; {many(rounds, 'round')} after one to"
        " three for warmth, contenders in turns. Ratios are of medians. Everything, the broker too,"
        " runs on the one machine below."
        " CPU is that of Spark, broker and Python together, in the median run. The machine's noise:"
        f" fixed work took {noise.median * 1e3:.0f} ms"
        f" ({noise.low * 1e3:.0f} to {noise.high * 1e3:.0f})."
    )
    console.print(summary)
    if asked.default_settings:
        if asked.docs:
            report.write_section(asked.docs, report.DEFAULTS, _as_spark_has_them(measured))
        return 0
    docs = asked.docs or (None if asked.quick or asked.only else _DOCS)
    if docs:
        report.write(docs, measured, machine.facts(), summary)
    return 0


def _arguments() -> argparse.ArgumentParser:
    shape = Shape()
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=__doc__)
    parser.add_argument("--rows", type=int, default=shape.rows)
    parser.add_argument("--key-bytes", type=int, default=shape.key_bytes)
    parser.add_argument("--value-bytes", type=int, default=shape.value_bytes)
    parser.add_argument("--partitions", type=int, default=shape.partitions)
    parser.add_argument("--codec", default=shape.codec)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each contender")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", default="", help="keys of works, or their beginnings: read,sink")
    parser.add_argument("--docs", type=Path, help="where benchmarks.md and its plots go")
    parser.add_argument(
        "--default-settings",
        action="store_true",
        help="Spark's own settings; with --docs the page gets a section of them",
    )
    parser.add_argument("--quick", action="store_true", help="few rows: does it work, not how fast")
    return parser


def _as_spark_has_them(measured: Sequence[Measured]) -> str:
    return (
        "The same works in a session without what the rest of the page is measured with: Unix"
        " sockets (`spark.python.unix.domain.socket.enabled`) and the command `kafkalog-python`"
        " ([speed.md](speed.md#starting)).\n\n"
        f"{report.section_table(*measured)}\n"
    )


def _measure_all(env: Environment, only: str, rounds: int, console: Console) -> list[Measured]:
    """Measure one work after the other: those whose keys begin with a name in ``only``."""
    wanted = tuple(name.strip() for name in only.split(",") if name.strip()) or ("",)
    chosen = {key: make for key, make in WORKLOADS.items() if key.startswith(wanted)}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    measured = []
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        for key, make in progress.track(chosen.items(), description="works"):
            bar = progress.add_task(f"{key}: getting ready", total=None)
            workload = make(env)
            runs = (rounds + workload.warm_ups) * len(workload.contenders)
            progress.update(bar, description=workload.title, total=runs)
            measured.append(measure(workload, rounds, _teller(key, workload.unit, progress, bar)))
            progress.remove_task(bar)
    return measured


def _teller(key: str, unit: Unit, progress: Progress, bar: TaskID) -> Callable[[str, float], None]:
    """Make what moves a bar on after each run, and prints the run."""

    def told(who: str, value: float) -> None:
        progress.console.print(f"{key}: {who}: {value:.4g} {unit}")
        progress.advance(bar)

    return told


if __name__ == "__main__":
    raise SystemExit(main())
