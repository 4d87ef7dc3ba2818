"""Run disk work in threads: copies, fsyncs.

Threads are of no use for work of short calls only: they would pass the interpreter's lock around at
each call, and be slower than one thread.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Final, Self, TypeVar

from kafkalog.files.deferred_signals import check_interrupt, current
from kafkalog.files.regular import close_quietly, sync
from kafkalog.files.system import system

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from types import TracebackType

__all__ = ["FileSyncer", "available_cores", "for_each", "sync_and_close"]

_T = TypeVar("_T")

_THREADS: Final = 8
_FILES_AT_ONCE: Final = 8
"""How many files one thread is given to sync: each hand-over costs as much as a short call."""
_HAND_OVERS: Final = 16
"""How often before the first thread must have come to its end: 128 files are open at most."""


def available_cores() -> int:
    """Return how many cores this process may use; all of them where the system does not tell."""
    if hasattr(os, "sched_getaffinity"):  # Linux alone has it
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def for_each(action: Callable[[_T], object], items: Sequence[_T]) -> None:
    """Call ``action`` with each item, in threads where there are several.

    All calls have ended when this returns or raises; it raises what the first one in order raised.
    Once one has failed, or the caller is interrupted, no other one begins.

    Raises:
        Interrupted: the caller was interrupted; items may have been left out.
    """
    check_interrupt()
    if len(items) <= 1:
        for item in items:
            action(item)
        return
    running, has_failed = current(), False

    def act(item: _T) -> None:
        nonlocal has_failed
        if has_failed or (running is not None and running.is_asked_to_stop):
            return
        try:
            action(item)
        except BaseException:
            has_failed = True
            raise

    with system.pool(min(_THREADS, len(items)), "kafkalog") as pool:
        futures = [pool.submit(act, item) for item in items]
    for future in futures:
        future.result()
    check_interrupt()


class FileSyncer:
    """Takes over open files, and syncs and closes them in threads while others are written.

    One alone is synced by the caller. Use it as a context manager: at its end all are durable, or
    the first error is raised. No file
    is synced twice, even if the first time failed. Its threads have ended then, however it ends.
    """

    def __init__(self) -> None:
        self._pool = system.pool(_THREADS, "kafkalog-sync")
        self._waiting: list[int] = []
        self._futures: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None and not self._futures and len(self._waiting) == 1:
                sync_and_close(self._waiting.pop())  # a thread for it would only be waited for
            self._hand_over()
        finally:
            self._pool.shutdown()
        if error is None:
            for future in self._futures:
                future.result()

    def add(self, descriptor: int) -> None:
        """Take over an open file that nothing more is written to."""
        self._waiting.append(descriptor)
        if len(self._waiting) == _FILES_AT_ONCE:
            self._hand_over()

    def _hand_over(self) -> None:
        """Give the waiting files to a thread; not more of them than may be open at once."""
        if not self._waiting:
            return
        self._futures.append(self._pool.submit(_sync_and_close, self._waiting))
        self._waiting = []
        if len(self._futures) > _HAND_OVERS:
            self._futures.popleft().result()


def sync_and_close(descriptor: int) -> None:
    """Make an open file durable, and close it."""
    _sync_and_close([descriptor])


def _sync_and_close(descriptors: Sequence[int]) -> None:
    failed: OSError | None = None
    for descriptor in descriptors:
        try:
            if failed is None:
                sync(descriptor)
        except OSError as error:
            failed = error
        finally:
            close_quietly(descriptor)
    if failed is not None:
        raise failed
