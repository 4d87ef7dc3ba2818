"""What the commands print, and how they end: 0 fine, 1 a problem was found, 2 bad use."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO, cast

import typer
from rich.cells import cell_len, chop_cells

from kafkalog.jobs.inspection.units import for_people
from kafkalog.jobs.process.running import json_line, print_line, said_by_system
from kafkalog.texts import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


__all__ = [
    "PROBLEM",
    "Lines",
    "each_message_once",
    "end_if_nothing",
    "end_with",
    "exit_if",
    "lines_of",
    "one_line_errors",
    "print_found",
    "print_rows",
    "progress_bar",
    "standard_input",
    "tell_dry_run",
    "tell_if_nothing",
    "terminal_width",
]


# ----------------------------------------------------------------------------------------------
# Rows of plain values as lines for people: a table, or where that is too wide, other ways.
#
# Piped, a table is as wide as it gets, and no cell is folded: a line is a row. What follows a
# very long cell moves to the right, in its row alone. On a terminal nothing is wider than it, and
# of a very long cell the beginning is shown. The first of these that fits is shown:
#
# 1. the table; 2. the table without the columns that are empty in every row; 3. that with the
# texts of its wide columns folded; 4. that without the columns that have one value in all rows,
# which is said once above; 5. that without columns that can be spared, which are named below; 6.
# each row as lines of names and values, as ``psql`` does with ``\x auto``.


_GAP: Final = "  "
_NARROWEST: Final = 24
"""Columns that are no wider are never folded: a time and the id of a topic stay in one piece."""
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"

_LONGEST: Final = 1000
"""Letters of a cell that a terminal shows: one of a megabyte would be thousands of lines."""
_WIDEST: Final = 200
"""Characters up to which columns are padded where no line is too long."""

Columns = dict[str, list[str]]
"""The cells of each column, by its name."""


def lines_of(
    rows: Iterable[Mapping[str, object]],
    *,
    width: int | None,
    has_units: bool = True,
    is_bold: bool = False,
    spare: Sequence[str] = (),
) -> list[str]:
    """Return rows as lines; what a row lacks is empty.

    Args:
        rows: what to show.
        width: the terminal's, in characters of one cell; None where no line is too long.
        has_units: whether sizes, times and places are shown as people read them, by the names of
            their fields.
        is_bold: whether names are written in bold, by the escapes of a terminal.
        spare: columns that may be left out of several rows, the first one first.
    """
    shown = [for_people(row) if has_units else dict(row) for row in rows]
    names = dict.fromkeys(name for row in shown for name in row)
    if not names:
        return []
    columns = {printable(name): [_cell(row.get(name)) for row in shown] for name in names}
    style = (lambda text: f"{_BOLD}{text}{_PLAIN}") if is_bold else str
    if width is None:
        widths = [min(each, _WIDEST) for each in _widths(columns)]
        cells = zip(*columns.values(), strict=True)
        return [style(_line(columns, widths)), *(_line(row, widths) for row in cells)]
    columns = {name: list(map(_beginning, cells)) for name, cells in columns.items()}
    if _width(columns) <= width:
        return _table(columns, style)
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    if folded := _folded(columns, width):
        return _table(columns, style, folded)
    if len(shown) > 1 and (lines := _shortened(columns, width, spare, style)):
        return lines
    return list(_blocks(columns, width, style))


class Lines:
    """A table that goes on: its names are shown once, and its rows as they come."""

    def __init__(self) -> None:
        self._widths: dict[str, int] = {}

    def of(self, rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
        """Yield the lines of more rows, all with the same names."""
        shown = [{name: _cell(cell) for name, cell in for_people(row).items()} for row in rows]
        if shown and not self._widths:
            shown.insert(0, {name: printable(name) for name in shown[0]})
        for row in shown:
            for name, cell in row.items():
                self._widths[name] = max(cell_len(cell), self._widths.get(name, 0))
        yield from (_line(row.values(), self._widths.values()) for row in shown)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return " ".join(map(_cell, value))
    if isinstance(value, dict):
        if value.keys() == {"key", "value"}:  # a header
            return f"{_cell(value['key'])}={_cell(_or_null(value['value']))}"
        return " ".join(f"{_cell(name)}={_cell(each)}" for name, each in value.items())
    return printable(str(value))


def _or_null(value: object) -> object:
    return "NULL" if value is None else value


def _beginning(cell: str) -> str:
    more = len(cell) - _LONGEST
    return f"{cell[:_LONGEST]}… ({more} letters more; --json shows all)" if more > 0 else cell


def _widths(columns: Columns) -> list[int]:
    return [max(map(cell_len, (name, *cells))) for name, cells in columns.items()]


def _width(columns: Columns) -> int:
    return sum(_widths(columns)) + len(_GAP) * (len(columns) - 1)


def _table(
    columns: Columns, style: Callable[[str], str], widths: Sequence[int] | None = None
) -> list[str]:
    """Return a table; cells that are wider than their column go on in the lines below."""
    widths = widths or _widths(columns)
    lines = [style(_line(columns, widths))]
    for row in zip(*columns.values(), strict=True):
        pieces = [_pieces(cell, width) for cell, width in zip(row, widths, strict=True)]
        for number in range(max(map(len, pieces))):
            cells = (each[number] if number < len(each) else "" for each in pieces)
            lines.append(_line(cells, widths))
    return lines


def _line(cells: Iterable[str], widths: Iterable[int]) -> str:
    padded = (
        cell + " " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)
    )
    return _GAP.join(padded).rstrip()


def _pieces(text: str, width: int) -> list[str]:
    """Fold a text at its spaces, and where a word is too long within it."""
    pieces: list[str] = []
    at = 0
    while at < len(text):
        head = chop_cells(text[at : at + width], width)[0] or text[at]
        end = at + len(head)
        if end < len(text) and text[end] != " " and (space := head.rfind(" ")) > 0:
            end = at + space
        pieces.append(text[at:end].rstrip() if end < len(text) else text[at:])
        at = end
        while at < len(text) and text[at] == " ":
            at += 1
    return pieces or [""]


def _folded(columns: Columns, width: int) -> list[int] | None:
    """Take from the widest columns what is too much; None if too little is left of them."""
    widths = _widths(columns)
    excess = _width(columns) - width
    steps = sorted({each for each in widths if each > _NARROWEST} | {_NARROWEST}, reverse=True)
    for widest, next_ in pairwise(steps):
        wide = [number for number, each in enumerate(widths) if each == widest]
        each_gives = min(widest - next_, -(-max(0, excess) // len(wide)))
        for number in wide:
            widths[number] -= each_gives
        excess -= each_gives * len(wide)
        if excess <= 0:
            break
    return widths if excess <= 0 else None


def _shortened(
    columns: Columns, width: int, spare: Sequence[str], style: Callable[[str], str]
) -> list[str]:
    """Return a table without what is said above or below it; nothing if it is too wide still."""
    told = {name: cells[0] for name, cells in columns.items() if len(set(cells)) == 1}
    rest = {name: cells for name, cells in columns.items() if name not in told}
    above = ", ".join(f"{name} {cell}" for name, cell in told.items())
    lines = _pieces(f"in all rows: {above}", width) if told else []
    left_out: list[str] = []
    for name in ("", *spare):
        if rest.pop(name, None):
            left_out.append(name)
        if rest and (folded := _folded(rest, width)):
            lines += _table(rest, style, folded)
            below = f"left out: {', '.join(left_out)} (a wider terminal or --json shows all)"
            return lines + (_pieces(below, width) if left_out else [])
    return []


def _blocks(columns: Columns, width: int, style: Callable[[str], str]) -> Iterator[str]:
    """Yield each row as lines of names and values, with an empty line between two rows."""
    beside = max(map(cell_len, columns), default=0)
    room = max(1, width - beside - len(_GAP))
    for number, row in enumerate(zip(*columns.values(), strict=True)):
        if number:
            yield ""
        for name, cell in zip(columns, row, strict=True):
            first, *more = _pieces(cell, room)
            if cell:
                yield f"{style(name)}{' ' * (beside - cell_len(name))}{_GAP}{first}"
                yield from (" " * (beside + len(_GAP)) + piece for piece in more)


# ----------------------------------------------------------------------------------------------

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
