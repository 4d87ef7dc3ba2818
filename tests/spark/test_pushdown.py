"""Filters that Spark hands over: which of them, what the plan shows, and what is not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from tests.support.indexed_logs import LOG_APPEND_TIME, write_indexed_segment
from tests.support.logs import Row
from tests.support.spark import NEEDS_FILTER_PUSHDOWN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, NEEDS_FILTER_PUSHDOWN]

SETTING = "spark.sql.python.filterPushdown.enabled"
START = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """Give the session with Spark's setting on."""
    spark.conf.set(SETTING, "true")
    yield spark
    spark.conf.unset(SETTING)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give an hour of ``t-0`` and ``t-1``, a batch of ten records a minute, and ``u-0``."""
    folder = tmp_path_factory.mktemp("log")
    for name in ("t-0", "t-1", "u-0"):
        batches = [
            ([Row(b"x" * 9000, timestamp=START + m * 60_000)] * 10, LOG_APPEND_TIME)
            for m in range(60)
        ]
        write_indexed_segment(folder / name, 0, batches)
    return folder


def load(spark: SparkSession, log: Path, **options: str) -> DataFrame:
    reader = spark.read.format("kafkalog").option("subscribePattern", ".").options(**options)
    return reader.load(str(log))


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


FILTERS = [
    "topic = 't' AND partition = 1 AND offset BETWEEN 95 AND 104",
    "topic LIKE 'u%' AND offset NOT IN (0, 1, 2) AND offset < 20",
    "NOT (topic <=> 't') AND partition IN (0, 7)",
    "timestamp >= '2023-11-14 22:20:20' AND timestamp < '2023-11-14 22:21:20'",
    "timestamp = '2023-11-14 22:23:20' OR offset = 3",
    "timestamp IN ('2023-11-14 22:20:20', '2023-11-14 22:20:20.0005')",
    "offset > 17.5 AND offset < 21 AND value IS NOT NULL",
]


@pytest.mark.parametrize("condition", FILTERS)
def test_sql_shows_the_same_rows_with_and_without(
    pushing: SparkSession, log: Path, condition: str
) -> None:
    columns = "topic, partition, offset, timestamp"
    load(pushing, log).createOrReplaceTempView("plain")
    load(pushing, log, filterPushdown="true").createOrReplaceTempView("pushed")
    found = [
        sorted(map(tuple, pushing.sql(f"SELECT {columns} FROM {v} WHERE {condition}").collect()))
        for v in ("plain", "pushed")
    ]
    assert found[0] == found[1]


def test_the_plan_shows_what_is_taken_over_and_what_is_left(
    pushing: SparkSession, log: Path
) -> None:
    condition = "topic = 't' AND offset < 50 AND timestamp < '2023-11-14 22:14:00'"
    taken = plan_of(load(pushing, log, filterPushdown="true").where(condition))
    filter_line = next(line for line in taken.splitlines() if " Filter " in line)
    assert "timestamp" in filter_line
    assert "topic" not in filter_line
    assert "offset" not in filter_line
    assert "topic" in next(
        line
        for line in plan_of(load(pushing, log).where(condition)).splitlines()
        if "Filter" in line
    )


def test_only_the_batches_of_a_minute_are_read(
    pushing: SparkSession, log: Path, tmp_path: Path
) -> None:
    """All other batches are made unreadable: a query that opens one of them fails."""
    batches = [
        ([Row(b"x" * 9000, timestamp=START + m * 60_000)] * 10, LOG_APPEND_TIME) for m in range(60)
    ]
    write_indexed_segment(tmp_path / "t-0", 0, batches)
    path = tmp_path / "t-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    size = len(data) // 60
    for minute in range(59):  # the last one is verified to find the end of the log
        if minute != 30:
            data[minute * size + 100] ^= 0xFF
    path.write_bytes(data)
    minute_30 = "timestamp >= '2023-11-14 22:43:20' AND timestamp < '2023-11-14 22:44:20'"
    frame = load(pushing, tmp_path, filterPushdown="true").where(minute_30)
    assert [row.offset for row in frame.collect()] == list(range(300, 310))
    with pytest.raises(PySparkException, match="checksum"):
        load(pushing, tmp_path).where(minute_30).collect()


def test_without_spark_s_setting_the_option_is_refused_by_its_name(
    spark: SparkSession, log: Path
) -> None:
    assert load(spark, log).where("offset < 5").count() == 15
    with pytest.raises(PySparkException, match=SETTING):
        load(spark, log, filterPushdown="true").where("offset < 5").count()


def test_a_schema_of_few_columns_takes_filters_too(pushing: SparkSession, log: Path) -> None:
    reader = pushing.read.format("kafkalog").option("subscribe", "t").option("path", str(log))
    frame = reader.option("filterPushdown", "true").schema("offset long, topic string").load()
    assert frame.where("offset = 7").select("topic", "offset").collect() == [("t", 7)] * 2


def test_what_filters_leave_is_kept_by_spark_for_other_uses_of_the_load(
    pushing: SparkSession, log: Path
) -> None:
    """Spark's doing, and told in the docs: when it ends, so should what they advise."""
    frame = load(pushing, log, filterPushdown="true")
    assert frame.where("topic = 'u'").count() == 600
    assert frame.count() == 600
    assert load(pushing, log, filterPushdown="true").count() == 1800
    parts = [frame.where(f"topic = '{topic}'") for topic in ("t", "u")]
    assert [part.count() for part in parts] == [1200, 600]
    assert parts[0].union(parts[1]).count() == 1200
