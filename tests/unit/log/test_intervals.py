from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafkalog.model import EVERYTHING, NOTHING, Intervals

LOW, HIGH = -12, 12
NUMBERS = range(LOW, HIGH)


@st.composite
def _sets(draw: st.DrawFn) -> Intervals:
    base = Intervals.of(draw(st.sets(st.sampled_from(NUMBERS))))
    bound = st.none() | st.sampled_from(NUMBERS)
    base = draw(st.sampled_from([base, ~base]))
    return base & Intervals.between(draw(bound), draw(bound))


def _members(found: Intervals) -> set[int]:
    return {number for number in NUMBERS if number in found}


@given(_sets(), _sets())
def test_sets_meet_and_are_turned_over_as_sets_are(one: Intervals, other: Intervals) -> None:
    assert _members(one & other) == _members(one) & _members(other)
    assert _members(~one) == set(NUMBERS) - _members(one)
    assert ~~one == one
    assert bool(one & ~one) is False
    assert _members(one) <= _members(one.hull())


@given(_sets(), st.integers(1, 5))
def test_multiples_are_those_whose_product_is_in_the_set(found: Intervals, unit: int) -> None:
    scaled = found.multiples(unit)
    assert {n for n in range(LOW // unit, HIGH // unit) if n in scaled} == {
        n for n in range(LOW // unit, HIGH // unit) if n * unit in found
    }
    assert all(a[1] < b[0] for a, b in zip(scaled.ranges, scaled.ranges[1:], strict=False))
    assert scaled.is_open == found.is_open


def test_ends_and_the_empty_set() -> None:
    assert (Intervals.of([3, 5, 4, 9]).first, Intervals.of([3, 5, 4, 9]).last) == (3, 9)
    assert Intervals.of([3, 4, 5, 9]).ranges == ((3, 6), (9, 10))
    assert not NOTHING
    assert ~NOTHING == EVERYTHING
    assert EVERYTHING.is_open
    assert not Intervals.between(5, 5)
    assert NOTHING.hull() == NOTHING
    assert 2**63 - 1 in EVERYTHING
    assert -(2**63) in EVERYTHING
