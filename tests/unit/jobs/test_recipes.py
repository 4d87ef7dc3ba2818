"""The recipes of docs/recipes.md that need no Spark, as they stand on the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.corpus import UnpackedCase
from tests.support.recipes import blocks_of, follow

import kafkalog

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.long
def test_each_block_does_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = UnpackedCase("p06-transactions", tmp_path / "case")
    (tmp_path / "broker").symlink_to(case.path)
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of(with_spark=False)
    assert len(blocks) >= 10
    follow(blocks, tmp_path, {})
    played = kafkalog.read("logs", "txn", columns=["value"]).read_all()
    there = kafkalog.read("broker", "txn", options={"kafka.isolation.level": "read_committed"})
    assert sorted(played["value"].to_pylist()) == sorted(there.read_all()["value"].to_pylist())
    for copy in ("restored", "erased"):
        rows = kafkalog.read(copy, "flights", options={"includeHeaders": True}).read_all()
        assert {str(each) for each in rows["headers"].to_pylist()} == {
            "[{'key': 'client', 'value': b'web-3'}]"
        }
    assert b"IAH-SFO" not in b"".join(
        each.read_bytes() for each in (tmp_path / "erased").rglob("*") if each.is_file()
    )
