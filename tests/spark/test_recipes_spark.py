"""The recipes of docs/recipes.md that need Spark, as they stand on the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession
from tests.support.recipes import blocks_of, follow
from tests.support.spark import end_jvm

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.nightly]


def test_each_block_does_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of(with_spark=True)
    assert len(blocks) >= 9
    end_jvm()  # a new one starts in this folder, so the page's relative paths are its own
    try:
        follow(blocks, tmp_path, {}, in_one_python=True)
    finally:
        if (session := SparkSession.getActiveSession()) is not None:
            session.stop()
        end_jvm()
