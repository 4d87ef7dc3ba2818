from __future__ import annotations

from kafkalog.model import TopicPartition
from kafkalog.streaming.groups.member_files import Heartbeat, LivenessTracker, member_file_name
from kafkalog.streaming.groups.rebalance import GroupRecord, Member, MemberSettings, Presence

SETTINGS = MemberSettings(frozenset({"t"}), session_timeout_ms=45_000, rebalance_timeout_ms=60_000)
WISH = Presence(SETTINGS, "range")
T0 = TopicPartition("t", 0)
NOBODY = GroupRecord()


class Watched:
    """A group with one member, A, and somebody who looks at it."""

    def __init__(self) -> None:
        self.watch = LivenessTracker("g", longest_step_s=3)
        self.now_s = 1000.0
        self.counter = 0
        self.presence: Presence | None = WISH
        self.record = NOBODY

    def looks(self, seconds: float, *, every_s: float = 1.0) -> bool:
        """Let time pass, and look; whether A lives in the end."""
        passed = 0.0
        while passed < seconds:
            passed += every_s
            lives = self.look(after_s=every_s)
        return lives

    def look(self, *, after_s: float = 0.0) -> bool:
        self.now_s += after_s
        member = "A" if self.presence else None
        heartbeats = {member_file_name("g", "A"): Heartbeat(self.counter, member, self.presence)}
        found = self.watch.look(self.now_s, heartbeats, self.record)
        return found.keys() == {"A"}


def test_a_member_is_lost_when_its_counter_stood_still_for_its_session_timeout() -> None:
    group = Watched()
    assert group.look()
    assert group.looks(44)
    assert not group.looks(1)
    assert not group.looks(100)
    group.counter += 1
    assert group.look(after_s=1), "it lives after all, and nobody has gone on without it"


def test_a_heartbeat_in_time_keeps_a_member() -> None:
    group = Watched()
    for _ in range(10):
        assert group.looks(44)
        group.counter += 1
    assert group.looks(44)


def test_a_watcher_that_slept_takes_nobody_for_lost() -> None:
    group = Watched()
    assert group.look()
    assert group.looks(40)
    assert group.look(after_s=10_000), "it counts as one step of 3 seconds"
    assert not group.looks(2)


def test_a_clock_that_goes_back_makes_nobody_older_or_younger() -> None:
    group = Watched()
    assert group.look()
    assert group.looks(44)
    assert group.look(after_s=-1000)
    assert not group.looks(1)


def test_a_member_whose_file_is_gone_is_gone() -> None:
    group = Watched()
    assert group.look()
    assert group.watch.look(group.now_s + 1, {}, NOBODY) == {}


def test_a_half_written_text_is_no_news_and_the_next_whole_one_counts() -> None:
    group = Watched()
    assert group.look()
    later = Presence(SETTINGS, "range", generation=4)
    group.presence, group.counter = None, 1
    heartbeats = {member_file_name("g", "A"): Heartbeat(1)}
    assert group.watch.look(1001, heartbeats, NOBODY) == {"A": WISH}
    heartbeats = {member_file_name("g", "A"): Heartbeat(1, "A", later)}
    assert group.watch.look(1002, heartbeats, NOBODY) == {"A": later}


def test_who_is_in_the_record_is_not_gone_because_its_text_cannot_be_read_yet() -> None:
    group = Watched()
    group.presence = None
    assert not group.look(), "its text has not been read yet"
    group = Watched()
    group.presence = None
    group.record = GroupRecord(3, "range", "A", {"A": Member(SETTINGS, {T0: 3})})
    assert group.look()
    assert not group.looks(45)


def test_a_member_that_gives_nothing_up_for_its_rebalance_timeout_is_lost() -> None:
    group = Watched()
    owing = GroupRecord(3, "range", "A", {"A": Member(SETTINGS, {}, {T0: 1})})
    settled = GroupRecord(4, "range", "A", {"A": Member(SETTINGS, {})})

    def beats(seconds: int) -> bool:
        for _ in range(seconds):
            group.counter += 1
            lives = group.look(after_s=1)
        return lives

    group.record = owing
    assert beats(60)
    group.record = settled
    assert beats(1)
    group.record = owing
    assert beats(60), "time counts anew"
    assert not beats(1)
