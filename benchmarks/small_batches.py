"""A day of small batches: what a hundred thousand appends of a few rows leave behind.

Appends batch after batch through ``kafkalog.append``, each with a version, so that each is a commit
of its own with all that belongs to it. Prints at some points of the way how long a commit takes
(median of the last ones), how many files there are and how large the commit state is, and how dense
the offset indexes are: none of it may grow with the number of commits, but for the segments.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from benchmarks.session import scratch
from rich.console import Console
from rich.table import Table

import kafkalog
from kafkalog.checkpoints.commit_state import STATE_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["main"]

_TOPIC: Final = "events"
_PARTITIONS: Final = 4
_ROWS: Final = 5
_POINTS: Final = (0.01, 0.1, 0.25, 0.5, 1.0)
_WINDOW: Final = 500
_INDEX_ENTRY: Final = 8


def main(argv: Sequence[str] | None = None) -> int:
    """Append, and print a row for each point of the way."""
    parser = argparse.ArgumentParser(prog="benchmarks.small_batches", description=__doc__)
    parser.add_argument("--batches", type=int, default=100_000)
    parser.add_argument("--flush", choices=["os", "commit"], default="os")
    asked = parser.parse_args(argv)
    title = f"{_ROWS} rows a commit to {_PARTITIONS} partitions, flush={asked.flush}"
    shown = Table(
        *("commits", "ms a commit", "files", "commit state", "log", "bytes an entry"), title=title
    )
    for column in shown.columns:
        column.justify = "right"
    points = {max(1, round(asked.batches * part)) for part in _POINTS}
    with scratch() as directory:
        for row in _append(directory, asked.batches, asked.flush, points):
            shown.add_row(*row)
    Console().print(shown)
    return 0


def _append(directory: Path, batches: int, flush: str, points: set[int]) -> list[tuple[str, ...]]:
    found = []
    taken: list[float] = []
    for version in range(batches):
        rows = _rows(version)
        began = time.perf_counter()
        kafkalog.append(
            directory,
            _TOPIC,
            rows,
            transactional_id="a day",
            version=version,
            options={"numPartitions": str(_PARTITIONS), "flush": flush},
        )
        taken.append(time.perf_counter() - began)
        if version + 1 in points:
            found.append(_measured(directory, version + 1, taken[-_WINDOW:]))
            print(*found[-1], sep="  ", file=sys.stderr, flush=True)
    return found


def _rows(version: int) -> pa.Table:
    keys = [f"key {(version * _ROWS + row) % 1000}" for row in range(_ROWS)]
    return pa.table(
        {"key": keys, "value": [f"{version}/{row} " + "x" * 90 for row in range(_ROWS)]}
    )


def _measured(directory: Path, commits: int, taken: Sequence[float]) -> tuple[str, ...]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    log = sum(path.stat().st_size for path in files if path.suffix == ".log")
    entries = sum(path.stat().st_size for path in files if path.suffix == ".index") // _INDEX_ENTRY
    return (
        f"{commits:,}",
        f"{statistics.median(taken) * 1000:.1f}",
        f"{len(files):,}",
        f"{(directory / STATE_FILE).stat().st_size:,}",
        f"{log:,}",
        f"{log / max(1, entries):,.0f}",
    )


if __name__ == "__main__":
    raise SystemExit(main())
