"""Tables of the command line: rows of plain values as lines that people read."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len, chop_cells

from kafkalog.jobs.inspection.units import counted, for_people, is_number
from kafkalog.texts import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

__all__ = ["Lines", "lines_of"]


# ----------------------------------------------------------------------------------------------
# Rows of plain values as lines for people: a table, or where that is too wide, other ways.
#
# Numbers stand at the right of their column. Piped, a table is as wide as it gets, and no cell is
# folded: a line is a row. What follows a very long cell moves to the right, in its row alone. On a
# terminal nothing is wider than it, numbers have separators, and of a very long cell the beginning
# is shown. The first of these that fits is shown:
#
# 1. the table; 2. the table without the columns that are empty in every row; 3. that with the
# beginnings of columns that may be cut; 4. that without the columns that have one value in all
# rows, which is said once above, and without columns that can be spared, which are named below; 5.
# the second, with the texts of its wide columns folded; 6. that as in 4; 7. each row as lines of
# names and values, as ``psql`` does with ``\x auto``.


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
