"""What queries over few rows cost: to start one, and each of its micro-batches."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

from benchmarks.engine import EMPTY_SOURCE, empty_source
from benchmarks.environment import wait_for_high_watermarks
from benchmarks.measure import WARM_UPS, Contender, Goal, Workload, timed
from benchmarks.reading import KAFKA_SOURCE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.environment import Environment
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

__all__ = ["WORKLOADS"]

_OURS: Final = "kafkalog"
_TOPIC: Final = "ticks"
_ROWS_PER_TRIGGER: Final = 100
_SKIPPED: Final = 10
"""Triggers at the beginning of a query that are not counted: they start workers and consumers."""


def _trigger(env: Environment) -> Workload:
    triggers = _SKIPPED + (5 if env.quick else 50)
    frames = _frames(env, _TOPIC, triggers)
    return Workload(
        title=f"one micro-batch of {_ROWS_PER_TRIGGER} rows",
        contenders=tuple(Contender(who, _trigger_ms(env, frame)) for who, frame in frames.items()),
        goals=(Goal(_OURS, KAFKA_SOURCE, 1),),
        unit="ms",
        warm_ups=0 if env.quick else WARM_UPS,
        notes=(
            "Spark's triggerExecution in a query that finds new rows at each trigger"
            f" (maxOffsetsPerTrigger), median of its triggers but the first {_SKIPPED}. The empty"
            " source has as many tasks and yields nothing."
        ),
    )


def _whole_query(env: Environment) -> Workload:
    frames = _frames(env, f"{_TOPIC}-once", 1)
    return Workload(
        title=f"a whole availableNow query of {_ROWS_PER_TRIGGER} rows",
        contenders=tuple(Contender(who, _query_ms(env, frame)) for who, frame in frames.items()),
        unit="ms",
        notes=(
            "what starting and ending a streaming query costs in a warm session, one micro-batch"
            " included. For a Python source Spark starts a process that lives as long as the query."
        ),
    )


WORKLOADS: Final[Mapping[str, Callable[[Environment], Workload]]] = {
    "trigger": _trigger,
    "stream-query": _whole_query,
}


def _frames(env: Environment, topic: str, triggers: int) -> dict[str, DataFrame]:
    """Return streams that have something new so many times, by contender."""
    rows = triggers * _ROWS_PER_TRIGGER
    env.create_topic(topic)
    env.to_kafka(topic, env.rows.limit(rows)).save()
    wait_for_high_watermarks(env.broker, topic, rows)
    env.spark.dataSource.register(empty_source(env.shape.partitions))
    kafka = _limited(env, "kafka", topic).option("kafka.bootstrap.servers", env.broker.bootstrap)
    return {
        KAFKA_SOURCE: kafka.load(),
        EMPTY_SOURCE: env.spark.readStream.format("empty").option("triggers", triggers).load(),
        _OURS: _limited(env, "kafkalog", topic).load(str(env.broker.log_dirs[0])),
    }


def _limited(env: Environment, name: str, topic: str) -> DataStreamReader:
    reader = env.spark.readStream.format(name).option("subscribe", topic)
    reader = reader.option("startingOffsets", "earliest")
    return reader.option("maxOffsetsPerTrigger", _ROWS_PER_TRIGGER)


def _trigger_ms(env: Environment, frame: DataFrame) -> Callable[[], float]:
    """Make what runs a query and gives the median milliseconds of its triggers."""

    def run() -> float:
        counted = [progress.durationMs for progress in _run(env, frame).recentProgress[_SKIPPED:]]
        return statistics.median(taken["triggerExecution"] for taken in counted)

    return run


def _query_ms(env: Environment, frame: DataFrame) -> Callable[[], float]:
    return lambda: timed(lambda: _run(env, frame)) * 1e3


def _run(env: Environment, frame: DataFrame) -> StreamingQuery:
    """Run a query to its end."""
    checkpoint = str(env.fresh("checkpoint"))
    write = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = write.trigger(availableNow=True).start()
    query.awaitTermination()
    return query
