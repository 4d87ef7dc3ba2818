"""What a filter leaves of partitions, offsets and timestamps, asked of Arrow itself.

An expression of Arrow tells nobody what it is made of. But Arrow says of a guarantee, such as
``offset < 100``, whether rows with it can pass the filter. So bounds are searched for: the largest
b for which nothing below b passes is a lower bound. What Arrow cannot tell passes, so that too
much may be read and never too little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from kafkalog.streaming.log.intervals import EVERYTHING, NOTHING, Intervals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["can_pass", "hull_of", "is_named", "offset_value", "timestamp_value"]

_FORMAT: Final = ds.ParquetFileFormat()
_AT_ONCE: Final = 32
_END: Final = 2**63 - 1
_LAST_MS: Final = _END // 1000


def is_named(name: str, expression: pc.Expression) -> bool:
    """Return whether an expression may be about a column."""
    return name in str(expression)


def can_pass(
    expression: pc.Expression, guarantees: Sequence[pc.Expression], schema: pa.Schema
) -> list[bool]:
    """Return for each guarantee whether rows of which it holds can pass the filter."""
    system = LocalFileSystem()
    fragments = [
        _FORMAT.make_fragment(str(number), filesystem=system, partition_expression=each)
        for number, each in enumerate(guarantees)
    ]
    dataset = ds.FileSystemDataset(fragments, schema, _FORMAT, system)
    left = {fragment.path for fragment in dataset.get_fragments(filter=expression)}
    return [str(number) in left for number in range(len(guarantees))]


def offset_value(number: int) -> Any:  # noqa: ANN401 - a scalar of Arrow
    """Return an offset for an expression."""
    return pa.scalar(number, pa.int64())


def timestamp_value(milliseconds: int) -> Any:  # noqa: ANN401 - a scalar of Arrow
    """Return a timestamp for an expression."""
    return pa.scalar(max(-_LAST_MS, min(milliseconds, _LAST_MS)) * 1000, pa.timestamp("us", "UTC"))


def hull_of(
    expression: pc.Expression,
    name: str,
    value: Callable[[int], Any],
    end: int,
    schema: pa.Schema,
) -> Intervals:
    """Return a range of numbers from 0 to ``end`` outside of which no row passes.

    ``value`` makes a scalar of the column's type of a number. Below 0 and from ``end`` on, rows
    pass if they do at the ends of the range.
    """
    if not is_named(name, expression):
        return EVERYTHING
    field = pc.field(name)
    beyond, null = can_pass(expression, [field > value(end), field.is_null()], schema)
    if null:
        return EVERYTHING
    # the first number for which something below it, or itself, passes; and the same from above
    low = _first(expression, lambda number: field <= value(number), end, schema)
    if low is None:
        return EVERYTHING if beyond else NOTHING
    high = _first(expression, lambda number: field >= value(end - number), end, schema)
    last = end if high is None else end - high
    return Intervals.between(low or None, None if last >= end else last + 1)


def _first(
    expression: pc.Expression,
    guarantee: Callable[[int], pc.Expression],
    end: int,
    schema: pa.Schema,
) -> int | None:
    """Find the smallest number up to ``end`` whose guarantee lets rows pass, as all after it do."""
    low, high = 0, end + 1
    while low < high:
        step = max(1, (high - low) // _AT_ONCE)
        numbers = [*range(low, high, step)][: _AT_ONCE + 1]
        passes = can_pass(expression, [guarantee(number) for number in numbers], schema)
        if True in passes:
            place = passes.index(True)
            high = numbers[place]
            low = numbers[place - 1] + 1 if place else low
        else:
            low = numbers[-1] + 1
    return low if low <= end else None
