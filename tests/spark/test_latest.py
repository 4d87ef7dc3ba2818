"""``view=latest`` beside Spark's own ``max_by`` over all records, in queries and views."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from tests.support.compacting import compacted
from tests.support.corpus import UnpackedCase

import kafkalog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SETTING = "spark.sql.python.filterPushdown.enabled"
KEY = ["topic", "partition", "key"]


def load(spark: SparkSession, path: str, topics: str, **options: str) -> DataFrame:
    reader = spark.read.format("kafkalog").option("subscribe", topics)
    return reader.options(includeHeaders="true", **options).load(path)


def by_group(records: DataFrame, *, tombstones: bool = False) -> DataFrame:
    """Give the newest row of each key as Spark's users find it."""
    rest = [name for name in records.columns if name not in KEY]
    newest = f.max_by(f.struct(*rest), "offset").alias("newest")
    keyed = records.where("key IS NOT NULL").groupBy(*KEY).agg(newest)
    rows = keyed.select(*KEY, "newest.*").select(*records.columns)
    return rows if tombstones else rows.where("value IS NOT NULL")


def rows_of(frame: DataFrame) -> list[Any]:
    return sorted(map(tuple, frame.collect()), key=repr)


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_it_gives_what_max_by_gives(spark: SparkSession, level: str, tmp_path: Path) -> None:
    case = UnpackedCase("p06-transactions", tmp_path / "case")
    options = {"kafka.isolation.level": level}
    expected = rows_of(by_group(load(spark, case.path, case.topics, **options)))
    many = {"view": "latest", "minPartitions": "7", "table.memory": "64k"}
    assert rows_of(load(spark, case.path, case.topics, **options, **many)) == expected
    assert len(expected) > 200


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give a log of 5,000 records and some 300 keys, some of which are deleted."""
    path = tmp_path_factory.mktemp("log")
    numbers = range(5000)
    rows = pa.table(
        {
            "key": [str(n * n % 1403 % 700).encode() for n in numbers],
            "value": [None if n % 9 == 4 else f"value {n}" for n in numbers],
            "timestamp": pa.array(
                [1_700_000_000_000 + n * 7919 % 5000 for n in numbers], pa.timestamp("ms")
            ),
        }
    )
    settings = {"numPartitions": "3", "compression.type": "lz4", "segment.bytes": "20000"}
    for first in range(0, 5000, 500):
        kafkalog.append(path, "t", rows.slice(first, 500), options=settings)
    return str(path)


@pytest.mark.parametrize(
    "bound",
    [
        {"endingOffsets": '{"t":{"0":400,"1":-1,"2":0}}'},
        {"endingTimestamp": "1700000002500"},
        {"startingOffsets": '{"t":{"0":900,"1":900,"2":-2}}', "endingOffsets": "latest"},
        {"tombstones": "true"},
    ],
)
def test_the_bounds_of_a_read_make_it_a_view_as_of_then(
    spark: SparkSession, log: str, bound: dict[str, str]
) -> None:
    whole = {name: value for name, value in bound.items() if name != "tombstones"}
    expected = by_group(load(spark, log, "t", **whole), tombstones="tombstones" in bound)
    assert rows_of(load(spark, log, "t", view="latest", **bound)) == rows_of(expected)


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """Give the session with Spark's setting on."""
    spark.conf.set(SETTING, "true")
    yield spark
    spark.conf.unset(SETTING)


@pytest.mark.parametrize(
    "where",
    [
        "key = CAST('25' AS BINARY)",
        "key IN (CAST('25' AS BINARY), CAST('4' AS BINARY)) AND partition >= 0",
        "offset < 1500",
        "timestamp < '2023-11-14 22:13:21' AND topic = 't'",
        "value = CAST('value 4446' AS BINARY)",
    ],
)
def test_filters_apply_to_the_newest_rows(pushing: SparkSession, log: str, where: str) -> None:
    expected = rows_of(by_group(load(pushing, log, "t")).where(where))
    assert expected
    for pushdown in ("true", "false"):
        frame = load(pushing, log, "t", view="latest", filterPushdown=pushdown)
        assert rows_of(frame.where(where)) == expected


def test_a_budget_so_small_that_keys_go_to_disk_changes_no_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    draw = random.Random(17)
    numbers = [draw.randrange(2000) for _ in range(5000)]
    times = [1_700_000_000_000 + draw.randrange(10_000) for _ in numbers]
    rows = pa.table(
        {
            "key": [f"key {number:08d}" for number in numbers],
            "value": [None if row % 7 == 0 else f"value {row}" for row in range(5000)],
            "timestamp": pa.array(times, pa.timestamp("ms")),
        }
    )
    settings = {"compression.type": "lz4", "cleanup.policy": "compact", "segment.bytes": "30000"}
    for first in range(0, 5000, 500):
        kafkalog.append(tmp_path, "t", rows.slice(first, 500), options=settings)
    small = {"view": "latest", "table.memory": "64k"}  # which has room for 768 keys
    for bound in (
        {},
        {"endingOffsets": f'{{"t":{{"0":{draw.randrange(2500, 5000)}}}}}'},
        {"endingTimestamp": str(draw.choice(times))},
    ):
        expected = rows_of(by_group(load(spark, str(tmp_path), "t", **bound)))
        assert rows_of(load(spark, str(tmp_path), "t", **small, **bound)) == expected
        if not bound:
            assert len(expected) > 1500
            whole = expected
    compacted(tmp_path)
    assert rows_of(load(spark, str(tmp_path), "t", **small)) == whole


def test_spark_tells_its_workers_where_keys_may_go(spark: SparkSession) -> None:
    told = spark.sparkContext.parallelize([0], 1).map(lambda _: os.environ["SPARK_LOCAL_DIRS"])
    (folders,) = told.collect()
    assert all(Path(folder).is_dir() for folder in folders.split(","))


def test_a_temporary_view_of_sql_and_a_schema_of_the_users(spark: SparkSession, log: str) -> None:
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW newest (key STRING, value STRING) USING kafkalog "
        f"OPTIONS (path '{log}', subscribe 't', view 'latest')"
    )
    (row,) = spark.sql("SELECT * FROM newest WHERE key = '25'").collect()
    expected = by_group(load(spark, log, "t")).where("key = CAST('25' AS BINARY)")
    (other,) = expected.select(f.col("key").cast("string"), f.col("value").cast("string")).collect()
    assert tuple(row) == tuple(other)


def test_a_stream_refuses_it_and_says_what_to_do(
    spark: SparkSession, log: str, tmp_path: Path
) -> None:
    reader = spark.readStream.format("kafkalog").option("subscribe", "t").option("view", "latest")
    writer = reader.load(log).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(PySparkException, match="foreachBatch"):
        query.awaitTermination(60)
