"""The locks that a writer holds on every log directory of a set.

Two files in each directory, both locked with record locks (``fcntl``):

``kafkalog.lock``
    keeps our own writers apart. A writer waits for it. Its text names the holder.
``.lock``
    Kafka's. A running broker holds it through Java's ``FileChannel.lock``, which is the same kind
    of lock. A writer does not wait for it, except for the moment that a killed writer of ours
    takes to die.

POSIX locks belong to the process, and are lost with the first close of *any* descriptor of the
file: a thread that copies the directory is enough. So the locks are those of an open file (Linux:
``F_OFD_SETLK``). They keep out POSIX locks, Java's too, and are kept out by them. On systems
without them, :meth:`DirectoryLocks.verify` locks again, and a writer that publishes looks if
somebody else has published. A mutex beside the locks keeps threads of one process apart.

Kafka deletes its file when it stops. A lock on a file that is no longer the one on the disk
protects nothing. This is checked when the lock is taken, and by :meth:`DirectoryLocks.verify`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from kafkalog.checkpoints.broker import LOCK, broker_holds, is_locked
from kafkalog.checkpoints.commit_state import LOCK_FILE
from kafkalog.errors import LockTimeoutError, LogDirectoryError
from kafkalog.files.closing import Closing
from kafkalog.files.deferred_signals import check_interrupt
from kafkalog.files.regular import close_quietly, create_exclusive, open_known
from kafkalog.files.system import forgotten_when_forked, remembered, system
from kafkalog.streaming.store.file_systems import is_shared

if TYPE_CHECKING:
    from collections.abc import Iterable
    from threading import Lock

    from kafkalog.model import TopicPartition


__all__ = [
    "CLEANED_PREFIX",
    "CLEANER_PREFIX",
    "CleanerBusyError",
    "CleanerLock",
    "DirectoryLocks",
    "check_no_broker",
    "check_unused",
    "remove_orphans",
    "seems_held_by_broker",
]

_OFD_SETLK: Final = fcntl.F_OFD_SETLK if sys.platform == "linux" else None
_FLOCK: Final = struct.Struct("hhqqi4x")
_HELD_BY_OTHERS: Final = frozenset({errno.EACCES, errno.EAGAIN})
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.25
_DYING_S: Final = 1.0
"""The locks of a writer that is killed fall one after the other: Kafka's may be the later one."""
_HOLDER_BYTES: Final = 500


class _Held(NamedTuple):
    """A file that is open, and locked; ``number`` are device and inode, which it keeps."""

    path: Path
    descriptor: int
    number: tuple[int, int]
    is_shared: bool
    """Whether other machines may lock it too."""

    @classmethod
    def of(cls, path: Path, *, shared: bool) -> Self:
        """Open a file that is to be locked; it is made if need be."""
        descriptor, found = _open(path)
        return cls(path, descriptor, (found.st_dev, found.st_ino), shared)


