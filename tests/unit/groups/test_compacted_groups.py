"""The topic of groups is compacted: groups stand where they stood, and who looks notices."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from tests.support.consuming import consumer, make_shared_topic, positions, table

import kafkalog
from kafkalog.checkpoints.state_file import load_state
from kafkalog.jobs.inspection.lag import LagMeter, LagTargets
from kafkalog.model import OFFSETS_TOPIC
from kafkalog.streaming.admin.compaction import Wanted, compact
from kafkalog.streaming.api import append
from kafkalog.streaming.groups.administration import delete_group
from kafkalog.streaming.groups.group_commits import OFFSETS_POLICY, GroupCommits
from kafkalog.streaming.groups.group_log import GroupLog
from kafkalog.streaming.groups.rebalance import GroupRecord
from kafkalog.streaming.store.policy import SetPolicy
from kafkalog.streaming.store.session import inspect_state

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.streaming.groups.group_log import GroupState

FORCED = Wanted(forces=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder in which the topic of groups has one partition with small segments."""
    settings = {**OFFSETS_POLICY.settings, "segment.bytes": "1000", "delete.retention.ms": "0"}
    small = dataclasses.replace(OFFSETS_POLICY, partitions=1, settings=settings)
    monkeypatch.setattr("kafkalog.streaming.groups.group_commits.OFFSETS_POLICY", small)
    make_shared_topic(tmp_path / "logs")
    return tmp_path / "logs"


def look(folder: Path, group: str = "g") -> GroupState:
    return GroupCommits([folder], group, SetPolicy()).look()


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / f"{OFFSETS_TOPIC}-0").glob("*.log"))


def commit_often(folder: Path, times: int = 20) -> None:
    """Let a member commit what it reads, again and again, and fall silent."""
    with consumer(folder) as reader:
        for number in range(times):
            append(folder, "in", table([number]))
            while reader.poll(0.02) is not None:
                pass
            reader.commit()


def test_what_a_group_has_committed_stays_and_older_positions_go(folder: Path) -> None:
    with consumer(folder) as reader:
        commit_often(folder, 12)
        reader.poll(0.3)
        before, was = look(folder), size(folder)
        done = compact([str(folder)], FORCED)
        assert not done.problems
        assert size(folder) < was / 2
        assert look(folder) == before
        append(folder, "in", table(range(40, 44)))
        while reader.poll(1.0) is not None:
            reader.commit()
    assert sum(positions(folder).values()) == 40 + 12 + 4


def test_it_goes_by_its_own_settings_alone(folder: Path) -> None:
    state = load_state(folder)
    assert state is not None
    (own,) = [topic for topic in state.topics.values() if topic.name == OFFSETS_TOPIC]
    assert own.settings["cleanup.policy"] == "compact"
    commit_often(folder, 4)
    wanted = Wanted(forces=True, config={"cleanup.policy": "compact", "delete.retention.ms": "1"})
    done = compact([str(folder)], wanted)
    assert not done.problems
    assert {each.topic_partition.topic for each in done.partitions} == {OFFSETS_TOPIC, "in"}


def test_no_flag_is_advised_that_does_not_count_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a broker that kept settings elsewhere, the topic has none here."""
    bare = dataclasses.replace(OFFSETS_POLICY, partitions=1, settings={})
    monkeypatch.setattr("kafkalog.streaming.groups.group_commits.OFFSETS_POLICY", bare)
    make_shared_topic(tmp_path)
    for config in ({}, {"cleanup.policy": "compact"}):
        left = compact([str(tmp_path)], Wanted(config=config)).left_alone
        assert left[OFFSETS_TOPIC] == "it was not given cleanup.policy=compact"


def fill(folder: Path) -> None:
    """Let another group go on until what was written before lies in sealed segments."""
    commits = GroupCommits([folder], "another", SetPolicy())
    for _ in range(20):
        before = commits.look().record
        assert commits.decide(before, GroupRecord(before.generation + 1))


def test_who_did_not_look_for_long_notices_that_a_group_was_forgotten(folder: Path) -> None:
    commit_often(folder)
    log, log_set = GroupLog("g"), inspect_state([folder], SetPolicy())
    assert len(log.look(log_set).positions) == 4
    delete_group([str(folder)], "g")
    for _ in range(3):  # what took its positions away goes, too
        fill(folder)
        assert not compact([str(folder)], FORCED).problems
    data = b"".join(path.read_bytes() for path in (folder / f"{OFFSETS_TOPIC}-0").glob("*.log"))
    assert b"\0\1g" not in data
    assert log.look(inspect_state([folder], SetPolicy())).is_unknown


def readers(meter: LagMeter) -> set[str]:
    return {row["reader"] for row in meter.look()}


def test_so_does_who_shows_the_lag_of_all_groups(folder: Path) -> None:
    commit_often(folder)
    meter = LagMeter([str(folder)], LagTargets())
    assert readers(meter) == {"g"}
    delete_group([str(folder)], "g")
    with kafkalog.Consumer(folder, "h", "in", options={"startingOffsets": "earliest"}) as reader:
        assert reader.poll(5) is not None
        reader.commit()
    for _ in range(3):
        fill(folder)
        assert not compact([str(folder)], FORCED).problems
    assert readers(meter) == {"h"}
