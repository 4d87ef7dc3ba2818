"""Reads of topics of many shapes, by Spark's Kafka source and by kafkalog from the same files.

A producer with the batch size and codec of the shape fills each topic; a broker of an older release
those of the older formats.
"""

from __future__ import annotations

import os
import random
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.engine import READY_SOURCE, ready_source
from benchmarks.environment import QUEUED, send, wait_for_high_watermarks
from benchmarks.measure import Contender, Goal, Workload, timed
from benchmarks.reading import KAFKA_SOURCE
from benchmarks.rows import Shape
from confluent_kafka import Producer
from tests.support.kafka import Topic

from kafkalog.model import many

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from benchmarks.environment import Environment
    from pyspark.sql.readwriter import DataFrameReader
    from tests.support.kafka import Broker

__all__ = ["WORKLOADS"]

_OURS: Final = "kafkalog"
_MOST_ROWS: Final = 400_000
_MOST_BYTES: Final = 200 << 20
_MANY_PARTITIONS: Final = 100
"""From here on a run of the peer takes long: a third of a second for each partition."""


class _Topic(NamedTuple):
    """The shape of a topic, and how it is read.

    A key of 0 bytes is null. ``batch`` is in records. ``tasks`` reads all partitions in so many
    tasks; ``cold`` drops the files from the page cache before each run. ``factor`` is the goal: how
    many times as fast as the Kafka source. ``rows`` are many where a run would be short.
    """

    partitions: int = 4
    key: int = 10
    value: int = 100
    batch: int = 500
    codec: str = "lz4"
    headers: int = 0
    tasks: int | None = None
    cold: bool = False
    format_version: str | None = None
    rows: int | None = None
    factor: float = 1


_SHAPES: Final = {
    "values of 1 KB": _Topic(value=1000),
    "values of 100 KB": _Topic(value=100_000, batch=10),
    "batches of 1 record": _Topic(batch=1, rows=800_000, factor=4),
    "batches of 10 records": _Topic(batch=10, rows=2_000_000, factor=6),
    "batches of 500 records": _Topic(),
    "batches of 10,000 records": _Topic(batch=10_000),
    "not compressed": _Topic(codec="none"),
    "gzip": _Topic(codec="gzip"),
    "snappy": _Topic(codec="snappy"),
    "zstd": _Topic(codec="zstd"),
    "null keys": _Topic(key=0),
    "keys of 1 KB": _Topic(key=1000),
    "3 headers": _Topic(headers=3),
    "1 partition": _Topic(partitions=1),
    "100 partitions": _Topic(partitions=100),
    "1,000 partitions": _Topic(partitions=1000),
    "one task": _Topic(tasks=1),
    "cold page cache": _Topic(cold=True),
    "format v1": _Topic(format_version="0.10.0"),
    "format v0": _Topic(format_version="0.9.0"),
}


def _workload(env: Environment, title: str, number: int, shape: _Topic) -> Workload:
    if env.quick:
        shape = shape._replace(partitions=min(shape.partitions, 8))
    broker = env.broker if shape.format_version is None else env.old_broker
    name = f"shape-{number}"
    rows = _row_count(env, shape)
    config = {"message.format.version": shape.format_version} if shape.format_version else {}
    broker.create_topics(Topic(name, shape.partitions, config))
    _produce(broker, name, shape, rows)
    wait_for_high_watermarks(broker, name, rows)
    folders = sorted(broker.log_dirs[0].glob(f"{name}-*"))
    peer = env.spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    ours = env.spark.read.format("kafkalog").option("path", str(broker.log_dirs[0]))
    readers = {KAFKA_SOURCE: peer, _OURS: ours}
    if not shape.headers:  # which that source does not have
        given = Shape(rows, shape.key, shape.value, shape.partitions)
        env.spark.dataSource.register(ready_source(given, f"ready-{name}"))
        readers[READY_SOURCE] = env.spark.read.format(f"ready-{name}")
    return Workload(
        title=f"shape: {title}",
        contenders=tuple(
            Contender(who, partial(_read, reader.option("subscribe", name), shape, folders))
            for who, reader in readers.items()
        ),
        goals=(Goal(_OURS, KAFKA_SOURCE, shape.factor),),
        rows=rows,
        warm_ups=1 if shape.partitions < _MANY_PARTITIONS else 0,
        most_rounds=None if shape.partitions < _MANY_PARTITIONS else 1,
        notes=(
            f"{many(rows, 'row')} in {many(shape.partitions, 'partition')}, key "
            f"{many(shape.key, 'byte')}, value {many(shape.value, 'byte')}, {shape.codec}, at most "
            f"{many(shape.batch, 'record')} a batch."
        ),
    )


def _works() -> dict[str, Callable[[Environment], Workload]]:
    return {
        f"shape-{number}": partial(_workload, title=title, number=number, shape=shape)
        for number, (title, shape) in enumerate(_SHAPES.items())
    }


WORKLOADS: Final[Mapping[str, Callable[[Environment], Workload]]] = _works()


def _row_count(env: Environment, shape: _Topic) -> int:
    if shape.rows is not None and not env.quick:
        return shape.rows
    most = min(_MOST_ROWS, env.shape.rows // 10)
    return min(most, (most * 500) // (shape.key + shape.value), _MOST_BYTES // shape.value)


def _produce(broker: Broker, topic: str, shape: _Topic, rows: int) -> None:
    """Send rows with values of which half are random digits; batches are full but for the last."""
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "batch.num.messages": shape.batch,
            "batch.size": 900_000,
            "linger.ms": 500 if shape.batch > 1 else 0,
            "compression.type": shape.codec,
            "queue.buffering.max.messages": QUEUED,
            "queue.buffering.max.kbytes": 1 << 20,
        }
    )
    chosen = random.Random(5)
    headers = [(f"h{number}", b"header value") for number in range(shape.headers)]
    half = shape.value // 2
    send(
        producer,
        (
            {
                "topic": topic,
                "value": chosen.randbytes(half // 2).hex().encode().ljust(shape.value, b"k"),
                "key": f"{row:0{shape.key}d}".encode() if shape.key else None,
                "partition": row % shape.partitions,
                "headers": headers,
            }
            for row in range(rows)
        ),
    )


def _read(reader: DataFrameReader, shape: _Topic, folders: list[Path]) -> float:
    if shape.cold:
        _drop_from_cache(folders)
    frame = reader.option("includeHeaders", shape.headers > 0).load()
    if shape.tasks is not None:
        frame = frame.coalesce(shape.tasks)
    return timed(lambda: frame.write.format("noop").mode("overwrite").save())


def _drop_from_cache(folders: list[Path]) -> None:
    """Let the next reader of these files go to the disk."""
    for path in (path for folder in folders for path in folder.glob("*.log")):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # pages that are not written yet would stay
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
