"""Files of group members: join request, heartbeat, acknowledged generation, leave request.

One a member, written by it alone, in the directory of the set's first member id. Its name has
hashes, since ids come from outside: ``.kafkalog.group.<group>.<member>``. All integers are
big-endian:

====  ====  ========  ====================================================================
byte  size  field     meaning
====  ====  ========  ====================================================================
0     8     counter   goes up with each heartbeat
8     4     size      of the text
12    4     crc32c    of the text
16    size  text      JSON: what the member says, see :class:`~.rebalance.Presence`
====  ====  ========  ====================================================================

The file is made once, whole. From then on it is written where it lies, and never made again: a
member that wakes up late finds that others have removed it, and does not rise from the dead. So a
reader may find a text that is half written. It takes that for no news, and looks again.

Nothing here is durable or needs to be: after a loss of power no member lives.

In a log in an object store an object takes the place of the file: ``groups/<group>/<member>-<number
of the text>``. It is the text, and spaces behind it: as many as a heartbeat has given it, which is
one PUT, twice in a session time-out. Whoever watches lists names and sizes once in that time, and
gets a text once: an idle member asks three times in its session time-out. Who is found to stand
still was looked at just then. What a member says, and what the log shows, make it look at once.
"""

from __future__ import annotations

import json
import operator
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, SupportsIndex

from crc32c import crc32c

from kafkalog.errors import FencedMemberError, LogDirectoryError
from kafkalog.files.atomic import create_atomically
from kafkalog.files.regular import open_regular, read_regular, replace_end, write_all
from kafkalog.files.system import system
from kafkalog.files.watch import Watched
from kafkalog.model import TopicPartition
from kafkalog.streaming.groups.assignors import NO_GENERATION, STRATEGIES
from kafkalog.streaming.groups.rebalance import MemberSettings, Presence
from kafkalog.streaming.store.identity import staging_hash
from kafkalog.streaming.store.locks import check_no_broker, seems_held_by_broker

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kafkalog.streaming.groups.group_commits import GroupCommits
    from kafkalog.streaming.groups.rebalance import GroupRecord
    from kafkalog.streaming.objects.bucket_store import BucketRoot

__all__ = [
    "EXPIRY_NOTE",
    "GROUP_LOCK_PREFIX",
    "INSTANCE_LOCK_PREFIX",
    "LOOK_S",
    "MEMBER_PREFIX",
    "PLAN_PREFIX",
    "Heartbeat",
    "LivenessTracker",
    "MemberFile",
    "MemberFolder",
    "MemberObject",
    "MemberObjects",
    "member_file_name",
    "members_of",
]

MEMBER_PREFIX: Final = ".kafkalog.group."
"""Of a member's file."""

GROUP_LOCK_PREFIX: Final = ".kafkalog.grouplock."
"""Of a group's lock. No member's file begins like that: they are opened without a mutex."""

INSTANCE_LOCK_PREFIX: Final = ".kafkalog.groupinstance."
"""Of the lock of a query's name. Likewise."""

EXPIRY_NOTE: Final = ".kafkalog.groupexpiry"
"""Of groups that have expired by one look at the clock."""

PLAN_PREFIX: Final = ".kafkalog.groupplan."
"""Of what a query of a group reads in its present micro-batch."""


# ----------------------------------------------------------------------------------------------

_COUNTER: Final = struct.Struct(">q")
_HEAD: Final = struct.Struct(">qII")
_MOST_BYTES: Final = 64 << 20
_MOST_SPACES: Final = 64
_LONGEST_NAME: Final = 2**15 - 1
_LARGEST: Final = 2**31 - 1
"""A record has no place for more: a group in which somebody says so could decide nothing."""

_FIELDS: Final[dict[str, type | tuple[type, ...]]] = {
    **dict.fromkeys(("group", "member", "client", "host", "strategy"), str),
    **dict.fromkeys(("sessionTimeoutMs", "rebalanceTimeoutMs", "generation"), int),
    **dict.fromkeys(("topics", "owned"), list),
    "instance": (str, type(None)),
    "leaving": bool,
}


class Heartbeat(NamedTuple):
    """What was found of a member: its counter, who it is, what it says, and its process.

    All but the counter are None where the text is half written, or nothing of ours.
    """

    counter: int
    member: str | None = None
    presence: Presence | None = None
    process: int | None = None


