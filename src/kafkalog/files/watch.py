"""Keep what was read from files and folders; read again only what may have changed.

A query asks every 10 ms while rows come, and ten times a second when it is idle. So a look must
cost no more than one ``stat`` a file. A folder with thousands of names is not listed again as long
as the kernel tells that none has come or gone.
"""

from __future__ import annotations

import os
import struct
import sys
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from kafkalog.files.remote_path import RemotePath
from kafkalog.files.system import forgotten_when_forked, remembered, system
from kafkalog.files.timeouts import stalled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

__all__ = [
    "NameChange",
    "Stamp",
    "Watch",
    "Watched",
    "is_settled",
    "name_changes",
    "stamp_from",
    "stamp_of",
    "watch_names",
    "watchable",
]

T = TypeVar("T")

Stamp: TypeAlias = tuple[int, int, int, int, int]
"""Device, inode, size, modification and change time in ns."""

# A kernel stamps files with the time of its last tick (up to 10 ms ago), some file systems with
# whole seconds. What changes twice within one such step shows the same times after both: a file
# that has changed just now has to be read again until its time is further back than a step.
_TICK_NS: Final = 50_000_000
_COARSE_NS: Final = 2_500_000_000


def watchable(path: str | Path) -> str | RemotePath:
    """Return what :func:`stamp_of` looks at soonest."""
    return path if isinstance(path, RemotePath) else str(path)


def stamp_of(path: str | RemotePath) -> Stamp | None:
    """Return what changes when a file or folder does; None if there is none."""
    if isinstance(path, RemotePath):
        return path.stamp()
    why = stalled(path)
    if why is not None:
        raise why
    try:
        status = os.stat(path)  # noqa: PTH116 - twice as fast as Path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return stamp_from(status)


def stamp_from(status: os.stat_result) -> Stamp:
    """Return what of a ``stat`` changes when the file or folder does."""
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


class Watch:
    """Tells whether a file or folder may have changed since it was last asked."""

    __slots__ = ("_path", "_settled", "_stamp")

    def __init__(self, path: str | Path) -> None:
        self._path = watchable(path)
        self._stamp: Stamp | None = None
        self._settled = False

    def forget(self) -> None:
        """Have the next :meth:`changed` say so."""
        self._settled = False

    def may_have_changed(self) -> bool:
        """Return what :meth:`changed` would; the next one looks as if this had not."""
        return not self._settled or self._look() != self._stamp

    def _look(self) -> Stamp | None:
        try:
            return stamp_of(self._path)
        except OSError as error:
            # Whoever reads the file finds out what that means: of several nodes one may fail.
            return (-1, error.errno or 0, 0, 0, 0)

    def changed(self) -> bool:
        """Look again; return whether it may have changed since the last look, True at the first."""
        stamp = self._look()
        if stamp == self._stamp and self._settled:
            return False
        self._stamp = stamp
        self._settled = stamp is None or stamp[0] < 0 or is_settled(stamp)
        return True


def is_settled(stamp: Stamp) -> bool:
    """Return whether a file's last change lies so far back that the next one would show."""
    change_time = stamp[4]
    step = _COARSE_NS if change_time % 1_000_000_000 == 0 else _TICK_NS
    return abs(system.time_ns() - change_time) > step


class Watched(Generic[T]):
    """A value that is read from files, kept until one of them may have changed."""

    def __init__(self, paths: Sequence[str | Path], read: Callable[[], T]) -> None:
        self._watches = [Watch(path) for path in paths]
        self._read = read
        self._value: T | None = None

    def refresh(self) -> bool:
        """Read again if need be; tells whether it was read."""
        changes = [watch.changed() for watch in self._watches]  # each has to look
        if not any(changes):
            return False
        try:
            self._value = self._read()
        except BaseException:
            self.forget()
            raise
        return True

    def forget(self) -> None:
        """Have the next :meth:`refresh` read again, whatever the files say."""
        for watch in self._watches:
            watch.forget()

    @property
    def value(self) -> T:
        """The value as of the last :meth:`refresh`, which must have come before."""
        assert self._value is not None  # noqa: S101 - a mistake of ours, not of a user's
        return self._value


