"""What every work needs: the session, the broker, the rows, and topics that hold them."""

from __future__ import annotations

import contextlib
import time
import uuid
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from benchmarks.rows import Shape, make_rows
from benchmarks.session import scratch, spark_session
from confluent_kafka.admin import AdminClient
from tests.support.kafka import Broker, Topic, ZooKeeperBroker

from kafkalog.checkpoints.broker import HIGH_WATERMARK, read_offset_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from confluent_kafka import Producer
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

__all__ = ["QUEUED", "TOPIC", "Environment", "environment", "send", "wait_for_high_watermarks"]

QUEUED: Final = 1_000_000
"""How many messages producers may hold back (``queue.buffering.max.messages``)."""

TOPIC: Final = "rows"
"""The topic that works read; it holds every row once."""

_BROKER_SETTINGS: Final = {
    "broker.heartbeat.interval.ms": "2000",
    "broker.session.timeout.ms": "60000",
    "replica.high.watermark.checkpoint.interval.ms": "1000",
}
"""A broker that shares its cores with Spark may be slow to say that it lives."""

_OLD_BROKER_SETTINGS: Final = {"replica.high.watermark.checkpoint.interval.ms": "1000"}

_CHECKPOINT_SECONDS: Final = 60
_SEND_SECONDS: Final = 300


class Environment:
    """The session, the broker and the rows; what not every work needs is made at first use.

    Attributes:
        work: an empty folder for whatever a work puts on disk.
        quick: whether works should be as short as they can be.
    """

    def __init__(
        self,
        spark: SparkSession,
        broker: Broker,
        work: Path,
        shape: Shape,
        closing: contextlib.ExitStack,
        *,
        quick: bool,
    ) -> None:
        self._closing = closing
        self.spark = spark
        self.broker = broker
        self.work = work
        self.shape = shape
        self.quick = quick

    @cached_property
    def old_broker(self) -> Broker:
        """A broker of release 2.8, whose topics may have the formats of old."""
        home = self.work / "old-broker"
        return self._closing.enter_context(ZooKeeperBroker(home, settings=_OLD_BROKER_SETTINGS))

    @cached_property
    def rows(self) -> DataFrame:
        """The rows, in memory."""
        return make_rows(self.spark, self.shape)

    @cached_property
    def broker_directory(self) -> Path:
        """The running broker's log directory; its topic ``TOPIC`` came through Spark's sink."""
        self.create_topic(TOPIC)
        self.to_kafka(TOPIC).save()
        (directory,) = self.broker.log_dirs
        wait_for_high_watermarks(self.broker, TOPIC, self.shape.rows)
        return directory

    @cached_property
    def own_directory(self) -> Path:
        """A log directory whose topic ``TOPIC`` kafkalog's sink wrote from the same rows."""
        directory = self.work / "own-log"
        directory.mkdir()
        self.to_kafkalog(TOPIC, flush="os").save(str(directory))
        return directory

    def to_kafka(self, topic: str, rows: DataFrame | None = None) -> DataFrameWriter:
        """Return a batch write of the rows (or of these) to Spark's Kafka sink."""
        return (
            (rows or self.rows)
            .write.format("kafka")
            .option("kafka.bootstrap.servers", self.broker.bootstrap)
            .option("kafka.compression.type", self.shape.codec)
            .option("topic", topic)
        )

    def to_kafkalog(self, topic: str, flush: str) -> DataFrameWriter:
        """Return a batch write of the rows to kafkalog's sink."""
        return (
            self.rows.write.format("kafkalog")
            .mode("append")
            .option("topic", topic)
            .option("numPartitions", self.shape.partitions)
            .option("compression.type", self.shape.codec)
            .option("flush", flush)
        )

    def create_topic(self, name: str) -> None:
        """Create a topic of the broker with as many partitions as the shape has."""
        self.broker.create_topics(Topic(name, self.shape.partitions))

    def delete_topic(self, name: str) -> None:
        """Delete a topic of the broker; its files go a little later."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 3})
        admin.delete_topics([name])[name].result()

    def fresh(self, what: str) -> Path:
        """Return a path in the scratch folder at which nothing is."""
        return self.work / f"{what}-{uuid.uuid4().hex[:8]}"


@contextlib.contextmanager
def environment(
    shape: Shape, cores: int, *, quick: bool, as_recommended: bool = True
) -> Iterator[Environment]:
    """Start the broker and the session in a scratch folder, and stop and remove all at the end."""
    with contextlib.ExitStack() as closing:
        work = closing.enter_context(scratch())
        home = work / "broker"
        home.mkdir()
        broker = Broker(home, settings=_BROKER_SETTINGS, quick_start=quick)
        closing.enter_context(broker)
        spark = closing.enter_context(spark_session(cores, work, as_recommended=as_recommended))
        yield Environment(spark, broker, work, shape, closing, quick=quick)


def send(producer: Producer, records: Iterable[Mapping[str, Any]]) -> None:
    """Send records, given as ``Producer.produce`` takes them, and wait until the broker has all.

    The producer's queue holds :data:`QUEUED` of them: who makes them faster than they go waits.
    """
    for number, record in enumerate(records):
        while True:
            try:
                producer.produce(**record)
                break
            except BufferError:
                producer.poll(1)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(_SEND_SECONDS) == 0


def wait_for_high_watermarks(broker: Broker, topic: str, rows: int) -> None:
    """Wait until the broker's checkpoint covers the topic: readers of its files go by it."""
    (directory,) = broker.log_dirs
    deadline = time.monotonic() + _CHECKPOINT_SECONDS
    while time.monotonic() < deadline:
        known = read_offset_checkpoint(directory, HIGH_WATERMARK)
        if sum(end for place, end in known.items() if place.topic == topic) == rows:
            return
        time.sleep(0.2)
    raise TimeoutError(f"{HIGH_WATERMARK} still does not cover the {rows} rows of {topic}")
