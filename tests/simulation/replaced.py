"""Which places of the code mutations take out: for the tests that each guard has one."""

from __future__ import annotations

import inspect
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.simulation.mutations import MUTATIONS
from tests.simulation.patches import Instead, find_function, full_name

import kafkalog

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator

__all__ = ["SOURCE", "Replaced", "Source", "read_sources", "replaced_names", "replaced_pieces"]

SOURCE: Final = Path(kafkalog.__file__).parent
_CALLED: Final = re.compile(r"(\w+)\(")


@dataclass(frozen=True)
class Source:
    """A file of the code: its path below the package, and its text."""

    file: str
    text: str

    @property
    def module(self) -> str:
        """The full name of its module."""
        return ".".join(["kafkalog", *Path(self.file).with_suffix("").parts])

    def range_of(self, node: ast.expr) -> range:
        """Where an expression stands in the text, in characters."""
        lines = self.text.splitlines(keepends=True)
        return range(
            _position(lines, node.lineno, node.col_offset),
            _position(lines, node.end_lineno or 0, node.end_col_offset or 0),
        )


def _position(lines: list[str], line: int, column: int) -> int:
    """Turn a line, and a column in bytes of UTF-8, into a number of characters."""
    inner = len(lines[line - 1].encode()[:column].decode())
    return sum(map(len, lines[: line - 1])) + inner


@dataclass(frozen=True)
class Replaced:
    """A piece of a file that a mutation replaces: its characters, and what is there instead."""

    piece: range
    code: str
    other: str

    @property
    def calls(self) -> set[str]:
        """Names of functions that are not called any more."""
        return set(_CALLED.findall(self.code)) - set(_CALLED.findall(self.other))

    def takes_out(self, place: range, code: str) -> bool:
        """Whether the place is not there any more as it was."""
        overlaps = self.piece.start < place.stop and place.start < self.piece.stop
        return overlaps and " ".join(code.split()) not in " ".join(self.other.split())


def read_sources(*folders: str) -> Iterator[Source]:
    """Read all modules below these folders of the package."""
    for folder in folders:
        for where, _, names in os.walk(SOURCE / folder, followlinks=True):
            for path in (Path(where, name) for name in sorted(names) if name.endswith(".py")):
                yield Source(str(path.relative_to(SOURCE)), path.read_text(encoding="utf-8"))


def replaced_pieces() -> dict[str, list[Replaced]]:
    """Find the pieces of functions that mutations replace, by module."""
    found: dict[str, list[Replaced]] = {}
    for mutation in MUTATIONS.values():
        for place, given in mutation.patches.items():
            if isinstance(given, Instead):
                function = find_function(full_name(place))
                lines, first = inspect.getsourcelines(function)
                text = Path(inspect.getfile(function)).read_text(encoding="utf-8")
                begin = sum(map(len, text.splitlines(keepends=True)[: first - 1]))
                begin += "".join(lines).index(given.code)
                piece = range(begin, begin + len(given.code))
                each = Replaced(piece, given.code, given.other)
                found.setdefault(function.__module__, []).append(each)
    return found


def replaced_names() -> set[str]:
    """Full names that mutations replace as a whole."""
    return {
        full_name(place)
        for mutation in MUTATIONS.values()
        for place, given in mutation.patches.items()
        if not isinstance(given, Instead)
    }
