"""Count what some work costs, without a clock: system calls, bytes, calls of functions, memory."""

from __future__ import annotations

import gc
import os
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkalog.streaming.spark.worker import uncollected

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["calls_of", "folders_read", "io_of", "traced_peak"]

_READ: Counter[str] | None = None


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _READ is not None and event in {"open", "os.listdir", "os.scandir"}:
        place = arguments[0]
        if isinstance(place, str | os.PathLike):
            _READ[os.fspath(place)] += 1


sys.addaudithook(_audit)  # it cannot be taken away again; without counting it does nothing


def folders_read(root: Path, work: Callable[[], object]) -> Counter[str]:
    """Count what is opened and listed in each folder right below a root, and the folder itself."""
    global _READ  # noqa: PLW0603
    read = _READ = Counter()
    try:
        work()
    finally:
        _READ = None
    below: Counter[str] = Counter()
    for place, times in read.items():
        if Path(place).is_relative_to(root) and (parts := Path(place).relative_to(root).parts):
            folder = parts[0]
            below[folder] += times * (root / folder).is_dir()
    return +below


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
