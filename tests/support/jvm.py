"""Java programs from the fetched jars: run to their end, or as servers in the background."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Final

from tests.support.quick_jvm import QUICK, classes_name, loaded_classes

from kafkalog.jobs.process.jars import JarSet, fetch, java

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

START_SECONDS: Final = 120
STOP_SECONDS: Final = 90

_QUICK: Final = (*QUICK, "-Djava.awt.headless=true")


def classes_of(jar_set: JarSet) -> Path:
    """Return where the archive of a set's classes lies: :mod:`tests.support.class_archives`."""
    return fetch(jar_set)[0].with_name(classes_name())


def command(
    jar_set: JarSet,
    main: str,
    *arguments: str,
    heap: str = "256m",
    options: Sequence[str] = (),
    quick_start: bool = True,
) -> list[str]:
    """Return the command that runs the class ``main`` with all jars of the set on its class path.

    Without ``quick_start`` it runs as Java runs a server: slower to start, and faster in the end.
    """
    folder = fetch(jar_set)[0].parent
    quick = (*loaded_classes(classes_of(jar_set)), *_QUICK) if quick_start else ()
    options = [*quick, *options]
    return [java(), f"-Xmx{heap}", *options, "-cp", f"{folder}/*", main, *arguments]


def run(words: Sequence[str], *, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and give what it printed; its exit code is the caller's matter."""
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )


class Server:
    """A JVM in the background that says in its log when it is ready.

    Both its streams go to ``log_path``, which is appended to over restarts. It runs in a process
    group of its own, so that ``kill`` reaches all of it. ``variables`` are its environment.
    """

    def __init__(
        self, words: Sequence[str], log_path: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        self._words = list(words)
        self._variables = variables
        self.log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the JVM that runs."""
        assert self._process is not None
        return self._process.pid

    def start(self, ready: str, *, seconds: float = START_SECONDS) -> None:
        """Start it and wait until its log, from here on, holds the text ``ready``."""
        with self.log_path.open("ab") as log:
            begin = log.tell()
            self._process = subprocess.Popen(
                self._words,
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + seconds
        while ready not in self._log_from(begin):
            if not self.running:
                raise RuntimeError(f"it ended while starting:\n{self._log_from(begin)[-40_000:]}")
            if time.monotonic() > deadline:
                self.kill()
                raise TimeoutError(f"no {ready!r} in:\n{self._log_from(begin)[-40_000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End it cleanly (SIGTERM) and wait for that; by force if it takes too long."""
        if not self.running:
            return
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """End it as a crash would (SIGKILL to its whole group)."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _log_from(self, begin: int) -> str:
        with self.log_path.open("rb") as log:
            log.seek(begin)
            return log.read().decode(errors="replace")
