"""Let a call of the system in one folder not return until a test lets it."""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kafkalog.files.timeouts import stalled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Stall", "stalling"]

CALLS: Final = (
    "copy_file_range",
    "fchmod",
    "fchown",
    "fstat",
    "fsync",
    "ftruncate",
    "link",
    "listdir",
    "lstat",
    "mkdir",
    "open",
    "pread",
    "preadv",
    "pwrite",
    "read",
    "rename",
    "replace",
    "rmdir",
    "scandir",
    "stat",
    "unlink",
)
_LONG_S: Final = 60.0


class Stall:
    """Stalls at the ``call``-th call below ``folder``, counted from 0, until it is released.

    With ``part`` only calls in whose text, as ``replace(PosixPath('…'), …)``, that is.
    """

    def __init__(self, folder: Path, call: int, part: str = "") -> None:
        self.calls = 0
        self.where: str | None = None
        """The call that stalls, once it does."""
        self._folder = str(folder)
        self._call = call
        self._part = part
        self._lock = threading.Lock()
        self._released = threading.Event()

    def release(self) -> None:
        """Let the call return, and wait until whoever made it has ended."""
        self._released.set()
        if self.where is None:
            return
        rest = threading.Event()
        for _ in range(1000):
            if stalled(Path(self._folder)) is None:
                return  # who made the call has given its locks back
            rest.wait(0.01)
        raise AssertionError(f"{self.where} has returned, and its thread does not end")

    def stalling(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of the system that may stall."""

        def call(*arguments: Any, **named: Any) -> Any:
            if self.where is None and arguments and self._is_below(arguments[0]):
                text = f"{name}{arguments!r:.500}"
                with self._lock:
                    self.calls += self._part in text
                    is_here = self._part in text and self.calls == self._call + 1
                if is_here:
                    self.where = text
                    assert self._released.wait(_LONG_S)
            return original(*arguments, **named)

        return call

    def _is_below(self, what: object) -> bool:
        if isinstance(what, int):
            try:
                what = READLINK(f"/proc/self/fd/{what}")
            except OSError:
                return False
        return str(what).startswith(self._folder)


READLINK: Final = os.readlink


@contextmanager
def stalling(folder: Path, call: int, part: str = "") -> Iterator[Stall]:
    """Let one call below a folder stall; it is released at the end at the latest."""
    stall = Stall(folder, call, part)
    originals = {name: getattr(os, name) for name in CALLS}
    lock = fcntl.fcntl
    for name, original in originals.items():
        setattr(os, name, stall.stalling(name, original))
    fcntl.fcntl = stall.stalling("fcntl", lock)
    try:
        yield stall
    finally:
        for name, original in originals.items():
            setattr(os, name, original)
        fcntl.fcntl = lock
        stall.release()
