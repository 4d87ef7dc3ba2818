"""Let the library work on a simulated disk: the functions of ``os`` below it are replaced.

Only paths below :data:`MOUNT` and descriptors opened there are simulated; everything else goes to
the system. A call that is not simulated fails there, since nothing of that name exists. Clock,
random numbers and the order of a thread pool's tasks are fixed, so that a run can be repeated.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import glob
import itertools
import os
import stat
import struct
import threading
import types
from concurrent.futures import Executor, Future
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from tests.support.disk import ROOT_INODE, Disk, Renamed, Resized, Synced, Written, failure

from kafkalog.files.system import system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.disk import Change

__all__ = ["MOUNT", "NOW_NS", "Machine", "leave_to_collector", "let_globs_follow", "simulated"]

MOUNT: Final = Path("/simulated")
NOW_NS: Final = 1_700_000_000_000_000_000
_FIRST_DESCRIPTOR: Final = 1 << 24
_FIRST_DEVICE: Final = 7_000
_PATH_MAX: Final = 255


class _Opened(NamedTuple):
    process: int
    inode: int


class Machine:
    """A disk and what processes have open and locked on it.

    ``process`` numbers the one that runs. ``before`` is called before each change, and may end the
    process by raising; ``looking`` before each look, with what gives the answer of any disk;
    ``rests`` instead of sleeping.
    """

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = disk or Disk()
        self.process = 0
        self.before: Callable[[Change], None] = lambda _: None
        self.looking: Callable[[Callable[[Disk], object]], None] = lambda _: None
        self.rests: Callable[[], None] = lambda: None
        self.locks: dict[int, int] = {}
        self._cut_off: set[int] = set()
        # None comes again: what the collector closes late must not be somebody else's by then.
        self._numbers = itertools.count(_FIRST_DESCRIPTOR)
        self._opened: dict[int, _Opened] = {}
        self._positions: dict[int, int] = {}
        self._drawn: dict[int, int] = {}

    def end_process(self, process: int) -> None:
        """Close what a process has open; its locks fall."""
        self._opened = {fd: each for fd, each in self._opened.items() if each.process != process}
        self.locks = {inode: who for inode, who in self.locks.items() if who != process}

    def lose_locks(self) -> None:
        """Take the running process's locks away; what it does with the locked files is refused.

        So the server of a network file system does with a host that it has not heard of for long.
        """
        for descriptor, opened in self._opened.items():
            if self.locks.get(opened.inode) == opened.process == self.process:
                self._cut_off.add(descriptor)
        self.locks = {inode: who for inode, who in self.locks.items() if who != self.process}

    def change(self, due: Callable[[], Change]) -> None:
        """Make a change, unless the process ends before.

        ``due`` gives it, or raises. It is asked again after ``before``, in which another process
        may have made changes.
        """
        self.before(due())
        self.disk.apply(due())

    def _change_opened(self, descriptor: int, change: Change) -> None:
        self.before(change)
        if descriptor in self._cut_off:
            raise failure(errno.EIO)
        self.disk.apply(change)

    def draw(self, count: int) -> bytes:
        """Return random bytes that depend on the process alone, and on what it has drawn before."""
        drawn = self._drawn[self.process] = self._drawn.get(self.process, 0) + 1
        return blake2b(f"{self.process}/{drawn}".encode(), digest_size=count).digest()

    # Descriptors

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        self._look_for(path)
        folder, name = self._parent(path)
        inode = self.disk.folders[folder].get(name) if name else folder
        if inode is None:
            if not flags & os.O_CREAT:
                raise failure(errno.ENOENT, str(path))
            inode = self.disk.new_file()
            self.change(lambda: self._taken(path, inode))
        elif flags & os.O_CREAT and flags & os.O_EXCL:
            raise failure(errno.EEXIST, str(path))
        if inode in self.disk.folders and flags & (os.O_WRONLY | os.O_RDWR):
            raise failure(errno.EISDIR, str(path))
        if flags & os.O_TRUNC:
            self.change(lambda: Resized(inode, 0))
        descriptor = next(self._numbers)
        self._opened[descriptor] = _Opened(self.process, inode)
        self._positions[descriptor] = 0
        return descriptor

    def close(self, descriptor: int) -> None:
        opened = self._opened.pop(descriptor, None)
        self._cut_off.discard(descriptor)
        if opened is not None and self.locks.get(opened.inode) == opened.process:
            del self.locks[opened.inode]

    def inode_of(self, descriptor: int) -> int:
        """Return what a descriptor leads to."""
        if descriptor not in self._opened:
            raise failure(errno.EBADF)
        return self._opened[descriptor].inode

    # Reading

    def pread(self, descriptor: int, count: int, position: int) -> bytes:
        inode = self.inode_of(descriptor)
        self.looking(lambda disk: disk.files[inode][position : position + count])
        return self.disk.files[inode][position : position + count]

    def preadv(self, descriptor: int, buffers: Any, position: int) -> int:
        done = 0
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            data = self.pread(descriptor, len(view), position + done)
            view[: len(data)] = data
            done += len(data)
        return done

    def read(self, descriptor: int, count: int) -> bytes:
        data = self.pread(descriptor, count, self._positions[descriptor])
        self._positions[descriptor] += len(data)
        return data

    def stat(self, path: Any, *, follow_symlinks: bool = True) -> os.stat_result:
        self._look_for(path)
        try:
            inode = self.disk.find(_parts(path))
        except OSError as error:
            raise failure(error.errno or 0, str(path)) from None
        return self._status(inode)

    def lstat(self, path: Any) -> os.stat_result:
        return self.stat(path)

    def fstat(self, descriptor: int) -> os.stat_result:
        return self._status(self.inode_of(descriptor))

    def _status(self, inode: int) -> os.stat_result:
        self.looking(lambda disk: len(disk.files.get(inode, b"")))
        folder = inode in self.disk.folders
        mode = stat.S_IFDIR | 0o755 if folder else stat.S_IFREG | 0o644
        size = 0 if folder else len(self.disk.files[inode])
        seconds = NOW_NS // 1_000_000_000
        # Each process has a device number of its own, as if it had its own mount: what the library
        # keeps per process and device is kept apart.
        head = (mode, inode, _FIRST_DEVICE + self.process, self.disk.links(inode), 0, 0, size)
        times = dict.fromkeys(("st_atime_ns", "st_mtime_ns", "st_ctime_ns"), NOW_NS)
        return os.stat_result((*head, seconds, seconds, seconds), times)

    def listdir(self, path: Any) -> list[str]:
        self._look_for(path)
        inode = self.disk.find(_parts(path))
        if inode not in self.disk.folders:
            raise failure(errno.ENOTDIR, str(path))
        self.looking(lambda disk: sorted(disk.folders[inode]))
        return sorted(self.disk.folders[inode])

    def scandir(self, path: Any) -> _Entries:
        return _Entries(
            _Entry(self, f"{os.fspath(path)}/{name}", name) for name in self.listdir(path)
        )

    def readlink(self, path: Any) -> str:
        self.disk.find(_parts(path))
        raise failure(errno.EINVAL, str(path))

    # Changing

    def pwrite(self, descriptor: int, data: Any, position: int) -> int:
        content = bytes(data)
        self._change_opened(descriptor, Written(self.inode_of(descriptor), position, content))
        return len(content)

    def write(self, descriptor: int, data: Any) -> int:
        count = self.pwrite(descriptor, data, self._positions[descriptor])
        self._positions[descriptor] += count
        return count

    def copy_file_range(
        self, source: int, target: int, count: int, offset_src: int, offset_dst: int
    ) -> int:
        return self.pwrite(target, self.pread(source, count, offset_src), offset_dst)

    def ftruncate(self, descriptor: int, size: int) -> None:
        self._change_opened(descriptor, Resized(self.inode_of(descriptor), size))

    def truncate(self, path: Any, size: int) -> None:
        if isinstance(path, int):
            self.ftruncate(path, size)
        else:
            self.change(lambda: Resized(self.disk.find(_parts(path)), size))

    def fsync(self, descriptor: int) -> None:
        self._change_opened(descriptor, Synced(self.inode_of(descriptor)))

    def fdatasync(self, descriptor: int) -> None:
        self.fsync(descriptor)

    def mkdir(self, path: Any, mode: int = 0o777) -> None:
        self._taken(path, -1)
        inode = self.disk.new_folder()
        self.change(lambda: self._taken(path, inode))

    def utime(self, path: Any, *_: Any, **__: Any) -> None:
        """Leave times as they are; what is not there has none."""
        if not isinstance(path, int):
            self._existing(path)

    def rmdir(self, path: Any) -> None:
        def due() -> Change:
            folder, name, inode = self._existing(path)
            if inode not in self.disk.folders:
                raise failure(errno.ENOTDIR, str(path))
            if self.disk.folders[inode]:
                raise failure(errno.ENOTEMPTY, str(path))
            return Renamed(folder, name, None)

        self.change(due)

    def unlink(self, path: Any) -> None:
        def due() -> Change:
            folder, name, inode = self._existing(path)
            if inode in self.disk.folders:
                raise failure(errno.EISDIR, str(path))
            return Renamed(folder, name, None)

        self.change(due)

    def replace(self, source: Any, target: Any) -> None:
        def due() -> Change:
            _, _, inode = self._existing(source)
            return Renamed(*self._parent(target), inode)

        # One step for who looks; two for a power failure, which may keep either.
        self.change(due)
        folder, name, _ = self._existing(source)
        self.disk.apply(Renamed(folder, name, None))

    def link(self, source: Any, target: Any, *, follow_symlinks: bool = True) -> None:
        self.change(lambda: self._taken(target, self._existing(source)[2]))

    # Locks

    def lockf(self, descriptor: int, command: int, *_: int) -> None:
        inode = self.inode_of(descriptor)
        if command & fcntl.LOCK_UN:
            if self.locks.get(inode) == self.process:
                del self.locks[inode]
            return
        taken = self.locks.setdefault(inode, self.process) != self.process
        if taken:
            raise failure(errno.EAGAIN)

    def fcntl(self, descriptor: int, command: int, asked: bytes) -> bytes:
        if command == fcntl.F_OFD_SETLK:
            (kind,) = struct.unpack_from("h", asked)
            self.lockf(descriptor, fcntl.LOCK_UN if kind == fcntl.F_UNLCK else fcntl.LOCK_EX)
            return asked
        if command != fcntl.F_GETLK:
            raise failure(errno.ENOSYS)
        holder = self.locks.get(self.inode_of(descriptor), self.process)
        kind = fcntl.F_UNLCK if holder == self.process else fcntl.F_WRLCK
        return struct.pack("h", kind) + asked[2:]

    # Names

    def _look_for(self, path: Any) -> None:
        parts = _parts(path)
        self.looking(lambda disk: _found(disk, parts))

    def _parent(self, path: Any) -> tuple[int, str]:
        *above, name = _parts(path) or ("",)
        if len(name) > _PATH_MAX:
            raise failure(errno.ENAMETOOLONG, str(path))
        try:
            folder = self.disk.find(tuple(above))
        except OSError as error:
            raise failure(error.errno or 0, str(path)) from None
        if folder not in self.disk.folders:
            raise failure(errno.ENOTDIR, str(path))
        return (folder, name) if name else (ROOT_INODE, "")

    def _taken(self, path: Any, inode: int) -> Change:
        """Return the change that lets a free name mean an inode."""
        folder, name = self._parent(path)
        if not name or name in self.disk.folders[folder]:
            raise failure(errno.EEXIST, str(path))
        return Renamed(folder, name, inode)

    def _existing(self, path: Any) -> tuple[int, str, int]:
        folder, name = self._parent(path)
        inode = self.disk.folders[folder].get(name)
        if inode is None:
            raise failure(errno.ENOENT, str(path))
        return folder, name, inode


class _Entries(list["_Entry"]):
    """What ``os.scandir`` gives: it can be used as it is, or closed by ``with``."""

    def __enter__(self) -> Iterator[_Entry]:
        return iter(self)

    def __exit__(self, *_: object) -> None:
        pass


class _Entry:
    """What is in a folder."""

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


def _found(disk: Disk, parts: tuple[str, ...]) -> int | None:
    try:
        return disk.find(parts)
    except OSError:
        return None


def _parts(path: Any) -> tuple[str, ...]:
    return Path(os.fspath(path)).relative_to(MOUNT).parts


def _is_simulated(place: Any) -> bool:
    if isinstance(place, int):
        return place >= _FIRST_DESCRIPTOR
    text = os.fspath(place) if isinstance(place, (str, os.PathLike)) else ""
    return text == str(MOUNT) or str(text).startswith(f"{MOUNT}/")


_SIMULATED: Final = (
    "open",
    "close",
    "pread",
    "preadv",
    "read",
    "stat",
    "lstat",
    "fstat",
    "listdir",
    "scandir",
    "readlink",
    "pwrite",
    "write",
    "copy_file_range",
    "ftruncate",
    "truncate",
    "fsync",
    "fdatasync",
    "mkdir",
    "rmdir",
    "unlink",
    "replace",
    "link",
)
_ALIASES: Final = {"remove": "unlink", "rename": "replace"}
_WITHOUT_EFFECT: Final = ("fchmod", "fchown", "chmod", "chown", "posix_fadvise")
_UNSUPPORTED: Final = ("sendfile", "posix_fallocate", "pwritev", "writev", "symlink", "mkfifo")


@functools.cache
def leave_to_collector() -> None:
    """From now on, let what was opened in a simulation be closed after its end: that is nobody's.

    An object that is not closed goes when the collector comes. To the system its descriptor is a
    bad one, which a finaliser would print.
    """
    close = os.close

    def close_unless_simulated(descriptor: int) -> None:
        if descriptor < _FIRST_DESCRIPTOR:
            close(descriptor)

    os.close = close_unless_simulated


def let_globs_follow(patch: Callable[[object, str, object], None]) -> None:
    """Let ``Path.glob`` call what stands in ``os`` now: Python 3.13 has its own references."""
    globber = getattr(glob, "_StringGlobber", None)
    for name in ("lstat", "scandir"):
        if isinstance(getattr(globber, name, None), types.BuiltinFunctionType):
            patch(globber, name, staticmethod(getattr(os, name)))


@contextlib.contextmanager
def simulated(machine: Machine) -> Iterator[Machine]:
    """Replace the functions of ``os`` and ``fcntl`` that work on files, until the block ends."""
    leave_to_collector()
    guard = threading.RLock()
    with contextlib.ExitStack() as undo:

        def patch(module: object, name: str, replacement: object) -> None:
            undo.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, replacement)

        def divert(module: object, name: str, simulation: Callable[..., Any]) -> None:
            original = getattr(module, name)

            def call(*arguments: Any, **named: Any) -> Any:
                if not arguments or not _is_simulated(arguments[0]):
                    return original(*arguments, **named)
                with guard:
                    return simulation(*arguments, **named)

            patch(module, name, call)

        for name in _SIMULATED:
            divert(os, name, getattr(machine, name))
        for name, known in _ALIASES.items():
            divert(os, name, getattr(machine, known))
        for name in _WITHOUT_EFFECT:
            divert(os, name, lambda *_, **__: None)
        divert(os, "utime", machine.utime)
        for name in _UNSUPPORTED:
            divert(os, name, _refuse)
        let_globs_follow(patch)
        divert(fcntl, "lockf", machine.lockf)
        divert(fcntl, "fcntl", machine.fcntl)
        patch(system, "random_id", lambda: UUID(bytes=machine.draw(16), version=4))
        patch(system, "time_ns", lambda: NOW_NS)
        patch(system, "sleep", lambda _: machine.rests())
        patch(system, "pool", lambda *_: _AtOnce())
        yield machine


def _refuse(*_: object, **__: object) -> None:
    raise failure(errno.EOPNOTSUPP)


class _AtOnce(Executor):
    """Runs what it is given before anything else: one order of all that there may be."""

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(task(*arguments, **named))
        except Exception as error:  # noqa: BLE001 - as a pool does
            future.set_exception(error)
        return future
