"""Failure detector: which members of a group are alive, by heartbeats and the local clock.

A member lives while its counter changes. The watcher adds up the time for which it saw the counter
stand still. From one look to the next that is at most a heartbeat interval: who was asleep itself
has seen nothing meanwhile, and begins to watch where it was. So after a pause of the whole machine
nobody is taken for dead.

The same goes for a member that has to give partitions up and does not: time counts from the moment
at which the watcher first saw that it has something to give up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kafkalog.streaming.groups.member_files import sign_name
from kafkalog.streaming.groups.rebalance import Presence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kafkalog.streaming.groups.member_files import Sign
    from kafkalog.streaming.groups.rebalance import GroupRecord

__all__ = ["LOOK_S", "Watch"]

LOOK_S: Final = 0.1
"""How often a member looks, in seconds."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """Of one member: its counter and for how long it stood still; who it is, and what it says."""

    counter: int
    member: str | None
    presence: Presence | None
    still_s: float = 0.0
    owes_s: float | None = None
    """For how long it was seen to have something to give up; None if it has nothing."""
    has_beaten: bool = False
    """Whether its counter was seen to change."""


class Watch:
    """Keeps what was seen of a group's members from look to look. Knows no clock and no files."""

    def __init__(self, group: str, *, longest_step_s: float) -> None:
        """Take a group, and the most that one step of time may count, in seconds."""
        self._group = group
        self._longest_step_s = longest_step_s
        self._seen: dict[str, _Seen] = {}
        self._last_s: float | None = None
        self._record: GroupRecord | None = None
        self._members: dict[str, str] = {}
        """The members of that record, by the names of their files."""

    def look(
        self, now_s: float, signs: Mapping[str, Sign], record: GroupRecord
    ) -> dict[str, Presence]:
        """Return who lives, and what it says, by member id.

        Args:
            now_s: the time, by a clock of the watcher's own that never goes back.
            signs: what is there, by the names of files.
            record: what is decided.
        """
        step = 0.0 if self._last_s is None else now_s - self._last_s
        step = min(max(step, 0.0), self._longest_step_s)
        self._last_s = now_s
        if record is not self._record:
            self._record = record
            self._members = {sign_name(self._group, member): member for member in record.members}
        self._seen = {
            name: self._next(name, sign, self._members.get(name), record, step)
            for name, sign in signs.items()
        }
        return {
            seen.member: seen.presence
            for seen in self._seen.values()
            if seen.member is not None and seen.presence and not _is_lost(seen, seen.presence)
        }

    def has_beaten(self, members: Iterable[str]) -> bool:
        """Return whether the counter of one of them was seen to change."""
        found = (self._seen.get(sign_name(self._group, each)) for each in members)
        return any(seen is not None and seen.has_beaten for seen in found)

    def _next(
        self, name: str, sign: Sign, member: str | None, record: GroupRecord, step: float
    ) -> _Seen:
        seen = self._seen.get(name)
        if seen is None:
            seen = _first_sight(sign, member, record)
            still_s = 0.0
        else:
            still_s = seen.still_s + step if seen.counter == sign.counter else 0.0
        has_beaten = seen.has_beaten or seen.counter != sign.counter
        said = seen.member, seen.presence
        if sign.presence is not None:  # a text that is half written is no news
            said = sign.member, sign.presence
        owes_s = None
        if member is not None and record.members[member].revoked:
            owes_s = 0.0 if seen.owes_s is None else seen.owes_s + step
        return _Seen(sign.counter, *said, still_s, owes_s, has_beaten)


def _first_sight(sign: Sign, member: str | None, record: GroupRecord) -> _Seen:
    """Take a member for what the record says of it, until its text can be read."""
    if member is None:
        return _Seen(sign.counter, None, None)
    presence = Presence(record.members[member].settings, record.strategy or "")
    return _Seen(sign.counter, member, presence)


def _is_lost(seen: _Seen, presence: Presence) -> bool:
    settings = presence.settings
    return (
        seen.still_s * 1000 >= settings.session_timeout_ms
        or (seen.owes_s or 0.0) * 1000 >= settings.rebalance_timeout_ms
    )
