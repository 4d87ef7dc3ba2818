from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pytest

from kafkalog.jobs.demo.queries import FLIGHTS, SCHEMA, write_flights

if TYPE_CHECKING:
    from pathlib import Path


def read(folder: Path) -> list[list[dict[str, str]]]:
    """Read the files in the order in which Spark's file source takes them."""
    paths = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    return [list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) for path in paths]


def test_the_first_flights_are_cut_into_files_in_order(tmp_path: Path) -> None:
    write_flights(tmp_path / "input", flights=1000, files=7)

    files = read(tmp_path / "input")

    assert [len(rows) for rows in files] == [143] * 6 + [142]
    rows = [row for rows in files for row in rows]
    assert [int(row["id"]) for row in rows] == list(range(1000))
    assert (rows[0]["carrier"], rows[0]["time_hour"]) == ("UA", "2013-01-01T10:00:00Z")
    assert list(rows[0]) == [column.split()[0] for column in SCHEMA.split(", ")]


@pytest.mark.long
def test_the_package_holds_as_many_flights_as_we_say(tmp_path: Path) -> None:
    write_flights(tmp_path / "input", flights=FLIGHTS + 1, files=1)

    (rows,) = read(tmp_path / "input")

    assert len(rows) == FLIGHTS


def test_an_input_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    write_flights(tmp_path, flights=10, files=2)
    assert list(tmp_path.iterdir()) == []
