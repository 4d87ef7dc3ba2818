"""What the thread of heartbeats does at each look, without a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kafkalog.errors import FencedMemberError, LogDirectoryError
from kafkalog.files.system import system
from kafkalog.streaming.consumer.joined import Heartbeat

if TYPE_CHECKING:
    from kafkalog.streaming.groups.membership import Membership


class Member:
    def __init__(self) -> None:
        self.beats = 0
        self.has_vanished = False
        self.error: Exception | None = None

    def beat(self) -> None:
        self.beats += 1
        if self.error is not None:
            raise self.error

    def vanish(self) -> None:
        self.has_vanished = True


class Clock:
    now_s = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(system, "monotonic", lambda: found.now_s)
    return found


def heartbeat(member: Member, *, is_static: bool = False) -> Heartbeat:
    given: Membership = member  # type: ignore[assignment]
    return Heartbeat(given, max_poll_interval_ms=5000, is_static=is_static)


def test_it_beats_until_it_is_stopped(clock: Clock) -> None:
    member = Member()
    beats = heartbeat(member)
    assert beats.look()
    member.error = LogDirectoryError("not mounted for a moment")
    assert beats.look(), "it goes on"
    beats.stop()
    clock.now_s += 60
    assert not beats.look()
    assert (member.beats, member.has_vanished) == (2, False)


def test_it_ends_where_others_have_removed_the_file() -> None:
    member = Member()
    member.error = FencedMemberError("gone")
    assert not heartbeat(member).look()


@pytest.mark.parametrize("is_static", [False, True])
def test_an_owner_that_does_not_ask_for_more_is_stuck(clock: Clock, *, is_static: bool) -> None:
    member = Member()
    beats = heartbeat(member, is_static=is_static)
    clock.now_s += 4
    beats.polled()
    clock.now_s += 5
    assert beats.look()
    clock.now_s += 1
    assert not beats.look()
    assert (member.beats, member.has_vanished, beats.is_overdue) == (1, not is_static, True)
