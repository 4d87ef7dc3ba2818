from __future__ import annotations

from pathlib import Path

from tools.api_page import api_page

import kafkalog

PAGE = Path(__file__).parents[3] / "docs" / "api.md"


def test_the_page_is_what_the_docstrings_say() -> None:
    """If this fails: ``python -m tools.api_page > docs/api.md``."""
    assert api_page() == PAGE.read_text()


def test_each_public_name_has_a_section() -> None:
    sections = {line[3:] for line in api_page().splitlines() if line.startswith("## ")}
    assert set(kafkalog.__all__) - sections == {"__version__"}