class MemberFile:
    """A member's own file. A thread of heartbeats may write it, too."""

    def __init__(self, folder: Path, group: str, member: str) -> None:
        self._path = folder / member_file_name(group, member)
        self._group = group
        self._member = member
        self._counter = 0
        self._mutex = system.lock()

    def create(self, presence: Presence) -> None:
        """Make the file: the member wants to join.

        Raises:
            FileExistsError: there is a member with this id.
            OSError: it cannot be made.
        """
        text = _text(self._group, self._member, presence)
        create_atomically(self._path, _HEAD.pack(0, len(text), crc32c(text)) + text)

    def beat(self) -> None:
        """Say that the member lives.

        Raises:
            FencedMemberError: others have removed the file: the group went on without the member.
            OSError: it cannot be written.
        """
        with self._mutex:
            self._counter += 1
            descriptor = self._open()
            try:
                write_all(descriptor, _COUNTER.pack(self._counter), 0)
            finally:
                os.close(descriptor)

    def say(self, presence: Presence) -> None:
        """Say something else; that the member lives, too.

        Raises:
            FencedMemberError, OSError: as :meth:`beat`.
        """
        text = _text(self._group, self._member, presence)
        with self._mutex:
            self._counter += 1
            descriptor = self._open()
            try:
                head = _HEAD.pack(self._counter, len(text), crc32c(text))
                replace_end(descriptor, 0, head + text)
            finally:
                os.close(descriptor)

    def remove(self) -> None:
        """Take the file away: the member has left."""
        self._path.unlink(missing_ok=True)

    def _open(self) -> int:
        try:
            return open_regular(self._path, os.O_RDWR)
        except FileNotFoundError:
            raise _fenced(self._group, self._member) from None


def _fenced(group: str, member: str) -> FencedMemberError:
    return FencedMemberError(
        f"group {group!r} has gone on without member {member!r}, which was not heard of for its "
        "session time-out, or whose group.instance.id another process has taken: join again"
    )


class MemberFolder:
    """The files of a group's members, which are read again and again. Not thread safe.

    The folder is listed only when it may have changed. A text is parsed only when it has.
    """

    def __init__(self, folder: Path, group: str) -> None:
        self.folder = folder
        self._group = group
        self._names = Watched([folder], self._list)
        self._texts: dict[str, tuple[bytes, Heartbeat]] = {}

    def __str__(self) -> str:
        return str(self.folder)

    def another(self) -> MemberFolder:
        """Return one more, for another thread."""
        return MemberFolder(self.folder, self._group)

    def file(self, member: str) -> MemberFile:
        """Return a member's own file, which it makes."""
        return MemberFile(self.folder, self._group, member)

    def beats_every_s(self, interval_s: float) -> float:
        """Return how often a member says that it lives, which was told to in ``interval_s``."""
        return interval_s

    def check_no_broker(self) -> None:
        """Refuse a folder that a broker holds.

        Raises:
            LogDirectoryError: it does.
        """
        check_no_broker(self.folder, timeout_ms=0)

    def seems_held_by_broker(self) -> bool:
        """Whether a broker holds the folder, as far as a look tells."""
        return seems_held_by_broker(self.folder)

    def remove(self, member: str) -> None:
        """Take away the file of a member that the group goes on without."""
        (self.folder / member_file_name(self._group, member)).unlink(missing_ok=True)

    def look_again(self) -> None:
        """Have the next :meth:`read` look, which each does here."""

    def read(self) -> dict[str, Heartbeat]:
        """Return what is there, by :func:`member_file_name`.

        Raises:
            OSError: the folder cannot be read.
        """
        self._names.refresh()
        found = {}
        texts = {}
        for name in self._names.value:
            try:
                data = read_regular(self.folder / name, limit=_MOST_BYTES)
            except (FileNotFoundError, LogDirectoryError):
                continue  # it has left meanwhile, or is nothing of ours
            if len(data) < _HEAD.size:
                continue
            counter, size, checksum = _HEAD.unpack_from(data)
            text = data[_COUNTER.size : _HEAD.size + size]
            before = self._texts.get(name)
            if before is not None and before[0] == text:
                heartbeat = before[1]._replace(counter=counter)
            else:
                heartbeat = self._heartbeat(
                    counter, text[_HEAD.size - _COUNTER.size :], size, checksum
                )
                if heartbeat.member is not None and name != member_file_name(
                    self._group, heartbeat.member
                ):
                    continue  # a copy; or its member was killed before the file had its name
            found[name], texts[name] = heartbeat, (text, heartbeat)
        self._texts = texts
        return found

    def _list(self) -> list[str]:
        prefix = _prefix(self._group)
        with os.scandir(self.folder) as entries:
            return sorted(each.name for each in entries if each.name.startswith(prefix))

    def _heartbeat(self, counter: int, text: bytes, size: int, checksum: int) -> Heartbeat:
        is_whole = len(text) == size and crc32c(text) == checksum
        return _parsed(counter, text, self._group) if is_whole else Heartbeat(counter)


