"""What the commands print and ask, and how they end: 0 fine, 1 a problem was found, 2 bad use."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, NoReturn, TextIO, TypeVar, cast

import typer
from rich.cells import cell_len, chop_cells

from kafkalog.jobs.inspection.units import counted, for_people, is_number, shown_size
from kafkalog.jobs.process.running import (
    Form,
    drop_output,
    json_line,
    print_line,
    printing,
    said_by_system,
)
from kafkalog.model import listed, many
from kafkalog.texts import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from kafkalog.model import TopicPartition

__all__ = [
    "PROBLEM",
    "Lines",
    "Loss",
    "Yes",
    "act_if_agreed",
    "ask",
    "each_message_once",
    "end_if_nothing",
    "end_with",
    "exit_if",
    "lines_of",
    "one_line_errors",
    "print_data",
    "print_found",
    "print_list",
    "print_report",
    "print_rows",
    "print_screen",
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
        drop_output()  # the reader has closed the pipe, as ``head`` does
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
        print_list((f"problem: {problem}" for problem in problems), "problems", err=True)
    raise typer.Exit(PROBLEM if problems else 0)


def tell_dry_run(*, dry_run: bool) -> None:
    """Say before a table that it is of a dry run, if it is."""
    if dry_run:
        print_line("dry run: nothing was changed; what would be done:")


def _is_bold() -> bool:
    """Whether names are written in bold; see https://no-color.org."""
    is_dumb = os.environ.get("TERM") == "dumb" or bool(os.environ.get("NO_COLOR"))
    return terminal_width() is not None and not is_dumb


