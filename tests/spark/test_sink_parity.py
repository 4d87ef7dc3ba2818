"""What Spark's tests of its Kafka sink check, on this one: placement, modes, headers, sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from tests.support.sinking import folders_of, values_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def save(frame: DataFrame, path: Path | str, **options: str) -> None:
    named = {name.replace("__", "."): value for name, value in options.items()}
    frame.write.format("kafkalog").options(**named).mode("append").save(str(path))


def stream_of(spark: SparkSession, folder: Path, *values: str) -> DataFrame:
    (folder / "input").mkdir()
    (folder / "input" / "1.csv").write_text("".join(f"{value}\n" for value in values))
    return spark.readStream.schema("value STRING").csv(str(folder / "input"))


def start(
    frame: DataFrame, folder: Path, log: Path | str, mode: str = "append", **options: str
) -> None:
    named = {name.replace("__", "."): value for name, value in options.items()}
    query = (
        frame.writeStream.format("kafkalog")
        .options(**named, checkpointLocation=str(folder / "checkpoint"))
        .outputMode(mode)
        .trigger(availableNow=True)
        .start(str(log))
    )
    assert query.awaitTermination(120)


@pytest.mark.parametrize(
    ("select", "options", "expected"),
    [
        ("'v' AS value, 'of the column' AS topic", {}, "of the column"),
        ("'v' AS value", {"topic": "of the option"}, "of the option"),
        ("'v' AS value, 'of the column' AS topic", {"topic": "of the option"}, "of the option"),
        ("'v' AS value, 1 AS topic", {"topic": "of the option"}, "of the option"),
    ],
)
def test_a_topic_comes_from_the_column_or_from_the_option_which_wins(
    spark: SparkSession, place: Path | str, select: str, options: dict[str, str], expected: str
) -> None:
    plain = {name: text.replace(" ", "-") for name, text in options.items()}
    save(spark.sql(f"SELECT {select.replace('of the ', 'of-the-')}"), place, **plain)
    assert folders_of(place) == {f"{expected.replace(' ', '-')}-0"}


@pytest.mark.parametrize("select", ["'v' AS value", "1 AS value, 't' AS topic"])
def test_columns_that_cannot_be_written_fail_the_first_micro_batch(
    spark: SparkSession, tmp_path: Path, place: Path | str, select: str
) -> None:
    frame = stream_of(spark, tmp_path, "a").selectExpr(*select.split(", "))
    with pytest.raises(StreamingQueryException, match=r"(no topic to write to)|(has the type int)"):
        start(frame, tmp_path, place)
    assert not folders_of(place)


@pytest.mark.parametrize("name", ["kafka.key.serializer", "kafka.value.serializer"])
def test_serializers_are_refused(spark: SparkSession, place: Path | str, name: str) -> None:
    with pytest.raises(PySparkException, match="the bytes of their columns"):
        save(spark.sql("SELECT 'v' AS value"), place, **{"topic": "t", name: "x"})


def test_update_mode_goes_through_foreach_batch(
    spark: SparkSession, tmp_path: Path, place: Path | str
) -> None:
    counts = stream_of(spark, tmp_path, "a", "b", "a").groupBy("value").count()
    frame = counts.select(F.concat_ws("=", "value", "count").alias("value"))
    with pytest.raises(PySparkException):
        start(frame, tmp_path, place, "update", topic="t")
    assert not folders_of(place)

    def append(batch: DataFrame, batch_id: int) -> None:
        save(batch, place, topic="t", txnAppId="counts", txnVersion=str(batch_id))

    query = (
        frame.writeStream.foreachBatch(append)
        .outputMode("update")
        .trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "updates"))
        .start()
    )
    assert query.awaitTermination(120)
    assert sorted(values_of([place], "t")[0]) == ["a=2", "b=1"]


@pytest.mark.parametrize("mode", ["ignore", "error"])
def test_save_modes_that_look_whether_something_is_there_are_refused(
    spark: SparkSession, place: Path | str, mode: str
) -> None:
    frame = spark.sql("SELECT 'v' AS value")
    with pytest.raises(PySparkException, match="SAVE_MODE"):
        frame.write.format("kafkalog").option("topic", "t").mode(mode).save(str(place))


def test_headers_of_all_kinds_are_read_back_equal(spark: SparkSession, place: Path | str) -> None:
    def header(key: str, value: bytes | None) -> dict[str, Any]:
        return {"key": key, "value": value}

    given = [
        None,
        [header("a", b"1")],
        [header("a", b"1"), header("b", None)],
        [header("a", b"1"), header("a", b""), header("é", b"\xff")],
    ]
    schema = "value STRING, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    frame = spark.createDataFrame([(str(n), row) for n, row in enumerate(given)], schema)
    save(frame.coalesce(1), place, topic="t")
    reader = spark.read.format("kafkalog").options(subscribe="t", includeHeaders="true")
    rows = reader.load(str(place)).orderBy("offset").collect()
    assert [
        row.headers and [header(one.key, _bytes(one.value)) for one in row.headers] for row in rows
    ] == given


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def test_a_partition_column_comes_before_the_key_and_null_leaves_it_to_the_key(
    spark: SparkSession, place: Path | str
) -> None:
    keyed = spark.range(5).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    save(keyed, place, topic="by-key", numPartitions="4")
    placed = {v: p for p, found in values_of([place], "by-key").items() for v in found}
    assert len(set(placed.values())) > 1

    save(keyed.withColumn("partition", F.lit(2)), place, topic="named", numPartitions="4")
    assert sorted(values_of([place], "named")[2]) == [*"01234"]

    halves = spark.range(5).selectExpr(
        "CAST(id AS STRING) AS key",
        "CAST(id AS STRING) AS value",
        "IF(id % 2 = 0, 3, CAST(NULL AS INT)) AS partition",
    )
    save(halves, place, topic="half", numPartitions="4")
    found = {v: p for p, values in values_of([place], "half").items() for v in values}
    assert found == {v: 3 if int(v) % 2 == 0 else placed[v] for v in "01234"}


def test_a_thousand_large_rows_are_all_there(spark: SparkSession, place: Path | str) -> None:
    frame = spark.range(0, 1000, 1, 2).select(
        F.lpad(F.col("id").cast("string"), 15_000, "0").alias("value")
    )
    save(frame, place, topic="t", compression__type="lz4")
    found = values_of([place], "t")[0]
    assert sorted(int(value[-5:]) for value in found) == [*range(1000)]
    assert {len(value) for value in found} == {15_000}


def test_a_plan_that_spark_resolves_late_is_written(spark: SparkSession, place: Path | str) -> None:
    save(spark.range(3).select(F.to_json(F.struct("*")).alias("value")), place, topic="t")
    assert sorted(values_of([place], "t")[0]) == ['{"id":0}', '{"id":1}', '{"id":2}']


def test_a_record_too_large_fails_with_topic_key_and_size_before_anything_is_visible(
    spark: SparkSession, tmp_path: Path, place: Path | str
) -> None:
    frame = stream_of(spark, tmp_path, *(str(n) for n in range(50))).selectExpr(
        "concat('key ', value) AS key",
        "IF(value = '17', repeat('x', 5000), value) AS value",
        "CAST(value AS INT) % 2 AS partition",
    )
    with pytest.raises(StreamingQueryException) as raised:
        start(frame, tmp_path, place, topic="t", numPartitions="2", max__message__bytes="2000")
    message = str(raised.value)
    assert "t-1: the record with key 'key 17' is too large: a record of 50" in message
    assert "more than 2000 bytes, which max.message.bytes allows" in message
    assert not folders_of(place)
