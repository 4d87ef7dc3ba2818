"""Consumer groups when a set changes hands, and when a topic is deleted."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from tests.support.consuming import consumer, keep_groups_small, positions, table
from tests.support.held_locks import held_elsewhere

import kafkalog
from kafkalog.checkpoints.broker import LOCK
from kafkalog.errors import FencedMemberError, KafkaLogError
from kafkalog.files.system import system
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.topics import delete
from kafkalog.streaming.groups.administration import GroupWriter
from kafkalog.streaming.groups.group_commits import GroupCommits
from kafkalog.streaming.groups.member_files import MEMBER_PREFIX, PLAN_PREFIX
from kafkalog.streaming.groups.planned_commit import Plan, save_plan
from kafkalog.streaming.groups.rebalance import GroupRecord
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from pathlib import Path

EMPTIED = "group g: empty in generation 2, before with 1 member"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    keep_groups_small(monkeypatch, partitions=2)
    folder = tmp_path / "log"
    kafkalog.append(folder, "in", table(range(40)), options={"numPartitions": 4})
    return folder


def drain(reader: kafkalog.Consumer) -> None:
    """Poll until there are no rows; a poll that has some may not look at the group."""
    while reader.poll(1.0) is not None:
        pass


def record(log: Path) -> GroupRecord:
    return GroupCommits([log], "g", SetPolicy()).look().record


@pytest.mark.parametrize("act", [hand_over, take_over])
def test_a_set_that_changes_hands_has_no_members(log: Path, act: object) -> None:
    assert callable(act)
    GroupWriter([str(log)], "alone").commit({TopicPartition("in", 0): 1})
    reader = consumer(log)
    assert reader.poll(5) is not None
    reader.commit()
    stood = positions(log)
    would = act([str(log)], dry_run=True)
    assert EMPTIED in would.written
    assert record(log).members
    save_plan(log, "g", "i", Plan.new("m", {}, {}, {}))
    done = act([str(log)])
    assert (done.problems, EMPTIED in done.written) == ([], True)
    assert record(log) == GroupRecord(2)
    assert positions(log) == stood
    assert not [*log.glob(f"{MEMBER_PREFIX}*"), *log.glob(f"{PLAN_PREFIX}*")]
    assert EMPTIED not in act([str(log)]).written, "it is empty already"
    with pytest.raises(FencedMemberError, match="gone on without member"):
        drain(reader)
    with consumer(log) as again:
        assert again.poll(5) is not None
        assert record(log).generation == 3


def test_nothing_is_emptied_where_a_problem_was_found(log: Path) -> None:
    with consumer(log) as reader:
        reader.poll(5)
        (log / "in-2").rename(log / "elsewhere")
        assert hand_over([str(log)]).problems
        assert record(log).members


def test_positions_go_with_their_topic(log: Path) -> None:
    kafkalog.append(log, "other", table([0]))
    for group in ("g", "h"):
        GroupWriter([str(log)], group).commit(
            {TopicPartition("in", 0): 1, TopicPartition("in", 3): 2, TopicPartition("other", 0): 1}
        )
    delete([str(log)], "in", dry_run=True)
    assert len(positions(log)) == 3
    delete([str(log)], "in")
    assert positions(log) == {TopicPartition("other", 0): 1}
    kafkalog.append(log, "in", table(range(8)), options={"numPartitions": 4})
    with consumer(log) as reader:
        assert reader.poll(5) is not None
        assert positions(log) == {
            **{TopicPartition("in", number): 0 for number in range(4)},
            TopicPartition("other", 0): 1,
        }


def test_members_write_nothing_while_a_broker_holds_the_directory(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with consumer(log) as reader:
        assert reader.poll(5) is not None
        member = reader._member
        assert member is not None
        member.fall_silent()
        (path,) = log.glob(f"{MEMBER_PREFIX}*")
        clock = itertools.count(system.monotonic())
        monkeypatch.setattr(system, "monotonic", lambda: float(next(clock)))
        member.beat()
        with held_elsewhere(log / LOCK):
            counter = path.read_bytes()[:8]
            member.beat()
            assert path.read_bytes()[:8] == counter
            for act in (reader.commit, member.join):
                with pytest.raises(KafkaLogError, match="a broker"):
                    act()
        member.beat()
        assert path.read_bytes()[:8] != counter
