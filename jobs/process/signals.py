"""Signals: what Ctrl-C and SIGTERM do to a process that works with Spark.

A call into the JVM that an interrupt breaks off is told by py4j with a trace, and one that the
handler makes meanwhile fails ("reentrant call"). So nothing is called, and nothing is broken off,
while Spark starts; after that, jobs are cancelled from a thread of their own.
"""

from __future__ import annotations

import logging
import signal
import threading
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from rich.console import Console

from kafkalog.files.system import start_thread_if_possible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark import SparkContext

__all__ = ["cancel_jobs_on_interrupt", "noting_signals", "uninterrupted"]

_T = TypeVar("_T")

_LOOK_SECONDS: Final = 0.25
_WAITS: Final = "This ends as soon as Spark has started. Ctrl-C again ends it now."

_CANCEL_SECONDS: Final = 2.0

_CALLERS: Final = ("py4j.clientserver", "py4j.java_gateway")
"""The loggers that tell of a call that was broken off."""


@contextmanager
def noting_signals() -> Iterator[list[int]]:
    """Note the first signal that asks the process to end; the next one does what it did before."""
    asked: list[int] = []
    before: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _: object) -> None:
        asked.append(number)
        restore()

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, note)
    try:
        yield asked
    finally:
        restore()


def uninterrupted(
    prepare: Callable[[], object], start: Callable[[], _T], roll_back: Callable[[_T], object]
) -> _T:
    """Start something, and let the first signal wait until it has started.

    Args:
        prepare: what comes first, and may set handlers if it runs in the main thread: it runs in
            another one.
        start: what comes then, in this thread.
        roll_back: ends what has started, if a signal came meanwhile.

    Returns:
        What has started.

    Raises:
        KeyboardInterrupt: SIGINT has come; at the second one at once.
        SystemExit: SIGTERM has come.
    """
    if threading.current_thread() is not threading.main_thread():
        prepare()
        return start()
    with noting_signals() as asked:
        done = _in_thread(prepare)
        _tell_once_asked(done, asked)
        done.result()
        started = start()
    if not asked:
        return started
    roll_back(started)
    if asked[0] == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + asked[0])


def _tell_once_asked(done: Future[object], asked: list[int]) -> None:
    """Wait until that is done; say so if a signal comes meanwhile."""
    while not wait([done], _LOOK_SECONDS).done:
        if asked:
            Console(stderr=True).print(_WAITS, soft_wrap=True, highlight=False)
            return


def _in_thread(act: Callable[[], object]) -> Future[object]:
    """Act in a thread that nobody has to wait for, as one would for that of a pool."""
    done: Future[object] = Future()

    def run() -> None:
        try:
            done.set_result(act())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            done.set_exception(error)

    if not start_thread_if_possible(run):
        run()
    return done


def cancel_jobs_on_interrupt(context: SparkContext) -> None:
    """Let Ctrl-C cancel Spark's jobs before it interrupts, unless something else is set up.

    That is what PySpark sets up itself where a context is made in the main thread.
    """
    for name in _CALLERS:
        logging.getLogger(name).addFilter(_is_no_interrupt)
    there = signal.getsignal(signal.SIGINT)
    if there is signal.default_int_handler or isinstance(there, _CancelsJobs):
        with suppress(ValueError):  # only the main thread sets handlers
            signal.signal(signal.SIGINT, _CancelsJobs(context))


class _CancelsJobs:
    """Handles Ctrl-C; the next context puts its own in the place of this one."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context

    def __call__(self, _: int, __: object) -> NoReturn:
        wait([_in_thread(self._context.cancelAllJobs)], _CANCEL_SECONDS)
        raise KeyboardInterrupt


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return not (record.exc_info and record.exc_info[0] is KeyboardInterrupt)
