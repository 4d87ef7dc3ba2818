"""Clock, random numbers, threads, renames in one object that tests can replace.

``system`` gives the time, rests, threads, locks between threads, chance, and the names of process
and machine. Files are asked for through the functions of ``os`` and ``fcntl``. A simulation
replaces both, and lets many processes run in one: each gets a ``memory`` of its own.

Everything else that a module keeps is the same for all processes: compiled kernels, parsed
constants, and what belongs to one thread.
"""

from __future__ import annotations

import errno
import functools
import os
import threading
import time
import uuid
from _thread import start_new_thread
from collections import deque
from concurrent.futures import Executor, Future
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = [
    "FULL",
    "System",
    "ThreadPool",
    "failed_path",
    "forgotten_when_forked",
    "lock_held_by_forks",
    "once_per_process",
    "remembered",
    "said_of_file",
    "start_thread_if_possible",
    "system",
]


# ----------------------------------------------------------------------------------------------
# Threads. All that a process of ours may have are started here: a lone one, or those of a pool.
# The table in docs/architecture.md says of each who starts and ends it, and what an interrupt and a
# fork do to it.


_P = ParamSpec("_P")
_T = TypeVar("_T")


def start_thread_if_possible(function: Callable[..., object], *args: object) -> bool:
    """Start a thread; return whether that was possible.

    It is not when the interpreter shuts down, from the end of the main thread on in Python 3.12,
    nor where the system has no more threads to give.
    """
    try:
        # One call: an interrupt within Thread.start may leave a thread that never runs.
        system.start_thread(function, args)
    except RuntimeError as error:  # Python 3.13 raises a kind of it at shutdown
        if "thread" in str(error):
            return False
        raise
    return True


class ThreadPool(Executor):
    """Does what is submitted in threads, at most so many; an idle one is taken before a new one.

    Unlike ``ThreadPoolExecutor`` it works while the interpreter shuts down, when an exit hook or a
    thread that outlives the main one may append a last row: what no thread can be started for is
    done by :meth:`submit`, before it returns.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._most = threads
        self._name = name
        self._guard = Lock()
        self._backlog: deque[_Work] = deque()
        self._threads = self._idle = 0
        self._is_shut = False
        self._handed: SimpleQueue[_Work | None] = SimpleQueue()
        """Work for idle threads; None lets one end."""
        self._ended: SimpleQueue[None] = SimpleQueue()

    def submit(
        self, task: Callable[_P, _T], /, *arguments: _P.args, **named: _P.kwargs
    ) -> Future[_T]:
        """Have a call made; returns what its result, or what it raised, is asked of.

        Raises:
            RuntimeError: the pool is shut down.
        """
        work = _Work(lambda: task(*arguments, **named))
        with self._guard:
            if self._is_shut:
                raise RuntimeError(f"the pool {self._name!r} is shut down")
            if self._idle:
                self._idle -= 1
                self._handed.put(work)
                return work.future
            if self._threads < self._most and self._start(work):
                return work.future
            if self._threads:
                self._backlog.append(work)
                return work.future
        work.do()
        return work.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more; threads end when all is done, which is waited for."""
        with self._guard:
            threads, self._is_shut = (0 if self._is_shut else self._threads), True
            while cancel_futures and self._backlog:
                self._backlog.popleft().future.cancel()
            while self._idle:
                self._idle -= 1
                self._handed.put(None)
        for _ in range(threads if wait else 0):
            self._ended.get()

    def _start(self, work: _Work) -> bool:
        name = f"{self._name}_{self._threads}"
        try:
            Thread(target=self._run, args=(work,), name=name, daemon=True).start()
        except RuntimeError:  # at shutdown (Python 3.12), or where the system has no more
            return False
        self._threads += 1
        return True

    def _run(self, work: _Work | None) -> None:
        while work is not None:
            work.do()
            work = self._next()
        self._ended.put(None)

    def _next(self) -> _Work | None:
        with self._guard:
            if self._backlog:
                return self._backlog.popleft()
            if self._is_shut:
                return None
            self._idle += 1
        return self._handed.get()