class MemberObjects:
    """The objects of a group's members in a log in an object store. Threads may share it.

    They are listed once in ``interval_s``, or in a member's session time-out if that is shorter;
    and at once when something has changed.
    """

    def __init__(self, root: BucketRoot, group: str, interval_s: float) -> None:
        store = root.open_store()
        log_id = store.committed().set_id
        self.objects = store.objects
        self.folder = f"_kafkalog/{log_id}/groups/{staging_hash(group)}"
        self.group = group
        self.names: dict[str, str] = {}
        """The names of objects by the hashes of members, as of the last listing."""
        self.begun = self.ended = 0
        """How many listings have begun, and which of them was the last to end."""
        self._interval_s = interval_s
        self._due_s = -float("inf")
        self._heartbeats: dict[str, Heartbeat] = {}
        """By the names of objects."""
        self._mutex = system.lock()

    def __str__(self) -> str:
        return self.folder

    def another(self) -> MemberObjects:
        """Return what another thread uses: the same."""
        return self

    def file(self, member: str) -> MemberObject:
        """Return a member's own object, which it makes."""
        return MemberObject(self, member)

    def beats_every_s(self, interval_s: float) -> float:
        """Return how often a member says that it lives: twice in its session time-out at most."""
        return max(interval_s, self._interval_s / 2)

    def check_no_broker(self) -> None:
        """No broker gets a bucket."""

    def seems_held_by_broker(self) -> bool:
        """No broker gets a bucket."""
        return False

    def look_again(self) -> None:
        """Have the next :meth:`read` list the names."""
        self._due_s = -float("inf")

    def read(self) -> dict[str, Heartbeat]:
        """Return what is there, as of a moment ago; as :meth:`MemberFolder.read`.

        Raises:
            LogDirectoryError: the store fails.
        """
        with self._mutex:
            if system.monotonic() >= self._due_s:
                self._due_s = float("inf")  # unless it is asked for again meanwhile
                begun_s = system.monotonic()
                try:
                    self._list()
                except BaseException:
                    self.look_again()
                    raise
                self._due_s = min(self._due_s, begun_s + self._shortest_s())
            return {
                f"{_prefix(self.group)}{member}": self._heartbeats[name]
                for member, name in self.names.items()
            }

    def _shortest_s(self) -> float:
        """Return after how long to look: so that no living member seems to stand still."""
        said = [
            heartbeat.presence
            for heartbeat in self._heartbeats.values()
            if heartbeat.presence is not None
        ]
        sessions = [each.settings.session_timeout_ms / 1000 for each in said]
        return min([self._interval_s, *sessions])

    def _list(self) -> None:
        self.begun += 1
        number = self.begun
        listed = self.objects.list_after(self.folder)
        # of a member that says something else both objects may be there: the later one counts
        self.names = {entry.name.partition("-")[0]: entry.name for entry in listed}
        sizes = {entry.name: entry.size for entry in listed}
        self._heartbeats = {
            name: self._heartbeat(name, sizes[name]) for name in self.names.values()
        }
        self.ended = number

    def _heartbeat(self, name: str, size: int) -> Heartbeat:
        """Return the heartbeat in an object. Its size is the counter; a text is read once."""
        known = self._heartbeats.get(name)
        if known is not None and known.member is not None:
            return known._replace(counter=size)
        data = self.objects.get(f"{self.folder}/{name}")
        heartbeat = Heartbeat(size) if data is None else _parsed(size, data, self.group)
        is_own = heartbeat.member is not None and name.startswith(
            f"{staging_hash(heartbeat.member)}-"
        )
        return heartbeat if is_own else Heartbeat(size)

    def remove(self, member: str) -> None:
        """Take away the objects of a member that the group goes on without.

        Raises:
            LogDirectoryError: the store fails.
        """
        name = staging_hash(member)
        there = [entry.name for entry in self.objects.list_after(self.folder)]
        self.objects.delete([f"{self.folder}/{e}" for e in there if e.startswith(f"{name}-")])
        self.look_again()


