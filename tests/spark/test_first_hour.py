"""What docs/first-hour.md says, done in an empty folder, as it stands on the page; and how-tos."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.recipes import FIRST_HOUR, HOW_TOS, blocks_on, follow
from tests.support.spark import end_jvm, small_session

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark


def test_each_block_does_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (language, install), *blocks = blocks_on(FIRST_HOUR)
    assert (language, "pip install" in install) == ("sh", True)  # make release installs
    assert len(blocks) >= 20
    assert not [text for name, text in blocks if name not in {"", "python"}]
    end_jvm()  # a new one starts in this folder, so the page's relative paths are its own
    try:
        with small_session():  # which the page's own builder finds
            follow(blocks, tmp_path, {}, in_one_python=True)
    finally:
        end_jvm()


def test_each_block_of_a_how_to_does_what_its_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    end_jvm()
    try:
        with small_session() as spark:
            for page in HOW_TOS:
                names = follow(blocks_on(page), tmp_path, {}, in_one_python=True)
                tests = [name for name in names if name.startswith("test_")]
                assert bool(tests) == (page.stem == "testing")
                for name in tests:
                    names[name](spark, tmp_path / "of a test")
    finally:
        end_jvm()
