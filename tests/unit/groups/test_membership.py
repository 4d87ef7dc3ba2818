"""Members of a group over real log directories, whose rounds a test lets pass one by one."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from tests.support.consuming import keep_groups_small
from tests.support.sinking import Writer, rows
from tests.support.sleeping import patch_sleep

from kafkalog.errors import FencedMemberError, LogDirectoryError
from kafkalog.files.system import system
from kafkalog.model import TopicPartition
from kafkalog.streaming.groups.group_commits import GroupCommits, ReadRange
from kafkalog.streaming.groups.member_files import LOOK_S, MEMBER_PREFIX, MemberFile
from kafkalog.streaming.groups.membership import GroupLock, GroupMember
from kafkalog.streaming.groups.rebalance import MemberSettings
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.streaming.groups.rebalance import Presence

T = [TopicPartition("t", number) for number in range(3)]


class Group:
    """A folder with a topic of three partitions, and a clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.now_s = 100.0
        monkeypatch.setattr(system, "monotonic", lambda: self.now_s)
        keep_groups_small(monkeypatch)
        writer = Writer(folder, topic="t", numPartitions="3")
        writer.commit(0, writer.stage(0, rows(["x"])))

    def member(self, name: str, *, instance: str | None = None) -> GroupMember:
        member = GroupMember(
            GroupCommits([self.folder], "g", SetPolicy()),
            MemberSettings(frozenset({"t"}), instance, name, "h", 10_000, 60_000),
            "range",
            beginnings_of=lambda first, late: dict.fromkeys([*first, *late], 0),
            heartbeat_interval_ms=3000,
            max_poll_interval_ms=300_000,
        )
        member.join()
        return member

    def files(self) -> list[Path]:
        """List the files of its members."""
        return list(self.folder.glob(f"{MEMBER_PREFIX}*"))

    def rounds(self, *members: GroupMember, seconds: float = 0.0) -> None:
        """Let each of them have some rounds; they give up at once what they have to."""
        passed = 0.0
        while True:
            for _ in range(3):
                for each in members:
                    each.round()
                    each.give_up(each.revoked)
            if passed >= seconds:
                return
            passed += 2
            self.now_s += 2


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Group:
    return Group(tmp_path, monkeypatch)


def test_members_join_share_a_topic_and_leave(group: Group) -> None:
    a = group.member("a")
    group.rounds(a)
    assert a.assigned == set(T)
    b = group.member("b")
    a.round()
    b.round()
    assert (a.revoked, b.assigned) == ({T[2]}, set()), "a has not given it up"
    a.commit({T[2]: ReadRange(0, 4, a.since(T[2]))})
    group.rounds(a, b)
    assert (a.assigned, b.assigned) == ({T[0], T[1]}, {T[2]})
    b.commit({T[2]: ReadRange(4, 5, b.since(T[2]))})
    b.leave()
    group.rounds(a)
    assert a.assigned == set(T)
    a.leave()
    state = GroupCommits([group.folder], "g", SetPolicy()).look()
    assert not state.record.members
    assert state.positions == {T[0]: 0, T[1]: 0, T[2]: 5}
    assert not list(group.folder.glob(f"{MEMBER_PREFIX}*"))


def test_a_member_that_stands_still_is_lost_and_commits_nothing_when_it_wakes_up(
    group: Group,
) -> None:
    a, b = group.member("a"), group.member("b")
    group.rounds(a, b)
    late = {each: ReadRange(0, 1, b.since(each)) for each in b.assigned}
    assert late
    group.rounds(a, seconds=8)
    assert len(a.assigned) < 3
    group.rounds(a, seconds=10)
    assert a.assigned == set(T)
    with pytest.raises(FencedMemberError, match="without member 'b-"):
        b.commit(late)
    with pytest.raises(FencedMemberError, match="join again"):
        b.round()
    assert len(list(group.folder.glob(f"{MEMBER_PREFIX}*"))) == 1, "it does not rise from the dead"


def test_a_static_member_that_starts_again_has_its_partitions_at_once(group: Group) -> None:
    a, b = group.member("a", instance="i"), group.member("b")
    group.rounds(a, b)
    had, others = a.assigned, b.assigned
    again = group.member("a", instance="i")
    again.round()
    b.round()
    assert (again.assigned, b.assigned) == (had, others)
    with pytest.raises(FencedMemberError):
        a.round()
    again.commit({each: ReadRange(0, 1, again.since(each)) for each in had})


def test_who_stands_still_with_the_groups_lock_is_not_waited_for(group: Group) -> None:
    a = group.member("a")
    with GroupLock(group.folder, "g") as lock:
        assert lock.is_held
        group.rounds(a, seconds=7)
        assert not a.assigned
        group.rounds(a, seconds=4)
        assert a.assigned == {*T}


