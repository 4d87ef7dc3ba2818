"""Kill parts of a standalone cluster while a pipeline runs on it, with kafkalog as a zip.

CI kills each part once, amid `ingest`; ``make kills`` does so with each pipeline, several times.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol

import psutil
import pytest
from tests.support.delta_table import values_in
from tests.support.distributions import ROOT, build, environment_without_kafkalog
from tests.support.sinking import Writer, rows, values_of
from tests.support.spark_cluster import Cluster, Submitted, kill

from kafkalog.checkpoints.commit_state import STAGED_PREFIX
from kafkalog.jobs.jars import DELTA, fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.crash, pytest.mark.spark]

KILLS: Final = int(os.environ.get("KAFKALOG_CLUSTER_KILLS", "0"))
"""How often each part is killed under each pipeline; 0: once, under `ingest` alone."""

VICTIMS: Final = ("executor", "worker", *(("machine", "stall") if KILLS else ()), "driver")
"""An executor's JVM; a worker, whose executor then ends itself; a worker and all that it has
started; an executor that stands still until others have done its work; the driver."""

ROWS: Final = 20
BATCHES: Final = 3
"""Micro-batches that are there to be taken at each kill."""

SETTINGS: Final = {
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    # What an executor that stands still has to do, another one does as well.
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1",
}
_SECONDS: Final = 600
_BUSY: Final = "Timed out while waiting for the Python worker to connect back"
"""Spark gives a process ten seconds to start, and the query ends if the machine is too busy."""


class Pipeline(Protocol):
    """What a pipeline is given, and what it makes of it."""

    words: tuple[str, ...]
    jars: tuple[str, ...]
    checkpoint: Path

    expected: list[str]

    def feed(self) -> None:
        """Give it one micro-batch of two tasks."""

    def seen(self) -> list[str]:
        """Return what it has written, in order of partition and place."""

    def is_tidy(self) -> bool:
        """Whether nothing is left of tasks that came to nothing."""


class Ingest:
    """Files of a folder into a topic of two partitions."""

    jars = ()

    def __init__(self, home: Path) -> None:
        self._input, self._log = home / "input", home / "log"
        self._input.mkdir(parents=True)
        self._fed = 0
        self.expected: list[str] = []
        self.checkpoint = home / "checkpoint"
        self.words = (
            *("ingest.py", str(self._input), str(self._log), "--topic=t", "--follow"),
            *("--schema=value STRING", "--input-option=header=false", "--key=value"),
            *("--input-option=maxFilesPerTrigger=2", "--set=numPartitions=2"),
            f"--checkpoint={self.checkpoint}",
        )

    def feed(self) -> None:
        for task in range(2):
            values = [f"{self._fed}/{task}/{number}" for number in range(ROWS)]
            path = self._input.with_name(f"{self._fed}-{task}.csv")
            path.write_text("".join(f"{value}\n" for value in values))
            path.rename(self._input / path.name)
            self.expected += values
        self._fed += 1

    def seen(self) -> list[str]:
        if not (self.checkpoint / "commits" / "0").exists():
            return []  # the topic may be half made
        found = values_of([self._log], "t")
        return [value.split('"')[3] for values in found.values() for value in values]

    def is_tidy(self) -> bool:
        return not list(self._log.glob(f"{STAGED_PREFIX}*"))


class Archive:
    """A topic of two partitions into a Delta table."""

    def __init__(self, home: Path) -> None:
        self._log, self._table = home / "log", home / "table"
        self._writer = Writer(self._log, topic="t", numPartitions="2")
        self._fed = 0
        self.expected: list[str] = []
        self.checkpoint = home / "checkpoint"
        self.jars = tuple(map(str, fetch(DELTA)))
        self.words = (
            *("archive.py", str(self._log), str(self._table), "--topic=t", "--follow", "--text"),
            f"--set=maxOffsetsPerTrigger={2 * ROWS}",
            f"--checkpoint={self.checkpoint}",
        )
        self.feed()

    def feed(self) -> None:
        tasks = [[f"{self._fed}/{task}/{number}" for number in range(ROWS)] for task in range(2)]
        placed = [rows(task, partitions=[number] * ROWS) for number, task in enumerate(tasks)]
        self._writer.write(self._fed, *placed)
        self._fed += 1
        self.expected += [value for task in tasks for value in task]

    def seen(self) -> list[str]:
        return values_in(self._table)

    def is_tidy(self) -> bool:
        return True


PIPELINES: Final = {"ingest": Ingest, "archive": Archive}


class Trial:
    """A pipeline that runs on a cluster while parts are killed."""

    def __init__(self, cluster: Cluster, pipeline: Pipeline, submitted: Submitted) -> None:
        self._cluster = cluster
        self._pipeline = pipeline
        self._submitted = submitted
        self._chance = random.Random(KILLS)

    def round(self, victim: str | None) -> None:
        """Let it take some micro-batches, and kill a part meanwhile."""
        planned = self._planned()
        for _ in range(BATCHES):
            self._pipeline.feed()
        self._wait_until(lambda: self._planned() > planned)
        if KILLS:
            time.sleep(self._chance.uniform(0, 1))
        match victim:
            case None:
                self._wait_for_all()
            case "driver":
                self._kill_driver()
            case "stall":
                self._stall()
            case _:
                self._kill(victim)

    def _kill(self, victim: str) -> None:
        executor = self._an_executor()
        worker = self._cluster.worker_of(executor)
        match victim:
            case "executor":
                kill([executor])
            case "worker":
                kill([worker])
            case "machine":
                kill([worker, executor, *executor.children(recursive=True)])
        self._wait_for_all()
        if victim != "executor":
            self._cluster.add_worker()

    def _stall(self) -> None:
        executor = self._an_executor()
        stalled = [executor, *executor.children(recursive=True)]
        for process in stalled:
            process.suspend()
        try:
            self._wait_for_all()
        finally:
            for process in stalled:
                with contextlib.suppress(psutil.NoSuchProcess):  # it was given up, and killed
                    process.resume()

    def _kill_driver(self) -> None:
        before = self._cluster.started_by_workers()
        self._submitted.kill()
        self._submitted.start()
        self._wait_for_all()
        self._wait_until(lambda: not any(each.is_running() for each in before))

    def _an_executor(self) -> psutil.Process:
        self._wait_until(lambda: len(self._cluster.executors()) == 2)
        return self._chance.choice(self._cluster.executors())

    def _planned(self) -> int:
        return len(list((self._pipeline.checkpoint / "offsets").glob("[0-9]*")))

    def _wait_for_all(self) -> None:
        self._wait_until(lambda: len(self._pipeline.seen()) >= len(self._pipeline.expected))
        assert Counter(self._pipeline.seen()) == Counter(self._pipeline.expected)

    def _wait_until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _SECONDS
        while not reached():
            told = self._submitted.told()
            if not self._submitted.running:
                assert _BUSY in told, told + self._cluster.told()
                self._submitted.start()
            assert time.monotonic() < deadline, told + self._cluster.told()
            time.sleep(0.1)


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Give the environment of machines that have everything but kafkalog."""
    return environment_without_kafkalog(tmp_path_factory.mktemp("packages") / "links")


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, variables: dict[str, str]
) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), variables, hosts=KILLS > 0) as running:
        yield running


@pytest.fixture(scope="module")
def py_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dist")).py_files


@pytest.mark.timeout(3600 * (KILLS or 1))
@pytest.mark.parametrize("name", PIPELINES if KILLS else ["ingest"])
def test_whatever_is_killed_on_a_cluster_a_pipeline_takes_each_row_once(
    name: str, cluster: Cluster, py_files: Path, variables: dict[str, str], tmp_path: Path
) -> None:
    pipeline: Any = PIPELINES[name](tmp_path)
    script, *arguments = pipeline.words
    settings = [word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}")]
    jars = [f"--jars={','.join(pipeline.jars)}"] if pipeline.jars else []
    words = [*settings, *jars, f"--py-files={py_files}", str(ROOT / "jobs" / script), *arguments]
    with Submitted(cluster, words, tmp_path / "output", variables) as submitted:
        trial = Trial(cluster, pipeline, submitted)
        for _ in range(KILLS or 1):
            for victim in VICTIMS:
                trial.round(victim)
        trial.round(None)
    assert Counter(pipeline.seen()) == Counter(pipeline.expected)
    assert pipeline.is_tidy()
