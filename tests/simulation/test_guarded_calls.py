"""Each fsync of the code, and each check of a lock, is a guard: a mutation takes it out."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest
from tests.simulation.replaced import read_sources, replaced_names, replaced_pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.simulation.replaced import Source


class _Guards(NamedTuple):
    """Functions that guard where they are called, or handed on to be called.

    ``at_least`` is how many places there are; ``below`` are files without guards, and why.
    """

    functions: frozenset[str]
    at_least: int
    below: Mapping[str, str]
    are_handed_on: bool = False


_NODES: Final = {
    f"streaming/{name}": "of several nodes: tests/crash/test_replicas_*.py, and no mutation yet"
    for name in (
        "commit/replication.py",
        "operate/elect.py",
        "operate/node_handover.py",
        "operate/node_order.py",
        "operate/move_folders.py",
        "operate/node_takeover.py",
        "operate/voters.py",
        "store/replicas/moved_away.py",
        "store/replicas/open_nodes.py",
        "store/replicas/several_nodes.py",
        "store/replicas/starting.py",
        "store/replicas/voter_changes.py",
    )
}

_FSYNCS: Final = _Guards(
    frozenset({"fsync", "fdatasync", "sync", "fsync_file", "fsync_directory"}),
    50,
    {"files/regular.py": "the seam itself: each call of these functions has its own mutation"}
    | {"streaming/operate/elect.py": _NODES["streaming/operate/elect.py"]},
)
_LOCKS: Final = _Guards(
    frozenset({"_is_on_disk", "_try_lock", "_prove", "_check_links"})
    | frozenset({"verify", "verify_locks", "check_locks", "check_current", "is_outdated"}),
    40,
    {
        "jobs/cli/app.py": "`verify` is a command there",
        "streaming/store/directory_moves.py": "see test_reassign_walk; no mutation yet",
        "jobs/cli/reassign.py": "`verify` is an option there",
        "jobs/cli/report.py": "`verify` is a function that checks logs",
    }
    | _NODES,
    are_handed_on=True,
)


def _places(source: Source, guards: _Guards) -> Iterator[tuple[ast.expr, str]]:
    """Find where a function of these is called, or handed on; yields its name, too."""
    nodes = list(ast.walk(ast.parse(source.text)))
    called = {node.func for node in nodes if isinstance(node, ast.Call)}
    for node in nodes if guards.are_handed_on else called:
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in guards.functions:
                yield node, name


@pytest.mark.parametrize("guards", [_FSYNCS, _LOCKS], ids=["fsyncs", "locks"])
def test_each_is_taken_out_by_a_mutation(guards: _Guards) -> None:
    pieces, names, seen, kept = replaced_pieces(), replaced_names(), 0, []
    for source in read_sources("streaming", "checkpoints", "files", "jobs"):
        for node, name in _places(source, guards):
            seen += 1
            code = ast.get_source_segment(source.text, node) or ""
            is_out = f"{source.module}.{name}" in names or any(
                piece.takes_out(source.range_of(node), code)
                for piece in pieces.get(source.module, [])
            )
            if not is_out and source.file not in guards.below:
                kept.append(f"{source.file}:{node.lineno} {code}")
    assert seen >= guards.at_least
    assert kept == []