class DirectoryLocks(Closing):
    """Both locks of all ``directories``, held from ``with`` to its end, in a shielded thread.

    They are taken in the order of their real paths, so that two writers with overlapping sets
    cannot wait for each other. ``holder`` is what others read about us while they wait.
    """

    def __init__(self, directories: Iterable[Path], *, holder: str, timeout_ms: int) -> None:
        self._given = {Path(folder): Path(os.path.realpath(folder)) for folder in directories}
        self._directories = sorted(self._given.values())
        self._holder = holder
        self._timeout_ms = timeout_ms
        self._text = b""
        self._held: list[_Held] = []
        self._are_shared: dict[Path, bool] = {}
        self._undo = ExitStack()

    @property
    def directories(self) -> list[Path]:
        """The real paths of the directories, in the order in which they were given."""
        return list(self._given.values())

    @property
    def given(self) -> list[Path]:
        """The directories as they were given."""
        return list(self._given)

    def __enter__(self) -> Self:
        """Take the locks.

        Raises:
            LockTimeoutError: another writer held one of the directories for too long.
            LogDirectoryError: a broker holds one, or the file system has no locks.
        """
        deadline = system.monotonic() + self._timeout_ms / 1000
        with ExitStack() as undo:
            for folder in self._directories:
                self._take_mutex(folder, deadline, undo)
                _leave_to_broker(folder)
                self._wait_for(folder / LOCK_FILE, deadline, undo)
            for folder in self._directories:
                self._take_from_broker(folder / LOCK, undo)
            self._check_links()
            self._undo = undo.pop_all()
        return self

    def close(self) -> None:
        """Give all locks back."""
        self._held.clear()
        self._undo.close()

    def verify(self) -> None:
        """Check that every file is still locked, and still the one on the disk.

        Raises:
            LogDirectoryError: a lock was lost; somebody deleted or replaced a file, so that it
                protects nothing; or a link leads elsewhere now.
        """
        # Looked at by the paths that are written to: so it also shows a folder that is away, or
        # another one in its place.
        self._check_links()
        for held in self._held:
            if not _is_on_disk(held):
                raise LogDirectoryError(
                    f"{held.path} was deleted or replaced while it was locked, by a broker that "
                    "stopped or by hand: nothing was written; try again"
                )
            if _may_be_lost(held) and not _try_lock(held):
                raise LogDirectoryError(
                    f"the lock on {held.path} was lost, and another process holds it now. Nothing "
                    "was written; try again"
                )
            if held.path.name == LOCK_FILE and held.is_shared:
                self._prove(held)

    def _check_links(self) -> None:
        """Check that the paths lead where the locks are: else a commit would publish elsewhere.

        A path without links is the one by which the locked files are found on the disk.
        """
        for given, folder in self._given.items():
            if given != folder and Path(os.path.realpath(given)) != folder:
                raise LogDirectoryError(
                    f"log directory {given} led to {folder}, whose locks were taken, and leads "
                    f"to {os.path.realpath(given)} now. Nothing was written; try again"
                )

    def _prove(self, held: _Held) -> None:
        """Write to a locked file: a server that has given the lock to another host refuses that.

        A host that the server has not heard of for a while, be it asleep, loses its locks.
        """
        try:
            os.pwrite(held.descriptor, self._text[:1], 0)
            os.fsync(held.descriptor)
        except OSError as error:
            raise LogDirectoryError(
                f"the lock on {held.path} was lost: its server has not heard of this machine for "
                f"too long ({error.strerror}). Nothing was written; try again"
            ) from error

    def _take_mutex(self, folder: Path, deadline: float, undo: ExitStack) -> None:
        mutex = remembered(_Mutexes).of(folder)
        while not mutex.acquire(
            timeout=min(_LONGEST_PAUSE_S, max(0, deadline - system.monotonic()))
        ):
            check_interrupt()
            if system.monotonic() >= deadline:
                raise self._timed_out(folder, "another thread of this process")
        undo.callback(mutex.release)

    def _wait_for(self, path: Path, deadline: float, undo: ExitStack) -> None:
        pause = _FIRST_PAUSE_S
        while (holder := self._take(path, undo)) is not None:
            check_interrupt()
            if system.monotonic() >= deadline:
                raise self._timed_out(path.parent, holder)
            system.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        self._sign(self._held[-1])

    def _take_from_broker(self, path: Path, undo: ExitStack) -> None:
        deadline = system.monotonic() + _DYING_S
        while self._take(path, undo) is not None:
            if system.monotonic() >= deadline:
                raise _held_by_broker(path)
            system.sleep(_FIRST_PAUSE_S)

    def _is_shared(self, folder: Path) -> bool:
        """Whether other machines may lock the files of a folder; asked once for both."""
        if folder not in self._are_shared:
            self._are_shared[folder] = is_shared(folder)
        return self._are_shared[folder]

    def _take(self, path: Path, undo: ExitStack) -> str | None:
        """Lock one file; if another process holds it, return what that says about itself."""
        while True:
            held = _Held.of(path, shared=self._is_shared(path.parent))
            remembered(_Descriptors).add(held.descriptor)
            with ExitStack() as on_failure:
                on_failure.callback(_release, held.descriptor)
                if not _try_lock(held):
                    text = os.pread(held.descriptor, _HOLDER_BYTES, 0).decode("utf-8", "replace")
                    return text.strip() or "a process that left no name"
                if _is_on_disk(held):
                    self._held.append(held)
                    undo.push(on_failure.pop_all())
                    return None

    def _sign(self, held: _Held) -> None:
        now = datetime.fromtimestamp(system.time_ns() / 1e9, UTC).isoformat(timespec="seconds")
        process = f"process {system.process_id()} on {system.host_name()}"
        text = f"{self._holder:.300}, {process}, since {now}\n"
        # Filled up, so that nothing is left of a longer name: to cut that off takes a millisecond.
        self._text = text.encode("utf-8", "backslashreplace")[:_HOLDER_BYTES].ljust(_HOLDER_BYTES)
        # A full disk is no reason not to hold a lock.
        with suppress(OSError):
            os.pwrite(held.descriptor, self._text, 0)

    def _try_file(self, folder: Path, name: str, undo: ExitStack) -> bool:
        """Lock a file of its own in a folder, unless another thread or process has it.

        It is never opened without the mutex: to close it again would lose a POSIX lock on it.
        """
        mutex = remembered(_Mutexes).of(folder, name)
        if not mutex.acquire(blocking=False):
            return False
        undo.callback(mutex.release)
        if self._take(folder / name, undo) is not None:
            return False
        self._sign(self._held[-1])
        return True

    def _timed_out(self, folder: Path, holder: str) -> LockTimeoutError:
        return LockTimeoutError(
            f"log directory {folder} was held for more than {self._timeout_ms} ms by {holder}. "
            "Nothing was written; the time to wait is the option max.block.ms"
        )


