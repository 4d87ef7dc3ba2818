"""Random steps on a log directory while a query reads it, and what it must have read in the end.

A ground (:class:`StressGround`) is a directory with topics that come, grow, shrink and go, and what
was put there. :class:`StressQuery` is a streaming query over all of it that is stopped, killed,
interrupted, paused and started again; its checkpoint and its rows stay. :func:`run_steps` does
random steps, :func:`wait_until_read` lets the query come to its end. What it read is judged by
:mod:`tests.support.stress_history`.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import psutil
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql.functions import input_file_name
from tests.support.stress_history import Row, micro_batches

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter
    from pyspark.sql.streaming.query import StreamingQuery
    from tests.simulation.auditor import Write
    from tests.support.stress_history import MicroBatch

__all__ = ["Life", "StressGround", "StressQuery", "missing_values", "run_steps", "wait_until_read"]

Place = tuple[int, int]
"""Partition and offset."""

_IDLE_SECONDS: Final = 180
"""A query that has read nothing new for so long has read all that it will."""
_SCHEMA: Final = "topic STRING, partition INT, offset BIGINT, value STRING"
_SLOW: Final = "Python worker failed to connect back"
"""What Spark says of a process that takes ten seconds to start."""
_SOURCE_PROCESS: Final = "python_streaming_source_runner"


@dataclass
class Life:
    """A topic from when it was made to when it was deleted, and what was put there.

    ``sent`` has a place for each value, or None where the writer did not say.
    """

    name: str
    number: int
    kind: str = "plain"
    partitions: int = 1
    alive: bool = True
    sent: dict[str, Place | None] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)
    """What was to be put there, and what its writer was told."""

    def next_values(self, count: int) -> list[str]:
        """Make values that no other record of any topic has."""
        begin = len(self.sent)
        return [f"{self.name}#{self.number}:{begin + n}" for n in range(count)]


class StressGround(Protocol):
    """A log directory, what happens there, and what of it may be gone."""

    lives: list[Life]

    @property
    def paths(self) -> Sequence[Path]:
        """The log directories."""

    def steps(self) -> Mapping[Callable[[random.Random], None], int]:
        """Return what can be done, and how often in proportion."""

    def may_be_missing(self, life: Life, missing: set[str]) -> bool:
        """Whether the log has lost these values of a topic that still lives."""


class StressQuery:
    """A query from all topics into Parquet files, which Spark's sink writes exactly once.

    With ``fails``, offsets that are gone fail it, as they do unless a query wants otherwise. If
    topics that were deleted are all that it says, it reads on without them and runs on as before.
    """

    def __init__(
        self, spark: SparkSession, ground: StressGround, work: Path, *, fails: bool = False
    ) -> None:
        self._spark = spark
        self._ground = ground
        self._work = work
        self._query: StreamingQuery | None = None
        self._forgiven = 0
        self._fails = fails
        self.losses = 0
        self.starts = 0

    def rows(self) -> list[Row]:
        """Return all rows so far."""
        # of a long run the sink's log keeps no batch 0, only what it was made compact in
        if not any((self._work / "rows" / "_spark_metadata").glob("[0-9]*")):
            return []
        frame = self._spark.read.schema(_SCHEMA).parquet(str(self._work / "rows"))
        found = frame.withColumn("file", input_file_name()).collect()
        return [Row(*row[:4], row[4].rpartition("/")[2]) for row in found]

    def micro_batches(self) -> list[MicroBatch]:
        """Return the micro-batches so far."""
        return micro_batches(self._work, self.rows())

    def start(self) -> None:
        """Start it, if it does not run; raise what it failed of, unless that may be a kill."""
        if self._query is not None and self._query.isActive:
            return
        self.stop()
        try:
            self._query = self._writer(fails=self._fails).start()
        except PySparkException as error:
            if _SLOW not in str(error):
                raise
            return
        self.starts += 1

    def _writer(self, *, fails: bool) -> DataStreamWriter:
        options = {
            "subscribePattern": "^s[0-9]",
            "startingOffsets": "earliest",
            "failOnDataLoss": str(fails),
            "fetchOffset.retryIntervalMs": "100",
            "maxOffsetsPerTrigger": "500",
            "stateLocation": str(self._work / "state"),
        }
        reader = self._spark.readStream.format("kafkalog").options(**options)
        frame = reader.schema(_SCHEMA).load(",".join(map(str, self._ground.paths)))
        writer = frame.writeStream.format("parquet").option("path", str(self._work / "rows"))
        return writer.option("checkpointLocation", str(self._work / "checkpoint"))

    def stop(self) -> None:
        """Stop it, wherever it is; raise what it failed of, unless that may be a kill.

        A kill fails one run at most, and perhaps a later one: of a process that rests, Spark hears
        when it wants to use it again.
        """
        query, self._query = self._query, None
        if query is None:
            return
        failure = query.exception() if not query.isActive else None
        query.stop()
        if failure is None:
            return
        if self._fails and self._tells_of_deleted_topics(str(failure)):
            self.losses += 1
            self._read_past()
        elif _SLOW not in str(failure):
            if not self._forgiven:
                raise failure
            self._forgiven -= 1

    def _read_past(self) -> None:
        """Read on after a loss, as often as a slow machine, or a kill, makes it necessary."""
        deadline = time.monotonic() + _IDLE_SECONDS
        while True:
            try:
                past = self._writer(fails=False).trigger(availableNow=True).start()
                assert past.awaitTermination(_IDLE_SECONDS)
            except PySparkException as error:
                if time.monotonic() > deadline or not (_SLOW in str(error) or self._forgiven):
                    raise
                self._forgiven -= _SLOW not in str(error)
            else:
                return

    def _tells_of_deleted_topics(self, message: str) -> bool:
        """Whether all partitions that a loss names are of topics that were deleted once."""
        loss = re.search(r"\[KAFKA_DATA_LOSS\..*", message)
        named = set(re.findall(r"\b(s\d+)-\d+\b", loss[0])) if loss else set()
        deleted = {life.name for life in self._ground.lives if not life.alive}
        return bool(named) and named <= deleted

    def kill_query(self, rng: random.Random) -> None:
        """Kill or interrupt a process that the query needs: its source's, or one of a task."""
        process = self._process(rng)
        if process is not None:
            self._forgiven += 1
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(rng.choice([signal.SIGKILL, signal.SIGINT]))

    def pause_query(self, rng: random.Random) -> None:
        """Let a process that the query needs stand still for a while."""
        process = self._process(rng)
        if process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
                time.sleep(rng.random())
                process.resume()

    def _process(self, rng: random.Random) -> psutil.Process | None:
        """Choose the process of the source, or one of a task."""
        if self._query is None or not self._query.isActive:
            return None
        gateway = SparkContext._gateway
        assert gateway is not None
        processes = psutil.Process(gateway.proc.pid).children(recursive=True)
        sources = [process for process in processes if _SOURCE_PROCESS in _command(process)]
        workers = [process for process in processes if "pyspark" in _command(process)]
        chosen = rng.choice([sources, workers])
        return rng.choice(chosen) if chosen else None

    def check_health(self) -> None:
        """Start it again if it died of a kill; raise what it died of otherwise."""
        if self._query is not None and not self._query.isActive:
            self.start()


