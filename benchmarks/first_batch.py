"""The first micro-batch of a query over many partitions, beside Spark's Kafka source.

A broker makes topics of so many partitions in all, and a producer puts two records into each. Then
both sources read all of it from the earliest offsets with ``availableNow``, in turns, in one
session: ours in the folders of the running broker, Spark's from the broker. Prints the seconds from
the start of the query to its end, and what Spark says of the batch; then those of a query that goes
on there with 100 new records.

    python -m benchmarks.first_batch --partitions 10000
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Final

from benchmarks.session import scratch, spark_session
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table
from tests.support.kafka import Broker, Topic

from kafkalog.files.parallel import available_cores
from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["main"]

_TOPIC_PARTITIONS: Final = 2500
"""A controller makes no more than 10,000 at once."""
_NEW_RECORDS: Final = 100
_STEPS: Final = ("latestOffset", "queryPlanning", "addBatch")


def main(argv: Sequence[str] | None = None) -> int:
    """Fill a topic, and let both sources read it in turns."""
    parser = argparse.ArgumentParser(prog="benchmarks.first_batch", description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args(argv)
    cores = available_cores()
    shown = Table("source", "batch", "s", *(f"{step}, s" for step in _STEPS))
    with (
        scratch() as work,
        Broker(work / "broker", quick_start=False) as broker,
        spark_session(cores, work) as spark,
    ):
        keys = _create(broker, asked.partitions)
        _produce(broker, keys * 2)
        places = {"kafka": broker.bootstrap, "kafkalog": str(broker.log_dirs[0])}
        for batch in ("first", f"{_NEW_RECORDS} new records"):
            taken: dict[str, list[list[float]]] = {source: [] for source in places}
            for number in range(asked.rounds):
                if batch != "first":
                    _produce(broker, keys[:_NEW_RECORDS])
                for source, place in places.items():
                    checkpoint = work / f"{source}-{number}"
                    taken[source].append(_run(spark, source, place, checkpoint))
            for source, rounds in taken.items():
                medians = (statistics.median(each) for each in zip(*rounds, strict=True))
                shown.add_row(source, batch, *(f"{seconds:.1f}" for seconds in medians))
    Console().print(shown)
    return 0


def _create(broker: Broker, partitions: int) -> list[TopicPartition]:
    keys = []
    for number, first in enumerate(range(0, partitions, _TOPIC_PARTITIONS)):
        topic = Topic(f"wide-{number}", min(_TOPIC_PARTITIONS, partitions - first))
        broker.create_topics(topic)
        keys += [TopicPartition(topic.name, each) for each in range(topic.partitions)]
    return keys


def _produce(broker: Broker, keys: Iterable[TopicPartition]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 50})
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


def _run(spark: SparkSession, source: str, place: str, checkpoint: Path) -> list[float]:
    """Run a query to its end; return its seconds, and those of the steps of its batch."""
    where = "kafka.bootstrap.servers" if source == "kafka" else "path"
    stream = spark.readStream.format(source).option(where, place)
    rows = stream.option("subscribePattern", "wide-.*").option("startingOffsets", "earliest").load()
    began = time.perf_counter()
    query = (
        rows.writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    seconds = time.perf_counter() - began
    told = query.recentProgress
    durations = [progress.durationMs for progress in told if progress.numInputRows]
    return [seconds, *(durations[0].get(step, 0) / 1000 for step in _STEPS)]


if __name__ == "__main__":
    raise SystemExit(main())
