"""``make env``: archives of the classes that Spark and brokers load when they start.

Each of some hundred JVMs of a test run would find, check and link ten thousand classes in jars. A
JVM that ends writes those it has loaded to a file (``-XX:ArchiveClassesAtExit``), and later ones
map that. An archive is good for the jars that it was made of, by path, size and time.

    python -m tests.support.class_archives
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import SparkContext
from tests.support.jars import KAFKA, KAFKA_2_8
from tests.support.jvm import classes_of
from tests.support.kafka import Broker, Topic, ZooKeeperBroker
from tests.support.quick_jvm import QUICK, SPARK_CLASSES
from tests.support.spark import end_jvm, small_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _archive_broker(kind: type[Broker], archive: Path, home: Path) -> None:
    """Let a broker serve a little, and keep the classes that it has loaded."""
    made = archive.with_suffix(f".{os.getpid()}")
    archive.unlink(missing_ok=True)
    with kind(home, options=["-Xlog:disable", f"-XX:ArchiveClassesAtExit={made}"]) as broker:
        broker.create_topics(Topic("t", 1))
        broker.produce("t", [(b"k", b"v")])
        assert len(broker.consume_all("t")) == 1
    made.replace(archive)


def _archive_spark(home: Path) -> None:
    """Let a driver do a little, and keep the classes that it has loaded."""
    made = SPARK_CLASSES.with_suffix(f".{os.getpid()}")
    SPARK_CLASSES.unlink(missing_ok=True)
    options = (*QUICK, "-Xlog:disable", f"-XX:ArchiveClassesAtExit={made}")
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join(options)
    with small_session() as spark:
        _work(spark, home)
    assert SparkContext._gateway is not None
    process = SparkContext._gateway.proc
    end_jvm()
    process.wait(timeout=300)  # it writes the archive
    made.replace(SPARK_CLASSES)


def _work(spark: SparkSession, home: Path) -> None:
    """Write and read a log and files, in a batch and in a stream."""
    log = str(home / "log")
    frame = spark.range(100).selectExpr("'t' AS topic", "CAST(id AS STRING) AS value")
    frame.write.format("kafkalog").mode("append").save(log)
    table = spark.read.format("kafkalog").option("subscribe", "t").load(log)
    table.groupBy("partition").count().orderBy("count").collect()
    table.write.parquet(str(home / "table"))
    frame.write.json(str(home / "lines"))
    assert spark.read.parquet(str(home / "table")).join(table, "offset").count() == 100
    assert spark.read.json(str(home / "lines")).count() == 100
    stream = spark.readStream.format("kafkalog").option("startingOffsets", "earliest")
    writer = stream.option("subscribe", "t").load(log).writeStream
    writer = writer.foreachBatch(lambda rows, _: rows.collect()).trigger(availableNow=True)
    writer.option("checkpointLocation", str(home / "checkpoint")).start().awaitTermination()


def main() -> None:
    """Make all archives."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        _archive_broker(Broker, classes_of(KAFKA), home / "broker")
        _archive_broker(ZooKeeperBroker, classes_of(KAFKA_2_8), home / "old")
        _archive_spark(home)


if __name__ == "__main__":
    main()
