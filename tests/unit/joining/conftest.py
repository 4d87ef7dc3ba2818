"""A folder with a topic of four partitions, and queries without Spark."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from tests.support.consuming import table
from tests.support.joining import Queries

from kafkalog.streaming.groups.group_commits import OFFSETS_POLICY, GroupCommits
from kafkalog.streaming.groups.group_record import GroupRecord
from kafkalog.streaming.joining.query_member import QueryMember
from kafkalog.streaming.library import append
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    small = dataclasses.replace(OFFSETS_POLICY, partitions=1)
    monkeypatch.setattr("kafkalog.streaming.groups.group_commits.OFFSETS_POLICY", small)
    where = tmp_path / "logs"
    append(where, "in", table(range(40)), options={"numPartitions": 4})
    GroupCommits([where], "another", SetPolicy()).decide(GroupRecord(), GroupRecord(1))
    return where


@pytest.fixture
def queries(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queries]:
    """Make queries whose threads do nothing by themselves: a test calls ``look``."""
    monkeypatch.setattr(QueryMember, "_run", lambda _: None)
    monkeypatch.setattr("kafkalog.streaming.joining.query_member._DYING_S", 0.0)
    made = Queries(folder, tmp_path)
    yield made
    made.close()
