"""Each fsync of the code is a guard: at least one mutation takes it out."""

from __future__ import annotations

import ast
import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.simulation.mutations import MUTATIONS
from tests.simulation.patches import Instead, find_function, full_name

import kafkalog

if TYPE_CHECKING:
    from collections.abc import Iterator

_SOURCE: Final = Path(kafkalog.__file__).parent
_SEAM: Final = frozenset({"fsync", "fdatasync", "sync", "fsync_file", "fsync_directory"})
_BELOW: Final = {
    "files/regular.py": "the seam itself: each call of these functions has a mutation of its own",
}
"""Files whose calls no mutation takes out, and why."""


class _Call(NamedTuple):
    """A call of the seam: the file, as a path below the package, and the lines."""

    file: str
    name: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.file}:{self.first} {self.name}"


def _files() -> Iterator[Path]:
    for folder, _, names in os.walk(_SOURCE, followlinks=True):
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _calls(path: Path) -> Iterator[_Call]:
    file = str(path.relative_to(_SOURCE))
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            if name in _SEAM:
                yield _Call(file, name, node.lineno, node.end_lineno or node.lineno)


def _taken_out() -> dict[Path, list[tuple[range, str]]]:
    """Lines that mutations replace, and by what, by file."""
    found: dict[Path, list[tuple[range, str]]] = {}
    for mutation in MUTATIONS.values():
        for place, given in mutation.patches.items():
            if isinstance(given, Instead):
                function = find_function(full_name(place))
                lines, first = inspect.getsourcelines(function)
                first += "".join(lines).partition(given.code)[0].count("\n")
                replaced = range(first, first + given.code.rstrip("\n").count("\n") + 1)
                path = Path(inspect.getfile(function)).resolve()
                found.setdefault(path, []).append((replaced, given.other))
    return found


def _replaced_names() -> set[str]:
    """Full names that mutations replace as a whole."""
    return {
        full_name(place)
        for mutation in MUTATIONS.values()
        for place, given in mutation.patches.items()
        if not isinstance(given, Instead)
    }


def test_each_fsync_is_taken_out_by_a_mutation() -> None:
    taken_out, names, seen, kept = _taken_out(), _replaced_names(), 0, []
    for path in _files():
        taken = taken_out.get(path.resolve(), [])
        for call in _calls(path):
            seen += 1
            module = ".".join(["kafkalog", *path.relative_to(_SOURCE).with_suffix("").parts])
            is_out = f"{module}.{call.name}" in names or any(
                call.first in lines and call.last in lines and call.name not in other
                for lines, other in taken
            )
            if not is_out and call.file not in _BELOW:
                kept.append(str(call))
    assert seen > 50
    assert kept == []
