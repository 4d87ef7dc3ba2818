"""The first micro-batch of a query over many partitions, beside Spark's Kafka source.

A broker makes topics of so many partitions in all, and a producer puts two records into each. Then
both sources read all of it from the earliest offsets with ``availableNow``, in turns, in one
session that has run both before: ours in the folders of the running broker, Spark's from the
broker. Prints the seconds from the start of the query to its end, what Spark says of the batch, and
the CPU time of Spark with its Python processes, and of the broker. Then the same of a query that
is started again where that one ended, and finds 100 new records; and of a batch of 100 new records
in a query that runs.

    python -m benchmarks.first_batch --partitions 10000 [--rounds 1] [--most-seconds 900]

Spark's source runs twice: as it is, and with ``kafka.fetch.max.wait.ms=1``. After each poll it asks
the broker for the bounds of the log, over the connection on which the consumer already waits for
more records; the answer comes after that wait, of half a second. So a partition that it reads to
its end costs a task half a second, whatever is in it.

A batch that takes longer than ``--most-seconds`` is given up. Then the table says how many of its
tasks have ended, and the later batches are those of a query that began at the latest offsets.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.cpu import cpu_seconds_of, tree_cpu_seconds
from benchmarks.session import scratch, spark_session
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table
from tests.support.kafka import Broker, Topic

from kafkalog.files.parallel import available_cores
from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["main"]

_TOPIC_PARTITIONS: Final = 500
_PATIENT: Final = {"broker.session.timeout.ms": "60000"}
"""A broker that makes thousands of partitions is late with its heartbeats."""
_NEW_RECORDS: Final = 100
_STEPS: Final = ("latestOffset", "queryPlanning", "addBatch")
_NOTING_S: Final = 6
"""A broker notes every 5 s what is committed, which is as far as a reader of its folders goes."""


class _Batch(NamedTuple):
    """What a query took for its rows."""

    rows: int
    numbers: list[float]
    """Seconds of all, of the steps, the number of tasks that have ended, and perhaps seconds of
    CPU: Spark's, and the broker's."""
    has_ended: bool = True

    def shown(self) -> list[str]:
        """Return the cells of a table."""
        cells = [f"{self.rows:,}", *(f"{number:,.1f}" for number in self.numbers)]
        cells[5] = f"{self.numbers[4]:,.0f}"
        return cells if self.has_ended else ["given up", *cells[1:]]


class _Clock:
    """Measures what has passed since it was made."""

    def __init__(self, broker: Broker) -> None:
        self._pid = broker.pid
        self._began = self._now()

    def passed(self) -> list[float]:
        """Return seconds, seconds of CPU without the broker's, and the broker's."""
        return [now - began for now, began in zip(self._now(), self._began, strict=True)]

    def _now(self) -> tuple[float, float, float]:
        of_broker = cpu_seconds_of(self._pid)
        return time.perf_counter(), tree_cpu_seconds() - of_broker, of_broker


class _Source(NamedTuple):
    """A source with options, and what its queries run in."""

    name: str
    options: Mapping[str, str]
    spark: SparkSession
    broker: Broker
    work: Path

    def start(
        self, checkpoint: str, topics: str = "wide-.*", *, first: str = "earliest", once: bool
    ) -> StreamingQuery:
        """Start a query that throws the rows away."""
        stream = self.spark.readStream.format(self.name.partition(",")[0]).options(**self.options)
        rows = stream.option("subscribePattern", topics).option("startingOffsets", first).load()
        writer = rows.writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(self._checkpoints / checkpoint))
        return (writer.trigger(availableNow=True) if once else writer).start()

    @property
    def _checkpoints(self) -> Path:
        return self.work / "checkpoints" / self.name.replace(", ", "-")

    def run(self, checkpoint: str, most_s: float) -> _Batch:
        """Run a query to its end, or for as long as is allowed."""
        clock = _Clock(self.broker)
        query = self.start(checkpoint, once=True)
        if query.awaitTermination(int(most_s)):
            seconds, *cpu = clock.passed()
            return _Batch(_rows(query), [seconds, *_steps(query), self._tasks(query), *cpu])
        seconds, *cpu = clock.passed()
        tasks = self._tasks(query)
        query.stop()
        return _Batch(0, [seconds, *_steps(query), tasks, *cpu], has_ended=False)

    def follow(self, checkpoint: str, keys: Sequence[TopicPartition]) -> _Batch:
        """Let a query run, write to the partitions, and wait until it has read that."""
        query = self.start(checkpoint, once=False)
        try:
            query.processAllAvailable()
            before, tasks = len(query.recentProgress), self._tasks(query)
            _produce(self.broker, keys)
            while _rows(query, before) < len(keys):
                time.sleep(0.1)
            seconds = sum(_taken(query, "triggerExecution", before))
            numbers = [seconds, *_steps(query, before), self._tasks(query) - tasks]
            return _Batch(_rows(query, before), numbers)
        finally:
            query.stop()

    def _tasks(self, query: StreamingQuery) -> int:
        """Return how many tasks have ended."""
        tracker = self.spark.sparkContext.statusTracker()
        jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(str(query.runId)))
        stages = {stage for job in jobs if job for stage in job.stageIds}
        return sum(info.numCompletedTasks for one in stages if (info := tracker.getStageInfo(one)))


def main(argv: Sequence[str] | None = None) -> int:
    """Fill topics, and let both sources read them in turns."""
    parser = argparse.ArgumentParser(prog="benchmarks.first_batch", description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--most-seconds", type=float, default=900)
    asked = parser.parse_args(argv)
    with (
        scratch() as work,
        Broker(work / "broker", settings=_PATIENT, quick_start=False) as broker,
        spark_session(available_cores(), work) as spark,
    ):
        keys = _create(broker, asked.partitions)
        _produce(broker, keys * 2, rests=True)
        servers = {"kafka.bootstrap.servers": broker.bootstrap}
        contenders = {
            "kafkalog": {"path": str(broker.log_dirs[0])},
            "kafka, fetch.max.wait.ms=1": {**servers, "kafka.fetch.max.wait.ms": "1"},
            "kafka": servers,
        }
        sources = [_Source(*each, spark, broker, work) for each in contenders.items()]
        _warm_up(broker, sources)
        _measure(sources, keys, asked.rounds, asked.most_seconds)
    return 0


def _measure(
    sources: Sequence[_Source], keys: Sequence[TopicPartition], rounds: int, most_s: float
) -> None:
    few = keys[:: max(1, len(keys) // _NEW_RECORDS)][:_NEW_RECORDS]
    found: dict[tuple[str, str], list[_Batch]] = {}

    def keep(what: str, source: _Source, batch: _Batch) -> None:
        found.setdefault((what, source.name), []).append(batch)
        Console().print(what, source.name, batch)

    checkpoints = {}
    for source in sources:
        for number in range(rounds):
            keep("first", source, source.run(str(number), most_s))
        if found["first", source.name][0].has_ended:
            checkpoints[source.name] = "0"
        else:
            checkpoints[source.name] = "latest"
            source.start("latest", first="latest", once=True).awaitTermination()
    for _ in range(rounds):
        _produce(sources[0].broker, few, rests=True)
        for source in sources:
            batch = source.run(checkpoints[source.name], most_s)
            keep(f"{len(few)} new records, started again", source, batch)
        for source in sources:
            batch = source.follow(checkpoints[source.name], few)
            keep(f"{len(few)} new records, running", source, batch)
            time.sleep(_NOTING_S)
    _show(found)


def _show(found: Mapping[tuple[str, str], Sequence[_Batch]]) -> None:
    table = Table("batch", "source", "rows", "s", *(f"{step}, s" for step in _STEPS))
    for column in ("tasks", "CPU, s", "broker's CPU, s"):
        table.add_column(column)
    for names, batches in found.items():
        numbers = zip(*(batch.numbers for batch in batches), strict=True)
        medians = [statistics.median(each) for each in numbers]
        table.add_row(*names, *batches[0]._replace(numbers=medians).shown())
    Console(width=140).print(table)


def _create(broker: Broker, partitions: int) -> list[TopicPartition]:
    keys = []
    for number, first in enumerate(range(0, partitions, _TOPIC_PARTITIONS)):
        topic = Topic(f"wide-{number}", min(_TOPIC_PARTITIONS, partitions - first))
        broker.create_topics(topic)
        keys += [TopicPartition(topic.name, each) for each in range(topic.partitions)]
    return keys


def _warm_up(broker: Broker, sources: Sequence[_Source]) -> None:
    """Let code be compiled, which a session does once."""
    broker.create_topics(Topic("warm"))
    _produce(broker, [TopicPartition("warm", 0)], rests=True)
    for source in sources:
        source.start("warm", "warm", once=True).awaitTermination()


def _produce(broker: Broker, keys: Iterable[TopicPartition], *, rests: bool = False) -> None:
    """Write a record to each; with ``rests`` wait until the broker has noted that in its folder."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 50, "log_level": 3})
    for key in keys:
        while True:
            try:
                producer.produce(key.topic, b"v" * 90, b"k" * 10, key.partition)
                break
            except BufferError:
                producer.poll(0.1)
    left = producer.flush(120)
    if left:
        raise TimeoutError(f"{left} records were not taken by the broker within 120 s")
    if rests:
        time.sleep(_NOTING_S)


def _rows(query: StreamingQuery, begin: int = 0) -> int:
    return sum(progress.numInputRows for progress in query.recentProgress[begin:])


def _steps(query: StreamingQuery, begin: int = 0) -> list[float]:
    return [sum(_taken(query, step, begin)) for step in _STEPS]


def _taken(query: StreamingQuery, step: str, begin: int) -> list[float]:
    """Return the seconds that a step took in batches that had rows."""
    told = [progress for progress in query.recentProgress[begin:] if progress.numInputRows]
    return [progress.durationMs.get(step, 0) / 1000 for progress in told]


if __name__ == "__main__":
    raise SystemExit(main())