class MemberObject:
    """A member's own object; as :class:`MemberFile`."""

    def __init__(self, others: MemberObjects, member: str) -> None:
        self._others = others
        self._member = member
        self._name = ""
        self._number = self._beats = 0
        self._text = b""
        self._seen_from = 0
        self._is_removed = False
        self._mutex = system.lock()

    def create(self, presence: Presence) -> None:
        """Make the object: the member wants to join.

        Raises:
            LogDirectoryError: it cannot be made.
        """
        with self._mutex:
            self._put(presence)

    def beat(self) -> None:
        """Say that the member lives.

        Raises:
            FencedMemberError: others have removed the object: the group went on without the member.
            LogDirectoryError: it cannot be written.
        """
        with self._mutex:
            self._check()
            self._put(None)

    def say(self, presence: Presence) -> None:
        """Say something else; that the member lives, too.

        Raises:
            FencedMemberError, LogDirectoryError: as :meth:`beat`.
        """
        with self._mutex:
            self._check()
            self._put(presence)

    def remove(self) -> None:
        """Take the object away: the member has left."""
        with self._mutex:
            self._is_removed = True
            self._others.remove(self._member)

    def _check(self) -> None:
        others = self._others
        is_listed = staging_hash(self._member) in others.names
        if self._is_removed or (others.ended > self._seen_from and not is_listed):
            raise _fenced(others.group, self._member)

    def _put(self, presence: Presence | None) -> None:
        others, before = self._others, self._name
        if presence is not None:
            self._number += 1
            self._name = f"{staging_hash(self._member)}-{self._number:020}"
            self._text = _text(others.group, self._member, presence)
        self._beats = (self._beats + 1) % _MOST_SPACES
        others.objects.put(f"{others.folder}/{self._name}", self._text + b" " * self._beats)
        self._seen_from = others.begun
        if before and presence is not None:
            others.objects.delete([f"{others.folder}/{before}"])
        if presence is not None:
            others.look_again()


def members_of(commits: GroupCommits, interval_s: float) -> MemberFolder | MemberObjects:
    """Return where the members of a group say that they live; for the interval see there."""
    if commits.bucket is None:
        return MemberFolder(commits.folder(), commits.group)
    return MemberObjects(commits.bucket, commits.group, interval_s)


def member_file_name(group: str, member: str) -> str:
    """Return the name of a member's file."""
    return f"{_prefix(group)}{staging_hash(member)}"


def _prefix(group: str) -> str:
    return f"{MEMBER_PREFIX}{staging_hash(group)}."


def _text(group: str, member: str, presence: Presence) -> bytes:
    settings = presence.settings
    said = {
        "group": group,
        "member": member,
        "topics": sorted(settings.topics),
        "instance": settings.instance,
        "client": settings.client_id,
        "host": settings.host,
        "sessionTimeoutMs": settings.session_timeout_ms,
        "rebalanceTimeoutMs": settings.rebalance_timeout_ms,
        "strategy": presence.strategy,
        "generation": presence.generation,
        "owned": sorted(presence.owned),
        "leaving": presence.leaving,
        "process": system.process_id(),
    }
    return json.dumps(said, separators=(",", ":")).encode()


