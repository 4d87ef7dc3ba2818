"""Tables of a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kafkalog.jobs.report.markup import Markup, tag

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Column", "count", "table"]


class Column(NamedTuple):
    """A heading, and how its cells look: ``n`` numbers, ``t`` times, ``name`` long words."""

    heading: str
    kind: str = ""


def count(number: int | None) -> str:
    """Return a number for a cell."""
    return "" if number is None else f"{number:,}"


def table(columns: Sequence[Column], rows: Iterable[tuple[Sequence[object], str | None]]) -> Markup:
    """Return a table of rows with their classes, without columns whose cells are all empty."""
    found = list(rows)
    used = [
        number
        for number in range(len(columns))
        if any(cells[number] not in {"", None} for cells, _ in found)
    ]
    head = (tag("th", columns[at].heading, class_=columns[at].kind or None) for at in used)
    body = (
        tag(
            "tr",
            *(
                tag("td", "" if cells[at] is None else cells[at], class_=columns[at].kind or None)
                for at in used
            ),
            class_=kind,
        )
        for cells, kind in found
    )
    return tag(
        "div",
        tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body)),
        class_="wide",
    )
