"""Covering arrays: few combinations in which every pair of values of two factors occurs."""

from __future__ import annotations

from itertools import combinations, product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["pairs_of", "pairwise"]

Pair = frozenset[tuple[str, int]]
"""Two factors with the index of a value of each."""


def pairwise(factors: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return combinations that hold every pair of values; the same ones at every call.

    Greedy: a combination begins with a pair that none has yet, and takes of every other factor the
    value that brings most new pairs. Of those that bring none, values follow each other in turn.
    """
    missing = dict.fromkeys(_all_pairs(factors))
    rows: list[dict[str, int]] = []
    while missing:
        row = dict(next(iter(missing)))
        for name in sorted(factors, key=lambda name: -len(factors[name])):
            if name not in row:
                row[name] = _best_value(name, factors[name], row, missing, turn=len(rows))
        for pair in _pairs(row):
            missing.pop(pair, None)
        rows.append(row)
    return [{name: factors[name][row[name]] for name in factors} for row in rows]


def pairs_of(rows: Iterable[Mapping[str, Any]]) -> set[frozenset[tuple[str, str]]]:
    """Return all pairs of values that occur in some rows, values by what ``repr`` gives."""
    shown = ({name: repr(value) for name, value in row.items()} for row in rows)
    return {frozenset(pair) for row in shown for pair in combinations(row.items(), 2)}


def _all_pairs(factors: Mapping[str, Sequence[Any]]) -> list[Pair]:
    return [
        frozenset({(one, first), (other, second)})
        for one, other in combinations(factors, 2)
        for first, second in product(range(len(factors[one])), range(len(factors[other])))
    ]


def _pairs(row: Mapping[str, int]) -> list[Pair]:
    return [frozenset(pair) for pair in combinations(row.items(), 2)]


def _best_value(
    name: str,
    values: Sequence[Any],
    row: Mapping[str, int],
    missing: Mapping[Pair, None],
    turn: int,
) -> int:
    def gain(index: int) -> int:
        return sum(frozenset({(name, index), taken}) in missing for taken in row.items())

    in_turn = [(turn + step) % len(values) for step in range(len(values))]
    return max(in_turn, key=gain)
