"""What a Delta table holds, by Delta's own log, without Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["values_in"]


def values_in(table: Path) -> list[Any]:
    """Return the column ``value`` of the rows that a table holds now; none if it is not there."""
    files: set[str] = set()
    for version in sorted((table / "_delta_log").glob("*.json")):
        for line in version.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                files.add(action["add"]["path"])
            if "remove" in action:
                files.discard(action["remove"]["path"])
    found = (pq.read_table(table / unquote(path))["value"].to_pylist() for path in sorted(files))
    return [value for some in found for value in some]
