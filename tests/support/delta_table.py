"""What a Delta table holds, by Delta's own log, without Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["rows_in", "values_in"]


def values_in(table: Path) -> list[Any]:
    """Return the column ``value`` of the rows that a table holds now; none if it is not there."""
    return [row["value"] for row in rows_in(table, "value")]


def rows_in(table: Path, *columns: str) -> list[dict[str, Any]]:
    """Return the rows that a table holds now, all columns or some."""
    files: set[str] = set()
    for version in sorted((table / "_delta_log").glob("*.json")):
        for line in version.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                files.add(action["add"]["path"])
            if "remove" in action:
                files.discard(action["remove"]["path"])
    wanted = list(columns) or None
    found = (pq.read_table(table / unquote(path), columns=wanted) for path in sorted(files))
    return [row for some in found for row in some.to_pylist()]