def _fitting(
    rows: Sequence[Mapping[str, Any]],
    shown: Callable[[Sequence[Mapping[str, Any]]], list[str]],
    room: int,
) -> tuple[list[str], int]:
    """Return the lines of the first rows that have room, and how many rows these are."""
    count = min(len(rows), room)
    while len(lines := shown(rows[:count])) > room and count > 1:
        count = max(1, min(count - 1, count * room // len(lines)))
    return lines, count


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    *,
    as_json: bool,
    has_units: bool = True,
    spare: Sequence[str] = (),
    cut: Sequence[str] = (),
    is_asked: bool = False,
    share: int = 1,
) -> None:
    """Print a table, or one object or line of CSV a row; nothing where there are no rows.

    On a terminal a table has no more rows than its screen, unless it ``is_asked`` for them, and
    says how many more there are.

    Args:
        rows: what to print, as exact values.
        as_json: whether they are printed for a program: as JSON, or as CSV if that was asked for.
        has_units: whether sizes, times and places are shown as people read them, by the names of
            their fields.
        spare: columns that a narrow terminal need not show.
        cut: columns of which a narrow terminal may show the beginnings.
        is_asked: whether somebody has said how many rows to show.
        share: which part of a screen there is: 2 for half of it.
    """
    if as_json:
        print_data(rows)
        return
    width = terminal_width()
    if width is not None:  # Kafka's own topics have many partitions, and come last
        rows = sorted(rows, key=lambda row: str(row.get("topic")).startswith("__"))
    look = partial(lines_of, width=width, has_units=has_units, is_bold=_is_bold())
    shown = partial(look, spare=spare, cut=() if printing().is_verbose else cut)
    is_whole = width is None or is_asked or printing().is_verbose
    lines, count = (shown(rows), len(rows)) if is_whole else _fitting(rows, shown, _room(share))
    for line in lines:
        # echo would write letters that the terminal lacks
        _standard_output().write(f"{line}\n")
    if count < len(rows):
        print_line(f"… and {len(rows) - count:,} more: -v shows them")


def print_screen(lines: Sequence[str], *, more: str) -> None:
    """Print lines: on a terminal as many as its screen has, unless ``-v``; ``more`` shows more."""
    is_cut = terminal_width() is not None and not printing().is_verbose and len(lines) > _room()
    for line in lines[: _room()] if is_cut else lines:
        typer.echo(line)
    if is_cut:
        print_line(f"… and {len(lines) - _room():,} more lines: {more}, -v shows all")


def _room(share: int = 1) -> int:
    """Return how many lines a table may have on this screen, or on a part of it."""
    return max(_FEWEST, shutil.get_terminal_size().lines // share - _OTHER_LINES)


_FEWEST: Final = 8
"""Lines of a table on a screen, however small."""
_OTHER_LINES: Final = 4
"""The command itself, what is said below a table, and the next prompt."""


def print_data(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows for a program: one object a line, or CSV with the names of the first row."""
    told = printing()
    if told.form is not Form.CSV:
        for row in rows:
            typer.echo(json_line(row))
        return
    import csv  # noqa: PLC0415 - few ask for it
    import io  # noqa: PLC0415

    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    for row in rows:
        names = [*row]
        if names != told.csv_names:
            if told.csv_names and set(names) <= set(told.csv_names):
                row = {name: row.get(name) for name in told.csv_names}  # noqa: PLW2901
            else:
                lines.writerows([[]] * bool(told.csv_names) + [names])
                told.csv_names[:] = names
        lines.writerow(map(_csv_cell, row.values()))
    typer.echo(text.getvalue(), nl=False)


def _csv_cell(value: object) -> str:
    if value is None:
        return ""
    return printable(value) if isinstance(value, str) else json_line(value)


def print_report(report: Mapping[str, Any], rows: str = "partitions") -> None:
    """Print a report for a program: one object, or as CSV its ``rows``."""
    if printing().form is Form.CSV:
        print_data(report[rows])
        for problem in report.get("problems", ()):
            print_line(f"problem: {problem}", err=True)
    else:
        typer.echo(json_line(report))


_MOST_LINES: Final = 10
_FIRST_LINES: Final = 5


def print_list(lines: Iterable[str], what: str, *, err: bool = False) -> None:
    """Print lines of one kind: of many the first, and how many more there are, unless ``-v``."""
    found = list(lines)
    is_whole = len(found) <= _MOST_LINES or printing().is_verbose
    shown = found if is_whole else found[:_FIRST_LINES]
    for line in shown:
        print_line(line, err=err)
    if not is_whole:
        print_line(f"… and {len(found) - len(shown):,} more {what}: -v lists them", err=err)


def terminal_width() -> int | None:
    """Return how many characters a line of standard output has; None if it is no terminal."""
    return shutil.get_terminal_size().columns if _standard_output().isatty() else None


def _standard_output() -> TextIO:
    """Return where a command prints."""
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
def progress_bar(label: str = "reading") -> Iterator[Callable[[int, int], object]]:
    """Show a bar, on a terminal only; call what it gives with the bytes done and all bytes."""
    from rich.console import Console  # noqa: PLC0415

    console = Console(stderr=True)
    if not console.is_terminal or printing().is_quiet:
        yield lambda _done, _size: None
        return
    from rich import progress  # noqa: PLC0415

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(binary_units=True),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=None, visible=False)
        yield lambda done, size: bar.update(task, completed=done, total=size, visible=size > 0)


# ----------------------------------------------------------------------------------------------
# Tables of the command line: rows of plain values as lines that people read.


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
    cut: Collection[str] = (),
) -> list[str]:
    """Return rows as lines; what a row lacks is empty.

    Args:
        rows: what to show.
        width: the terminal's, in characters of one cell; None where no line is too long.
        has_units: whether sizes, times and places are shown as people read them, by the names of
            their fields.
        is_bold: whether names are written in bold, by the escapes of a terminal.
        spare: columns that may be left out of several rows, the first one first.
        cut: columns of which the beginning may be shown.
    """
    show = counted if has_units and width is not None else lambda _, value: value
    columns, right = _columns_of(rows, show, has_units=has_units)
    if not columns:
        return []
    style = (lambda text: f"{_BOLD}{text}{_PLAIN}") if is_bold else str
    table = _Table(style, right)
    if width is None:
        widths = [min(each, _WIDEST) for each in _widths(columns)]
        rows_of_cells = zip(*columns.values(), strict=True)
        head = style(table.line(columns, columns, widths))
        return [head, *(table.line(columns, row, widths) for row in rows_of_cells)]
    columns = {name: list(map(_beginning, cells)) for name, cells in columns.items()}
    if _width(columns) <= width:
        return table.lines(columns)
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    return _fitted(columns, width, spare, cut, table) or list(_blocks(columns, width, style))


def _columns_of(
    rows: Iterable[Mapping[str, object]],
    show: Callable[[str, object], object],
    *,
    has_units: bool,
) -> tuple[dict[str, list[str]], set[str]]:
    """Return the cells of each column by its name, and the names of those with numbers."""
    shown = [for_people(row) if has_units else dict(row) for row in rows]
    names = dict.fromkeys(name for row in shown for name in row)
    right = {printable(name) for name in names if _are_numbers(name, shown, has_units=has_units)}
    columns = {
        printable(name): [_cell(show(name, row.get(name))) for row in shown] for name in names
    }
    return columns, right


def _fitted(
    columns: Columns, width: int, spare: Sequence[str], cut: Collection[str], table: _Table
) -> list[str]:
    """Return a table that is made to fit; nothing if none does."""
    if short := columns if _width(columns) <= width else _cut(columns, width, cut):
        return table.lines(short)
    several = len(next(iter(columns.values()), ())) > 1
    if several and (lines := _shortened(columns, width, spare, table, folds=False)):
        return lines
    if folded := _folded(columns, width):
        return table.lines(columns, folded)
    return _shortened(columns, width, spare, table, folds=True) if several else []


def _are_numbers(name: str, rows: Sequence[Mapping[str, object]], *, has_units: bool) -> bool:
    """Whether a column holds numbers, or sizes; a row may have none."""
    values = [row[name] for row in rows if row.get(name) is not None]
    return bool(values) and all(is_number(name, value, has_units=has_units) for value in values)


def _cut(columns: Columns, width: int, names: Collection[str]) -> Columns | None:
    """Show the beginnings of these columns, the widest first; None if that is not enough."""
    found = {name: [*cells] for name, cells in columns.items()}
    for name in sorted(names & found.keys(), key=lambda name: -max(map(cell_len, found[name]))):
        wide = max(map(cell_len, found[name]))
        room = max(_NARROWEST, wide - (_width(found) - width))
        if room < wide:
            found[name] = [_shorter(cell, room) for cell in found[name]]
    return found if names and _width(found) <= width else None


def _shorter(cell: str, width: int) -> str:
    if cell_len(cell) <= width:
        return cell
    return chop_cells(cell[:width], width - 1)[0] + "…"


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
        table = _Table(str, ())
        yield from (table.line(row, row.values(), self._widths.values()) for row in shown)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
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


class _Table:
    """Columns side by side; of those named ``right``, cells stand at the right."""

    def __init__(self, style: Callable[[str], str], right: Collection[str]) -> None:
        self.style = style
        self._right = right

    def lines(self, columns: Columns, widths: Sequence[int] | None = None) -> list[str]:
        """Return a table; cells that are wider than their column go on in the lines below."""
        widths = widths or _widths(columns)
        lines = [self.style(self.line(columns, columns, widths))]
        for row in zip(*columns.values(), strict=True):
            pieces = [_pieces(cell, width) for cell, width in zip(row, widths, strict=True)]
            for number in range(max(map(len, pieces))):
                cells = (each[number] if number < len(each) else "" for each in pieces)
                lines.append(self.line(columns, cells, widths))
        return lines

    def line(self, names: Iterable[str], cells: Iterable[str], widths: Iterable[int]) -> str:
        """Return one line of a table; ``names`` are those of the columns."""
        padded = (
            " " * (width - cell_len(cell)) + cell
            if name in self._right
            else cell + " " * (width - cell_len(cell))
            for name, cell, width in zip(names, cells, widths, strict=True)
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
    columns: Columns, width: int, spare: Sequence[str], table: _Table, *, folds: bool
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
        if rest and (folded := _widths(rest) if _width(rest) <= width else None) is None and folds:
            folded = _folded(rest, width)
        if rest and folded:
            lines += table.lines(rest, folded)
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
# Ask before something is destroyed: one rule for all commands.
#
# Whoever sits at a terminal is told which topics and partitions it is about, how many bytes go, and
# which consumer groups read there, as the plan of the command has it, and asked. ``--yes`` asks
# nothing; ``--dry-run`` shows the plan. In a script, nothing is asked.


Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]

PlanT = TypeVar("PlanT")


class Loss(NamedTuple):
    """What a plan destroys: ``what`` ends the sentence that says what would be done.

    ``bytes`` is None where no records go; ``details`` are lines of their own. ``question`` and
    ``without`` say what a yes does, and what ``--yes`` does.
    """

    what: str
    partitions: Collection[TopicPartition] = ()
    bytes: int | None = None
    details: Sequence[str] = ()
    question: str = "Go on?"
    without: str = "does it"


def act_if_agreed(
    act: Callable[[bool], PlanT],
    loss_of: Callable[[PlanT], Loss | None],
    paths: Sequence[str],
    *,
    yes: bool,
    dry_run: bool,
) -> PlanT:
    """Do what ``act`` does, after a person at a terminal has seen the plan of it and agreed.

    Args:
        act: is called with whether it only plans. What it does then it plans anew, under the locks:
            a plan that the answer has made stale is never applied.
        loss_of: what a plan destroys; None for nothing, which is done without a question.
        paths: the log directories.
        yes: whether to go on without asking.
        dry_run: whether only to plan.

    Raises:
        Exit: the user has not agreed; nothing was changed.
    """
    if not dry_run and not yes and _is_seen():
        loss = loss_of(act(True))
        if loss is not None:
            ask(paths, loss)
    return act(dry_run)


def ask(paths: Sequence[str], loss: Loss) -> None:
    """Say what would be removed, and ask. Without a terminal, as under cron, the answer is no.

    Raises:
        Exit: the answer is no.
    """
    size = "" if loss.bytes is None else f", {shown_size(loss.bytes)}"
    print_line(f"This would {loss.what}{size}.", err=True)
    if loss.partitions:
        print_line(f"  partitions: {_names(loss.partitions)}", err=True)
        print_line(f"  groups that read there: {_readers(paths, loss.partitions)}", err=True)
    print_list(loss.details, "of these", err=True)
    if not _agrees(loss.question):
        print_line(f"nothing was changed: --yes {loss.without} without asking", err=True)
        raise typer.Exit(PROBLEM)


def _is_seen() -> bool:
    """Whether somebody sees the question, and can answer."""
    streams = (cast("TextIO | None", sys.stdin), cast("TextIO | None", sys.stderr))
    return all(each is not None and each.isatty() for each in streams)


def _agrees(question: str) -> bool:
    try:
        return sys.stdin is not None and typer.confirm(question, err=True)
    except typer.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise
        typer.echo("", err=True)  # the question's line has no end yet
        return False


def _names(partitions: Collection[TopicPartition]) -> str:
    """Name partitions: of many the topics, with how many there are of each."""
    found = sorted(partitions)
    if len(found) <= 10:
        return listed(map(str, found))
    counts: dict[str, int] = {}
    for key in found:
        counts[key.topic] = counts.get(key.topic, 0) + 1
    return f"{many(len(found), 'partition')} of {listed(f'{t} ({n})' for t, n in counts.items())}"


def _readers(paths: Sequence[str], partitions: Collection[TopicPartition]) -> str:
    """Name the groups that read partitions, or have positions there."""
    from kafkalog.errors import KafkaLogError  # noqa: PLC0415
    from kafkalog.jobs.inspection.groups import list_groups  # noqa: PLC0415

    concerned = {(key.topic, key.partition) for key in partitions}
    with suppress(KafkaLogError, OSError):
        rows = [row for row in list_groups(paths) if (row["topic"], row["partition"]) in concerned]
        return listed(dict.fromkeys(row["group"] for row in rows)) or "none"
    return "cannot be told"
