"""What the commands print, and how they end: 0 fine, 1 a problem was found, 2 bad use."""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO, cast

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rich.table import Table

__all__ = [
    "PROBLEM",
    "Lines",
    "each_message_once",
    "end_with",
    "exit_if",
    "one_line_errors",
    "print_found",
    "print_rows",
    "progress_bar",
    "standard_input",
    "table_of",
    "tell_dry_run",
]

PROBLEM: Final = 1
_BAD_USE: Final = 2
_WIDEST: Final = 10_000


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Say what is wrong in one line instead of a traceback."""
    from kafkalog.errors import (  # noqa: PLC0415
        CheckpointError,
        CommitError,
        CorruptRecordError,
        DataLossError,
        KafkaLogError,
    )

    try:
        yield
    except (CheckpointError, CommitError, CorruptRecordError, DataLossError) as error:
        typer.echo(_in_one_line(error), err=True)
        raise typer.Exit(PROBLEM) from error
    except BrokenPipeError:
        # whoever reads has had enough, as ``head`` has; the interpreter would complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None
    except (KafkaLogError, OSError) as error:
        typer.echo(_in_one_line(error), err=True)
        raise typer.Exit(_BAD_USE) from error


def _in_one_line(error: Exception) -> str:
    """Return what an error says; a name in it may have line breaks."""
    if isinstance(error, OSError) and error.strerror is not None:
        text = error.strerror
        if error.filename is not None:
            text = f"{os.fsdecode(error.filename)}: {text}"
        elif error.errno == errno.ENOSPC:
            text = f"what this prints cannot be written: {text}"
    else:
        text = str(error)
    return text.replace("\n", "\\n")


def standard_input() -> TextIO:
    """Return what a command is given to read.

    Raises:
        OptionError: it was started without.
    """
    from kafkalog.errors import OptionError  # noqa: PLC0415

    given = cast("TextIO | None", sys.stdin)
    if given is None:
        raise OptionError("standard input is closed: give a file, as by < FILE")
    return given


def exit_if(problems: Iterable[object]) -> None:
    """End with 1 if there is any problem."""
    if any(problems):
        raise typer.Exit(PROBLEM)


def end_with(problems: Sequence[object], *, as_json: bool) -> NoReturn:
    """Print problems, unless a report has them, and end: with 1 if there is any."""
    if not as_json:
        for problem in problems:
            typer.echo(f"problem: {problem}", err=True)
    raise typer.Exit(PROBLEM if problems else 0)


def tell_dry_run(*, dry_run: bool) -> None:
    """Say before a table that it is of a dry run, if it is."""
    if dry_run:
        typer.echo("dry run: nothing was changed; what would be done:")


def print_rows(rows: Sequence[Mapping[str, Any]], *, as_json: bool, has_units: bool = True) -> None:
    """Print a table, or one object a line; nothing where there are no rows.

    ``has_units`` says that sizes and times are shown in units, by the names of their fields.
    """
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row, ensure_ascii=False))
        return
    if not rows:
        return
    from rich.console import Console  # noqa: PLC0415

    console = Console(soft_wrap=True)
    if not console.is_terminal:
        console.width = _WIDEST  # for who reads on: no cell is folded
    console.print(table_of(rows, has_units=has_units))


def print_found(rows: Iterable[Mapping[str, Any]], *, as_json: bool) -> int:
    """Print rows as :func:`print_rows` does, objects as they come; gives how many there are."""
    if not as_json:
        rows = list(rows)
        print_rows(rows, as_json=False)
        return len(rows)
    found = 0
    for found, row in enumerate(rows, 1):  # noqa: B007 - the last number is the count
        print_rows([row], as_json=True)
    return found


def table_of(rows: Sequence[Mapping[str, Any]], *, has_units: bool = True) -> Table:
    """Return a table to print; what a row lacks is empty. ``has_units`` as for printing."""
    from rich.table import Table  # noqa: PLC0415

    from kafkalog.jobs.units import for_people  # noqa: PLC0415

    if has_units:
        rows = [for_people(row) for row in rows]
    table = Table(box=None, pad_edge=False)
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*_cells(row.get(name) for name in names))
    return table


class Lines:
    """A table that goes on: its names are shown once, and its rows as they come."""

    def __init__(self) -> None:
        self._widths: dict[str, int] = {}

    def show(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Print rows, all with the same names, in units."""
        from kafkalog.jobs.units import for_people  # noqa: PLC0415

        shown = [dict(zip(row, _cells(row.values()), strict=True)) for row in map(for_people, rows)]
        if shown and not self._widths:
            shown.insert(0, {name: name for name in shown[0]})
        for row in shown:
            for name, cell in row.items():
                self._widths[name] = max(len(cell), self._widths.get(name, 0))
        for row in shown:
            cells = (cell.ljust(self._widths[name]) for name, cell in row.items())
            typer.echo("  ".join(cells).rstrip())


@contextmanager
def each_message_once() -> Iterator[None]:
    """Log no message a second time, however often a look at the same things repeats it."""
    filters = [(handler, _Once()) for handler in logging.getLogger().handlers]
    for handler, once in filters:
        handler.addFilter(once)
    try:
        yield
    finally:
        for handler, once in filters:
            handler.removeFilter(once)


class _Once(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        is_new = text not in self._seen
        self._seen.add(text)
        return is_new


def _cells(values: Iterable[object]) -> list[str]:
    return [_cell(value) for value in values]


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, dict):
        return " ".join(f"{name}={each}" for name, each in value.items())
    return str(value)


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int], object]]:
    """Show a bar, on a terminal only; call what it gives with the bytes done and all bytes."""
    from rich.console import Console  # noqa: PLC0415

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _done, _size: None
        return
    from rich import progress  # noqa: PLC0415

    columns = (progress.BarColumn(), progress.DownloadColumn(), progress.TimeRemainingColumn())
    with progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, size: bar.update(task, completed=done, total=size)
