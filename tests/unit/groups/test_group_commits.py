"""Generations and positions of a group, published in log directories and read from there."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.sinking import Writer, rows, values_of

from kafkalog.errors import CommitError, CorruptRecordError, FencedMemberError, OptionError
from kafkalog.model import OFFSETS_TOPIC, TopicPartition
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.commit.staging.staged_files import AttachedRecords
from kafkalog.streaming.coordinator.group_metadata import encode_group_key
from kafkalog.streaming.coordinator.group_replay import partition_for_group
from kafkalog.streaming.groups.group_commits import (
    OFFSETS_POLICY,
    GroupCommits,
    ReadRange,
    attached_offsets,
)
from kafkalog.streaming.groups.group_log import GroupState
from kafkalog.streaming.groups.rebalance import (
    GroupRecord,
    Member,
    MemberSettings,
    Presence,
    next_record,
)
from kafkalog.streaming.store.identity import BatchIdentity
from kafkalog.streaming.store.log_set import LogSet
from kafkalog.streaming.store.policy import SetPolicy, TopicPolicy
from kafkalog.streaming.store.session import ensure_set

if TYPE_CHECKING:
    from pathlib import Path

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
SETTINGS = MemberSettings(frozenset({"t"}), client_id="c", host="h")
# so that not each of these sets has 50 folders
SMALL = dataclasses.replace(OFFSETS_POLICY, partitions=2)


@pytest.fixture
def commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GroupCommits:
    monkeypatch.setattr("kafkalog.streaming.groups.group_commits.OFFSETS_POLICY", SMALL)
    ensure_set([tmp_path], SetPolicy())
    return GroupCommits([tmp_path], "g", SetPolicy())


def record(generation: int, **members: Member) -> GroupRecord:
    return GroupRecord(generation, "range", min(members, default=None), members)


def member(*, assigned: Any = (), revoked: Any = ()) -> Member:
    return Member(SETTINGS, dict(assigned), dict(revoked))


def test_a_group_that_nobody_knows_is_empty(commits: GroupCommits) -> None:
    assert commits.look() == GroupState()
    with pytest.raises(OptionError, match="id is empty"):
        GroupCommits([], "", SetPolicy())


def test_a_generation_and_the_positions_it_begins_with_are_read_as_they_were_decided(
    commits: GroupCommits, tmp_path: Path
) -> None:
    first = record(1, A=member(assigned={T0: 1}, revoked={T1: 1}), B=member())
    assert commits.decide(GroupRecord(), first, {T0: 5})
    assert commits.look() == GroupState(first, {T0: 5})
    other = GroupCommits([tmp_path], "g", SetPolicy())
    second = record(2, A=member(assigned={T0: 1}), B=member(assigned={T1: 2}))
    assert other.decide(first, second, {T1: 7})
    assert commits.look() == other.look() == GroupState(second, {T0: 5, T1: 7})
    empty = GroupRecord(3)
    assert commits.decide(second, empty)
    assert commits.look() == GroupState(empty, {T0: 5, T1: 7})


def test_of_two_that_decide_one_does(commits: GroupCommits, tmp_path: Path) -> None:
    other = GroupCommits([tmp_path], "g", SetPolicy())
    one, two = record(1, A=member()), record(1, B=member())
    assert commits.decide(GroupRecord(), one)
    assert not other.decide(GroupRecord(), two)
    assert commits.look().record == other.look().record == one


def test_a_group_does_not_begin_where_somebody_has_put_it_meanwhile(
    commits: GroupCommits, tmp_path: Path
) -> None:
    """``groups reset``, or ``commitGroupOffsets``, of a group without members."""
    GroupCommits([tmp_path], "g", SetPolicy()).change(GroupRecord(), {T0: 7})
    one = record(1, A=member(assigned={T0: 1, T1: 1}))
    assert not commits.decide(GroupRecord(), one, {T0: 0, T1: 0})
    assert commits.decide(GroupRecord(), one, {T1: 0}, [T0])
    assert commits.look().positions == {T0: 7, T1: 0}


def test_who_decides_while_another_one_publishes_is_too_late(
    commits: GroupCommits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other commit comes between the first look and the rename, its locks being lost."""
    original, looks = LogSet.check_current, iter(range(9))
    other = GroupCommits([tmp_path], "g", SetPolicy())
    one = record(1, A=member())
    assert commits.decide(GroupRecord(), one)

    def lost(log_set: LogSet) -> None:
        original(log_set)
        if next(looks) == 0:
            commits._log._state = commits._log._shown = GroupState(record(9, B=member()))

    monkeypatch.setattr(LogSet, "check_current", lost)
    assert not commits.decide(one, record(2, A=member(assigned={T0: 2})))
    assert other.look().record == one, "what was staged is rolled back"


