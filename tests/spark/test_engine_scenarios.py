"""What Spark's own suites do with a Kafka source in its engine: docs/connector-scenarios.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from tests.support.streams import Log, Run, finish

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = pytest.mark.spark

MINUTE_MS = 60_000
START_MS = 1_700_000_040_000
"""The beginning of a minute."""


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log")


def stream(spark: SparkSession, log: Log, **options: str) -> DataFrame:
    options = {"subscribe": "t", "startingOffsets": "earliest"} | options
    return spark.readStream.format("kafkalog").options(**options).load(str(log.path))


def run(writer: DataStreamWriter, checkpoint: Path) -> StreamingQuery:
    """Run a query to its end."""
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = writer.start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    return query


def test_windows_close_by_a_watermark_on_the_timestamp(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    for minute, count in ((0, 3), (1, 5), (3, 2)):
        log.append("t-0", count, timestamp=START_MS + minute * MINUTE_MS)
    windows = (
        stream(spark, log, maxOffsetsPerTrigger="3")
        .withWatermark("timestamp", "10 seconds")
        .groupBy(sf.window("timestamp", "1 minute"))
        .count()
        .selectExpr("unix_millis(window.start) AS start", "count")
    )
    run(windows.writeStream.format("memory").queryName("windows"), tmp_path / "checkpoint")
    found = [(row["start"], row["count"]) for row in spark.table("windows").collect()]
    assert sorted(found) == [(START_MS, 3), (START_MS + MINUTE_MS, 5)]  # the last is still open


def test_a_stream_joined_with_itself_gives_every_pair_once(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.append("t-0", 4)
    values = stream(spark, log).selectExpr("offset % 2 AS key", "offset")
    pairs = values.alias("l").join(values.alias("r"), sf.expr("l.key = r.key"))
    writer = pairs.selectExpr("l.offset AS a", "r.offset AS b").writeStream.format("memory")
    run(writer.queryName("pairs"), tmp_path / "checkpoint")
    found = sorted((row.a, row.b) for row in spark.table("pairs").collect())
    assert found == [(a, b) for a in range(4) for b in range(4) if a % 2 == b % 2]


def test_asynchronous_progress_tracking_loses_and_repeats_nothing_that_was_kept(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.append("t-0", 5)
    options = {"asyncProgressTrackingEnabled": "true", "checkpointLocation": str(tmp_path / "c")}
    options["asyncProgressTrackingCheckpointIntervalMs"] = "0"

    def rows_of_a_run() -> int:
        writer = stream(spark, log).writeStream.format("noop").options(**options)
        query = writer.start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    assert rows_of_a_run() == 5
    log.append("t-0", 3)
    assert rows_of_a_run() == 3


def test_the_progress_counts_the_rows_that_came_and_those_that_were_written(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.append("t-0", 3)
    copy = tmp_path / "copy"
    copy.mkdir()
    writer = stream(spark, log).writeStream.format("kafkalog").option("topic", "u")
    query = run(writer.option("path", str(copy)), tmp_path / "checkpoint")
    progress = query.recentProgress[0]
    assert (progress["numInputRows"], progress["sink"]["numOutputRows"]) == (3, 3)


@pytest.mark.parametrize("trigger", [{"continuous": "1 second"}, {"realTime": "5 minutes"}])
def test_triggers_that_python_sources_cannot_have_are_refused(
    spark: SparkSession, log: Log, tmp_path: Path, trigger: dict[str, Any]
) -> None:
    log.append("t-0", 1)
    writer = stream(spark, log).writeStream.format("noop").outputMode("update")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises((PySparkException, TypeError)):
        writer.trigger(**trigger).start().awaitTermination(120)


def test_an_idle_query_stops_when_it_is_told_to(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.append("t-0", 1)
    taken = Run()
    writer = stream(spark, log).selectExpr("CAST(value AS STRING)").writeStream
    writer = writer.foreachBatch(taken.take).option("checkpointLocation", str(tmp_path / "c"))
    query = writer.start()
    query.processAllAvailable()
    query.stop()  # raises after spark.sql.streaming.stopTimeout
    assert not query.isActive
    assert taken.values == log.values("t-0")


def test_a_column_that_is_not_resolved_when_the_write_is_planned_is_written(
    spark: SparkSession, log: Log
) -> None:
    log.path.mkdir()
    rows = spark.range(3).select(sf.to_json(sf.struct("*")).alias("value"))
    rows.write.format("kafkalog").mode("append").option("topic", "t").save(str(log.path))
    reader = spark.read.format("kafkalog").schema("value STRING").option("subscribe", "t")
    values = {row.value for row in reader.load(str(log.path)).collect()}
    assert values == {'{"id":0}', '{"id":1}', '{"id":2}'}


def test_a_united_pair_of_streams_goes_on_after_a_restart(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.append("u-0", 12)
    log.append("v-0", 4)

    def begin() -> Run:
        taken = Run()
        both = stream(spark, log, subscribe="u", maxOffsetsPerTrigger="5").union(
            stream(spark, log, subscribe="v", maxOffsetsPerTrigger="5")
        )
        writer = both.selectExpr("CAST(value AS STRING)").writeStream.foreachBatch(taken.take)
        writer = writer.trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        return finish((query, taken))

    first = begin()
    log.append("u-0", 6)
    second = begin()
    assert first.values | second.values == log.values("u-0") | log.values("v-0")
    assert second.values == log.values("u-0", 12)