# ----------------------------------------------------------------------------------------------
# Which names have come to a folder, or gone, as the kernel tells (man 7 inotify).
#
# The time of a folder does not tell: a log directory has another one after each commit, and two
# changes within one tick of the clock show the same.
#
# ::
#
#     bytes   field
#     0-3     wd      int32    the watch; -1 where events were lost
#     4-7     mask    uint32   what happened
#     8-11    cookie  uint32   which two events are of one rename
#     12-15   len     uint32   length of the name, with the zeros that fill it up
#     16-     name


_EVENT: Final = struct.Struct("iIII")
_EVENTS_BYTES: Final = 64 << 10
_LONGEST_EVENT: Final = _EVENT.size + 256
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_UNMOUNT, _OVERFLOW, _IGNORED, _ONLY_FOLDERS = 0x2000, 0x4000, 0x8000, 0x1000000
_MASK: Final = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ONLY_FOLDERS


_MOST_PENDING: Final = 10_000
"""How many changes of one folder are kept until they are read."""


class NameChange(NamedTuple):
    """A name that has come to a folder, or gone."""

    name: str
    has_come: bool


def watch_names(folder: str) -> int:
    """Have the kernel tell of names in a folder; return the number of the watch.

    It is another one once the path leads to another folder, and below 0 where the kernel tells of
    none (macOS, too many that watch).

    REQUIRES: no other machine changes names there, of which this kernel hears nothing.
    """
    return remembered(_FolderEvents).watch(folder)


def name_changes(watch: int) -> list[NameChange] | None:
    """Return what has changed since this process has asked for a watch last.

    None where that is not known: at first, and where the kernel has dropped events.
    """
    return remembered(_FolderEvents).take(watch)


@forgotten_when_forked
class _FolderEvents:
    """The event queue of this process, and the changes of each watch that were not read yet."""

    def __init__(self) -> None:
        self._lock = system.lock()
        self._pending: dict[int, list[NameChange]] = {}
        self._library, self._queue = _open_queue()

    def watch(self, folder: str) -> int:
        """Watch a folder; one that is watched already keeps its number."""
        if self._queue < 0:
            return -1
        number: int = self._library.inotify_add_watch(self._queue, os.fsencode(folder), _MASK)
        return number

    def take(self, watch: int) -> list[NameChange] | None:
        """Return the changes of a watch, which are forgotten then; None where they are unknown."""
        if watch < 0:
            return None
        with self._lock:
            for event in self._events():
                self._note(*event)
            found = self._pending.get(watch)
            self._pending[watch] = []
            return found

    def _note(self, watch: int, mask: int, name: str) -> None:
        if mask & _OVERFLOW:
            self._pending.clear()
        elif mask & (_IGNORED | _UNMOUNT):  # the folder was removed, or its disk
            self._pending.pop(watch, None)
        elif watch in self._pending:
            self._pending[watch].append(NameChange(name, bool(mask & (_CREATE | _MOVED_TO))))
            if len(self._pending[watch]) > _MOST_PENDING:
                del self._pending[watch]

    def _events(self) -> Iterator[tuple[int, int, str]]:
        data = b"\0" * _EVENTS_BYTES
        while len(data) > _EVENTS_BYTES - _LONGEST_EVENT:  # else these were the last ones
            try:
                data = os.read(self._queue, _EVENTS_BYTES)
            except BlockingIOError:
                return
            position = 0
            while position < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, position)
                position += _EVENT.size
                name = data[position : position + length].rstrip(b"\0")
                position += length
                yield watch, mask, os.fsdecode(name)


def _open_queue() -> tuple[Any, int]:
    """Return the C library, and the descriptor of a new queue of events; -1 if there is none."""
    if sys.platform != "linux":
        return None, -1
    import ctypes  # noqa: PLC0415 - who looks at a few folders needs none of this

    library = ctypes.CDLL(None)
    try:
        return library, library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    except AttributeError:  # a C library without it
        return None, -1
