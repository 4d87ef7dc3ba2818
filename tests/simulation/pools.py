"""Pools whose tasks are strands of their process, and may lose their turn as anybody here."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from tests.simulation.scheduler import KilledError, Lock, Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Pool"]


class _Task:
    """A task, in place of a future: waiting for it hands the turn on."""

    def __init__(self, scheduler: Scheduler, action: Callable[[], object]) -> None:
        self._action = action
        self._value: object = None
        self._error: BaseException | None = None
        self._end = Lock(scheduler)
        self._end.is_held = True

    def run(self) -> None:
        try:
            self._value = self._action()
        except KilledError:
            raise
        except BaseException as error:  # noqa: BLE001 - as a pool does
            self._error = error
        finally:
            self._end.release()

    def wait(self) -> None:
        self._end.acquire()
        self._end.release()

    def cancel(self) -> bool:
        """Leave it be: it has begun."""
        return False

    def result(self, timeout: float | None = None) -> object:
        self.wait()
        if self._error is not None:
            raise self._error
        return self._value


class Pool(Executor):
    """Starts each task at once, in a strand of its own."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._tasks: list[_Task] = []

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        found = _Task(self._scheduler, lambda: task(*arguments, **named))
        self._scheduler.start_thread(found.run, ())  # an interrupt may keep it from starting
        self._tasks.append(found)
        return found

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for task in self._tasks if wait else ():
            task.wait()