def run_steps(
    ground: StressGround, query: StressQuery, rng: random.Random, seconds: float
) -> Counter[str]:
    """Do random steps for so long; give how often each was done."""
    done: Counter[str] = Counter()

    def toggle_query(rng: random.Random) -> None:
        # idle every other time, so that more than one step falls between two runs
        (query.stop if rng.random() < 0.5 else query.start)()

    query.start()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        of_query = {toggle_query: 6, query.kill_query: 3, query.pause_query: 2}
        steps = {**ground.steps(), **of_query}
        (step,) = rng.choices(list(steps), list(steps.values()))
        step(rng)
        done[step.__name__] += 1
        query.check_health()
        time.sleep(rng.random() * 0.3)
    return done


def wait_until_read(ground: StressGround, query: StressQuery) -> None:
    """Let the query read to the end.

    Raises:
        AssertionError: a row that the log has does not come.
    """
    seen, deadline = -1, 0.0
    while True:
        query.start()
        rows = query.rows()
        if len(rows) > seen:  # it gets on
            seen, deadline = len(rows), time.monotonic() + _IDLE_SECONDS
        unread = _unread(ground, {row.value for row in rows})
        if not unread:
            query.stop()
            return
        if time.monotonic() > deadline:
            query.stop()
            raise AssertionError("\n".join(unread))
        time.sleep(1)


def missing_values(ground: StressGround, rows: Iterable[Row], said: str) -> set[str]:
    """Return what retention took from topics that still live after the query had begun.

    ``said`` is what the source logged: where the query begins is no loss of what lies below.
    """
    began = re.findall(r"startingOffsets starts at (\{.*\}\})", said)
    starts = json.loads(began[-1]) if began else {}
    read = {row.value for row in rows}
    lives = (life for life in ground.lives if life.alive and life.kind == "retained")
    return {
        value
        for life in lives
        for value, place in life.sent.items()
        if value not in read and not _lies_below(place, starts.get(life.name, {}))
    }


def _lies_below(place: Place | None, starts: Mapping[str, int]) -> bool:
    return place is not None and place[1] < starts.get(str(place[0]), 0)


def _unread(ground: StressGround, read: set[str]) -> list[str]:
    return [
        f"of {life.name}#{life.number} ({life.kind}): {_shown(missing, life.sent)}"
        for life in ground.lives
        if life.alive
        and (missing := life.sent.keys() - read)
        and not ground.may_be_missing(life, set(missing))
    ]


def _shown(missing: set[str], sent: dict[str, Place | None]) -> str:
    some = sorted(missing)[:20]
    listed = ", ".join(f"{value} at {sent[value]}" for value in some)
    return f"{len(missing)} values were not read: {listed}"


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
