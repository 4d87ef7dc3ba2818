from __future__ import annotations

from pathlib import Path

from tools.options_page import options_page

PAGE = Path(__file__).parents[3] / "docs" / "options.md"


def test_the_page_is_what_the_options_say() -> None:
    """If this fails: ``python -m tools.options_page > docs/options.md``."""
    assert options_page() == PAGE.read_text()
