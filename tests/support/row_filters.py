"""Spark's filters as SQL means them, row by row: the judge of what a pushed filter may leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.datasource import Filter

__all__ = ["passes"]


def passes(row: Mapping[str, Any], filters: Sequence[Filter]) -> bool:
    """Return whether WHERE keeps a row: all filters must be true, unknown is not enough."""
    return all(_holds(row, entry) is True for entry in filters)


def _holds(row: Mapping[str, Any], given: Filter) -> bool | None:  # noqa: PLR0911 - a table of cases
    if isinstance(given, Not):
        found = _holds(row, given.child)
        return None if found is None else not found
    (name,) = given.attribute  # type: ignore[attr-defined]
    left = row[name]
    match given:
        case IsNull():
            return left is None
        case IsNotNull():
            return left is not None
        case EqualNullSafe(_, right):
            return left == right if None not in (left, right) else left is right
        case In(_, values):
            if left is None:
                return None
            return True if left in values else (None if None in values else False)
    right = given.value  # type: ignore[attr-defined]
    if left is None or right is None:
        return None
    return bool(
        {
            EqualTo: lambda: left == right,
            LessThan: lambda: left < right,
            LessThanOrEqual: lambda: left <= right,
            GreaterThan: lambda: left > right,
            GreaterThanOrEqual: lambda: left >= right,
            StringStartsWith: lambda: left.startswith(right),
            StringEndsWith: lambda: left.endswith(right),
            StringContains: lambda: right in left,
        }[type(given)]()
    )
