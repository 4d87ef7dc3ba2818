"""How long it takes from appending a record to a streaming query that has it."""

from __future__ import annotations

import queue
import statistics
import time
from typing import TYPE_CHECKING, Final

from benchmarks.measure import Contender, Goal, Workload
from benchmarks.reading import KAFKA_SOURCE
from benchmarks.segments import PartitionWriter, encoded_rows
from confluent_kafka import Producer

from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.environment import Environment
    from pyspark.sql import DataFrame

__all__ = ["WORKLOADS"]

_OURS: Final = "kafkalog"
_PARTITION: Final = 0
_PAUSES: Final = (0.31, 0.47, 0.38, 0.53, 0.42)
"""Seconds of silence before an append; uneven, so as not to fall in step with triggers."""
_SECONDS: Final = 60


def _tail(env: Environment) -> Workload:
    return Workload(
        title="appended to seen, one record at a time",
        contenders=(
            Contender(KAFKA_SOURCE, lambda: _through_broker(env)),
            Contender(_OURS, lambda: _through_files(env)),
        ),
        goals=(Goal(_OURS, KAFKA_SOURCE, 1),),
        unit="ms",
        warm_ups=0 if env.quick else 1,
        notes=(
            "from before a record is sent (by a producer to the broker, and flushed) or appended"
            " (to the log by the library's appender, outside Spark), to when foreachBatch of a"
            " running query with Spark's default trigger has collected it; p50 of"
            f" {len(_PAUSES)} records, each after some silence."
        ),
    )


WORKLOADS: Final[Mapping[str, Callable[[Environment], Workload]]] = {"tail": _tail}


def _through_broker(env: Environment) -> float:
    topic = env.fresh("tail").name
    env.create_topic(topic)
    producer = Producer({"bootstrap.servers": env.broker.bootstrap, "linger.ms": 0})

    def append() -> None:
        producer.produce(topic, b"v" * 100, b"k" * 10, partition=_PARTITION)
        producer.flush()

    stream = env.spark.readStream.format("kafka").option("subscribe", topic)
    stream = stream.option("kafka.bootstrap.servers", env.broker.bootstrap)
    taken = _seen_ms(env, stream.option("startingOffsets", "earliest").load(), append)
    env.delete_topic(topic)
    return taken


def _through_files(env: Environment) -> float:
    directory = env.fresh("tail")
    directory.mkdir()
    writer = PartitionWriter(directory, TopicPartition("tail", _PARTITION))
    record = encoded_rows(1)
    writer.append(record)
    stream = env.spark.readStream.format("kafkalog").option("subscribe", "tail")
    frame = stream.option("startingOffsets", "earliest").load(str(directory))
    return _seen_ms(env, frame, lambda: writer.append(record))


def _seen_ms(env: Environment, frame: DataFrame, append: Callable[[], object]) -> float:
    """Return the median milliseconds from before ``append`` to when the query has the record."""
    seen: queue.SimpleQueue[float] = queue.SimpleQueue()

    def note(batch: DataFrame, batch_id: int) -> None:
        del batch_id
        for _ in batch.select("offset").collect():
            seen.put(time.perf_counter())

    write = frame.writeStream.foreachBatch(note)
    query = write.option("checkpointLocation", str(env.fresh("checkpoint"))).start()
    try:
        append()
        seen.get(timeout=_SECONDS)
        taken = []
        for pause in _PAUSES:
            time.sleep(pause)
            while not seen.empty():
                seen.get()
            begin = time.perf_counter()
            append()
            taken.append((seen.get(timeout=_SECONDS) - begin) * 1e3)
    finally:
        query.stop()
    return statistics.median(taken)
