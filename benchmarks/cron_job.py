"""One run of ``benchmarks.cron``: SOURCE PLACE CORES CHECKPOINT SETTINGS, as a user writes it."""

from __future__ import annotations

import json
import sys
import time

import pyspark
from benchmarks.cpu import tree_cpu_seconds
from pyspark.sql import SparkSession

from kafkalog.jobs.process.jars import fetch, kafka_jars

__all__ = ["main"]


def main(source: str, place: str, cores: str, checkpoint: str, settings: str) -> None:
    """Stream the topic to nowhere; print seconds, CPU seconds and rows as JSON."""
    jars = ",".join(map(str, fetch(kafka_jars()))) if source == "kafka" else ""
    used, began = tree_cpu_seconds(), time.perf_counter()
    builder = SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "2g").config("spark.log.level", "ERROR")
    if jars:
        builder = builder.config("spark.jars", jars)
    spark = builder.config(map=json.loads(settings)).getOrCreate()
    reader = spark.readStream.format(source).option("subscribe", "rows")
    reader = reader.option("startingOffsets", "earliest")
    if source == "kafka":
        frame = reader.option("kafka.bootstrap.servers", place).load()
    else:
        frame = reader.load(place)
    write = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = write.trigger(availableNow=True).start()
    query.awaitTermination()
    found = {
        "seconds": time.perf_counter() - began,
        "cpu": tree_cpu_seconds() - used,
        "rows": sum(each.numInputRows for each in query.recentProgress),
        "spark": pyspark.__version__,
    }
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
