"""The covering arrays that other tests go by."""

from __future__ import annotations

from itertools import combinations, product

from tests.support.pairwise import pairs_of, pairwise

FACTORS = {"a": [1, 2, 3], "b": ["x", "y"], "c": [True, False, None], "d": [0, 1], "e": [0, 1]}


def test_every_pair_of_values_occurs_in_far_fewer_rows_than_there_are_combinations() -> None:
    rows = pairwise(FACTORS)
    expected = {
        frozenset({(one, repr(first)), (other, repr(second))})
        for one, other in combinations(FACTORS, 2)
        for first, second in product(FACTORS[one], FACTORS[other])
    }
    assert pairs_of(rows) == expected
    assert 9 <= len(rows) <= 14 < 3 * 2 * 3 * 2 * 2


def test_every_row_names_every_factor_and_calls_agree() -> None:
    rows = pairwise(FACTORS)
    assert all(list(row) == list(FACTORS) for row in rows)
    assert rows == pairwise(FACTORS)
