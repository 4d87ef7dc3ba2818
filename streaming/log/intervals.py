"""Sets of integers as ranges: offsets, partitions, timestamps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["EVERYTHING", "NOTHING", "Intervals"]

_LOWEST: Final = -(2**63)
_END: Final = 2**63


@dataclass(frozen=True, slots=True)
class Intervals:
    """A set of int64 numbers: half-open ranges that ascend and neither touch nor overlap."""

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def between(cls, start: int | None, end: int | None) -> Self:
        """Return the set ``[start, end)``; each side may be open."""
        low = _LOWEST if start is None else max(start, _LOWEST)
        high = _END if end is None else min(end, _END)
        return cls(((low, high),) if low < high else ())

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Self:
        """Return the set of single numbers."""
        ranges: list[tuple[int, int]] = []
        for number in sorted({number for number in numbers if _LOWEST <= number < _END}):
            if ranges and ranges[-1][1] == number:
                ranges[-1] = (ranges[-1][0], number + 1)
            else:
                ranges.append((number, number + 1))
        return cls(tuple(ranges))

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __contains__(self, number: int) -> bool:
        return any(start <= number < end for start, end in self.ranges)

    def __and__(self, other: Intervals) -> Intervals:
        found = []
        mine, others = list(reversed(self.ranges)), list(reversed(other.ranges))
        while mine and others:
            start = max(mine[-1][0], others[-1][0])
            end = min(mine[-1][1], others[-1][1])
            if start < end:
                found.append((start, end))
            (mine if mine[-1][1] <= others[-1][1] else others).pop()
        return Intervals(tuple(found))

    def __invert__(self) -> Intervals:
        bounds = [_LOWEST, *(bound for entry in self.ranges for bound in entry), _END]
        gaps = zip(bounds[::2], bounds[1::2], strict=True)
        return Intervals(tuple((start, end) for start, end in gaps if start < end))

    @property
    def first(self) -> int:
        """The smallest number; of the empty set, one above all."""
        return self.ranges[0][0] if self.ranges else _END

    @property
    def last(self) -> int:
        """The largest number; of the empty set, one below all."""
        return self.ranges[-1][1] - 1 if self.ranges else _LOWEST - 1

    @property
    def is_open(self) -> bool:
        """Whether the set has no largest number but the type's own."""
        return self.last == _END - 1

    def hull(self) -> Intervals:
        """Return the range from the smallest number to the largest."""
        return Intervals.between(self.first, self.last + 1)

    def multiples(self, unit: int) -> Intervals:
        """Return the n for which ``n * unit`` is in the set; what is open stays open."""
        found: list[tuple[int, int]] = []
        for start, end in self.ranges:
            low = _LOWEST if start == _LOWEST else -(-start // unit)
            high = _END if end == _END else -(-end // unit)
            if found and found[-1][1] == low:
                low = found.pop()[0]
            if low < high:
                found.append((low, high))
        return Intervals(tuple(found))


EVERYTHING: Final = Intervals.between(None, None)
NOTHING: Final = Intervals(())