def check_no_broker(folder: Path, *, timeout_ms: int) -> None:
    """Refuse a directory that a broker holds, before anything is written.

    A writer of ours at work holds Kafka's lock too, but never without ``kafkalog.lock``.

    Raises:
        LogDirectoryError: a broker, or a tool of Kafka's, is running on it.
    """
    if not seems_held_by_broker(folder):
        return
    # Whoever it was may have come or gone between the two looks. With our own lock, it is sure.
    with (
        suppress(LockTimeoutError),
        DirectoryLocks([folder], holder="a look for a broker", timeout_ms=timeout_ms),
    ):
        return


def seems_held_by_broker(folder: Path) -> bool:
    """Whether a broker seems to hold a directory now; makes nothing, waits for no process."""
    mutex = remembered(_Mutexes).of(folder)
    if mutex.locked():
        return False  # a thread of this process has all locks; looking would make it lose one
    with mutex:  # acquire() would keep it for good where an alarm follows
        return broker_holds(folder) and not is_locked(folder / LOCK_FILE)


def check_unused(folder: Path) -> None:
    """Refuse a directory on which a broker or a writer of ours is at work; makes and takes nothing.

    Raises:
        LogDirectoryError: a broker, or a tool of Kafka's, is running on it.
        LockTimeoutError: a writer of ours is at work.
    """
    mutex = remembered(_Mutexes).of(folder)
    is_ours = mutex.locked()
    if not is_ours:
        with mutex:  # acquire() would keep it for good where an alarm follows
            is_ours = is_locked(folder / LOCK_FILE)
            if not is_ours and broker_holds(folder):
                raise _held_by_broker(folder / LOCK)
    if is_ours:
        raise LockTimeoutError(f"a writer is at work on log directory {folder}: try again later")


def _leave_to_broker(folder: Path) -> None:
    """Refuse a directory that a broker holds before anything of ours is made in it.

    The caller has the folder's mutex. A writer of ours makes its own file before it takes Kafka's.

    Raises:
        LogDirectoryError: a broker holds it, and we have never written there.
    """
    ours = folder / LOCK_FILE
    if not ours.exists() and broker_holds(folder) and not ours.exists():
        raise _held_by_broker(folder / LOCK)


def _held_by_broker(path: Path) -> LogDirectoryError:
    return LogDirectoryError(
        f"{path} is held: a broker, or a tool of Kafka's, is running on this log directory. It can "
        "be read meanwhile; stop the broker before writing"
    )


@forgotten_when_forked
class _Mutexes:
    """What keeps the threads of this process apart, for each directory by device and inode.

    A lock in a directory that is not the directory's own has a name.
    """

    def __init__(self) -> None:
        self._guard = system.lock()
        self._found: dict[tuple[int, int, str], Lock] = {}

    def of(self, folder: Path, name: str = "") -> Lock:
        """Return the mutex of a directory, or of a lock with a name there."""
        found = folder.stat()
        with self._guard:
            return self._found.setdefault((found.st_dev, found.st_ino, name), system.lock())


class _Descriptors(set[int]):
    """Open lock files. A forked child has them too, and would keep their locks."""

    def __init__(self) -> None:
        self.of_process: set[int] = set()
        """Those whose locks are the process's: any descriptor of the file that it closes loses one.
        """

    def close(self) -> None:
        """Close all of them."""
        while self:
            close_quietly(self.pop())


os.register_at_fork(after_in_child=lambda: remembered(_Descriptors).close())


def _release(descriptor: int) -> None:
    """Give the lock of an open file back, whoever else has it open, and close it."""
    ours = remembered(_Descriptors)
    if descriptor in ours:
        ours.discard(descriptor)
        with suppress(OSError):
            _set_lock(descriptor, fcntl.F_UNLCK)
        ours.of_process.discard(descriptor)
        close_quietly(descriptor)  # of its bytes, who holds it, nothing is needed any more


def _set_lock(descriptor: int, kind: int) -> None:
    if _OFD_SETLK is not None:
        try:
            fcntl.fcntl(descriptor, _OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0))
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system, or a kernel, without such locks
                raise
        else:
            return
    remembered(_Descriptors).of_process.add(descriptor)
    exclusive = fcntl.LOCK_EX | fcntl.LOCK_NB
    fcntl.lockf(descriptor, fcntl.LOCK_UN if kind == fcntl.F_UNLCK else exclusive)


