from __future__ import annotations

from pathlib import Path

import pytest
from tools.errors_page import errors_page

from kafkalog import errors

PAGE = Path(__file__).parents[3] / "docs" / "troubleshooting.md"


def test_the_page_is_what_the_error_classes_say() -> None:
    """If this fails: ``python -m tools.errors_page > docs/troubleshooting.md``."""
    assert errors_page() == PAGE.read_text()


@pytest.mark.parametrize("name", sorted(set(errors.__all__) - {"KafkaLogError"}))
def test_each_error_says_itself_what_to_do(name: str) -> None:
    """A class that comes later has its own words, not those of the class above it."""
    assert getattr(errors, name).__dict__.get("remedy", "").endswith(".")
