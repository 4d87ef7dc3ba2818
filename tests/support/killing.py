"""Kill a process at each call that changes a file: a forked child, no JVM, SIGKILL.

The child replaces the functions of ``os`` that change files by ones that count. At the call that it
was told to die at it dies before the call, or, if that is a write, after half of its bytes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

from kafkalog.streaming.records.jit.kernel import _Kernel

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CHANGING_CALLS", "count_calls", "run_and_interrupt", "run_and_kill", "run_and_pause"]

CHANGING_CALLS = (
    "copy_file_range",
    "fchmod",
    "fchown",
    "fsync",
    "fdatasync",
    "ftruncate",
    "link",
    "mkdir",
    "open",
    "pwrite",
    "rename",
    "replace",
    "rmdir",
    "truncate",
    "unlink",
    "write",
)

_FAILED = 99
_INTERRUPTED = 98


def run_and_kill(action: Callable[[], object], call: int, *, half: bool = False) -> bool:
    """Run ``action`` in a child that dies at its ``call``-th change of a file, counted from 0.

    ``half``: if that call is a write, half of it is done. Returns whether the child died; if not,
    it came to its end before.
    """
    child = os.fork()
    if child == 0:
        _in_child(lambda: _Counter(call, half=half), action)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the child failed, see its traceback above"
    return False


def run_and_interrupt(action: Callable[[], object], call: int) -> bool:
    """Run ``action`` in a child that gets a SIGINT at a call; returns whether that stopped it."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _in_child(lambda: _Counter(call, signum=signal.SIGINT), action)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in {0, _INTERRUPTED}, "the child failed, see its traceback above"
    return code == _INTERRUPTED


def run_and_pause(action: Callable[[], object], call: int, seconds: float) -> bool:
    """Run ``action`` in a child that gets a SIGSTOP at a call, and a SIGCONT so much later.

    Returns whether it was stopped; if not, it came to its end before.
    """
    child = os.fork()
    if child == 0:
        _in_child(lambda: _Counter(call, signum=signal.SIGSTOP), action)
    _, status = os.waitpid(child, os.WUNTRACED)
    was_stopped = os.WIFSTOPPED(status)
    if was_stopped:
        time.sleep(seconds)
        os.kill(child, signal.SIGCONT)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the child failed, see its traceback above"
    return was_stopped


def count_calls(action: Callable[[], object]) -> int:
    """Run ``action`` in a child and give how many calls that change a file it makes."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        counter = _Counter(-1, half=False)

        def counted() -> None:
            action()
            counter.remove()
            os.write(writer, str(counter.calls).encode())

        _in_child(lambda: counter, counted)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, "the child failed, see its traceback above"
    return int(text)


def _in_child(counter: Callable[[], _Counter], action: Callable[[], object]) -> None:
    code = _FAILED
    try:
        counter().install()
        action()
        code = 0
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BaseException:  # noqa: BLE001 - whatever it is, the child must not go on as the parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


class _Counter:
    def __init__(
        self, fatal: int, *, half: bool = False, signum: signal.Signals = signal.SIGKILL
    ) -> None:
        self.calls = 0
        self._fatal = fatal
        self._half = half
        self._signum = signum
        self._lock = threading.Lock()
        self._originals = {name: getattr(os, name) for name in CHANGING_CALLS}
        self._load = _Kernel._load

    def install(self) -> None:
        for name, original in self._originals.items():
            setattr(os, name, self._counting(name, original))

        def load_uncounted(kernel: _Kernel) -> Callable[..., Any]:
            """Load it; who is first in an environment also writes it to the cache of kernels."""
            self.remove()
            try:
                return self._load(kernel)
            finally:
                self.install()

        _Kernel._load = load_uncounted  # type: ignore[method-assign]

    def remove(self) -> None:
        for name, original in self._originals.items():
            setattr(os, name, original)
        _Kernel._load = self._load  # type: ignore[method-assign]

    def _counting(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if name == "open" and not arguments[1] & os.O_CREAT:
                return original(*arguments, **named)
            with self._lock:
                self.calls += 1
                if self.calls == self._fatal + 1:
                    self._die(name, arguments)
            return original(*arguments, **named)

        return call

    def _die(self, name: str, arguments: tuple[Any, ...]) -> None:
        if self._half and name == "pwrite":
            descriptor, data, position = arguments
            self._originals["pwrite"](descriptor, bytes(data)[: len(data) // 2], position)
        os.kill(os.getpid(), self._signum)