def _open(path: Path) -> tuple[int, os.stat_result]:
    while True:
        try:
            return open_known(path, os.O_RDWR)
        except FileNotFoundError:
            pass
        try:
            descriptor = create_exclusive(path)
            return descriptor, os.fstat(descriptor)
        except FileExistsError:
            continue  # another process was faster
        except OSError as error:
            raise LogDirectoryError(
                f"{path} cannot be made, so nothing can be written: {error.strerror}"
            ) from error


def _try_lock(held: _Held) -> bool:
    try:
        _set_lock(held.descriptor, fcntl.F_WRLCK)
    except OSError as error:
        if error.errno in _HELD_BY_OTHERS:
            return False
        raise LogDirectoryError(
            f"{held.path} cannot be locked: {error.strerror}. A file system without locks cannot "
            "be written to, since nothing would keep writers apart"
        ) from error
    return True


def _may_be_lost(held: _Held) -> bool:
    """Whether a lock may go though its file is open: a server's, or one of the process's."""
    return held.is_shared or held.descriptor in remembered(_Descriptors).of_process


def _is_on_disk(held: _Held) -> bool:
    try:
        found = held.path.lstat()
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == held.number


# ----------------------------------------------------------------------------------------------
# Who cleans a partition: a lock of its own, and the files that a cleaner writes.
#
# Both lie in the root of the log directory, where readers and brokers pass over them:
#
# ``.kafkalog.cleaner.<hash>``
#     is locked by whoever cleans a partition, and names him; ``<hash>`` is of the partition. It
#     goes when he is done.
# ``.kafkalog.cleaned.<hash>.<uuid>.<segment>``
#     is what he has written. What nobody's lock belongs to is an orphan: its writer was killed.
#
# The lock says nothing about the partition's folder: only a session may change that.


CLEANER_PREFIX: Final = ".kafkalog.cleaner."
CLEANED_PREFIX: Final = ".kafkalog.cleaned."

_HASH_BYTES: Final = 8


class CleanerBusyError(LockTimeoutError):
    """Another cleaner works on the partition."""


class CleanerLock(DirectoryLocks):
    """The right to clean one partition, from ``with`` to its end.

    ``holder`` is what others are told who would clean it, too. What an earlier cleaner has left is
    removed at the beginning, and what this one has, at the end.
    """

    def __init__(self, log_dir: Path, digest: str, *, holder: str) -> None:
        super().__init__([log_dir], holder=holder, timeout_ms=0)
        (self._log_dir,) = self.directories
        self._file = self._log_dir / f"{CLEANER_PREFIX}{digest}"
        self._written = f"{CLEANED_PREFIX}{digest}."

    @classmethod
    def of(cls, log_dir: Path, key: TopicPartition, *, holder: str) -> Self:
        """Make the lock of a partition."""
        digest = blake2b(str(key).encode(), digest_size=_HASH_BYTES).hexdigest()
        return cls(log_dir, digest, holder=f"{holder} of {key}")

    def __enter__(self) -> Self:
        """Take the lock.

        Raises:
            CleanerBusyError: another cleaner has it.
            LogDirectoryError: the file system has no locks.
        """
        with ExitStack() as undo:
            holder = self._take(self._file, undo)
            if holder is not None:
                raise CleanerBusyError(f"it is cleaned at this moment by {holder}")
            self._sign(self._held[-1])
            self._remove_written()
            self._undo = undo.pop_all()
        return self

    def close(self) -> None:
        """Remove what was written and is not needed, and give the lock back."""
        with suppress(OSError):
            self._remove_written()
            self._file.unlink()  # still locked: who waits for it notices, and makes another one
        super().close()

    def new_prefix(self) -> str:
        """Return what the names of new files begin with."""
        return f"{self._written}{system.random_id().hex}."

    def _remove_written(self) -> None:
        for path in self._log_dir.iterdir():
            if path.name.startswith(self._written):
                path.unlink(missing_ok=True)


def remove_orphans(log_dir: Path) -> None:
    """Remove what cleaners have left that were killed, of any partition."""
    names = [path.name for path in log_dir.iterdir()]
    prefixes = (CLEANER_PREFIX, CLEANED_PREFIX)
    found = {
        name.removeprefix(prefix).partition(".")[0]
        for name in names
        for prefix in prefixes
        if name.startswith(prefix)
    }
    for digest in sorted(found):
        with suppress(CleanerBusyError), CleanerLock(log_dir, digest, holder="a cleaner's end"):
            pass
