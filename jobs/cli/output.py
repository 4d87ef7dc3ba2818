"""What the commands print, and how they end: 0 fine, 1 a problem was found, 2 bad use."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO, cast

import typer

from kafkalog.jobs.running import json_line, print_line, said_by_system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

__all__ = [
    "PROBLEM",
    "each_message_once",
    "end_if_nothing",
    "end_with",
    "exit_if",
    "one_line_errors",
    "print_found",
    "print_rows",
    "progress_bar",
    "standard_input",
    "tell_dry_run",
    "tell_if_nothing",
    "terminal_width",
]

PROBLEM: Final = 1
_BAD_USE: Final = 2


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
        print_line(str(error), err=True)
        raise typer.Exit(PROBLEM) from error
    except BrokenPipeError:
        # whoever reads has had enough, as ``head`` has; the interpreter would complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None
    except (KafkaLogError, OSError) as error:
        print_line(said_by_system(error) if isinstance(error, OSError) else str(error), err=True)
        raise typer.Exit(_BAD_USE) from error


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


def end_if_nothing(found: int, text: str) -> None:
    """Say so and end with 1 if no record was found."""
    if not found:
        print_line(text, err=True)
        raise typer.Exit(PROBLEM)


def tell_if_nothing(done: object, text: str) -> None:
    """Say on stderr that there was nothing to do, which is fine."""
    if not done:
        print_line(text, err=True)


def end_with(problems: Sequence[object], *, as_json: bool) -> NoReturn:
    """Print problems, unless a report has them, and end: with 1 if there is any."""
    if not as_json:
        for problem in problems:
            print_line(f"problem: {problem}", err=True)
    raise typer.Exit(PROBLEM if problems else 0)


def tell_dry_run(*, dry_run: bool) -> None:
    """Say before a table that it is of a dry run, if it is."""
    if dry_run:
        print_line("dry run: nothing was changed; what would be done:")


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    *,
    as_json: bool,
    has_units: bool = True,
    spare: Sequence[str] = (),
) -> None:
    """Print a table, or one object a line; nothing where there are no rows.

    ``has_units`` says that sizes, times and places are shown as people read them, by the names of
    their fields. ``spare`` names columns that a narrow terminal need not show.
    """
    if as_json:
        for row in rows:
            typer.echo(json_line(row))
        return
    if not rows:
        return
    from kafkalog.jobs.cli.tables import lines_of  # noqa: PLC0415

    width = terminal_width()
    is_bold = width is not None and os.environ.get("TERM") != "dumb"
    is_bold &= not os.environ.get("NO_COLOR")  # https://no-color.org
    for line in lines_of(rows, width=width, has_units=has_units, is_bold=is_bold, spare=spare):
        # echo would write letters that the terminal lacks
        _standard_output().write(f"{line}\n")


def terminal_width() -> int | None:
    """Return how many characters a line of standard output has; None if it is no terminal."""
    return shutil.get_terminal_size().columns if _standard_output().isatty() else None


def _standard_output() -> TextIO:
    """Return where a command prints.

    Raises:
        OptionError: it was started without.
    """
    from kafkalog.errors import OptionError  # noqa: PLC0415

    output = cast("TextIO | None", sys.stdout)
    if output is None:
        raise OptionError("standard output is closed: nothing can be shown")
    return output


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
