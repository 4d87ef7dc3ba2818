"""Positions of groups without members expire, if two looks find the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.consuming import consumer, keep_groups_small, positions, table

import kafkalog
from kafkalog.errors import LogDirectoryError
from kafkalog.files.system import system
from kafkalog.jobs.maintain import Maintenance, Scope
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker.handover import hand_over
from kafkalog.streaming.admin.groups import expire_positions
from kafkalog.streaming.groups.administration import GroupWriter
from kafkalog.streaming.groups.group_commits import GroupCommits
from kafkalog.streaming.groups.member_files import EXPIRY_NOTE
from kafkalog.streaming.groups.rebalance import GroupRecord, Member, MemberSettings
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from pathlib import Path

MINUTE, DAY = 60, 86_400
T0 = TopicPartition("in", 0)
GONE = ["group g: 4 positions expired"]


class Clock:
    """The wall clock, moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moved_s = 0
        real = system.time_ns
        monkeypatch.setattr(system, "time_ns", lambda: real() + self.moved_s * 10**9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Path:
    keep_groups_small(monkeypatch, partitions=2)
    folder = tmp_path / "log"
    kafkalog.append(folder, "in", table(range(40)), options={"numPartitions": 4})
    assert clock.moved_s == 0
    return folder


def look(log: Path) -> list[str]:
    return expire_positions([str(log)], DAY * 1000)


def read_and_leave(log: Path) -> None:
    with consumer(log) as reader:
        assert reader.poll(5) is not None
        reader.commit()


def test_an_empty_group_is_forgotten_by_the_second_look(log: Path, clock: Clock) -> None:
    read_and_leave(log)
    clock.moved_s = DAY - MINUTE
    assert look(log) == []
    clock.moved_s = DAY + MINUTE
    assert look(log) == [], "the clock may have jumped"
    clock.moved_s += 9 * MINUTE
    assert look(log) == []
    assert len(positions(log)) == 4
    clock.moved_s += 2 * MINUTE
    assert look(log) == GONE
    assert GroupCommits([log], "g", SetPolicy()).look().is_unknown
    clock.moved_s += DAY
    assert look(log) == []


def test_a_clock_that_went_back_or_a_group_that_was_used_begins_anew(
    log: Path, clock: Clock
) -> None:
    read_and_leave(log)
    clock.moved_s = 3 * DAY
    assert look(log) == []
    clock.moved_s = MINUTE
    assert look(log) == []
    clock.moved_s = DAY + MINUTE
    assert look(log) == [], "what the wrong clock has seen does not count"
    read_and_leave(log)
    clock.moved_s += 20 * MINUTE
    assert look(log) == []
    clock.moved_s += 2 * DAY
    assert look(log) == []
    for odd in (b"[torn", b'{"g":[1e999,0]}', b"[" * 100_000, b'{"g":5}', b"\xff"):
        (log / EXPIRY_NOTE).write_bytes(odd)
        assert look(log) == [], odd
    clock.moved_s += 11 * MINUTE
    assert look(log) == GONE


def test_positions_of_members_stay_and_those_of_nobody_go_by_their_commit(
    log: Path, clock: Clock
) -> None:
    with consumer(log) as reader:
        assert reader.poll(5) is not None
        alone = GroupWriter([str(log)], "alone")
        alone.commit({T0: 1})
        clock.moved_s = DAY // 2
        alone.commit({TopicPartition("in", 1): 1})
        said = []
        for moved in (DAY + MINUTE, DAY + 20 * MINUTE):
            clock.moved_s = moved
            said += look(log)
        assert said == ["group alone: 1 position expired"]
        assert len(positions(log)) == 4


def test_a_directory_that_a_broker_had_is_left_alone(log: Path) -> None:
    hand_over([str(log)], cluster_id="a2Fma2Fsb2ctdGVzdHMtMQ", node_id=1)
    with pytest.raises(LogDirectoryError):
        look(log)


def test_no_partition_is_assigned_whose_position_was_taken_away_meanwhile(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    GroupWriter([str(log)], "g").commit({T0: 1})
    commits = GroupCommits([log], "g", SetPolicy())
    member = Member(MemberSettings(frozenset({"in"})), {T0: 1})
    joined = GroupRecord(1, "range", "m", {"m": member})
    another = commits.another()
    another.change(GroupRecord(), {T0: None})
    assert not commits.decide(GroupRecord(), joined, stands=[T0])
    assert commits.look().is_unknown
    assert commits.decide(GroupRecord(), joined, {T0: 0})


def test_a_member_that_joins_while_positions_expire_reads_all_partitions(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    GroupWriter([str(log)], "g").commit({TopicPartition("in", number): 1 for number in range(4)})
    decide = GroupCommits.decide
    others = [GroupCommits([log], "g", SetPolicy())]

    def late(self: GroupCommits, *given: Any, **named: Any) -> bool:
        if others:
            others.pop().change(
                GroupRecord(), {TopicPartition("in", number): None for number in range(4)}
            )
        return decide(self, *given, **named)

    monkeypatch.setattr(GroupCommits, "decide", late)
    with consumer(log) as reader:
        read = [rows for _ in range(12) if (rows := reader.poll(0.2)) is not None]
        assert sum(rows.num_rows for rows in read) == 40


def test_maintain_forgets_what_its_option_says(log: Path, clock: Clock) -> None:
    GroupWriter([str(log)], "g").commit({T0: 1})
    said: list[str] = []
    scope = Scope(log=str(log), offsets_retention_ms=DAY * 1000)
    for moved in (DAY, DAY + 11 * MINUTE):
        clock.moved_s = moved + MINUTE
        assert Maintenance(scope, lambda _: [], say=said.append).round() == []
    assert said.count("group g: 1 position expired") == 1
    assert positions(log) == {}


def test_maintain_does_all_else_where_groups_cannot_be_read(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: Any, **__: Any) -> list[str]:
        raise LogDirectoryError("the groups cannot be read")

    monkeypatch.setattr("kafkalog.streaming.admin.groups.expire_positions", unreadable)
    said: list[str] = []
    scope = Scope(log=str(log), offsets_retention_ms=DAY * 1000)
    problems = Maintenance(scope, lambda _: [], say=said.append).round()
    assert problems == ["no positions have expired: the groups cannot be read"]
    assert any("partitions looked at" in line for line in said)
    assert any("partitions to compact" in line for line in said)


def test_a_position_expires_though_others_of_its_group_are_written(log: Path, clock: Clock) -> None:
    """As of a topic that a query with ``commitGroupOffsets`` no longer reads."""
    commits = GroupWriter([str(log)], "g")
    commits.commit({T0: 1})
    for number in range(2):
        clock.moved_s = DAY + MINUTE + number * 20 * MINUTE
        commits = GroupWriter([str(log)], "g")
        commits.commit({TopicPartition("in", 1): 1 + number})
        said = look(log)
    assert said == ["group g: 1 position expired"]
    assert list(positions(log)) == [TopicPartition("in", 1)]


def test_what_the_look_before_did_not_find_is_not_taken_away(log: Path, clock: Clock) -> None:
    """One position has expired; then a clock that is wrong says that all have."""
    commits = GroupWriter([str(log)], "g")
    commits.commit({T0: 1})
    clock.moved_s = DAY - 10 * MINUTE
    commits.commit({TopicPartition("in", 1): 1})
    clock.moved_s = DAY + MINUTE
    assert look(log) == []
    clock.moved_s = 40 * DAY
    assert look(log) == ["group g: 1 position expired"]
    clock.moved_s = DAY + 20 * MINUTE
    assert look(log) == []
    assert list(positions(log)) == [TopicPartition("in", 1)]
