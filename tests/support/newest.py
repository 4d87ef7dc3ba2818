"""What ``view=latest`` has to give, from all records of the same query."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.reading import read_batch

from kafkalog.streaming.lookup import latest, seen_keys

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

    from kafkalog.streaming.lookup.seen_keys import KeyRange, SeenKeys

__all__ = ["by_key", "latest_of", "newest_of", "open_spills", "spilling"]

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


def spilling(patch: pytest.MonkeyPatch) -> None:
    """Let a task have room for three keys, and write all others to disk."""

    def make(keys: KeyRange, seed: int, memory: int, *, gives_up: bool) -> SeenKeys:
        return seen_keys.SeenKeys(keys, seed, 0 * memory, gives_up=gives_up)

    patch.setattr(seen_keys, "_FIRST_SLOTS", 4)
    patch.setattr(latest, "SeenKeys", make)


def open_spills(folder: Path) -> list[str]:
    """Return the files without a name that this process has open in a folder."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(link.readlink()))
        except FileNotFoundError:  # of the listing itself
            continue
    return [path for path in found if path.startswith(f"{folder}/") and "(deleted)" in path]
