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
"""

from __future__ import annotations

import json
import operator
import os
import struct
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

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


__all__ = [
    "EXPIRY_NOTE",
    "GROUP_LOCK_PREFIX",
    "INSTANCE_LOCK_PREFIX",
    "MEMBER_PREFIX",
    "PLAN_PREFIX",
    "MemberFile",
    "MemberFolder",
    "Sign",
    "remove_member",
    "sign_name",
]


# ----------------------------------------------------------------------------------------------
# How the files of consumer groups are called that lie in log directories, beside partitions.


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


class Sign(NamedTuple):
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
        self._path = folder / sign_name(group, member)
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
            raise FencedMemberError(
                f"group {self._group!r} has gone on without member {self._member!r}, which was "
                "not heard of for its session time-out, or whose group.instance.id another "
                "process has taken: join again"
            ) from None


class MemberFolder:
    """Reads the files of a group's members again and again. Not thread safe.

    The folder is listed only when it may have changed. A text is parsed only when it has.
    """

    def __init__(self, folder: Path, group: str) -> None:
        self._folder = folder
        self._group = group
        self._names = Watched([folder], self._list)
        self._texts: dict[str, tuple[bytes, Sign]] = {}

    def read(self) -> dict[str, Sign]:
        """Return what is there, by :func:`sign_name`.

        Raises:
            OSError: the folder cannot be read.
        """
        self._names.refresh()
        found = {}
        texts = {}
        for name in self._names.value:
            try:
                data = read_regular(self._folder / name, limit=_MOST_BYTES)
            except (FileNotFoundError, LogDirectoryError):
                continue  # it has left meanwhile, or is nothing of ours
            if len(data) < _HEAD.size:
                continue
            counter, size, checksum = _HEAD.unpack_from(data)
            text = data[_COUNTER.size : _HEAD.size + size]
            before = self._texts.get(name)
            if before is not None and before[0] == text:
                sign = before[1]._replace(counter=counter)
            else:
                sign = self._sign(counter, text[_HEAD.size - _COUNTER.size :], size, checksum)
                if sign.member is not None and name != sign_name(self._group, sign.member):
                    continue  # a copy; or its member was killed before the file had its name
            found[name], texts[name] = sign, (text, sign)
        self._texts = texts
        return found

    def _list(self) -> list[str]:
        prefix = _prefix(self._group)
        with os.scandir(self._folder) as entries:
            return sorted(each.name for each in entries if each.name.startswith(prefix))

    def _sign(self, counter: int, text: bytes, size: int, checksum: int) -> Sign:
        is_whole = len(text) == size and crc32c(text) == checksum
        return _parsed(counter, text, self._group) if is_whole else Sign(counter)


def remove_member(folder: Path, group: str, member: str) -> None:
    """Take away the file of a member that the group goes on without."""
    (folder / sign_name(group, member)).unlink(missing_ok=True)


def sign_name(group: str, member: str) -> str:
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


def _parsed(counter: int, text: bytes, group: str) -> Sign:
    """Read what a member says; nothing of what only looks like a file of this group."""
    try:
        said: dict[str, Any] = json.loads(text)
        if not all(isinstance(said[name], kind) for name, kind in _FIELDS.items()):
            return Sign(counter)
        presence = _presence(said)
        member = _name(said["member"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return Sign(counter)
    if said["group"] != group:
        return Sign(counter)
    process = said.get("process")
    return Sign(counter, member, presence, process if type(process) is int else None)


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