def _parsed(counter: int, text: bytes, group: str) -> Heartbeat:
    """Read what a member says; nothing of what only looks like a file of this group."""
    try:
        said: dict[str, Any] = json.loads(text)
        if not all(isinstance(said[name], kind) for name, kind in _FIELDS.items()):
            return Heartbeat(counter)
        presence = _presence(said)
        member = _name(said["member"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return Heartbeat(counter)
    if said["group"] != group:
        return Heartbeat(counter)
    process = said.get("process")
    return Heartbeat(counter, member, presence, process if type(process) is int else None)


def _presence(said: Mapping[str, Any]) -> Presence:
    settings = MemberSettings(
        topics=frozenset(map(_name, said["topics"])),
        instance=None if said["instance"] is None else _name(said["instance"]),
        client_id=_name(said["client"]),
        host=_name(said["host"]),
        session_timeout_ms=_number(said["sessionTimeoutMs"]),
        rebalance_timeout_ms=_number(said["rebalanceTimeoutMs"]),
    )
    if said["strategy"] not in STRATEGIES:
        raise ValueError(f"{said['strategy']!r} is no strategy")
    return Presence(
        settings=settings,
        strategy=said["strategy"],
        generation=_number(said["generation"], NO_GENERATION),
        owned=frozenset(
            TopicPartition(_name(topic), _number(number)) for topic, number in said["owned"]
        ),
        leaving=said["leaving"],
    )


def _name(given: object) -> str:
    if not isinstance(given, str):
        raise TypeError(f"{given!r} is no name")
    if len(given.encode()) > _LONGEST_NAME:
        raise ValueError(f"{given[:40]!r}… is too long")
    return given


def _number(given: SupportsIndex, smallest: int = 0) -> int:
    number = operator.index(given)
    if not smallest <= number <= _LARGEST:
        raise ValueError(f"{number} does not fit")
    return number


# ----------------------------------------------------------------------------------------------
# Failure detector: which members of a group are alive, by heartbeats and the local clock.
#
# A member lives while its counter changes. The watcher adds up the time for which it saw the
# counter stand still. From one look to the next that is at most a heartbeat interval: who was
# asleep itself has seen nothing meanwhile, and begins to watch where it was. So after a pause of
# the whole machine nobody is taken for dead.
#
# The same goes for a member that has to give partitions up and does not: time counts from the
# moment at which the watcher first saw that it has something to give up.


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


class LivenessTracker:
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
        self, now_s: float, heartbeats: Mapping[str, Heartbeat], record: GroupRecord
    ) -> dict[str, Presence]:
        """Return who lives, and what it says, by member id.

        Args:
            now_s: the time, by a clock of the watcher's own that never goes back.
            heartbeats: what is there, by the names of files.
            record: what is decided.
        """
        step = 0.0 if self._last_s is None else now_s - self._last_s
        step = min(max(step, 0.0), self._longest_step_s)
        self._last_s = now_s
        if record is not self._record:
            self._record = record
            self._members = {
                member_file_name(self._group, member): member for member in record.members
            }
        self._seen = {
            name: self._next(name, heartbeat, self._members.get(name), record, step)
            for name, heartbeat in heartbeats.items()
        }
        return {
            seen.member: seen.presence
            for seen in self._seen.values()
            if seen.member is not None and seen.presence and not _is_lost(seen, seen.presence)
        }

    def has_beaten(self, members: Iterable[str]) -> bool:
        """Return whether the counter of one of them was seen to change."""
        found = (self._seen.get(member_file_name(self._group, each)) for each in members)
        return any(seen is not None and seen.has_beaten for seen in found)

    def _next(
        self, name: str, heartbeat: Heartbeat, member: str | None, record: GroupRecord, step: float
    ) -> _Seen:
        seen = self._seen.get(name)
        if seen is None:
            seen = _first_sight(heartbeat, member, record)
            still_s = 0.0
        else:
            still_s = seen.still_s + step if seen.counter == heartbeat.counter else 0.0
        has_beaten = seen.has_beaten or seen.counter != heartbeat.counter
        said = seen.member, seen.presence
        if heartbeat.presence is not None:  # a text that is half written is no news
            said = heartbeat.member, heartbeat.presence
        owes_s = None
        if member is not None and record.members[member].revoked:
            owes_s = 0.0 if seen.owes_s is None else seen.owes_s + step
        return _Seen(heartbeat.counter, *said, still_s, owes_s, has_beaten)


def _first_sight(heartbeat: Heartbeat, member: str | None, record: GroupRecord) -> _Seen:
    """Take a member for what the record says of it, until its text can be read."""
    if member is None:
        return _Seen(heartbeat.counter, None, None)
    presence = Presence(record.members[member].settings, record.strategy or "")
    return _Seen(heartbeat.counter, member, presence)


def _is_lost(seen: _Seen, presence: Presence) -> bool:
    settings = presence.settings
    return (
        seen.still_s * 1000 >= settings.session_timeout_ms
        or (seen.owes_s or 0.0) * 1000 >= settings.rebalance_timeout_ms
    )
