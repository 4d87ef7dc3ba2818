"""A machine in memory: files, locks, clock, names and chance, for processes that take turns.

Contents are changed in place, so that a call costs what it does. What no fsync has covered is kept
beside them where a history knows losses of power: see :mod:`tests.simulation.power`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import functools
import itertools
import os
import stat
import struct
import sys
import threading
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from uuid import UUID

from tests.simulation.images import Images
from tests.simulation.pools import Pool
from tests.simulation.power import Node, Unsynced
from tests.simulation.scheduler import Decision, Lock, Scheduler
from tests.support.disk_calls import leave_to_collector, let_globs_follow

from kafkalog.files.system import system
from kafkalog.streaming.groups import group_commits
from kafkalog.streaming.source import reading
from kafkalog.streaming.store import file_systems, locks

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping

    from tests.simulation.scheduler import Process

__all__ = ["BROKERS", "ROOT", "Machine", "installed"]

ROOT: Final = "/simulation"
BROKERS: Final = frozenset({"broker", "mover"})
"""Kinds of actors that let a broker run."""

_FIRST_DESCRIPTOR: Final = 1 << 25
_TICK_NS: Final = 4_000_000
_DEVICE: Final = 9_000
_LONGEST_NAME: Final = 255
_PAUSES_S: Final = (0.3, 2.0, 90.0, 700.0)
_JUMPS_S: Final = (-86_400.0, -3.0, 3.0, 40 * 86_400.0)
_FARTHEST_S: Final = 120 * 86_400.0
"""A clock that is wrong by twice ``transactional.id.expiration.ms`` may let a batch in again."""
_ERRORS: Final = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EMFILE)
_NAMED_ONCE: Final = ("kafkalog.commit", "kafkalog.intent")
_AWAY_S: Final = (0.003, 0.1, 5.0)


class _Opened:
    __slots__ = ("node", "place", "position", "process")

    def __init__(self, process: Process, node: Node, place: str) -> None:
        self.process = process
        self.node = node
        self.place = place
        self.position = 0


class _Broken(NamedTuple):
    code: int
    until: int


class Machine:
    """Files and what processes have open; calls are steps of the scheduler.

    ``knows_power``: whether it may go, so that what is not durable has to be known. ``is_shared``:
    whether the files lie on a server, which may give locks away. ``has_posix_locks``: whether
    locks are a process's, which loses one when any thread of it closes the file, as on macOS.
    ``listings_take_time``: whether others may act while a folder is listed.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        knows_power: bool = False,
        is_shared: bool = False,
        has_posix_locks: bool = False,
        lets_late_hosts_act: bool = False,
        listings_take_time: bool = False,
    ) -> None:
        self.scheduler = scheduler
        self._began_ns = scheduler.wall_ns
        scheduler.happens = self._happens
        self.faults: dict[str, int] = {}
        self._made = 1
        self.root = Node(1, 0, is_folder=True)
        self.unsynced = Unsynced(self.root) if knows_power else None
        self.losses_of_power = 0
        self._opened: dict[int, _Opened] = {}
        self._numbers = itertools.count(_FIRST_DESCRIPTOR)
        self._closed_late: set[int] = set()
        """What dead processes had open: the collector comes to their objects when it wants."""
        self._locks: dict[int, object] = {}
        self.has_posix_locks = has_posix_locks
        self._lets_late_hosts_act = lets_late_hosts_act
        self._listings_take_time = listings_take_time
        self._broken: dict[str, _Broken] = {}
        self.is_shared = is_shared
        self.images = Images(self.root, self._new)
        self.cut_off: set[int] = set()
        self._locked_by: dict[int, int] = {}
        """The descriptor by which a lock was taken."""
        self._dropped: dict[int, Process] = {}
        """Who closed another descriptor of a file whose lock it had."""
        self._overtaken: set[Process] = set()
        self.wrote_late = False
        """Whether somebody wrote who had lost its locks to others, or a host its intent: the next
        writer may refuse, see protocol.md."""
        self._short: Process | None = None
        self._drawn = 0
        self._torn: Process | None = None
        self.loses_power: Callable[[], None] = lambda: None
        """What else happens when the power goes."""
        self.instead: Mapping[str, Callable[[int], None]] = {}
        """What happens in place of what follows here, by its name: to nodes."""
        self.slow: dict[str, tuple[float, int]] = {}
        """How many seconds each call in a directory takes, and until when."""
        self._stale: set[int] = set()
        self.renamed: Callable[[str, Node], None] = lambda *_: None
        """Is told of each file that has got another name."""

    # What happens

    def _happens(self, decision: Decision) -> None:  # noqa: C901 - a table
        self.faults[decision.what] = self.faults.get(decision.what, 0) + 1
        value, process = decision.value, self.scheduler.running.process
        if (action := self.instead.get(decision.what)) is not None:
            action(value)
            return
        match decision.what:
            case "kill":
                self.kill(process)
            case "torn":
                self._torn = process
            case "interrupt":
                self.scheduler.interrupt()
            case "pause":
                self.scheduler.pause(_PAUSES_S[value % len(_PAUSES_S)])
            case "jump":
                wall_ns = self.scheduler.wall_ns + int(_JUMPS_S[value % len(_JUMPS_S)] * 1e9)
                self.scheduler.wall_ns = min(wall_ns, self._began_ns + int(_FARTHEST_S * 1e9))
            case "error":
                until = self.scheduler.now + (1 if value & 4 else 2_000_000)
                name = self._some_directory(value)
                self._broken[name] = _Broken(_ERRORS[value & 3], until)
            case "short":
                self._short = process
            case "lost":
                self._lose_locks(process)
            case "vanish" | "empty" | "old":
                self._take_away(decision.what, value)
            case "power":
                self._lose_power(value)
            case what:
                raise AssertionError(what)

    def _lose_power(self, value: int) -> None:
        """Let all processes end, and of what is not durable remain what chance wants."""
        self.images.bring_back()
        for process in self.scheduler.processes:
            self.kill(process)
        assert self.unsynced is not None
        self.unsynced.lose(value)
        self.losses_of_power += 1
        self.loses_power()

    def _take_away(self, kind: str, value: int) -> None:
        """Mount something else in a directory's place; a disk in use stays, a server's may go."""
        name = self._some_directory(value)
        is_used = any(each.place.startswith(f"{ROOT}/{name}/") for each in self._opened.values())
        if kind == "vanish" or not is_used:
            pause = 0.003 if kind == "vanish" else _AWAY_S[value % len(_AWAY_S)]
            self.images.take_away(name, kind, self.scheduler.now + int(pause * 1e9))

    def _lose_locks(self, process: Process) -> None:
        """Let a server give the locks of a host away, which sleeps and does not know it.

        So what it writes to these files is refused; all else arrives.
        """
        for descriptor, opened in self._opened.items():
            if self._locks.get(opened.node.number) == descriptor and opened.process is process:
                del self._locks[opened.node.number]
                self.cut_off.add(descriptor)
        self.scheduler.pause(90.0)

    def lose_locks(self, process: Process, names: Container[str]) -> set[int]:
        """Let a process lose the locks of files in some directories; returns what it has open."""
        lost = {
            descriptor
            for descriptor, opened in self._opened.items()
            if opened.process is process
            and self._locks.get(opened.node.number) == self._owner(descriptor, opened)
            and opened.place[len(ROOT) + 1 :].partition("/")[0] in names
        }
        for descriptor in lost:
            del self._locks[self._opened[descriptor].node.number]
        return lost

    def go_stale(self, names: Container[str]) -> None:
        """Let what is open in some directories be of no use any more, as after a server's start."""
        for descriptor, opened in self._opened.items():
            if opened.place[len(ROOT) + 1 :].partition("/")[0] in names:
                self._stale.add(descriptor)
                self._locks.pop(opened.node.number, None)

    def break_directory(self, name: str, code: int, until: int) -> None:
        """Let calls in a directory fail for a while."""
        self._broken[name] = _Broken(code, until)

    def _check_host(self, path: str) -> None:
        """End a host that has lost its locks before it changes a name that it cannot prove.

        protocol.md, "Locks that are lost": what nobody can notice between a proof and a change. A
        late intent may replace another's, and the next writer may refuse.
        """
        process = self.scheduler.running.process
        if self.cut_off and any(
            each in self._opened and self._opened[each].process is process for each in self.cut_off
        ):
            folder, _, name = path.rpartition("/")
            is_named_once = name in _NAMED_ONCE and not self._lets_late_hosts_act
            self.wrote_late |= name == "kafkalog.intent"
            if is_named_once or folder.count("/") > ROOT.count("/") + 1:
                self.kill(process)
                self.scheduler.step("lost")

    def _some_directory(self, value: int) -> str:
        names = sorted(name for name in self._names(self.root) if name.startswith("d"))
        return names[(value >> 4) % len(names)] if names else ""

    def kill(self, process: Process) -> None:
        """Kill a process: its files are closed, its locks fall."""
        self.scheduler.kill(process)
        for descriptor, opened in list(self._opened.items()):
            if opened.process is process:
                self._close(descriptor)
                self._closed_late.add(descriptor)

    def calm(self) -> None:
        """Let nothing be broken or away any more."""
        self._broken.clear()
        self.slow.clear()
        self.images.bring_back()

    def _step(self, call: str, place: str = "", *, changes: bool = False) -> None:
        self.scheduler.step(call)
        name = place[len(ROOT) + 1 :].partition("/")[0]
        if name in self.slow:
            seconds, until = self.slow[name]
            if self.scheduler.now >= until:
                del self.slow[name]
            else:
                self.scheduler.take_time(seconds)
        if self._broken or self.images:
            if not self._broker_runs():
                self.images.bring_back(self.scheduler.now)
            broken = self._broken.get(name)
            if broken is not None:
                if self.scheduler.now >= broken.until:
                    del self._broken[name]
                elif (
                    broken.code == errno.EIO
                    or (broken.code == errno.EMFILE and call in {"open", "create"})
                    or (broken.code != errno.EMFILE and changes)
                ):
                    raise _failure(broken.code, place)

    # Clock, chance

    def _broker_runs(self) -> bool:
        """Whether a broker has files open: it would rename what lies in a disk that comes back."""
        actors = {each.process.actor for each in self._opened.values()}
        return any(actor.startswith(tuple(BROKERS)) for actor in actors)

    def time_ns(self) -> int:
        """Return the wall clock's time."""
        return self.scheduler.wall_ns + self.scheduler.now

    def _stamp(self) -> int:
        now = self.time_ns()
        return now - now % _TICK_NS

    def random_id(self) -> UUID:
        """Draw an id."""
        self._drawn += 1
        return UUID(bytes=blake2b(b"%d" % self._drawn, digest_size=16).digest(), version=4)

    # Names

    @staticmethod
    def _names(node: Node) -> dict[str, Node]:
        if node.names is None:
            raise _failure(errno.ENOTDIR)
        return node.names

    def _find(self, path: str) -> Node:
        node = self.root
        for part in path[len(ROOT) :].split("/"):
            if part:
                if node.names is None:
                    raise _failure(errno.ENOTDIR, path)
                found = node.names.get(part)
                if found is None:
                    raise _failure(errno.ENOENT, path)
                node = found
        return node

    def _parent(self, path: str) -> tuple[Node, str]:
        above, _, name = path.rpartition("/")
        if len(name) > _LONGEST_NAME:
            raise _failure(errno.ENAMETOOLONG, path)
        node = self._find(above)
        if node.names is None:
            raise _failure(errno.ENOTDIR, path)
        return node, name

    def _new(self, *, is_folder: bool) -> Node:
        self._made += 1
        return Node(self._made, self._stamp(), is_folder=is_folder)

    def _set(self, folder: Node, name: str, node: Node | None) -> None:
        names, now = self._names(folder), self._stamp()
        before = names.get(name)
        if self.unsynced is not None:
            self.unsynced.name(folder, name, node)
        if before is not None:
            before.links -= 1
            before.changed = now
        if node is None:
            del names[name]
        else:
            names[name] = node
            node.links += 1
            node.changed = now
        folder.modified = folder.changed = now

    # Calls of os

    def open(self, place: Any, flags: int, mode: int = 0o777) -> int:
        path = os.fspath(place)
        call = "create" if flags & os.O_CREAT else "open"
        self._step(call, path, changes=bool(flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)))
        if flags & os.O_CREAT:
            folder, name = self._parent(path)
            node = self._names(folder).get(name)
            if node is None:
                self._check_host(path)
                node = self._new(is_folder=False)
                self._set(folder, name, node)
            elif flags & os.O_EXCL:
                raise _failure(errno.EEXIST, path)
        else:
            node = self._find(path)
        if node.names is not None and flags & (os.O_WRONLY | os.O_RDWR):
            raise _failure(errno.EISDIR, path)
        if flags & os.O_TRUNC:
            if self.unsynced is not None:
                self.unsynced.change(node, 0, None)
            node.data.clear()
        descriptor = next(self._numbers)
        self._opened[descriptor] = _Opened(self.scheduler.running.process, node, path)
        return descriptor

    def close(self, descriptor: int) -> None:
        if descriptor in self._closed_late:
            self._closed_late.remove(descriptor)  # an object of a dead process goes
        elif not self.scheduler.running.process.is_dead:
            self._of(descriptor)
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        opened = self._opened.pop(descriptor)
        self.cut_off.discard(descriptor)
        self._stale.discard(descriptor)
        if self._locks.get(opened.node.number) == self._owner(descriptor, opened):
            del self._locks[opened.node.number]
            if descriptor != self._locked_by.get(opened.node.number):
                self._dropped[opened.node.number] = opened.process

    def _owner(self, descriptor: int, opened: _Opened) -> object:
        return opened.process if self.has_posix_locks else descriptor

    def _of(self, descriptor: int) -> _Opened:
        opened = self._opened.get(descriptor)
        if opened is None:
            raise _failure(errno.EBADF)
        return opened

    def _use(self, call: str, descriptor: int, *, changes: bool = False) -> _Opened:
        opened = self._opened.get(descriptor)
        self._step(call, "" if opened is None else opened.place, changes=changes)
        if descriptor in self._stale:
            raise _failure(errno.ESTALE, self._of(descriptor).place)
        return self._of(descriptor)

    def pread(self, descriptor: int, count: int, position: int) -> bytes:
        opened = self._use("pread", descriptor)
        if count > 1 and self._short is opened.process:
            self._short, count = None, count // 2
        return bytes(opened.node.data[position : position + count])

    def preadv(self, descriptor: int, buffers: Any, position: int) -> int:
        done = 0
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            data = self.pread(descriptor, len(view), position + done)
            view[: len(data)] = data
            done += len(data)
        return done

    def read(self, descriptor: int, count: int) -> bytes:
        opened = self._use("read", descriptor)
        data = bytes(opened.node.data[opened.position : opened.position + count])
        opened.position += len(data)
        return data

    def lseek(self, descriptor: int, position: int, how: int) -> int:
        opened = self._use("lseek", descriptor)
        if how != os.SEEK_SET:
            raise _failure(errno.EINVAL)
        opened.position = position
        return position

    def stat(self, place: Any, *, follow_symlinks: bool = True) -> os.stat_result:
        path = os.fspath(place)
        self._step("stat", path)
        return self._status(self._find(path))

    def lstat(self, place: Any) -> os.stat_result:
        return self.stat(place)

    def fstat(self, descriptor: int) -> os.stat_result:
        return self._status(self._use("fstat", descriptor).node)

    @staticmethod
    def _status(node: Node) -> os.stat_result:
        is_folder = node.names is not None
        mode = stat.S_IFDIR | 0o755 if is_folder else stat.S_IFREG | 0o644
        links = 2 if is_folder else node.links
        head = (mode, node.number, _DEVICE, links, 0, 0, len(node.data))
        stamps = (node.modified, node.modified, node.changed)
        seconds = tuple(each // 1_000_000_000 for each in stamps)
        names = ("st_atime_ns", "st_mtime_ns", "st_ctime_ns")
        return os.stat_result((*head, *seconds), dict(zip(names, stamps, strict=True)))

    def listdir(self, place: Any) -> list[str]:
        path = os.fspath(place)
        self._step("listdir", path)
        folder = self._find(path)
        names = list(self._names(folder))
        if self._listings_take_time:
            self._step("listdir", path)
            now = self._names(folder)
            both = [name for name in names if name in now]
            # A name that came, went or was changed meanwhile may be listed, or not.
            moved = sorted({*names, *now} - {*both})
            names = both + [name for name in moved if self._is_seen(name)]
        # In no order that anybody could count on.
        return names[::-1] if self.scheduler.total_steps & 1 else names

    def _is_seen(self, name: str) -> bool:
        text = f"{self.scheduler.total_steps}/{name}".encode()
        return bool(blake2b(text, digest_size=1).digest()[0] & 1)

    def scandir(self, place: Any) -> _Listing:
        path = os.fspath(place)
        return _Listing(_Entry(self, f"{path}/{name}", name) for name in self.listdir(path))

    def readlink(self, place: Any) -> str:
        self._step("readlink", os.fspath(place))
        self._find(os.fspath(place))
        raise _failure(errno.EINVAL, place)

    def pwrite(self, descriptor: int, data: Any, position: int) -> int:
        opened = self._use("pwrite", descriptor, changes=True)
        content = bytes(data)
        process = self.scheduler.running.process
        if descriptor in self.cut_off:
            raise _failure(errno.EIO, opened.place)
        self.wrote_late |= process in self._overtaken
        if len(content) > 1 and self._short is process:
            self._short, content = None, content[: len(content) // 2]
        is_torn = self._torn is process
        if is_torn:
            content = content[: len(content) // 2]
        if self.unsynced is not None:
            self.unsynced.change(opened.node, position, content)
        held = opened.node.data
        if len(held) < position:
            held.extend(bytes(position - len(held)))
        held[position : position + len(content)] = content
        opened.node.modified = opened.node.changed = self._stamp()
        if is_torn:
            self.kill(process)
            self.scheduler.step("torn")
        return len(content)

    def write(self, descriptor: int, data: Any) -> int:
        opened = self._of(descriptor)
        count = self.pwrite(descriptor, data, opened.position)
        opened.position += count
        return count

    def copy_file_range(
        self, source: int, target: int, count: int, offset_src: int, offset_dst: int
    ) -> int:
        data = self.pread(source, count, offset_src)
        return self.pwrite(target, data, offset_dst) if data else 0

    def ftruncate(self, descriptor: int, size: int) -> None:
        opened = self._use("ftruncate", descriptor, changes=True)
        if self.unsynced is not None:
            self.unsynced.change(opened.node, size, None)
        held = opened.node.data
        if size < len(held):
            del held[size:]
        else:
            held.extend(bytes(size - len(held)))
        opened.node.modified = opened.node.changed = self._stamp()

    def truncate(self, place: Any, size: int) -> None:
        descriptor = place if isinstance(place, int) else self.open(place, os.O_RDWR)
        self.ftruncate(descriptor, size)
        if descriptor is not place:
            self.close(descriptor)

    def fsync(self, descriptor: int) -> None:
        try:
            opened = self._use("fsync", descriptor, changes=True)
        except OSError as error:
            if self.unsynced is not None and error.errno != errno.EBADF:
                self.unsynced.drop(self._of(descriptor).node)
            raise
        if self.unsynced is not None:
            self.unsynced.sync(opened.node)

    def mkdir(self, place: Any, mode: int = 0o777) -> None:
        path = os.fspath(place)
        self._step("mkdir", path, changes=True)
        folder, name = self._parent(path)
        if name in self._names(folder):
            raise _failure(errno.EEXIST, path)
        self._set(folder, name, self._new(is_folder=True))

    def utime(self, place: Any, *_: Any, **__: Any) -> None:
        """Leave times as they are; what is not there has none."""
        if not isinstance(place, int):
            self._find(os.fspath(place))

    def rmdir(self, place: Any) -> None:
        path = os.fspath(place)
        self._step("rmdir", path, changes=True)
        if self._names(self._find(path)):
            raise _failure(errno.ENOTEMPTY, path)
        folder, name = self._parent(path)
        self._set(folder, name, None)

    def unlink(self, place: Any) -> None:
        path = os.fspath(place)
        self._step("unlink", path, changes=True)
        self._check_host(path)
        if self._find(path).names is not None:
            raise _failure(errno.EISDIR, path)
        folder, name = self._parent(path)
        self._set(folder, name, None)

    def replace(self, source: Any, target: Any) -> None:
        path, other = os.fspath(source), os.fspath(target)
        self._step("rename", path, changes=True)
        self._check_host(other)
        node = self._find(path)
        folder, name = self._parent(other)
        there = self._names(folder).get(name)
        if there is node:
            return
        if there is not None and there.names:
            raise _failure(errno.ENOTEMPTY, other)
        self._set(folder, name, node)
        self._set(*self._parent(path), None)
        self.renamed(other, node)

    def link(self, source: Any, target: Any, *, follow_symlinks: bool = True) -> None:
        path, other = os.fspath(source), os.fspath(target)
        self._step("link", other, changes=True)
        node = self._find(path)
        folder, name = self._parent(other)
        if name in self._names(folder):
            raise _failure(errno.EEXIST, other)
        self._set(folder, name, node)

    # Locks

    def lockf(self, descriptor: int, command: int, *_: int) -> None:
        opened = self._use("lock", descriptor)
        number, owner = opened.node.number, self._owner(descriptor, opened)
        if command & fcntl.LOCK_UN:
            if self._locks.get(number) == owner:
                del self._locks[number]
        elif self._locks.setdefault(number, owner) != owner:
            raise _failure(errno.EAGAIN)
        elif self.has_posix_locks:
            self._locked_by[number] = descriptor
            last = self._dropped.pop(number, opened.process)
            self._overtaken.discard(opened.process)
            if last is not opened.process:
                self._overtaken.add(last)

    def fcntl(self, descriptor: int, command: int, asked: bytes) -> bytes:
        if command == fcntl.F_OFD_SETLK:
            (kind,) = struct.unpack_from("h", asked)
            self.lockf(descriptor, fcntl.LOCK_UN if kind == fcntl.F_UNLCK else fcntl.LOCK_EX)
            return asked
        if command != fcntl.F_GETLK:
            raise _failure(errno.ENOSYS)
        opened = self._use("lock", descriptor)
        owner = self._owner(descriptor, opened)
        is_free = self._locks.get(opened.node.number, owner) == owner
        return struct.pack("h", fcntl.F_UNLCK if is_free else fcntl.F_WRLCK) + asked[2:]


class _Listing(list["_Entry"]):
    """What ``os.scandir`` returns."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


class _Entry:
    """One of what ``os.scandir`` gives."""

    def __init__(self, machine: Machine, path: str, name: str) -> None:
        self.path, self.name, self._machine = path, name, machine

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISDIR(self._mode())

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISREG(self._mode())

    def is_symlink(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._machine.stat(self.path)

    def _mode(self) -> int:
        try:
            return self.stat().st_mode
        except FileNotFoundError:
            return 0


def _failure(code: int, path: object = None) -> OSError:
    return OSError(code, os.strerror(code), path)


def _is_simulated(place: Any) -> bool:
    if isinstance(place, int):
        return place >= _FIRST_DESCRIPTOR
    text = place if isinstance(place, str) else os.fspath(place)
    return isinstance(text, str) and text.startswith(ROOT)


_CALLS: Final = (
    *("open", "close", "pread", "preadv", "read", "lseek", "stat", "lstat", "fstat", "listdir"),
    *("scandir", "readlink", "pwrite", "write", "copy_file_range", "ftruncate", "truncate"),
    *("fsync", "mkdir", "rmdir", "unlink", "replace", "link"),
)
_ALIASES: Final = {"remove": "unlink", "rename": "replace", "fdatasync": "fsync"}
_WITHOUT_EFFECT: Final = ("fchmod", "fchown", "chmod", "chown", "posix_fadvise")


@functools.cache
def _free_cached_properties() -> None:
    """Take the locks of ``cached_property`` away, which Python 3.11 holds for all processes here.

    A strand may lose its turn while it computes one, and nobody could go on.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("kafkalog"):
            for each in list(vars(module).values()):
                for found in list(vars(each).values()) if isinstance(each, type) else ():
                    if isinstance(found, functools.cached_property):
                        found.lock = contextlib.nullcontext()  # type: ignore[attr-defined]


def _diverted(original: Callable[..., Any], simulation: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        if arguments and _is_simulated(arguments[0]):
            return simulation(*arguments, **named)
        return original(*arguments, **named)

    return call


def _answered(
    original: Callable[..., Any],
    simulation: Callable[..., Any],
    scheduler: Scheduler,
    has_ended: threading.Event,
) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        if scheduler.is_known():
            return simulation(*arguments)
        has_ended.wait()  # such as a member's thread that an earlier test left
        return original(*arguments)

    return call


@contextlib.contextmanager
def installed(machine: Machine) -> Iterator[Machine]:
    """Let files below :data:`ROOT`, and all that ``system`` asks, be the machine's."""
    scheduler = machine.scheduler
    _free_cached_properties()
    leave_to_collector()
    with contextlib.ExitStack() as undo:

        def patch(module: object, name: str, replacement: object) -> None:
            undo.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, replacement)

        def divert(module: object, name: str, simulation: Callable[..., Any]) -> None:
            patch(module, name, _diverted(getattr(module, name), simulation))

        for name in _CALLS:
            divert(os, name, getattr(machine, name))
        for name, known in _ALIASES.items():
            divert(os, name, getattr(machine, known))
        for name in _WITHOUT_EFFECT:
            divert(os, name, lambda *_, **__: None)
        divert(os, "utime", machine.utime)
        let_globs_follow(patch)
        divert(fcntl, "lockf", machine.lockf)
        divert(fcntl, "fcntl", machine.fcntl)
        has_ended = threading.Event()
        undo.callback(has_ended.set)

        def answer(name: str, simulation: Callable[..., Any]) -> None:
            patch(system, name, _answered(getattr(system, name), simulation, scheduler, has_ended))

        answer("time_ns", machine.time_ns)
        answer("monotonic", lambda: scheduler.now / 1e9)
        answer("boottime", lambda: scheduler.now / 1e9)
        answer("sleep", scheduler.sleep)
        answer("process_id", lambda: scheduler.running.process.number)
        answer("host_name", lambda: "host")
        answer("boot_id", lambda: f"boot {machine.losses_of_power}")
        kind = "nfs4" if machine.is_shared else "ext4"
        answer("mounts", lambda: f"1 0 0:1 / / rw - {kind} disk rw\n")
        # Small batches are joined in one step: apart, others may act between any two of them.
        patch(reading, "_SMALL_ROWS", 0)
        # What asks a second process is none of these processes.
        patch(file_systems, "_check_locks", lambda _: None)
        if machine.has_posix_locks:
            patch(locks, "_OFD_SETLK", None)
        answer("random_id", machine.random_id)
        answer("lock", lambda: Lock(scheduler))
        answer("start_thread", scheduler.start_thread)
        answer("pool", lambda *_: Pool(scheduler))
        patch(system, "memory", {})
        one = dataclasses.replace(group_commits.OFFSETS_POLICY, partitions=1)
        patch(group_commits, "OFFSETS_POLICY", one)
        yield machine
