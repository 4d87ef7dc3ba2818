"""A folder with a topic of four partitions, and a small topic for the positions of groups."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from tests.support.consuming import table

from kafkalog.streaming.groups.group_commits import OFFSETS_POLICY, GroupCommits
from kafkalog.streaming.groups.group_record import GroupRecord
from kafkalog.streaming.library import append
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    small = dataclasses.replace(OFFSETS_POLICY, partitions=1)
    monkeypatch.setattr("kafkalog.streaming.groups.group_commits.OFFSETS_POLICY", small)
    where = tmp_path / "logs"
    append(where, "in", table(range(40)), options={"numPartitions": 4})
    GroupCommits([where], "another", SetPolicy()).decide(GroupRecord(), GroupRecord(1))
    return where
