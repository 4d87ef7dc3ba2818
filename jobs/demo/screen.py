"""What the demo shows: progress with rates, and commands that look at what it left."""

from __future__ import annotations

import shlex
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from kafkalog.jobs.demo.queries import TOPIC

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Task

__all__ = ["next_steps", "progress_on"]


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
