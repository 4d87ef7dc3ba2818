"""What the demo shows: progress with rates, and commands that look at what it left."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import sys
import sysconfig
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer
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
    from collections.abc import Iterator

    from rich.console import Console
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
