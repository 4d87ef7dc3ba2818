"""Reads of a whole topic, batch and streaming, all columns and ``value`` alone, to noop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.engine import READY_SOURCE, ready_source
from benchmarks.environment import TOPIC, Environment
from benchmarks.measure import WARM_UPS, Contender, Goal, Workload, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.readwriter import DataFrameReader
    from pyspark.sql.streaming.readwriter import DataStreamReader

__all__ = ["KAFKA_SOURCE", "WORKLOADS"]

KAFKA_SOURCE: Final = "Kafka source"
_SAME_FILES: Final = "kafkalog, the broker's files"
_OWN_LOG: Final = "kafkalog, its own log"
_VALUE: Final = "value BINARY"


def _batch_all(env: Environment) -> Workload:
    return _workload(env, "batch read, 7 columns", 0.88, _read_batch, None)


def _batch_value(env: Environment) -> Workload:
    return _workload(env, "batch read, value only", 0.85, _read_batch, _VALUE)


def _stream_all(env: Environment) -> Workload:
    return _workload(env, "availableNow read, 7 columns", 0.85, _read_stream, None)


def _stream_value(env: Environment) -> Workload:
    return _workload(env, "availableNow read, value only", 0.85, _read_stream, _VALUE)


WORKLOADS: Final[Mapping[str, Callable[[Environment], Workload]]] = {
    "read-batch-all": _batch_all,
    "read-batch-value": _batch_value,
    "read-stream-all": _stream_all,
    "read-stream-value": _stream_value,
}


def _workload(
    env: Environment,
    title: str,
    share: float,
    read: Callable[[Environment, Path | None, str | None], float],
    schema: str | None,
) -> Workload:
    """Compare the peer with kafkalog on the broker's own files and on a log of its own sink."""
    env.spark.dataSource.register(ready_source(env.shape))
    ready = _read_ready if read is _read_batch else _stream_ready
    peers = [
        Contender(KAFKA_SOURCE, lambda: read(env, None, schema)),
        Contender(READY_SOURCE, lambda: ready(env, schema)),
    ]
    ours = {_SAME_FILES: env.broker_directory, _OWN_LOG: env.own_directory}
    return Workload(
        title=title,
        contenders=(
            *peers,
            *(Contender(who, _reader(env, read, place, schema)) for who, place in ours.items()),
        ),
        goals=tuple(Goal(who, READY_SOURCE, share) for who in ours),
        rows=env.shape.rows,
        warm_ups=1 if env.quick else WARM_UPS,
        notes=(
            "a whole topic to Spark's noop sink. The broker's files hold the batches of Spark's"
            " Kafka sink (16 KiB before compression); the Kafka source reads them through the"
            " broker, kafkalog from the directory of the running broker. The source of ready"
            " batches reads nothing: it is what Spark's pipe to Python allows."
        ),
    )


def _reader(
    env: Environment,
    read: Callable[[Environment, Path | None, str | None], float],
    place: Path,
    schema: str | None,
) -> Callable[[], float]:
    return lambda: read(env, place, schema)


def _read_batch(env: Environment, place: Path | None, schema: str | None) -> float:
    """Time a batch read; without ``place`` it is the peer's."""

    def work() -> None:
        _load(env, env.spark.read, place, schema).write.format("noop").mode("overwrite").save()

    return timed(work)


def _read_ready(env: Environment, schema: str | None) -> float:
    def work() -> None:
        reader = env.spark.read.format("ready")
        frame = (reader.schema(schema) if schema else reader).load()
        frame.write.format("noop").mode("overwrite").save()

    return timed(work)


def _stream_ready(env: Environment, schema: str | None) -> float:
    reader = env.spark.readStream.format("ready")
    return _available_now(env, (reader.schema(schema) if schema else reader).load)


def _read_stream(env: Environment, place: Path | None, schema: str | None) -> float:
    """Time a streaming query from its start to its end; without ``place`` it is the peer's."""
    return _available_now(env, lambda: _load(env, env.spark.readStream, place, schema))


def _available_now(env: Environment, load: Callable[[], DataFrame]) -> float:
    checkpoint = env.fresh("checkpoint")

    def work() -> None:
        frame = load()
        write = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query = write.trigger(availableNow=True).start()
        query.awaitTermination()

    return timed(work)


def _load(
    env: Environment,
    reader: DataFrameReader | DataStreamReader,
    place: Path | None,
    schema: str | None,
) -> DataFrame:
    reader = reader.option("subscribe", TOPIC).option("startingOffsets", "earliest")
    if place is None:
        kafka = reader.format("kafka").option("kafka.bootstrap.servers", env.broker.bootstrap)
        return kafka.load().select("value") if schema else kafka.load()
    if schema:
        reader = reader.schema(schema)
    return reader.format("kafkalog").load(str(place))
