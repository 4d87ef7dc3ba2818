"""Interrupt the caller at a call that changes a file: a signal, whose handler raises.

As with Ctrl-C, and with an alarm that ends what takes too long, the handler runs in the main
thread, wherever that is by then. The call that was chosen waits until it has run, and goes on.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.support.killing import CHANGING_CALLS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

__all__ = ["AlarmError", "interrupted_at", "raising"]

_WAIT_S = 30


class AlarmError(BaseException):
    """What the handler raises; no mistake, as KeyboardInterrupt is none."""


class _Handler:
    """The handler of a signal: counts how often one has run, and raises each time."""

    runs = 0  # of all: of two that are nested, the inner one runs

    def __call__(self, number: int, frame: FrameType | None) -> None:
        _Handler.runs += 1
        raise AlarmError

    def interrupt(self) -> None:
        """Send the signal, and let the handler run."""
        runs = _Handler.runs
        # To that thread: a signal to the process may meet another one, which does not wake it.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        waited = threading.Event()
        for _ in range(_WAIT_S * 1000):
            if _Handler.runs > runs:
                return
            waited.wait(0.001)
        raise AssertionError("no handler has run: the main thread cannot be interrupted")


@contextmanager
def raising() -> Iterator[Callable[[], None]]:
    """Return what interrupts the main thread, from any thread, and returns when that is done."""
    handler = _Handler()
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield handler.interrupt
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def interrupted_at(call: int, *, times: int = 1) -> Iterator[Callable[[], bool]]:
    """Interrupt the caller at the ``call``-th change of a file, counted from 0, ``times`` times.

    Gives what tells whether there was such a call.
    """
    originals = {name: getattr(os, name) for name in CHANGING_CALLS}
    guard = threading.Lock()
    calls = 0

    with raising() as interrupt:

        def counting(name: str) -> Callable[..., Any]:
            def function(*arguments: Any, **named: Any) -> Any:
                nonlocal calls
                if name != "open" or arguments[1] & os.O_CREAT:
                    with guard:
                        is_chosen = calls == call
                        calls += 1
                    for _ in range(times * is_chosen):
                        interrupt()
                return originals[name](*arguments, **named)

            return function

        try:
            for name in CHANGING_CALLS:
                setattr(os, name, counting(name))
            yield lambda: calls > call
        finally:
            for name, original in originals.items():
                setattr(os, name, original)
