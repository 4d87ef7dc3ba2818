"""The page that says which tests show what Spark's suites ask of a Kafka connector."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "connector-scenarios.md").read_text(encoding="utf-8")


def test_every_test_that_the_page_names_is_there() -> None:
    named = re.findall(r"`(tests/\S+\.py)::(\w+)`", PAGE)
    assert len(named) > 60
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or f"\ndef {name}(" not in (ROOT / path).read_text()
    ]
    assert missing == []


def test_every_scenario_names_a_test_or_a_reason() -> None:
    rows = re.findall(r"^\| (?!scenario|---)(.+?) \| (.+) \|$", PAGE, re.MULTILINE)
    assert len(rows) > 50
    assert [
        scenario
        for scenario, shown in rows
        if "::" not in shown and not shown.startswith(("cannot: ", "does not apply: "))
    ] == []
