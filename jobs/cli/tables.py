r"""Rows of plain values as lines for people: a table, or where that is too wide, other ways.

Piped, a table is as wide as it gets, and no cell is folded: a line is a row. What follows a very
long cell moves to the right, in its row alone. On a terminal nothing is wider than it, and of a
very long cell the beginning is shown. The first of these that fits is shown:

1. the table;
2. the table without the columns that are empty in every row;
3. that with the texts of its wide columns folded;
4. that without the columns that have one value in all rows, which is said once above;
5. that without columns that can be spared, which are named below;
6. each row as lines of names and values, as ``psql`` does with ``\x auto``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len, chop_cells

from kafkalog.jobs.units import for_people
from kafkalog.texts import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

__all__ = ["Lines", "lines_of"]

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
