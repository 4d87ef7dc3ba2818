"""Let an action that holds locks come to its end, whatever interrupts the caller.

Ctrl-C, an alarm, and a notebook's interrupt raise an exception between any two instructions of a
thread. If the caller held the locks, it would give them back, or take a commit back, while other
threads still write and cut. So an action that holds locks runs in a thread of its own, which
nothing interrupts: Python runs signal handlers in the main thread only. The caller waits. When it
is interrupted, it asks the thread to stop, waits for it, and then raises what interrupted it.

The thread stops where nothing is left half done, see :func:`check_interrupt`: queued work never
begins, running work ends, the commit is taken back, and the locks are given back last.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Final, Generic, ParamSpec, Protocol, TypeVar

from kafkalog.files.system import system

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Interrupted",
    "Running",
    "Shielded",
    "check_interrupt",
    "current",
    "run_as",
    "shielded",
    "shielded_part",
    "shielded_rest",
]

_P = ParamSpec("_P")
_T = TypeVar("_T")

_LOOK_S: Final = 0.25
"""How long to wait at once: a signal that comes right before the wait does not end it."""

_ALL: Final = "all"
_BEGINNING: Final = "beginning"
_REST: Final = "rest"

_CALLER: Final = "caller"
_THREAD: Final = "thread"


class Interrupted(BaseException):
    """Ends what runs in a shielded thread; its caller raises what has interrupted the caller."""


def shielded(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let a function run in a shielded thread; called in one, it runs there.

    What interrupts the caller is raised once the function has ended, never before. Notes to that
    exception say how the function ended.
    """

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if _HERE.running is not None:
            return function(*args, **kwargs)
        return Shielded(functools.partial(function, *args, **kwargs)).result()

    return call


def shielded_part(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Do as :func:`shielded`, for what is only the beginning of what the caller wants.

    An interrupt has stopped that before it was done, though the beginning came to its end.
    """

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if _HERE.running is not None:
            return function(*args, **kwargs)
        return Shielded(functools.partial(function, *args, **kwargs), part=_BEGINNING).result()

    return call


def shielded_rest(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Do as :func:`shielded`, for what follows when all that the caller wants is done.

    An interrupt came too late to stop that, whatever it stops of the rest.
    """

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if _HERE.running is not None:
            return function(*args, **kwargs)
        return Shielded(functools.partial(function, *args, **kwargs), part=_REST).result()

    return call


def check_interrupt() -> None:
    """Stop here if the caller was interrupted; do nothing in a thread that is not shielded.

    Raises:
        Interrupted: it was, since this was last raised. So what clears up afterwards may continue.
    """
    running = _HERE.running
    if running is not None and running.is_asked_to_stop:
        running.is_asked_to_stop = False
        raise Interrupted


class Running(Protocol):
    """An action of a thread that is not interrupted, and looks itself whether it is to stop."""

    is_asked_to_stop: bool


def current() -> Running | None:
    """Return the shielded action of this thread, None if there is none."""
    return _HERE.running


def run_as(running: Running | None) -> None:
    """Say what a new thread runs, which is as shielded as what it belongs to; None is not."""
    _HERE.running = running


class _Here(threading.local):
    running: Running | None = None


_HERE: Final = _Here()


class Shielded(Generic[_T]):
    """One action, in a thread of its own; ``part`` says which of what its caller wants it is."""

    def __init__(self, action: Callable[[], _T], *, part: str = _ALL) -> None:
        self.is_asked_to_stop = False
        self._part = part
        self._action = action
        self._values: list[_T] = []
        self._error: BaseException | None = None
        self._first: dict[None, str] = {}
        """Who was first: the thread, which then acts, or the caller, who wants nothing any more."""
        self._has_ended = False
        self._end = system.lock()
        # A bare lock: an interrupt may leave an Event that is waited for locked for ever.
        self._end.acquire()

    def result(self) -> _T:
        """Run the action, and return its result."""
        try:
            self._act()
        except BaseException as interrupt:
            interrupt.add_note(self._outcome())
            raise
        try:
            if self._error is not None:
                raise self._error
            return self._values[0]
        finally:
            self._error = None  # it has this frame in its traceback

    def _act(self) -> None:
        """Start the thread, and wait for its end, however often that is interrupted.

        Python looks for signals where a call begins or ends and where a loop turns. A signal that
        comes while the last one is handled meets the next such place, which has a ``try`` around
        it. If more come at once than there are places, this is left early. The thread keeps its
        locks until it ends.
        """
        try:
            # One call: an interrupt within Thread.start may leave a thread that never runs.
            system.start_thread(self._run, ())
            while not self._has_ended:
                self._end.acquire(timeout=_LOOK_S)
        except BaseException:
            self.is_asked_to_stop = True
            try:
                self._wait()
            except BaseException:
                try:
                    self._wait()
                except BaseException:
                    try:
                        self._wait()
                    finally:
                        self._wait()
                    raise
                raise
            raise

    def _wait(self) -> None:
        """Wait until the thread has ended, or will not begin; then raise what came meanwhile."""
        interrupt: BaseException | None = None
        is_over = False
        while not is_over:
            try:
                is_over = self._has_ended or self._first.setdefault(None, _CALLER) == _CALLER
                if not is_over:
                    self._end.acquire(timeout=_LOOK_S)
            except BaseException as error:  # noqa: BLE001 - raised below
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _run(self) -> None:
        if self._first.setdefault(None, _THREAD) != _THREAD:
            return
        _HERE.running = self
        try:
            self._values.append(self._action())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            self._error = error
        self._has_ended = True
        self._end.release()

    def _outcome(self) -> str:
        if self._part is _REST or (self._values and self._part is _ALL):
            return "kafkalog: this came too late to stop anything: it is done"
        if self._error is None or isinstance(self._error, Interrupted):
            return "kafkalog: it was stopped before it was done"
        return f"kafkalog: {self._error}"