def test_a_member_that_leaves_looks_again_where_somebody_else_has_the_lock(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = group.member("a")
    group.rounds(a)
    lock = GroupLock(group.folder, "g")
    assert lock.try_to_take()
    # looks at the group sleep, too, and less
    patch_sleep(monkeypatch, lambda rest_s: lock.close() if rest_s >= LOOK_S else None)
    a.leave()
    assert not GroupCommits([group.folder], "g", SetPolicy()).look().record.members


def test_whoever_is_left_decides_what_a_dead_decider_did_not(group: Group) -> None:
    a = group.member("a")
    group.rounds(a)
    b, c = group.member("b"), group.member("c")
    del a  # it dies before it sees them
    group.rounds(b, c, seconds=14)
    assert sorted([*b.assigned, *c.assigned]) == T


class Thread:
    """What the thread of a member does, look by look; it has none in these tests."""

    def __init__(self, member: GroupMember, monkeypatch: pytest.MonkeyPatch) -> None:
        self.acts = 0
        self.error: Exception | None = None
        monkeypatch.setattr(system, "start_thread", lambda *_: 0)
        member.start_heartbeats(self._act)

    def _act(self) -> None:
        self.acts += 1
        if self.error is not None:
            raise self.error


def test_it_is_looked_after_until_it_falls_silent(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = group.member("a")
    thread = Thread(member, monkeypatch)
    assert member.look()
    thread.error = LogDirectoryError("not mounted for a moment")
    assert member.look(), "it goes on"
    member.fall_silent()
    group.now_s += 600
    assert not member.look()
    assert (thread.acts, member.is_overdue, len(group.files())) == (2, False, 1)


def test_its_thread_ends_where_others_have_removed_its_file(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = group.member("a")
    Thread(member, monkeypatch).error = FencedMemberError("gone")
    assert not member.look()


@pytest.mark.parametrize("instance", [None, "i"])
def test_an_owner_that_does_not_ask_for_more_is_stuck(
    group: Group, monkeypatch: pytest.MonkeyPatch, instance: str | None
) -> None:
    member = group.member("a", instance=instance)
    thread = Thread(member, monkeypatch)
    group.now_s += 299
    member.polled()
    group.now_s += 300
    assert member.look()
    group.now_s += 1
    assert not member.look()
    assert (thread.acts, member.is_overdue) == (1, True)
    assert len(group.files()) == (0 if instance is None else 1)


def test_a_member_whose_thread_cannot_be_started_has_left(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> int:
        raise MemoryError

    member = group.member("a")
    monkeypatch.setattr(system, "start_thread", no_memory)
    with pytest.raises(MemoryError):
        member.start_heartbeats()
    assert not group.files()


class Reader:
    """A program that reads what its member has, and commits that later, or never."""

    def __init__(self, group: Group, name: str) -> None:
        self.member = group.member(name)
        self.read: dict[TopicPartition, ReadRange] = {}

    def reads(self, chance: random.Random) -> None:
        stands = self.member.round().positions
        for each in self.member.assigned:
            begin = stands[each]
            count = chance.randint(1, 3)
            self.read.setdefault(each, ReadRange(begin, begin + count, self.member.since(each)))

    def commits(self) -> dict[TopicPartition, ReadRange]:
        done, self.read = self.read, {}
        if done:
            self.member.commit(done)
        self.member.give_up(self.member.revoked)
        return done


class Programs:
    """Readers that come, sleep, die and wake up, and what they have committed."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.readers = [Reader(group, "first")]
        self.ends = dict.fromkeys(T, 0)
        self.fenced = 0

    def joins(self, step: int) -> None:
        if len(self.readers) < 4:
            self.readers.append(Reader(self.group, f"r{step}"))

    def dies(self, reader: Reader) -> None:
        if len(self.readers) > 1:
            self.readers.remove(reader)

    def sleeps(self, reader: Reader, chance: random.Random) -> None:
        """Let the others live on beyond the session of one that has read something."""
        with suppress(FencedMemberError):
            reader.reads(chance)
        for _ in range(6):
            self.group.now_s += 3
            for each in self.readers:
                if each is not reader:
                    with suppress(FencedMemberError):
                        each.member.round()

    def commits(self, reader: Reader, step: int) -> None:
        try:
            done = reader.commits()
        except FencedMemberError:
            self.fenced += 1
            self._joins_again(reader, step)
            return
        for each, move in done.items():
            assert self.ends[each] == move.begin, "a row is there twice, or lost"
            self.ends[each] = move.end

    def reads(self, reader: Reader, step: int, chance: random.Random) -> None:
        try:
            reader.reads(chance)
        except FencedMemberError:
            if not reader.read:  # else it tries to commit that
                self._joins_again(reader, step)

    def _joins_again(self, reader: Reader, step: int) -> None:
        self.readers[self.readers.index(reader)] = Reader(self.group, f"again{step}")


@pytest.mark.parametrize("seed", range(2))
def test_whoever_comes_sleeps_dies_and_wakes_up_each_row_is_committed_once(
    group: Group, seed: int
) -> None:
    chance = random.Random(seed)
    programs = Programs(group)
    for step in range(90):
        group.now_s += chance.choice([0.5, 1, 2])
        reader = chance.choice(programs.readers)
        match chance.randrange(9):
            case 0:
                programs.joins(step)
            case 1 if chance.random() < 0.5:
                programs.dies(reader)
            case 2:
                programs.sleeps(reader, chance)
            case 3 | 4 | 5:
                programs.commits(reader, step)
            case _:
                programs.reads(reader, step, chance)
    assert GroupCommits([group.folder], "g", SetPolicy()).look().positions == programs.ends
    assert programs.fenced, "somebody woke up late"
    assert all(programs.ends.values())


def test_what_was_given_to_a_member_and_revoked_before_it_said_so_has_no_other_owner(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = group.member("a"), group.member("b")
    group.rounds(a, b)
    assert b.assigned == {T[2]}
    b.leave()
    say, late = MemberFile.say, list[GroupMember]()

    def later(self: MemberFile, presence: Presence) -> None:
        if not late:  # a has seen that it gets the partition, and not said so yet
            late.append(group.member("c"))
            group.rounds(*late)
        say(self, presence)

    monkeypatch.setattr(MemberFile, "say", later)
    a.round()
    (c,) = late
    assert T[2] in a.assigned
    assert not c.assigned
    group.rounds(a, c)
    assert (a.assigned, c.assigned) == ({T[0], T[1]}, {T[2]})
