"""Message formats and kept offsets through real queries: written by tasks, read by the source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from tests.support.sinking import folders_of
from tests.support.spark import NEEDS_ADMISSION_CONTROL

from kafkalog.checkpoints.state_file import load_state
from kafkalog.jobs.inspection.topics import list_offsets
from kafkalog.model import TopicSelection

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

COLUMNS = ("partition", "offset", "key", "value", "timestamp", "timestampType")


def named(options: dict[str, str]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in options.items()}


def save(frame: DataFrame, path: Path | str, **options: str) -> None:
    frame.write.format("kafkalog").options(**named(options)).mode("append").save(str(path))


def load(spark: SparkSession, path: Path | str, topic: str = "t") -> list[tuple[Any, ...]]:
    reader = spark.read.format("kafkalog").option("subscribe", topic)
    rows = reader.load(str(path)).select(*COLUMNS).orderBy("partition", "offset").collect()
    return [tuple(row) for row in rows]


def numbered(spark: SparkSession, rows: int) -> DataFrame:
    """Rows in two tasks, of four partitions, with keys, values and times of their own."""
    return spark.range(0, rows, 1, 2).selectExpr(
        "CAST(id % 4 AS INT) AS partition",
        "IF(id % 5 = 0, NULL, CAST(concat('key ', id) AS BINARY)) AS key",
        "IF(id % 7 = 0, NULL, CAST(repeat(id, CAST(id % 9 AS INT)) AS BINARY)) AS value",
        "timestamp_millis(1700000000000 + id) AS timestamp",
    )


@pytest.mark.parametrize(
    ("message_format", "codec"), [("v0", "gzip"), ("v1", "lz4"), ("v1", "none")]
)
def test_the_source_reads_what_the_sink_wrote_in_an_old_format(
    spark: SparkSession, tmp_path: Path, message_format: str, codec: str
) -> None:
    frame = numbered(spark, 400)
    log, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    options = {"topic": "t", "numPartitions": "4"}
    save(frame, log, **options, message__format=message_format, compression__type=codec)
    frame.write.parquet(str(tmp_path / "input"))
    stream = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "input"))
    query = (
        stream.writeStream.format("kafkalog")
        .options(topic="t", checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start(str(log))
    )
    assert query.awaitTermination(600)

    found = load(spark, log)
    assert [row[:2] for row in found] == [(p, offset) for p in range(4) for offset in range(200)]
    given = [_shown(row, dated=message_format != "v0") for row in frame.collect()]
    assert sorted(repr((row[0], *row[2:])) for row in found) == sorted(map(repr, 2 * given))
    state = load_state(log)
    assert state is not None
    (topic,) = state.topics.values()
    assert topic.settings["message.format"] == message_format
    batches = spark.read.format("kafkalog").options(subscribe="t", view="batches").load(str(log))
    assert {row.magic for row in batches.collect()} == {int(message_format[1])}


def _shown(row: tuple[Any, ...], *, dated: bool) -> tuple[Any, ...]:
    partition, key, value, timestamp = row
    if dated:
        return partition, key, value, timestamp, 0
    return partition, key, value, timestamp.fromtimestamp(-0.001), -1


def test_headers_fail_a_query_that_writes_an_old_format(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.sql(
        "SELECT 'v' AS value, ARRAY(NAMED_STRUCT('key', 'h', 'value', CAST('1' AS BINARY))) headers"
    )
    with pytest.raises(PySparkException, match=r"t-0: row 0 has headers, which message\.format=v1"):
        save(frame, tmp_path, topic="t", message__format="v1")
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_a_topic_copied_with_its_offsets_reads_the_same(
    spark: SparkSession, place: Path | str, tmp_path: Path
) -> None:
    original, copy = tmp_path / "original", place
    save(numbered(spark, 900), original, topic="t", numPartitions="4", segment__bytes="4000")
    source = spark.read.format("kafkalog").option("subscribe", "t").load(str(original))
    for some in ("offset < 100", "offset >= 100"):
        part = source.where(some).repartition(3, "topic", "partition")
        part = part.sortWithinPartitions("topic", "partition", "offset")
        save(part, copy, numPartitions="4", preserveOffsets="true", segment__bytes="3000")
    assert load(spark, copy) == load(spark, original)


@NEEDS_ADMISSION_CONTROL
def test_a_stream_copies_a_topic_with_its_offsets_and_holes(
    spark: SparkSession, place: Path | str, tmp_path: Path
) -> None:
    original, copy = tmp_path / "original", place
    save(numbered(spark, 300), original, topic="t", numPartitions="4")
    for _ in range(2):
        stream = spark.readStream.format("kafkalog").option("subscribe", "t")
        stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "150")
        query = (
            stream.load(str(original))
            .where("offset % 10 != 3")
            .writeStream.format("kafkalog")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .options(numPartitions="4", preserveOffsets="true")
            .trigger(availableNow=True)
            .start(str(copy))
        )
        assert query.awaitTermination(600)
        expected = [row for row in load(spark, original) if row[1] % 10 != 3]
        assert load(spark, copy) == expected
        save(numbered(spark, 100), original, topic="t")


def test_a_copy_begins_where_its_first_row_does(spark: SparkSession, place: Path | str) -> None:
    frame = spark.sql("SELECT 'a' AS value, 5000L AS offset")
    save(frame, place, topic="t", preserveOffsets="true")
    (row,) = list_offsets([str(place)], TopicSelection.of("t"))
    assert (row["start"], row["end"]) == (5000, 5001)
    assert [row[1] for row in load(spark, place)] == [5000]


def test_tasks_that_share_a_range_of_offsets_are_refused_with_the_way_out(
    spark: SparkSession, place: Path | str
) -> None:
    frame = spark.range(0, 100, 1, 1).select(F.col("id").cast("string").alias("value"))
    frame = frame.withColumn("offset", F.monotonically_increasing_id()).repartition(2)
    with pytest.raises(PySparkException, match=r"t-0: .*sortWithinPartitions"):
        save(frame, place, topic="t", preserveOffsets="true")
    assert folders_of(place) == set()
    save(
        frame.coalesce(1).sortWithinPartitions("offset"),
        place,
        topic="t",
        preserveOffsets="true",
    )
    assert [row[1] for row in load(spark, place)] == [*range(100)]
