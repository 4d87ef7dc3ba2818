"""Alarms: a signal's exception at a bytecode, or a moment, that chance chooses.

Two kinds. One counts the bytecodes of the caller's thread below a call, and raises where Python
looks for signals: at the beginning of a function, after a call, and where a loop turns back. The
other is a timer of the system, which meets threads that work for the caller, too.
"""

from __future__ import annotations

import dis
import functools
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from tests.support.interrupting import AlarmError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

__all__ = ["OUTSIDE", "Alarms", "closed_once", "interrupt_at"]

_T = TypeVar("_T")

OUTSIDE = "outside"
"""The text of an alarm that came before the call that was meant, or after it."""

_LOOKS_AFTER = tuple(
    dis.opmap[name]
    for name in ("RESUME", "CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD")
    if name in dis.opmap
)
_UNINTERRUPTED = ("importlib", "threading.py", "logging", "tests")
"""Files of frames in which no alarm comes: what they leave half done is not ours to mend."""


class Alarms:
    """Calls functions with one alarm each, or none where the call ends before it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.hits: Counter[str] = Counter()
        """How many alarms there were, by the name of the call."""
        self.where: Counter[str] = Counter()
        self._bytecodes: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}

    def call(self, name: str, function: Callable[[], _T]) -> _T:
        """Call a function.

        Raises:
            AlarmError: an alarm came.
        """
        kind = self._at_bytecode if self.random.random() < 0.5 else self._at_moment
        try:
            return kind(name, function)
        except AlarmError as error:
            self.hits[name] += 1
            self.where[str(error)] += 1
            raise

    def _at_bytecode(self, name: str, function: Callable[[], _T]) -> _T:
        trace = _Trace(self.random.randrange(self._bytecodes[name] + 10))
        try:
            return trace.call(function)
        finally:
            self._bytecodes[name] = max(self._bytecodes[name], trace.seen)

    def _at_moment(self, name: str, function: Callable[[], _T]) -> _T:
        before = signal.signal(signal.SIGALRM, _raise)
        longest = self._seconds.get(name, 0.002)
        began, is_done = time.perf_counter(), False
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, max(1e-5, self.random.random() * longest))
                # A call of a Python function: no alarm comes between its end and what follows.
                value = function()
                is_done = True
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except AlarmError:
            if not is_done:
                raise
        finally:
            signal.signal(signal.SIGALRM, before)
            took = min(time.perf_counter() - began, 0.2)
            self._seconds[name] = 0.9 * longest + 0.1 * took
        return value


@functools.cache
def _code(code: CodeType) -> bytes:
    return code.co_code  # made anew at each look


@functools.cache
def _is_place(code: CodeType, before: int, now: int) -> bool:
    """Whether Python looks for signals between two instructions, and an alarm can come there.

    What is raised here is raised by the second instruction. Python would let the first one raise
    it, so both must have the same handler: what follows the last call in ``with`` has another one.
    """
    if _code(code)[before] not in _LOOKS_AFTER:
        return False
    table = [(entry.start, entry.end, entry.target) for entry in dis._parse_exception_table(code)]
    handlers = [[t for start, end, t in table if start <= at < end] for at in (before, now)]
    return handlers[0] == handlers[1]


def interrupt_at(chosen: int, function: Callable[[], _T]) -> _T:
    """Call a function, with an alarm at the ``chosen`` place where Python looks for signals.

    Raises:
        AlarmError: there was such a place.
    """
    return _Trace(chosen).call(function)


class _Trace:
    """Counts the places where Python looks for signals, and raises at one of them."""

    def __init__(self, chosen: int) -> None:
        self.seen = 0
        self._chosen = chosen
        self._last: dict[FrameType, int] = {}
        """Where in its code each frame has been last."""

    def call(self, function: Callable[[], _T]) -> _T:
        before = sys.gettrace()
        sys.settrace(self._entered)
        try:
            return function()
        finally:
            sys.settrace(before)

    def _entered(self, frame: FrameType, _: str, __: object) -> Any:
        if any(each in frame.f_code.co_filename for each in _UNINTERRUPTED):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "return":
            self._last.pop(frame, None)
        elif event == "opcode":
            before = self._last.get(frame)
            self._last[frame] = frame.f_lasti
            if before is not None and _is_place(frame.f_code, before, frame.f_lasti):
                self.seen += 1
                if self.seen - 1 == self._chosen:
                    raise AlarmError(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        return self._step


def _raise(_: int, frame: FrameType | None) -> None:
    if frame is None or "tests" in frame.f_code.co_filename:
        raise AlarmError(OUTSIDE)
    raise AlarmError(f"{frame.f_code.co_qualname}:{frame.f_lineno}")


@contextmanager
def closed_once() -> Iterator[list[int]]:
    """Give the descriptors that are closed though they are not open."""
    close, found = os.close, []

    def closing(descriptor: int) -> None:
        try:
            close(descriptor)
        except OSError:
            found.append(descriptor)
            raise

    os.close = closing
    try:
        yield found
    finally:
        os.close = close
