"""Count what some work costs, without a clock: system calls, bytes, calls of functions, memory."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkalog.streaming.spark.worker import uncollected

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["calls_of", "io_of", "traced_peak"]


def io_of(work: Callable[[], object]) -> Counter[str]:
    """Count bytes and system calls of this process's reads and writes."""
    before = _io()
    work()
    after = _io()
    after.subtract(before)
    return after


def _io() -> Counter[str]:
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return Counter({name: int(value) for name, value in (line.split(": ") for line in lines)})


def calls_of(work: Callable[[], object]) -> Counter[str]:
    """Count calls: of C functions by type (of the module, if of none) and name, and of Python's.

    The garbage collector rests meanwhile: what it calls is not part of the work.
    """
    calls: Counter[str] = Counter()

    def note(_: FrameType, event: str, called: Any) -> None:
        if event == "c_call":
            owner = type(getattr(called, "__self__", None)).__name__
            calls[f"{owner}.{called.__name__}"] += 1
        elif event == "call":
            calls["python"] += 1

    gc.collect()
    with uncollected():
        sys.setprofile(note)
        try:
            work()
        finally:
            sys.setprofile(None)
    return calls


def traced_peak(work: Callable[[], object]) -> int:
    """Return the bytes that work holds at most, in Python objects and numpy arrays, of its own."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
