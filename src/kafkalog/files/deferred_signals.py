"""Defer signals until an action that holds locks has ended.

Ctrl-C, an alarm, and a notebook's interrupt raise an exception between any two instructions of a
thread. If the caller held the locks, it would give them back, or roll a commit back, while other
threads still write and cut. So an action that holds locks runs in a thread of its own, which
nothing interrupts: Python runs signal handlers in the main thread only. The caller waits. When it
is interrupted, it asks the thread to stop, waits for it, and then raises what interrupted it.

The thread stops where nothing is left half done, see :func:`check_interrupt`: queued work never
begins, running work ends, the commit is rolled back, and the locks are given back last.

What keeps something from call to call (a Consumer, a stream's reader) does each call's work in such
a thread, too: an interrupt never leaves it half changed.

Where no thread can be started, the work is done in the caller's: when the interpreter shuts down
(Python 3.12 refuses from the end of the main thread on), or the process has all it may have.
"""

from __future__ import annotations

import functools
import itertools
import threading
from typing import TYPE_CHECKING, Final, Generic, ParamSpec, Protocol, TypeVar

from kafkalog.errors import KafkaLogError
from kafkalog.files.system import start_thread_if_possible, system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "IS_DONE",
    "Interrupted",
    "Running",
    "Shielded",
    "check_interrupt",
    "current",
    "in_shielded_steps",
    "pause",
    "run_as",
    "shielded",
    "shielded_part",
    "shielded_rest",
    "shielded_step",
    "wait_until",
]

_P = ParamSpec("_P")
_T = TypeVar("_T")

_LOOK_S: Final = 0.25
"""How long to wait at once: a signal that comes right before the wait does not end it."""

IS_DONE: Final = "kafkalog: this came too late to stop anything: it is done"
"""What is noted to an interrupt that did."""

_PAUSE_S: Final = 0.1

_ALL: Final = "all"
_BEGINNING: Final = "beginning"
_REST: Final = "rest"
_STEP: Final = "step"

_CALLER: Final = "caller"
_IN_CALLER: Final = "in caller"
_THREAD: Final = "thread"


class Interrupted(BaseException):
    """Ends what runs in a shielded thread; its caller raises what has interrupted the caller."""


def shielded(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let a function run in a shielded thread; called in one, it runs there.

    What interrupts the caller is raised once the function has ended, never before. Notes to that
    exception say how the function ended.
    """
    return _shielding(function, _ALL)


def shielded_part(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Do as :func:`shielded`, for what is only the beginning of what the caller wants.

    An interrupt has stopped that before it was done, though the beginning came to its end.
    """
    return _shielding(function, _BEGINNING)


def shielded_rest(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Do as :func:`shielded`, for what follows when all that the caller wants is done.

    An interrupt came too late to stop that, whatever it stops of the rest.
    """
    return _shielding(function, _REST)


def shielded_step(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Do as :func:`shielded`, for a step of something that can be called again: it needs no note.

    What the step has found belongs into an object that the next call finds: an interrupt takes the
    value away.
    """
    return _shielding(function, _STEP)


def _shielding(function: Callable[_P, _T], part: str) -> Callable[_P, _T]:
    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if _HERE.running is not None:
            return function(*args, **kwargs)
        return Shielded(functools.partial(function, *args, **kwargs), part=part).result()

    return call


def in_shielded_steps(
    what: str,
) -> Callable[[Callable[_P, Iterator[_T]]], Callable[_P, Iterator[_T]]]:
    """Let what a function gives be iterated over in shielded threads, a step each.

    What was cut off, by an error or an interrupt, does not seem to end there: who asks it for more
    is told that ``what`` he does was.
    """

    def decorate(function: Callable[_P, Iterator[_T]]) -> Callable[_P, Iterator[_T]]:
        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> Iterator[_T]:
            steps = _Steps(function(*args, **kwargs))
            # Not one generator: what is raised in it would let the next one who asks find its end.
            return itertools.chain(steps.taken(), steps.refusal(what))

        return call

    return decorate


class _Steps(Generic[_T]):
    """What an iterator gives, until it is cut off."""

    def __init__(self, source: Iterator[_T]) -> None:
        self._source = source
        self._is_over = False

    def taken(self) -> Iterator[_T]:
        """Give what is there, one after the other."""
        while found := self._take():
            yield found.pop()
        self._is_over = True  # Python looks for no signal between this and the caller

    @shielded_step
    def _take(self) -> list[_T]:
        for each in self._source:
            return [each]
        return []

    def refusal(self, what: str) -> Iterator[_T]:
        """Give nothing, if all was given.

        Raises:
            KafkaLogError: it was cut off before that.
        """
        if not self._is_over:
            raise KafkaLogError(
                f"this {what} was cut off by an error or an interrupt, and rows are missing: it "
                "cannot continue; call it again"
            )
        yield from ()


def pause(seconds: float) -> None:
    """Rest; in a shielded thread no longer than until the caller is interrupted.

    Raises:
        Interrupted: as :func:`check_interrupt`.
    """
    if _HERE.running is None:
        system.sleep(seconds)
        return
    end = system.monotonic() + seconds
    while (left := end - system.monotonic()) > 0:
        check_interrupt()
        system.sleep(min(left, _PAUSE_S))


def wait_until(
    holds: Callable[[], bool], timeout_s: float, *, interval_s: float = _PAUSE_S
) -> bool:
    """Ask whether something holds until it does; return whether that was in time.

    Raises:
        Interrupted: as :func:`check_interrupt`.
    """
    deadline = system.monotonic() + timeout_s
    while not holds():
        if system.monotonic() >= deadline:
            return False
        pause(interval_s)
    return True


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
            if self._part is not _STEP:
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
            if not start_thread_if_possible(self._run):
                self._run_in_caller()
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

    def _run_in_caller(self) -> None:
        if self._first.setdefault(None, _IN_CALLER) == _IN_CALLER:
            try:
                self._do()
            finally:
                _HERE.running = None

    def _run(self) -> None:
        if self._first.setdefault(None, _THREAD) == _THREAD:
            self._do()

    def _do(self) -> None:
        _HERE.running = self
        try:
            self._values.append(self._action())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            self._error = error
        del self._action  # with all it holds: this thread ends after the caller has gone on
        self._has_ended = True
        self._end.release()

    def _outcome(self) -> str:
        if self._part is _REST or (self._values and self._part is _ALL):
            return IS_DONE
        if self._error is None or isinstance(self._error, Interrupted):
            return "kafkalog: it was stopped before it was done"
        return f"kafkalog: {self._error}"