def test_a_member_commits_what_it_has_and_had_all_the_time(commits: GroupCommits) -> None:
    first = record(1, A=member(assigned={T0: 1, T1: 1}))
    commits.decide(GroupRecord(), first, {T0: 0, T1: 0})
    commits.commit("A", {T0: ReadRange(0, 3, 1)})
    assert commits.look().positions == {T0: 3, T1: 0}
    # the generation has risen, and T1 is to be given up
    commits.decide(first, record(2, A=member(assigned={T0: 1}, revoked={T1: 1}), B=member()))
    commits.commit("A", {T0: ReadRange(3, 4, 1), T1: ReadRange(0, 2, 1)})
    assert commits.look().positions == {T0: 4, T1: 2}


@pytest.mark.parametrize(
    ("who", "move", "said"),
    [
        ("B", ReadRange(0, 3, 2), "had t-1 since generation 2, and has it no more"),
        ("C", ReadRange(0, 3, 2), "has gone on without member 'C', and is in generation 3"),
        ("A", ReadRange(0, 3, 1), "had t-1 since generation 1, and has it since 3 now"),
        ("A", ReadRange(2, 3, 3), "stands at 0 of t-1, and what member 'A' has read begins at 2"),
    ],
)
def test_a_member_that_was_fenced_commits_nothing(
    commits: GroupCommits, tmp_path: Path, who: str, move: ReadRange, said: str
) -> None:
    now = record(3, A=member(assigned={T0: 1, T1: 3}), B=member())
    commits.decide(GroupRecord(), now, {T0: 0, T1: 0})
    with pytest.raises(FencedMemberError, match=said):
        commits.commit(who, {T1: move})
    assert commits.look() == GroupState(now, {T0: 0, T1: 0})
    assert not list(tmp_path.glob(".kafkalog.staged*"))


def test_rows_and_positions_are_published_together_or_not_at_all(
    commits: GroupCommits, tmp_path: Path
) -> None:
    commits.decide(GroupRecord(), record(1, A=member(assigned={T0: 1})), {T0: 0})

    def append(batch: int, value: str, move: ReadRange) -> None:
        writer = Writer(tmp_path, topic="out")
        runs = writer.stage(batch, rows([value]))
        attached = attached_offsets("g", {T0: move.end}, 1)
        fence = commits.fence("A", {T0: move})
        plan, identity = writer.plan().commit_plan, writer.identity(batch, value)
        committer = Committer(plan, identity, attached_records=[attached], conditions=[fence])
        committer.commit_or_abort(runs)

    append(0, "a", ReadRange(0, 1, 1))
    assert commits.look().positions == {T0: 1}
    with pytest.raises(CommitError, match="stands at 1 of t-0"):
        append(1, "a again", ReadRange(0, 1, 1))
    commits.decide(record(1, A=member(assigned={T0: 1})), record(2, B=member(assigned={T0: 2})))
    with pytest.raises(FencedMemberError, match="without member 'A'"):
        append(1, "b", ReadRange(1, 2, 1))
    assert commits.look().positions == {T0: 1}
    assert values_of([tmp_path], "out") == {0: ["a"]}


