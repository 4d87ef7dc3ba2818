"""A folder with a topic of four partitions, and queries without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.consuming import keep_groups_small, make_shared_topic
from tests.support.joining import Queries

from kafkalog.streaming.groups.membership import GroupMember

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    keep_groups_small(monkeypatch)
    make_shared_topic(tmp_path / "logs")
    return tmp_path / "logs"


@pytest.fixture
def queries(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queries]:
    """Make queries whose threads do nothing by themselves: a test calls ``look``."""
    monkeypatch.setattr(GroupMember, "_run", lambda _: None)
    monkeypatch.setattr("kafkalog.streaming.consumer.query_member._DYING_S", 0.0)
    made = Queries(folder, tmp_path)
    yield made
    made.close()
