"""What we ask of the machine beside its files, and what one process remembers.

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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor


__all__ = [
    "FULL",
    "System",
    "failed_path",
    "once_per_process",
    "remembered",
    "said_of_file",
    "system",
]


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
        f"{said}. What makes room on a full disk, as it needs next to none: `kafkalog delete` of a "
        "topic, `kafkalog retain --config retention.bytes=…` or `kafkalog delete-records` of old "
        "records. Or give the disk a few blocks, and run this again"
    )


# ----------------------------------------------------------------------------------------------

_P = ParamSpec("_P")
_T = TypeVar("_T")

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
        self.pool: Callable[[int, str], Executor] = _pool
        """Make a pool from the number of its threads and their name."""
        self.memory: dict[object, Any] = {}
        """What this process remembers, see :func:`remembered` and :func:`once_per_process`."""


def remembered(kind: type[_T]) -> _T:
    """Return the only object of a class that this process has; it is made when first asked for."""
    found: _T | None = system.memory.get(kind)
    return found if found is not None else system.memory.setdefault(kind, kind())


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


def _pool(threads: int, name: str) -> Executor:
    from kafkalog.files.thread_pool import ThreadPool  # noqa: PLC0415 - a reader needs none

    return ThreadPool(threads, name)


system: Final = System()
"""The machine that this process runs on."""
