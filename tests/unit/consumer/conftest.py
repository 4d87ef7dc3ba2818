"""A folder with a topic of four partitions, and a small topic for the positions of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.consuming import keep_groups_small, make_shared_topic

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    keep_groups_small(monkeypatch)
    make_shared_topic(tmp_path / "logs")
    return tmp_path / "logs"
