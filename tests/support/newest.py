"""What ``view=latest`` has to give, from all records of the same query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.reading import read_batch

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["by_key", "latest_of", "newest_of"]

Found = dict[tuple[str, int, bytes], dict[str, Any]]


def by_key(rows: Iterable[dict[str, Any]]) -> Found:
    """Return rows by topic, partition and key, each of which must be there once."""
    found: Found = {}
    for row in rows:
        key = (row["topic"], row["partition"], row["key"])
        assert key not in found
        found[key] = row
    return found


def newest_of(records: Iterable[dict[str, Any]], *, tombstones: bool = False) -> Found:
    """Return the record with the largest offset of each key and partition."""
    found: Found = {}
    for row in sorted(records, key=lambda row: row["offset"]):
        if row["key"] is not None:
            found[row["topic"], row["partition"], row["key"]] = row
    return {key: row for key, row in found.items() if tombstones or row["value"] is not None}


def latest_of(**options: str) -> Found:
    """Read ``view=latest`` as Spark's processes do."""
    return by_key(read_batch(**options, view="latest"))
