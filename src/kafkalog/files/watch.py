"""Keep a value read from files; read it again only when ``stat`` changes.

A query asks every 10 ms while rows come, and ten times a second when it is idle. So a look must
cost no more than one ``stat`` a file.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from kafkalog.files.remote_path import RemotePath
from kafkalog.files.system import system
from kafkalog.files.timeouts import stalled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["Stamp", "Watch", "Watched", "is_settled", "stamp_from", "stamp_of", "watchable"]

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
