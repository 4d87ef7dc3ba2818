"""The sink in real queries: appended once whatever is run again, where the rows belong."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from tests.support.sinking import folders_of, values_of

import kafkalog
from kafkalog.checkpoints.state_file import load_state
from kafkalog.streaming.admin.topics import alter

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

pytestmark = pytest.mark.spark

ROWS = "value STRING, key STRING, topic STRING, partition INT"


class Stage:
    """Input files that arrive one after the other, a checkpoint, and a log."""

    def __init__(self, spark: SparkSession, folder: Path, log: Path | str) -> None:
        self.spark = spark
        self.input = folder / "input"
        self.checkpoint = folder / "checkpoint"
        self.log = log
        self.input.mkdir()
        self._files = 0

    def arrive(self, values: Iterable[str]) -> None:
        self._files += 1
        (self.input / f"{self._files}.csv").write_text("".join(f"{value}\n" for value in values))

    def stream(self) -> DataFrame:
        return self.spark.readStream.schema("value STRING").csv(str(self.input))

    def writer(self, frame: DataFrame, **options: str) -> DataStreamWriter:
        writer = (
            frame.writeStream.format("kafkalog")
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
        )
        return writer.options(**named(options))

    def run(self, frame: DataFrame | None = None, **options: str) -> None:
        query = self.writer(frame or self.stream(), **options).start(str(self.log))
        assert query.awaitTermination(600)

    def values(self, topic: str = "t") -> dict[int, list[str]]:
        return values_of([self.log], topic)

    def forget_last_commit(self) -> None:
        """Let Spark believe that the last micro-batch was not committed."""
        batches = [path for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit()]
        last = max(batches, key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def named(options: dict[str, str]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in options.items()}


@pytest.fixture
def stage(spark: SparkSession, tmp_path: Path, place: Path | str) -> Stage:
    return Stage(spark, tmp_path, place)


def all_of(values: dict[int, list[str]]) -> Counter[str]:
    return Counter(value for found in values.values() for value in found)


def test_each_micro_batch_is_appended(stage: Stage) -> None:
    stage.arrive(["a", "b"])
    stage.run(topic="t")
    stage.arrive(["c"])
    stage.run(topic="t")
    assert stage.values() == {0: ["a", "b", "c"]}


def test_a_running_query_writes_its_next_batch_to_all_partitions_that_were_added(
    stage: Stage,
) -> None:
    frame = stage.stream().withColumn("key", F.col("value"))
    stage.arrive(["a"])
    writer = stage.writer(frame, topic="t", numPartitions="2").trigger(processingTime="0 seconds")
    query = writer.start(str(stage.log))
    try:
        query.processAllAvailable()
        assert stage.values().keys() == {0, 1}
        alter([str(stage.log)], "t", partitions=4)
        more = [f"{number}" for number in range(40)]
        stage.arrive(more)
        query.processAllAvailable()
    finally:
        query.stop()
    assert all(stage.values()[number] for number in (2, 3))
    assert all_of(stage.values()) == Counter(["a", *more])


def test_a_batch_that_is_staged_while_partitions_are_added_fails_and_comes_again_whole(
    stage: Stage, tmp_path: Path
) -> None:
    stage.arrive(["a"])
    stage.run(topic="t", numPartitions="2")
    altered = tmp_path / "altered"
    stage.arrive(["b"])
    stage.arrive(["late"])  # a file is a task
    waits = tmp_path / "waits"
    query = stage.writer(held_back(stage.stream(), "late", altered, waits), topic="t").start(
        str(stage.log)
    )
    while not waits.exists() or not is_staged(stage.log):
        assert query.isActive
        time.sleep(0.05)
    alter([str(stage.log)], "t", partitions=4)
    altered.touch()
    refused = "placed among 2 partitions, and it has 4|has 4 partitions, and rows were placed among"
    with pytest.raises(StreamingQueryException, match=refused):
        query.awaitTermination(600)
    assert all_of(stage.values()) == Counter(["a"])
    stage.run(topic="t")
    assert stage.values().keys() == {0, 1, 2, 3}
    assert all_of(stage.values()) == Counter(["a", "b", "late"])


def is_staged(log: Path | str) -> bool:
    """Whether a task has staged rows: in files, as a bucket gets them with the commit."""
    return isinstance(log, str) or any(log.glob(".kafkalog.staged.*"))


def held_back(frame: DataFrame, value: str, until: Path, waits: Path) -> DataFrame:
    """Let the task with a value wait until a file is there."""

    def wait(batches: Iterable[Any]) -> Iterable[Any]:
        for batch in batches:
            while value in batch.column("value").to_pylist() and not until.exists():
                waits.touch()
                time.sleep(0.05)
            yield batch

    return frame.mapInArrow(wait, frame.schema)


def test_a_micro_batch_that_spark_runs_again_is_not_appended_again(stage: Stage) -> None:
    stage.arrive(["a", "b"])
    stage.run(topic="t")
    stage.forget_last_commit()
    stage.run(topic="t")
    stage.arrive(["c"])
    stage.run(topic="t")
    assert stage.values() == {0: ["a", "b", "c"]}


def test_a_checkpoint_that_was_lost_is_refused_when_its_name_is_kept(stage: Stage) -> None:
    stage.arrive(["a"])
    stage.run(topic="t", transactional__id="mine")
    stage.checkpoint.rename(stage.checkpoint.with_name("lost"))
    with pytest.raises(StreamingQueryException, match="with other content"):
        stage.run(topic="t", transactional__id="mine")
    assert stage.values() == {0: ["a"]}


@pytest.mark.parametrize("name", [{}, {"transactional__id": "mine"}], ids=["unnamed", "named"])
def test_a_query_on_other_directories_than_before_is_refused_unless_allowed(
    stage: Stage, name: dict[str, str]
) -> None:
    stage.arrive(["a"])
    stage.run(topic="t", **name)
    stage.arrive(["b"])
    stage.log = type(stage.log)(str(stage.log).replace("log", "other"))
    with pytest.raises(StreamingQueryException, match=r"a missing mount.*allowUnknownCheckpoint"):
        stage.run(topic="t", **name)
    stage.run(topic="t", allowUnknownCheckpoint="true", **name)
    assert stage.values() == {0: ["b"]}


def test_rows_of_one_micro_batch_go_to_several_topics_and_partitions(stage: Stage) -> None:
    stage.arrive([f"{number}" for number in range(40)])
    frame = stage.stream().select(
        "value",
        F.concat(F.lit("t"), F.col("value").cast("int") % 2).alias("topic"),
        (F.col("value").cast("int") % 3).alias("partition"),
    )
    stage.run(frame, numPartitions="3")
    for topic in (0, 1):
        assert stage.values(f"t{topic}") == {
            partition: [f"{n}" for n in range(40) if n % 2 == topic and n % 3 == partition]
            for partition in range(3)
        }


def test_keys_decide_as_kafkas_producer_does_and_null_keys_are_spread(
    spark: SparkSession, place: Path | str
) -> None:
    # murmur2 of "21", "foobar" and "abc" modulo 3, by Kafka's Utils.
    frame = spark.createDataFrame(
        [("a", "21"), ("b", "foobar"), ("c", "abc"), *((f"n{n}", None) for n in range(50))],
        "value STRING, key STRING",
    )
    save(frame.coalesce(1), place, topic="t", numPartitions="3")
    found = values_of([place], "t")
    keyed = {value: partition for partition, values in found.items() for value in values}
    assert [keyed[value] for value in "abc"] == [
        (-973932308 & 0x7FFFFFFF) % 3,
        (-790332482 & 0x7FFFFFFF) % 3,
        (479470107 & 0x7FFFFFFF) % 3,
    ]
    assert all_of(found).total() == 53


def save(frame: DataFrame, path: Path | str, **options: str) -> None:
    frame.write.format("kafkalog").options(**named(options)).mode("append").save(str(path))


def test_batch_writes_append_and_the_source_reads_back_all_columns(
    spark: SparkSession, place: Path | str
) -> None:
    frame = spark.sql(
        """
        SELECT CAST('k' AS BINARY) AS key, CAST('v' AS BINARY) AS value,
               TIMESTAMP '2024-01-02 03:04:05.678' AS timestamp,
               ARRAY(NAMED_STRUCT('key', 'h', 'value', CAST('1' AS BINARY)),
                     NAMED_STRUCT('key', 'h', 'value', CAST(NULL AS BINARY))) AS headers
        """
    )
    save(frame, place, topic="t", compression__type="zstd")
    save(frame.drop("headers", "key", "timestamp"), place, topic="t")
    read = spark.read.format("kafkalog").option("subscribe", "t").option("includeHeaders", "true")
    first, second = read.load(str(place)).orderBy("offset").collect()
    assert (bytes(first.key), bytes(first.value), first.offset) == (b"k", b"v", 0)
    assert first.timestamp.isoformat() == "2024-01-02T03:04:05.678000"
    assert [(header.key, header.value) for header in first.headers] == [("h", b"1"), ("h", None)]
    assert (second.key, bytes(second.value), second.offset) == (None, b"v", 1)
    assert second.headers is None


def test_sql_inserts_into_a_temporary_view(spark: SparkSession, place: Path | str) -> None:
    kafkalog.append(place, "t", pa.table({"value": ["first"]}))
    spark.sql(
        "CREATE TEMPORARY VIEW inserted (key STRING, value STRING) USING kafkalog "
        f"OPTIONS (path '{place}', subscribe 't')"
    )
    try:
        spark.sql("INSERT INTO inserted VALUES ('k', 'second')")
        rows = spark.sql("SELECT key, value FROM inserted ORDER BY value").collect()
    finally:
        spark.catalog.dropTempView("inserted")
    assert [tuple(row) for row in rows] == [(None, "first"), ("k", "second")]


def test_a_version_that_was_written_is_skipped(spark: SparkSession, place: Path | str) -> None:
    for version, value in ((1, "a"), (1, "a"), (2, "c"), (0, "d")):
        frame = spark.createDataFrame([(value,)], "value STRING")
        save(frame, place, topic="t", txnAppId="job", txnVersion=str(version))
    assert values_of([place], "t") == {0: ["a", "c"]}
    other = spark.createDataFrame([("b",)], "value STRING")
    with pytest.raises(PySparkException, match="in topic 't' already, with other rows"):
        save(other, place, topic="t", txnAppId="job", txnVersion="2")


def test_a_foreach_batch_writes_to_several_topics_under_one_version(stage: Stage) -> None:
    stage.arrive(["a", "b"])
    fails = [True]

    def route(frame: DataFrame, batch_id: int) -> None:
        given = {"txnAppId": "route", "txnVersion": str(batch_id)}
        save(frame, stage.log, topic="all", **given)
        if fails.pop():
            raise RuntimeError("between two writes")
        save(frame.where("value = 'b'"), stage.log, topic="some", **given)
        both = frame.withColumn("topic", F.concat(F.lit("by-"), "value"))
        save(both, stage.log, **given)

    writer = stage.stream().writeStream.foreachBatch(route).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(stage.checkpoint))
    with pytest.raises(StreamingQueryException, match="between two writes"):
        writer.start().awaitTermination(600)
    fails += [False]
    assert writer.start().awaitTermination(600)
    written = {name: stage.values(name) for name in ("all", "some", "by-a", "by-b")}
    assert written == {
        "all": {0: ["a", "b"]},
        "some": {0: ["b"]},
        "by-a": {0: ["a"]},
        "by-b": {0: ["b"]},
    }


def test_two_writes_of_one_foreach_batch_are_two_writes(stage: Stage) -> None:
    stage.arrive(["a"])

    def twice(frame: DataFrame, batch_id: int) -> None:
        save(frame, stage.log, topic="t")
        save(frame, stage.log, topic="t")

    writer = stage.stream().writeStream.foreachBatch(twice).trigger(availableNow=True)
    assert writer.option("checkpointLocation", str(stage.checkpoint)).start().awaitTermination(600)
    assert stage.values() == {0: ["a", "a"]}


def test_complete_mode_appends_as_spark_does_for_kafka(stage: Stage) -> None:
    counts = stage.stream().groupBy("value").count()
    frame = counts.select(F.concat_ws("=", "value", "count").alias("value"))
    for values in (["a"], ["a"]):
        stage.arrive(values)
        query = stage.writer(frame, topic="t").outputMode("complete").start(str(stage.log))
        assert query.awaitTermination(600)
    assert stage.values() == {0: ["a=1", "a=2"]}


def test_settings_persist_with_the_topic(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([("a" * 200,)], "value STRING")
    save(frame, tmp_path, topic="t", segment__bytes="400")
    for _ in range(3):
        save(frame, tmp_path, topic="t")
    state = load_state(tmp_path)
    assert state is not None
    (topic,) = state.topics.values()
    assert topic.settings == {"segment.bytes": "400"}
    assert len(list((tmp_path / "t-0").glob("*.log"))) == 4


@pytest.mark.parametrize(
    ("select", "options", "reason"),
    [
        ("'v' AS value", {}, "no topic to write to"),
        ("'k' AS key", {"topic": "t"}, "no column 'value'"),
        ("1 AS value, 't' AS topic", {}, "column 'value' has the type int"),
        ("'v' AS value, 1 AS topic", {}, "column 'topic' has the type int, but must be string"),
        ("'v' AS value, 1 AS key", {"topic": "t"}, "column 'key' has the type int"),
        ("'v' AS value, '1' AS partition", {"topic": "t"}, "column 'partition' has the type str"),
        ("'v' AS value, 1 AS headers", {"topic": "t"}, "column 'headers' has the type int"),
        ("'v' AS value, 1 AS timestamp", {"topic": "t"}, "timestamp or bigint"),
        ("'v' AS value, 1 AS key, 1 AS topic", {}, "column 'topic'"),
        ("'v' AS value", {"topic": "t", "segment.byte": "1"}, "did you mean 'segment.bytes'"),
        ("'v' AS value, CAST(NULL AS STRING) AS topic", {}, "KAFKA_NULL_TOPIC_IN_DATA"),
        ("'v' AS value, '../../x' AS topic", {}, "characters other than"),
        ("'v' AS value, '__consumer_offsets' AS topic", {}, "allowInternalTopics"),
        ("'v' AS value, 1 AS partition", {"topic": "t"}, "partition 1 of topic 't', which will be"),
        ("'v' AS value, -1 AS partition", {"topic": "t"}, "partition -1 of topic 't'"),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_is_left(
    spark: SparkSession, place: Path | str, select: str, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(PySparkException, match=reason):
        save(spark.sql(f"SELECT {select}"), place, **options)
    assert folders_of(place) == set()
    assert isinstance(place, str) or list(place.glob(".kafkalog*")) == []


def test_overwriting_a_log_is_refused(spark: SparkSession, place: Path | str) -> None:
    frame = spark.createDataFrame([("a",)], "value STRING")
    with pytest.raises((PySparkException, AnalysisException), match="only appended to"):
        frame.write.format("kafkalog").option("topic", "t").mode("overwrite").save(str(place))
