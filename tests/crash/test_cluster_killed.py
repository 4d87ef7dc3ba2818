"""Kill parts of a standalone cluster while a pipeline runs on it, with kafkalog as a zip.

``make nightly`` kills each kind of part, under some pipeline; ``make kills`` all of them under each
pipeline, several times.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.delta_table import values_in
from tests.support.distributions import ROOT, build, environment_without_kafkalog
from tests.support.quick_jvm import QUICK
from tests.support.sinking import Writer, rows, values_of
from tests.support.spark_cluster import Cluster, Submitted, kill

from kafkalog.checkpoints.commit_state import STAGED_PREFIX, STATE_FILE
from kafkalog.checkpoints.state_file import load_state
from kafkalog.jobs.process.jars import delta_jars, fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.nightly]

KILLS: Final = int(os.environ.get("KAFKALOG_CLUSTER_KILLS", "0"))
"""How often each part is killed under each pipeline; 0: some parts under some pipelines, once."""

VICTIMS: Final = ("executor", "worker", "machine", "stall", "driver")
"""An executor's JVM; a worker, whose executor then ends itself; a worker and all that it has
started; an executor that stands still until others have done its work; the driver."""

FEW: Final = {"ingest": ("driver",), "mirror": ("worker",), "restore": ("executor",)}
"""What `make nightly` kills."""

ROWS: Final = 20
MANY: Final = 50_000
BATCHES: Final = 3
"""Micro-batches that are there to be taken at each kill."""

SETTINGS: Final = {
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": " ".join(QUICK),
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
_LAST_ROUNDS: Final = 5
_BUSY: Final = "Timed out while waiting for the Python worker to connect back"
"""Spark gives a process ten seconds to start, and the query ends if the machine is too busy."""


class Pipeline(Protocol):
    """What a pipeline is given, and what it makes of it."""

    words: tuple[str, ...]
    jars: tuple[str, ...]
    expected: list[str]

    def feed(self) -> None:
        """Give it one micro-batch of two tasks."""

    def seen(self) -> list[str]:
        """Return what it has written, in order of partition and place."""

    def planned(self) -> int:
        """Return a number that each piece of work raises when it begins."""

    def staged(self) -> bool:
        """Whether tasks have staged rows that are not committed, if that can be seen."""

    def commits(self) -> int:
        """Return a number that each commit raises."""

    def is_tidy(self) -> bool:
        """Whether nothing is left of tasks that came to nothing."""


class IntoLog:
    """What pipelines have in common that write a topic of a log."""

    jars: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        self.path = path

    def seen(self) -> list[str]:
        """Return the committed values."""
        if not self.commits():
            return []  # the topic may be half made
        return [value for values in values_of([self.path], "t").values() for value in values]

    def staged(self) -> bool:
        return any(self.path.glob(f"{STAGED_PREFIX}*"))

    def commits(self) -> int:
        """Count what is committed, by what the commit state says alone."""
        known = [] if (state := load_state(self.path)) is None else state.topics.values()
        return sum(each.log_end for topic in known for each in topic.partitions.values())

    def is_tidy(self) -> bool:
        return not self.staged()


class Topic:
    """A topic of two partitions that a pipeline reads."""

    def __init__(self, path: Path) -> None:
        self._writer = Writer(path, topic="t", numPartitions="2")
        self._fed = 0
        self.values: list[str] = []

    def feed(self) -> None:
        tasks = [[f"{self._fed}/{task}/{number}" for number in range(ROWS)] for task in range(2)]
        placed = [rows(task, partitions=[number] * ROWS) for number, task in enumerate(tasks)]
        self._writer.write(self._fed, *placed)
        self._fed += 1
        self.values += [value for task in tasks for value in task]


def _planned(checkpoint: Path) -> int:
    return len(list((checkpoint / "offsets").glob("[0-9]*")))


def _below(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


class Ingest(IntoLog):
    """Files of a folder into a topic of two partitions."""

    def __init__(self, home: Path) -> None:
        super().__init__(home / "log")
        self._input = home / "input"
        self._input.mkdir(parents=True)
        self._fed = 0
        self.expected: list[str] = []
        self.checkpoint = home / "checkpoint"
        self.words = (
            *("ingest.py", str(self._input), str(self.path), "--topic=t", "--follow"),
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
        return [value.split('"')[3] for value in super().seen()]

    def planned(self) -> int:
        return _planned(self.checkpoint)


class Archive:
    """A topic of two partitions into a Delta table."""

    def __init__(self, home: Path) -> None:
        self._topic, self._table = Topic(home / "log"), home / "table"
        self.expected = self._topic.values
        self.checkpoint = home / "checkpoint"
        self.jars = tuple(map(str, fetch(delta_jars())))
        self.words = (
            *("archive.py", str(home / "log"), str(self._table), "--topic=t", "--follow", "--text"),
            f"--set=maxOffsetsPerTrigger={2 * ROWS}",
            f"--checkpoint={self.checkpoint}",
        )
        self.feed()

    def feed(self) -> None:
        self._topic.feed()

    def seen(self) -> list[str]:
        return values_in(self._table)

    def planned(self) -> int:
        return _planned(self.checkpoint)

    def staged(self) -> bool:
        return True

    def commits(self) -> int:
        return len(list(self._table.glob("_delta_log/*.json")))

    def is_tidy(self) -> bool:
        return True


class Mirror(IntoLog):
    """A topic of two partitions into another log."""

    def __init__(self, home: Path) -> None:
        super().__init__(home / "copy")
        self._topic = Topic(home / "log")
        self.expected = self._topic.values
        self.checkpoint = home / "checkpoint"
        self.words = (
            *("mirror.py", str(home / "log"), str(self.path), "--topic=t", "--follow"),
            f"--set=maxOffsetsPerTrigger={2 * ROWS}",
            f"--checkpoint={self.checkpoint}",
        )
        self.feed()

    def feed(self) -> None:
        self._topic.feed()

    def planned(self) -> int:
        return _planned(self.checkpoint)


class Restore(IntoLog):
    """A table, half of it of each of two partitions, into a log."""

    def __init__(self, home: Path) -> None:
        super().__init__(home / "log")
        table = home / "table"
        table.mkdir(parents=True)
        self.expected = [f"{partition}/{row}" for partition in range(2) for row in range(MANY)]
        columns = {
            "partition": pa.array([partition for partition in range(2) for _ in range(MANY)], "i4"),
            "offset": pa.array([*range(MANY)] * 2),
            "value": pa.array(self.expected),
        }
        pq.write_table(pa.table(columns), table / "part.parquet")
        self.words: tuple[str, ...] = (
            *("restore.py", str(table), str(self.path), "--topic=t", "--format=parquet"),
        )

    def feed(self) -> None:
        """Do nothing: all is there."""

    def planned(self) -> int:
        return int((self.path / STATE_FILE).exists())


FOLLOWING: Final = {"ingest": Ingest, "archive": Archive, "mirror": Mirror}
"""The pipelines that tail what they take."""


class Trial:
    """A pipeline that runs on a cluster while parts are killed."""

    def __init__(self, cluster: Cluster, pipeline: Pipeline, submitted: Submitted) -> None:
        self._cluster = cluster
        self._pipeline = pipeline
        self._submitted = submitted
        self._chance = random.Random(KILLS)

    def round(self, victim: str | None) -> None:
        """Let it take some micro-batches, and kill a part meanwhile."""
        planned, commits = self._pipeline.planned(), self._pipeline.commits()

        def is_committed() -> bool:
            return self._pipeline.commits() > commits

        for _ in range(BATCHES):
            self._pipeline.feed()
        self._wait_until(lambda: self._pipeline.planned() > planned)
        if KILLS:
            time.sleep(self._chance.uniform(0, 1))
        elif victim == "driver":  # before Spark has noted the commit, most likely
            self._wait_until(is_committed, pause=0.002)
        else:
            self._wait_until(lambda: self._pipeline.staged() or is_committed(), pause=0.002)
        match victim:
            case None:
                self._wait_for_all()
            case "driver":
                self._kill_driver()
            case "stall":
                self._stall()
            case _:
                self._kill(victim)

    def wait_until_tidy(self) -> None:
        """Take micro-batches until nothing is left of tasks that came to nothing.

        What an attempt stages after the commit of its batch stays until the next commit.
        """
        for _ in range(_LAST_ROUNDS):
            self.round(None)
            if self._pipeline.is_tidy():
                return
        raise AssertionError(f"{_LAST_ROUNDS} commits left staged files: {self._told()}")

    def wait_for_the_end(self) -> None:
        """Wait until it ends by itself, with all done."""
        self._wait_until(lambda: self._submitted.code == 0)
        self._wait_until(lambda: not self._cluster.started_by_workers())

    def _kill(self, victim: str) -> None:
        executor = self._an_executor()
        worker = None if executor is None else self._cluster.worker_of(executor)
        if executor is None or worker is None:
            return
        match victim:
            case "executor":
                kill([executor])
            case "worker":
                kill([worker])
            case "machine":
                kill([worker, executor, *_below(executor)])
        self._wait_for_all()
        if victim != "executor":
            self._cluster.add_worker()

    def _stall(self) -> None:
        executor = self._an_executor()
        if executor is None:
            return
        stalled = [executor, *_below(executor)]
        for process in stalled:
            with contextlib.suppress(psutil.NoSuchProcess):
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

    def _an_executor(self) -> psutil.Process | None:
        """Choose one; None if the pipeline has come to its end meanwhile."""
        self._wait_until(lambda: len(self._cluster.executors()) == 2 or self._submitted.code == 0)
        found = self._cluster.executors()
        return self._chance.choice(found) if found and self._submitted.code is None else None

    def _has_all(self) -> bool:
        return len(self._pipeline.seen()) >= len(self._pipeline.expected)

    def _wait_for_all(self) -> None:
        self._wait_until(self._has_all)
        assert Counter(self._pipeline.seen()) == Counter(self._pipeline.expected)

    def _wait_until(self, reached: Callable[[], bool], *, pause: float = 0.1) -> None:
        deadline = time.monotonic() + _SECONDS
        while not reached():
            if self._submitted.code not in {None, 0}:
                assert _BUSY in self._submitted.told(), self._told()
                self._submitted.start()
            assert time.monotonic() < deadline, self._told()
            time.sleep(pause)

    def _told(self) -> str:
        return self._submitted.told() + self._cluster.told()


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


@pytest.fixture
def submit(
    cluster: Cluster, py_files: Path, variables: dict[str, str]
) -> Callable[[Pipeline, Path], Submitted]:
    def prepared(pipeline: Pipeline, home: Path) -> Submitted:
        script, *words = pipeline.words
        settings = [
            each for key, value in SETTINGS.items() for each in ("--conf", f"{key}={value}")
        ]
        jars = [f"--jars={','.join(pipeline.jars)}"] if pipeline.jars else []
        words = [*settings, *jars, f"--py-files={py_files}", str(ROOT / "jobs" / script), *words]
        return Submitted(cluster, words, home / "output", variables)

    return prepared


def victims(name: str) -> list[str]:
    return [*VICTIMS] * KILLS if KILLS else [*FEW[name]]


@pytest.mark.timeout(3600 * (KILLS or 1))
@pytest.mark.parametrize("name", [name for name in FOLLOWING if KILLS or name in FEW])
def test_whatever_is_killed_on_a_cluster_a_pipeline_takes_each_row_once(
    name: str, cluster: Cluster, submit: Callable[[Pipeline, Path], Submitted], tmp_path: Path
) -> None:
    pipeline: Any = FOLLOWING[name](tmp_path)
    with submit(pipeline, tmp_path) as submitted:
        trial = Trial(cluster, pipeline, submitted)
        for victim in victims(name):
            trial.round(victim)
        trial.wait_until_tidy()
    assert Counter(pipeline.seen()) == Counter(pipeline.expected)


@pytest.mark.timeout(3600 * (KILLS or 1))
def test_whatever_is_killed_on_a_cluster_restore_brings_each_record_back_once(
    cluster: Cluster, submit: Callable[[Pipeline, Path], Submitted], tmp_path: Path
) -> None:
    for number, victim in enumerate(victims("restore")):
        home = tmp_path / f"{number}"
        pipeline = Restore(home)
        with submit(pipeline, home) as submitted:
            trial = Trial(cluster, pipeline, submitted)
            trial.round(victim)
            trial.wait_for_the_end()
        assert Counter(pipeline.seen()) == Counter(pipeline.expected)
        assert pipeline.is_tidy()