def test_a_position_that_is_gone_refuses_what_was_read_from_it(
    commits: GroupCommits, tmp_path: Path
) -> None:
    commits.decide(GroupRecord(), record(1, A=member(assigned={T0: 1})))
    with pytest.raises(FencedMemberError, match="stands at no offset of t-0"):
        commits.commit("A", {T0: ReadRange(0, 1, 1)})


def test_two_groups_of_one_partition_do_not_see_each_other(
    commits: GroupCommits, tmp_path: Path
) -> None:
    name = next(
        f"h{n}" for n in range(99) if partition_for_group(f"h{n}", 2) == partition_for_group("g", 2)
    )
    other = GroupCommits([tmp_path], name, SetPolicy())
    commits.decide(GroupRecord(), record(1, A=member(assigned={T0: 1})), {T0: 4})
    other.decide(GroupRecord(), record(1, Z=member()), {T1: 9})
    assert commits.look() == GroupState(record(1, A=member(assigned={T0: 1})), {T0: 4})
    assert other.look() == GroupState(record(1, Z=member()), {T1: 9})


def test_a_record_that_cannot_be_read_is_named_each_time(
    commits: GroupCommits, tmp_path: Path
) -> None:
    attached = AttachedRecords(
        topic=OFFSETS_TOPIC,
        partition_of=lambda count: partition_for_group("g", count),
        records=[(encode_group_key("g"), b"\x00\x03\x00")],
        timestamp_ms=1,
        policy=TopicPolicy(allows_internal=True, partitions=2),
    )
    plan = Writer(tmp_path, topic="out").plan().commit_plan
    Committer(plan, BatchIdentity("job:x", 0), attached_records=[attached]).commit_or_abort([])
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match=r"group 'g' in .*__consumer_offsets-"):
            commits.look()


def test_two_members_share_a_topic_from_join_to_leave(commits: GroupCommits) -> None:
    """What follows from files and records alone, generation by generation."""
    present = {"A": Presence(SETTINGS, "range")}

    def decide() -> bool:
        before = commits.look().record
        found = next_record(before, present, {"t": 2}, decider="A")
        new = (
            {}
            if found is None
            else {
                each: 0
                for each_member in found.members.values()
                for each in each_member.assigned
                if each not in commits.look().positions
            }
        )
        return found is not None and commits.decide(before, found, new)

    def told(name: str) -> None:
        now = commits.look().record
        present[name] = dataclasses.replace(
            present[name],
            generation=now.generation,
            owned=frozenset(now.members[name].assigned),
        )

    assert decide()
    told("A")
    present["B"] = Presence(SETTINGS, "range")
    assert decide()
    assert not decide(), "B has to wait for A"
    commits.commit("A", {T1: ReadRange(0, 6, 1)})
    told("A")
    assert decide()
    assert set(commits.look().record.members["B"].assigned) == {T1}
    with pytest.raises(FencedMemberError):
        commits.commit("A", {T1: ReadRange(6, 7, 1)})
    commits.commit("B", {T1: ReadRange(6, 8, 3)})
    assert commits.look().positions == {T0: 0, T1: 8}


def test_a_group_is_as_its_log_says_after_an_older_copy_was_written_over_it(
    commits: GroupCommits, tmp_path: Path
) -> None:
    """In place, as ``rsync --inplace`` does: the files stay the same."""
    first, second = record(1, a=member()), record(2, b=member())
    assert commits.decide(GroupRecord(), first, {T0: 1})
    older = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert commits.decide(first, second, {T1: 2})
    assert commits.look().record == second
    for path, data in older.items():
        path.write_bytes(data)
    assert commits.look() == commits.another().look()
    assert (commits.look().record, commits.look().positions) == (first, {T0: 1})
