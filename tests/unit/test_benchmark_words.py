"""Pages of benchmarks are read by people: one is not many, and more is not less."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks import machine
from benchmarks.growth import with_section
from benchmarks.rows import Shape
from benchmarks.words import compared

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["benchmarks.md", "growth.md", "latest.md", "memory.md", "speed.md", "sql.md"]


@pytest.mark.parametrize(
    ("cost", "said"),
    [
        (76, "14 times less"),
        (5145, "4.8 times more"),
        (1069, "as much"),
        (1060, "as much"),
        (4, "267 times less"),
    ],
)
def test_what_costs_more_is_not_called_less(cost: float, said: str) -> None:
    assert compared(cost, 1069) == said


def test_one_is_one() -> None:
    said = str(Shape(rows=1, key_bytes=1, value_bytes=100, partitions=1))
    assert said == "1 row, key 1 byte, value 100 bytes, lz4, 1 partition"


def test_the_processor_is_named_with_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_java_version", lambda: "17")
    monkeypatch.setattr(machine, "_processor", lambda: "X")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    assert machine.facts()["processor"] == "X, 1 core"


@pytest.mark.parametrize("name", PAGES)
def test_no_page_says_1_partitions_or_0_times_less(name: str) -> None:
    page = (DOCS / name).read_text()
    ones = r"(?<![\d.-])1 (partition|round|run|row|record|core|byte|key|task|segment)s\b"
    assert re.findall(ones, page) == []
    assert re.findall(r"\b0\.\d+ times less", page) == []
    assert re.findall(r"\(\d+ \(", page) == []


def test_what_is_written_behind_the_table_about_a_bucket_stays() -> None:
    page = "before\n\n## A log in a bucket\n\nOf old.\n\n| a |\n| --- |\n| 1 |\n\nWith more.\n"
    changed = with_section(page, "\n## A log in a bucket\n\nOf now.\n\n| a |\n| --- |\n| 2 |\n")
    assert changed == page.replace("Of old", "Of now").replace("| 1 |", "| 2 |")
