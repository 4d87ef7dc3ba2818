"""Build HTML from parts: whatever is not markup already is escaped.

It is written so that it is well-formed XML, too.
"""

from __future__ import annotations

import re
import unicodedata
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


__all__ = ["NOTHING", "Column", "Markup", "count", "joined", "shown", "table", "tag"]

_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufffe\uffff]"
)
"""What HTML or XML does not allow, and what is invisible or turns the direction of a text."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


NOTHING: Final = Markup()


def shown(value: object) -> Markup:
    """Return any text as HTML; characters that cannot be seen by their numbers."""
    if isinstance(value, Markup):
        return value
    return Markup(escape(_UNSAFE.sub(_numbered, str(value))))


def _numbered(found: re.Match[str]) -> str:
    char = found.group()
    if char == "\n":
        return " "
    name = unicodedata.category(char)
    return f"\\x{ord(char):02x}" if name == "Cc" else f"\\u{ord(char):04x}"


def joined(parts: Iterable[object], between: str = "") -> Markup:
    """Return parts one after the other."""
    return Markup(between.join(shown(part) for part in parts))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element. Of an attribute's name ``class_`` is ``class``, other ``_`` are ``-``.

    An attribute that is None is left out; one that is True has its name as its value.
    """
    words = [name]
    for key, value in attributes.items():
        if value is not None and value is not False:
            known = key.rstrip("_").replace("_", "-")
            words.append(f'{known}="{shown(known if value is True else value)}"')
    start = " ".join(words)
    if not children:
        return Markup(f"<{start} />" if name in _VOID else f"<{start}></{name}>")
    return Markup(f"<{start}>{joined(children)}</{name}>")


_VOID: Final = {"meta", "rect", "line", "path", "br", "circle"}


# ----------------------------------------------------------------------------------------------
# Tables of a page.


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
