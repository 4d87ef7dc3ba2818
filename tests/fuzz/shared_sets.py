"""Sets that several share: nodes with replicas, members of a group, earlier and later releases."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from tests.fuzz import sets
from tests.fuzz.sets import Ground, append
from tests.support.killing import count_calls, run_and_kill

from kafkalog.checkpoints.commit_state import PREPARED_FILE
from kafkalog.files.system import system
from kafkalog.model import TopicPartition
from kafkalog.streaming.groups.group_commits import OFFSETS_POLICY, GroupCommits, ReadRange
from kafkalog.streaming.groups.membership import GroupMember
from kafkalog.streaming.groups.planned_commit import Plan, load_plan, save_plan
from kafkalog.streaming.groups.rebalance import MemberSettings
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

__all__ = ["GROUNDS", "load_plan_of", "share", "small_groups", "stands"]

INSTANCE: Final = "query"
"""The name of the query that has planned a micro-batch."""
_T: Final = [TopicPartition("t", number) for number in range(2)]


def _nodes(root: Path) -> Ground:
    """Three nodes, and a commit that was killed when it had prepared its state."""
    options = {"min.insync.replicas": "2"}
    ground = Ground("nodes", ("a", "b", "c"), ("t",), options, are_nodes=True)
    for number in range(3):
        append(ground, root, [f"a{number}.{n}" for n in range(4)])
        ground.keep(root)
    version = ground.last_version
    # what most have prepared is published by who comes next
    values = [f"b.{n}" for n in range(4)]

    def commit(at: Path = root) -> None:
        append(ground, at, values)

    copy = root.with_name("copy")
    ground.restore(copy, ground.last)
    calls = count_calls(lambda: commit(copy))
    for left in range(2, calls):
        ground.restore(root, ground.last)
        ground.last_version = version
        assert run_and_kill(commit, calls - left)
        if all((root / name / PREPARED_FILE).exists() for name in ground.logs):
            break
    ground.last_version = version + 1
    ground.pending = set(values)
    ground.keep(root)
    return ground


# A consumer group


@contextmanager
def small_groups() -> Iterator[None]:
    """Let ``__consumer_offsets`` have one partition."""
    small = dataclasses.replace(OFFSETS_POLICY, partitions=1)
    with patch("kafkalog.streaming.groups.group_commits.OFFSETS_POLICY", small):
        yield


def commits_of(root: Path) -> GroupCommits:
    """Give the commits of the group of :func:`_grouped`."""
    return GroupCommits([root / "log"], "g", SetPolicy())


def member_of(root: Path, name: str) -> GroupMember:
    """Make a member that has joined."""
    member = GroupMember(
        commits_of(root),
        MemberSettings(frozenset({"t"}), None, name, "h", 10_000, 60_000),
        "range",
        beginnings_of=lambda first, late: dict.fromkeys([*first, *late], 0),
        heartbeat_interval_ms=3000,
        max_poll_interval_ms=300_000,
    )
    member.join()
    return member


def _grouped(root: Path) -> Ground:
    """A group whose only member has died, with its file and the plan of a micro-batch."""
    ground = Ground("grouped", ("log",), ("t",))
    (root / "log").mkdir()
    with small_groups():
        append(ground, root, ["a0", "a1", "a2", "a3", "a4", "a5"])
        member = member_of(root, "first")
        for _ in range(3):
            member.round()
        assert member.assigned == {*_T}
        for number in range(3):
            moves = {key: ReadRange(number, number + 1, member.since(key)) for key in _T}
            save_plan(root / "log", "g", INSTANCE, _plan(member, number, moves))
            member.commit(moves)
            append(ground, root, [("g0", "g1", "b0")[number]])
            ground.stands.append(dict(commits_of(root).look().positions))
            ground.keep(root)
    assert ground.stands[-1] == dict.fromkeys(_T, 3)
    return ground


def _plan(member: GroupMember, number: int, moves: Mapping[TopicPartition, ReadRange]) -> Plan:
    start, end = ({"t": dict.fromkeys("01", at)} for at in (number, number + 1))
    return Plan.new(member.member_id, start, end, moves)


def stands(root: Path) -> dict[TopicPartition, int]:
    """Give where the group stands."""
    return dict(commits_of(root).look().positions)


def share(root: Path) -> dict[TopicPartition, int]:
    """Let a new member take the dead one's place, and move on by one; give where that is."""
    member = member_of(root, "second")
    for _ in range(40):
        state = member.round()
        member.give_up(member.revoked)
        if member.assigned >= {*_T}:
            break
        system.sleep(1)
    else:
        raise AssertionError(f"nobody takes the place of a dead member: {member.assigned}")
    moves = {
        key: ReadRange(offset, offset + 1, member.since(key))
        for key, offset in state.positions.items()
    }
    member.commit(moves)
    return stands(root)


def load_plan_of(root: Path) -> Plan | None:
    """Load the plan of the query's micro-batch."""
    return load_plan(root / "log", "g", INSTANCE)


GROUNDS: Final[Mapping[str, Callable[[Path], Any]]] = {
    **sets.GROUNDS,
    "nodes": _nodes,
    "grouped": _grouped,
}
