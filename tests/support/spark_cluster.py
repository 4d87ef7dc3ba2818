"""A standalone cluster of Spark on this machine, of which any process can be killed."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import psutil
import pyspark
from tests.support.jvm import Server
from tests.support.killed_query import processes_of
from tests.support.quick_jvm import QUICK, SPARK_CLASSES, loaded_classes

from kafkalog.jobs.process.jars import java

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["SPARK_HOME", "Cluster", "Submitted", "kill"]

SPARK_HOME: Final = Path(pyspark.__file__).parent

_EXECUTOR: Final = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_WORKER: Final = "worker.Worker"
_JVM: Final = ("-Xmx256m", *QUICK, *loaded_classes(SPARK_CLASSES))


class Cluster:
    """A master and two workers of one core and 512 MiB on loopback; their logs lie in ``home``.

    ``variables`` are their environment, and that of executors. On leaving the context nothing of it
    is left running, no executor either. With ``hosts`` each worker has a loopback address of its
    own, which Spark takes for another machine; only Linux has more than one. Each worker sees an
    empty folder of its own in place of each of the ``hidden`` ones; that takes root, on Linux.
    """

    def __init__(
        self,
        home: Path,
        variables: Mapping[str, str] = os.environ,
        *,
        hosts: bool = False,
        hidden: Iterable[Path] = (),
    ) -> None:
        self.address = ""
        mounts = [f"mount -t tmpfs own {shlex.quote(str(each))}" for each in hidden]
        self._apart = ["unshare", "-m", "sh", "-c", " && ".join([*mounts, 'exec "$0" "$@"'])]
        if not mounts:
            self._apart = []
        self._hosts = hosts
        self._home = home
        # A worker starts executors from there.
        found = {"SPARK_HOME": str(SPARK_HOME), "SPARK_SCALA_VERSION": "2.13"}
        self._variables = {**variables, **found}
        self._master: Server | None = None
        self._workers: list[Server] = []

    def __enter__(self) -> Self:
        """Start master and workers."""
        try:
            master = self._master = self._server("master", 1, "master.Master", "--port", "0")
            master.start("I have been elected leader")
            told = re.search(r"Starting Spark master at (spark://\S+)", master.log_path.read_text())
            assert told is not None
            self.address = told[1]
            for _ in range(2):
                self.add_worker()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End all of it."""
        for worker in self._workers:
            while left := processes_of(worker.pid):
                kill(left)
            worker.kill()
        if self._master is not None:
            self._master.kill()

    def add_worker(self) -> None:
        """Start a worker: another one, if one was killed."""
        number = len(self._workers) + 1
        name = f"worker-{number}"
        limits = ("--cores", "1", "--memory", "512m", "--work-dir", str(self._home / name))
        host = number if self._hosts else 1
        worker = self._server(name, host, _WORKER, *limits, self.address)
        worker.start("Successfully registered with master")
        self._workers.append(worker)

    def executors(self) -> list[psutil.Process]:
        """List the JVMs of executors."""
        found = []
        for process in self.started_by_workers():
            with contextlib.suppress(psutil.NoSuchProcess):
                if _EXECUTOR in process.cmdline():
                    found.append(process)
        return found

    def started_by_workers(self) -> list[psutil.Process]:
        """List executors and their Python processes, also of workers that were killed."""
        pids = {worker.pid for worker in self._workers}
        return [each for pid in pids for each in processes_of(pid) if each.pid not in pids]

    def worker_of(self, executor: psutil.Process) -> psutil.Process | None:
        """Return the process of the worker that has started an executor; None if that is gone."""
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            return psutil.Process(os.getsid(executor.pid))
        return None

    def told(self) -> str:
        """The last of what executors have said."""
        logs = sorted(self._home.glob("worker-*/app-*/*/stderr"))
        return "\n".join(f"{log}:\n{log.read_text(errors='replace')[-2000:]}" for log in logs)

    def _server(self, name: str, host: int, main: str, *words: str) -> Server:
        apart = self._apart if main == _WORKER else []
        start = [*apart, java(), *_JVM, "-cp", f"{SPARK_HOME}/jars/*"]
        start.append(f"org.apache.spark.deploy.{main}")
        address = f"127.0.0.{host}"
        where = ["--host", address, "--webui-port", "0"]
        variables = {**self._variables, "SPARK_LOCAL_IP": address}
        return Server([*start, *where, *words], self._home / f"{name}.log", variables)


class Submitted:
    """A script that spark-submit runs on a cluster; ``output`` gets what it prints.

    On leaving the context nothing of it is left running on the driver's side.
    """

    def __init__(
        self, cluster: Cluster, words: Iterable[str], output: Path, variables: Mapping[str, str]
    ) -> None:
        self._words = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.address]
        self._words += words
        self._variables = {**variables, "SPARK_LOCAL_IP": "127.0.0.1"}
        self._output = output
        self._driver: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start it."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it."""
        self.kill()

    def start(self) -> None:
        """Start it, again if it was killed."""
        with self._output.open("ab") as output:
            self._driver = subprocess.Popen(
                self._words,
                cwd=self._output.parent,
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        assert self._driver is not None
        return self._driver.poll()

    def kill(self) -> None:
        """Kill the driver: its JVM, and its Python processes."""
        assert self._driver is not None
        while self.code is None or processes_of(self._driver.pid):
            kill(processes_of(self._driver.pid))
            self._driver.poll()

    def told(self) -> str:
        """The last of what it has printed."""
        return self._output.read_text(errors="replace")[-6000:]


def kill(processes: Iterable[psutil.Process]) -> None:
    """Kill processes at once."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
