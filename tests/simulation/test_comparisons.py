"""Each comparison of ids, sequences, epochs, ends and digests is a guard, or is listed here.

A comparison counts if a name in it has one of :data:`_WORDS`; a loop's condition does not count,
nor a look whether a collection has something else, or whether there is a value at all.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.simulation.comparisons_below import NO_GUARDS
from tests.simulation.replaced import Replaced, read_sources, replaced_names, replaced_pieces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.replaced import Source

_FOLDERS: Final = (
    "checkpoints",
    *(f"streaming/{name}" for name in ("commit", "groups", "operate", "source", "store")),
)
_WORDS: Final = frozenset(
    {"id", "ids", "sequence", "epoch", "generation", "end", "ends", "stamp", "boot"}
    | {"digest", "crc", "crc32c", "nonce"}
)


class _Comparison(NamedTuple):
    """A comparison, and the function in which it stands."""

    node: ast.Compare
    function: str


def _words(node: ast.expr) -> set[str]:
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    names |= {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    return {word for name in names for word in name.lower().split("_")}


def _counts(node: ast.Compare) -> bool:
    if all(isinstance(each, ast.Is | ast.IsNot) for each in node.ops):
        return False
    is_look = type(node.ops[0]).__name__.endswith("In")  # `in` and `not in`
    return bool(_words(node.left if is_look else node) & _WORDS)


def _comparisons(node: ast.AST, function: str = "") -> Iterator[_Comparison]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}" if function else node.name
    if isinstance(node, ast.Compare) and _counts(node):
        yield _Comparison(node, function)
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.While) and child is node.test):
            yield from _comparisons(child, function)


def _kept(source: Source, pieces: list[Replaced], gone: set[str]) -> Iterator[str]:
    """Yield the comparisons of a file that no mutation takes out.

    The only one of a function is taken out with the function, or where that is called.
    """
    found = list(_comparisons(ast.parse(source.text)))
    functions = [each.function for each in found]
    for node, function in found:
        code = ast.get_source_segment(source.text, node) or ""
        is_only = functions.count(function) == 1
        names = {f"{source.module}.{function}", function.rpartition(".")[2]}
        is_out = is_only and not names.isdisjoint(gone)
        if not is_out and not any(piece.takes_out(source.range_of(node), code) for piece in pieces):
            yield f"{source.file} {' '.join(code.split())}"


def test_each_is_taken_out_by_a_mutation_or_is_no_guard() -> None:
    pieces = replaced_pieces()
    gone = replaced_names() | {
        name for replaced in pieces.values() for each in replaced for name in each.calls
    }
    kept = [
        each
        for source in read_sources(*_FOLDERS)
        for each in _kept(source, pieces.get(source.module, []), gone)
    ]
    known = [f"{file} {code}" for found in NO_GUARDS.values() for file, code in found]
    assert sorted(set(kept) - set(known)) == [], "neither taken out nor listed"
    assert sorted(set(known) - set(kept)) == [], "listed, and not there or taken out"