class _Work:
    """One call, and its future."""

    __slots__ = ("_call", "future")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.future: Future[Any] = Future()

    def do(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            value = self._call()
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            self.future.set_exception(error)
        else:
            self.future.set_result(value)
        del self._call  # with all that it holds


# ----------------------------------------------------------------------------------------------
# Why a call of the system failed, and on which file.


FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""There is no room on a disk, or none that is left to this user."""

_STATE_FILE: Final = "kafkalog.commit"
"""What a log directory has that somebody of ours has written to."""


def failed_path(error: BaseException | None) -> Path | None:
    """Return the path that an error, or the one that it came of, names; None if none does."""
    while error is not None:
        if isinstance(error, OSError) and isinstance(error.filename, str | bytes):
            return Path(os.fsdecode(error.filename))
        error = error.__cause__
    return None


def said_of_file(error: BaseException) -> str:
    """Return what an error says; of a file of a log on a full disk, also what makes room."""
    if not isinstance(error, OSError) or error.filename is None or error.strerror is None:
        return str(error)
    path = Path(os.fsdecode(error.filename))
    said = f"{path}: {error.strerror}"
    folders = (path.parent, path.parent.parent)
    if error.errno not in FULL or not any((each / _STATE_FILE).exists() for each in folders):
        return said
    return (
        f"{said}. What makes room on a full disk, as it needs next to none: `kafkalog topic "
        "delete` of a "
        "topic, `kafkalog retain --config retention.bytes=…` or `kafkalog topic trim` of old "
        "records. Or give the disk a few blocks, and run this again"
    )


_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_MOUNTS: Final = Path("/proc/self/mountinfo")


class System:
    """Functions that ask the machine, each as its namesake in the standard library does.

    They are attributes, so that a call costs what the function itself does. Ask for them where they
    are called: ``system.sleep(1)``. What is bound when a module is loaded cannot be replaced.
    """

    __slots__ = (
        "boot_id",
        "boottime",
        "host_name",
        "lock",
        "memory",
        "monotonic",
        "mounts",
        "pool",
        "process_id",
        "random_id",
        "sleep",
        "start_thread",
        "time_ns",
    )

    def __init__(self) -> None:
        self.time_ns: Callable[[], int] = time.time_ns
        self.monotonic: Callable[[], float] = time.monotonic
        self.boottime: Callable[[], float] = _boottime
        """As ``monotonic``, and goes on while the machine is suspended."""
        self.sleep: Callable[[float], object] = time.sleep
        self.process_id: Callable[[], int] = os.getpid
        self.host_name: Callable[[], str] = _host_name
        self.boot_id: Callable[[], str | None] = _boot_id
        """The id that Linux draws when it starts; None where the system has none."""
        self.mounts: Callable[[], str | None] = _mounts
        """The text of ``/proc/self/mountinfo``; None where there is none."""
        self.random_id: Callable[[], uuid.UUID] = uuid.uuid4
        self.lock: Callable[[], threading.Lock] = threading.Lock
        self.start_thread: Callable[[Callable[..., object], tuple[Any, ...]], int]
        self.start_thread = start_new_thread
        self.pool: Callable[[int, str], Executor] = ThreadPool
        """Make a pool from the number of its threads and their name."""
        self.memory: dict[object, Any] = {}
        """What this process remembers, see :func:`remembered` and :func:`once_per_process`."""


def remembered(kind: type[_T]) -> _T:
    """Return the only object of a class that this process has; it is made when first asked for."""
    found: _T | None = system.memory.get(kind)
    return found if found is not None else system.memory.setdefault(kind, kind())


def forgotten_when_forked(kind: type[_T]) -> type[_T]:
    """Let a forked child begin without the :func:`remembered` object of a class.

    It does not have the threads that this belongs to, or that held a lock of it at that moment.
    """
    os.register_at_fork(after_in_child=lambda: system.memory.pop(kind, None))
    return kind


def lock_held_by_forks() -> threading.RLock:
    """Make a lock that a thread takes before it forks, and gives back after: no other has it then.

    For what a forked child could not go on with, as with another thread's lock in a library.
    """
    lock = threading.RLock()
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )
    return lock


def once_per_process(function: Callable[_P, None]) -> Callable[_P, None]:
    """Let a function do nothing if the same process calls it again with the same arguments.

    So a warning is said once. The last 10,000 arguments are known.
    """

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> None:
        known = system.memory.get(call)
        if known is None:
            known = system.memory.setdefault(call, functools.lru_cache(10_000)(function))
        known(*args, **kwargs)

    return call


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _host_name() -> str:
    return os.uname().nodename


@functools.cache
def _boot_id() -> str | None:
    try:
        return _BOOT_ID.read_text().strip() or None
    except OSError:
        return None


def _mounts() -> str | None:
    try:
        return _MOUNTS.read_text("utf-8", "surrogateescape")
    except OSError:
        return None


system: Final = System()
"""The machine that this process runs on."""
