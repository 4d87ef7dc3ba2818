"""What one small micro-batch costs, from the source to noop."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

from benchmarks.measure import Contender, Goal, Workload
from benchmarks.reading import KAFKA_SOURCE
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.environment import Environment
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamReader

__all__ = ["WORKLOADS"]

_EMPTY_SOURCE: Final = "empty Python source"
_OURS: Final = "kafkalog"
_TOPIC: Final = "ticks"
_ROWS_PER_TRIGGER: Final = 100
_SKIPPED: Final = 10
"""Triggers at the beginning of a query that are not counted: they start workers and consumers."""


def _trigger(env: Environment) -> Workload:
    triggers = _SKIPPED + (5 if env.quick else 50)
    env.create_topic(_TOPIC)
    env.to_kafka(_TOPIC, env.rows.limit(triggers * _ROWS_PER_TRIGGER)).save()
    env.wait_for_high_watermarks(_TOPIC, triggers * _ROWS_PER_TRIGGER)
    env.spark.dataSource.register(_empty_source(env.shape.partitions, triggers))
    kafka = _limited(env, "kafka").option("kafka.bootstrap.servers", env.broker.bootstrap)
    frames = {
        KAFKA_SOURCE: kafka.load(),
        _EMPTY_SOURCE: env.spark.readStream.format("empty").load(),
        _OURS: _limited(env, "kafkalog").load(str(env.broker.log_dirs[0])),
    }
    return Workload(
        title=f"one micro-batch of {_ROWS_PER_TRIGGER} rows",
        contenders=tuple(Contender(who, _run(env, frame)) for who, frame in frames.items()),
        goals=(Goal(_OURS, KAFKA_SOURCE, 1),),
        unit="ms",
        warm_ups=0 if env.quick else 1,
        notes=(
            "Spark's triggerExecution in a query that finds new rows at each trigger"
            f" (maxOffsetsPerTrigger), median of its triggers but the first {_SKIPPED}. The empty"
            " source has as many tasks and yields nothing: what Spark's Python sources cost at"
            " least."
        ),
    )


WORKLOADS: Final[Mapping[str, Callable[[Environment], Workload]]] = {"trigger": _trigger}


def _limited(env: Environment, name: str) -> DataStreamReader:
    reader = env.spark.readStream.format(name).option("subscribe", _TOPIC)
    reader = reader.option("startingOffsets", "earliest")
    return reader.option("maxOffsetsPerTrigger", _ROWS_PER_TRIGGER)


def _run(env: Environment, frame: DataFrame) -> Callable[[], float]:
    return lambda: _trigger_ms(env, frame)


def _trigger_ms(env: Environment, frame: DataFrame) -> float:
    """Run a query to its end; give the median milliseconds of its triggers."""
    checkpoint = str(env.fresh("checkpoint"))
    write = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = write.trigger(availableNow=True).start()
    query.awaitTermination()
    counted = [progress.durationMs for progress in query.recentProgress[_SKIPPED:]]
    return statistics.median(taken["triggerExecution"] for taken in counted)


def _empty_source(partitions: int, triggers: int) -> type[DataSource]:
    """Give a source that has something new so many times, and yields nothing.

    Classes within a function travel to the workers whole: those cannot import a benchmark.
    """

    class EmptyReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802
            return {"at": 0}

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            pass

        def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:  # noqa: N802
            del limit
            return {"at": min(start["at"] + 1, triggers)}

        def partitions(self, start: object, end: object) -> list[InputPartition]:
            del start, end
            return [InputPartition(number) for number in range(partitions)]

        def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
            del partition
            return iter(())

    class EmptySource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "empty"

        def schema(self) -> str:
            return "value BINARY"

        def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: N802
            del schema
            return EmptyReader()

    return EmptySource
