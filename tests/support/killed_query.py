"""A streaming query through Spark in processes of its own, of which any can be killed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import psutil
from tests.support.campaign import rows_of
from tests.support.scenes import TOPICS
from tests.support.stopping_source import let_go, stopped_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from tests.support.campaign import Follower

__all__ = ["VICTIMS", "KilledQuery", "kill_in_time", "processes_of"]

VICTIMS: Final = ("worker", "driver", "jvm", "tree")
"""The Python process that stands still, or all that Spark has forked; the driver's Python; the JVM;
all processes."""

_TASKS: Final = 2
_SECONDS: Final = 1800
_START: Final = (
    "import sys; from tests.support.stopping_source import run_query as run; run(*sys.argv[1:])"
)


class KilledQuery:
    """A query that writes ``batches`` of two tasks with ``rows`` each to ``log``: a path or URI.

    Its name is that of its folder. On leaving the context nothing of it is left running.
    """

    def __init__(self, folder: Path, log: Path | str, *, batches: int, rows: int) -> None:
        self.folder = folder
        self.starts = 0
        self._log = log
        self._batches = batches
        self._rows = rows
        self._driver: subprocess.Popen[bytes] | None = None
        self._write_input()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End what is left of it."""
        while self._driver is not None and not self.ended:
            _kill(self._processes())
            time.sleep(0.02)

    @property
    def expected(self) -> list[str]:
        """All values that it is to have written."""
        return rows_of(self.folder.name, range(self._batches), self._rows)

    @property
    def ended(self) -> bool:
        """Whether none of its processes is left."""
        assert self._driver is not None
        return self._driver.poll() is not None and not self._processes()

    @property
    def succeeded(self) -> bool:
        """Whether it has ended, and written everything."""
        assert self._driver is not None
        return self._driver.poll() == 0

    @property
    def told(self) -> str:
        """The last of what its processes have printed."""
        return (self.folder / "output").read_text(errors="replace")[-4000:]

    def start(self) -> None:
        """Start its driver, which goes on where the checkpoint says."""
        root = str(Path(__file__).parents[2])
        with (self.folder / "output").open("ab") as output:
            self._driver = subprocess.Popen(
                [sys.executable, "-c", _START, str(self.folder), str(self._log)],
                cwd=root,
                env={**os.environ, "PYTHONPATH": root},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.starts += 1

    def planned(self) -> int:
        """Count the micro-batches that Spark has planned."""
        return len(self._noted("offsets"))

    def knows_committed(self, batch_id: int) -> bool:
        """Whether Spark has noted that a micro-batch is committed."""
        return str(batch_id) in self._noted("commits")

    def wait_until(self, reached: Callable[[], bool], meanwhile: Callable[[], object]) -> None:
        """Wait for something, or for its end, and do something ``meanwhile`` again and again."""
        deadline = time.monotonic() + _SECONDS
        while not reached() and not self.ended:
            assert time.monotonic() < deadline, self.told
            meanwhile()
            time.sleep(0.02)

    def kill(self, victim: str) -> None:
        """Kill a part of it; what still stands then goes on."""
        _kill([each for each in self._processes() if self._is_victim(victim, each)])
        let_go(self.folder)

    def _is_victim(self, victim: str, process: psutil.Process) -> bool:
        assert self._driver is not None
        stopped = stopped_in(self.folder)
        match victim:
            case "worker" if stopped is not None:
                return process.pid == stopped
            case "worker":
                return _is_forked_worker(process)
            case "driver":
                return process.pid == self._driver.pid
            case "jvm":
                return "java" in "".join(_words(process)[:1])
            case _:
                return True

    def _processes(self) -> list[psutil.Process]:
        assert self._driver is not None
        return processes_of(self._driver.pid)

    def _noted(self, kind: str) -> list[str]:
        return [path.name for path in (self.folder / "checkpoint" / kind).glob("[0-9]*")]

    def _write_input(self) -> None:
        folder = self.folder / "input"
        folder.mkdir(parents=True)
        for batch in range(self._batches):
            for task in range(_TASKS):
                values = [f"{self.folder.name}/{batch}/{task}/{n}" for n in range(self._rows)]
                # The longer file of a micro-batch becomes its first task. If Spark is killed when
                # it has noted files and no micro-batch of them yet, the next has twice as many.
                padding = "x" * 3 * ((self._batches - batch) * _TASKS - task)
                lines = [
                    f"{value},{number % 5},{TOPICS[number % 2]},{padding}\n"
                    for number, value in enumerate(values)
                ]
                path = folder / f"{batch}-{task}.csv"
                path.write_text("".join(lines))
                # Files are taken in the order of their times.
                os.utime(path, (batch * _TASKS + task,) * 2)


def kill_in_time(query: KilledQuery, victim: str, chance: Random, follower: Follower) -> None:
    """Kill a part at some moment of the next two micro-batches; start again what that ends."""
    planned = query.planned()
    query.wait_until(lambda: query.planned() > planned, follower.look)
    moment = time.monotonic() + chance.uniform(0, 1)
    query.wait_until(lambda: time.monotonic() >= moment, follower.look)
    query.kill(victim)
    if victim != "worker":
        query.wait_until(lambda: False, follower.look)
    if query.ended and not query.succeeded:
        query.start()


def processes_of(session: int) -> list[psutil.Process]:
    """List what lives in a session; Spark's Python daemons leave its process group, not that."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _is_forked_worker(process: psutil.Process) -> bool:
    """Whether it was forked from one of Spark's Python daemons, which have its command line."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = process.parent()
        words = _words(process)
        return "pyspark.daemon" in words and parent is not None and _words(parent) == words
    return False


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
