"""A pool of threads that works while the interpreter shuts down, too."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ThreadPool"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


class ThreadPool(Executor):
    """Does what is submitted in threads, at most so many; an idle one is taken before a new one.

    Unlike ``ThreadPoolExecutor`` it works while the interpreter shuts down, when an exit hook or a
    thread that outlives the main one may append a last row: what no thread can be started for is
    done by :meth:`submit`, before it returns.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._most = threads
        self._name = name
        self._guard = Lock()
        self._backlog: deque[_Work] = deque()
        self._threads = self._idle = 0
        self._is_shut = False
        self._handed: SimpleQueue[_Work | None] = SimpleQueue()
        """Work for idle threads; None lets one end."""
        self._ended: SimpleQueue[None] = SimpleQueue()

    def submit(
        self, task: Callable[_P, _T], /, *arguments: _P.args, **named: _P.kwargs
    ) -> Future[_T]:
        """Have a call made; returns what its result, or what it raised, is asked of.

        Raises:
            RuntimeError: the pool is shut down.
        """
        work = _Work(lambda: task(*arguments, **named))
        with self._guard:
            if self._is_shut:
                raise RuntimeError(f"the pool {self._name!r} is shut down")
            if self._idle:
                self._idle -= 1
                self._handed.put(work)
                return work.future
            if self._threads < self._most and self._start(work):
                return work.future
            if self._threads:
                self._backlog.append(work)
                return work.future
        work.do()
        return work.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more; threads end when all is done, which is waited for."""
        with self._guard:
            threads, self._is_shut = (0 if self._is_shut else self._threads), True
            while cancel_futures and self._backlog:
                self._backlog.popleft().future.cancel()
            while self._idle:
                self._idle -= 1
                self._handed.put(None)
        for _ in range(threads if wait else 0):
            self._ended.get()

    def _start(self, work: _Work) -> bool:
        name = f"{self._name}_{self._threads}"
        try:
            Thread(target=self._run, args=(work,), name=name, daemon=True).start()
        except RuntimeError:  # at shutdown (Python 3.12), or where the system has no more
            return False
        self._threads += 1
        return True

    def _run(self, work: _Work | None) -> None:
        while work is not None:
            work.do()
            work = self._next()
        self._ended.put(None)

    def _next(self) -> _Work | None:
        with self._guard:
            if self._backlog:
                return self._backlog.popleft()
            if self._is_shut:
                return None
            self._idle += 1
        return self._handed.get()


class _Work:
    """One call, and its future."""

    __slots__ = ("_call", "future")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.future: Future[Any] = Future()

    def do(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            value = self._call()
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            self.future.set_exception(error)
        else:
            self.future.set_result(value)
        del self._call  # with all that it holds
