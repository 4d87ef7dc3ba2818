"""The checks of the demo find what they are there to find."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from kafkalog.jobs.demo.queries import compare_contents, find_disorder, find_gaps
from kafkalog.jobs.pipelines.inputs import with_header_lists

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Row = tuple[int, int, str, str, datetime]

AT = datetime(2024, 2, 3, tzinfo=UTC)
COLUMNS = "partition INT, offset BIGINT, key STRING, value STRING, timestamp TIMESTAMP"


def row(partition: int, offset: int, identity: int) -> Row:
    return (partition, offset, "k", f'{{"id":{identity}}}', AT)


WHOLE = [row(0, 0, 10), row(0, 1, 11), row(1, 0, 12), row(1, 1, 13), row(1, 2, 14)]


def frame(spark: SparkSession, rows: Sequence[Row]) -> DataFrame:
    return spark.createDataFrame(rows, COLUMNS)


@pytest.mark.parametrize(
    ("rows", "finding"),
    [
        (WHOLE, None),
        (WHOLE[::-1], None),
        (WHOLE[:-1], "4 records of 4 different"),
        ([*WHOLE, WHOLE[0]], "6 records of 5 different"),
        ([*WHOLE[:-1], WHOLE[0]], "5 records of 4 different"),
        ([*WHOLE[:-1], row(1, 2, 99)], "or others"),
        ([], "0 records"),
    ],
)
def test_contents_that_differ_are_told(
    spark: SparkSession, rows: list[Row], finding: str | None
) -> None:
    found = compare_contents(
        frame(spark, WHOLE), frame(spark, rows), identity="$.id", name="the copy"
    )
    assert len(found) == (finding is not None)
    assert all(finding in line and line.startswith("the copy") for line in found if finding)


@pytest.mark.parametrize(
    ("rows", "partition"),
    [(WHOLE, None), ([*WHOLE, row(1, 2, 15)], 1), (WHOLE[1:], 0), ([*WHOLE, row(1, 4, 15)], 1)],
)
def test_offsets_that_are_not_one_after_the_other_are_told(
    spark: SparkSession, rows: list[Row], partition: int | None
) -> None:
    found = find_gaps(frame(spark, rows), name="the copy")
    assert len(found) == (partition is not None)
    assert all(f"partition {partition} has" in line for line in found)


def test_a_file_whose_offsets_go_back_is_told(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "files")
    frame(spark, WHOLE).coalesce(1).write.parquet(path)
    assert find_disorder(spark.read.parquet(path), name="the copy") == []

    frame(spark, WHOLE[::-1]).coalesce(1).write.mode("append").parquet(path)
    found = find_disorder(spark.read.parquet(path), name="the copy")

    assert [line.split(" in file")[0] for line in found] == [
        "the copy: partition 0 goes back 1 times",
        "the copy: partition 1 goes back 2 times",
    ]


def test_records_without_headers_have_an_empty_list_of_them_on_their_way_to_the_sink(
    spark: SparkSession,
) -> None:
    lists = "array(named_struct('key', 'a', 'value', X'01'))"
    some = spark.range(2).selectExpr("id", f"IF(id = 0, NULL, {lists}) AS headers")
    filled = with_header_lists(some)
    assert filled.schema["headers"].dataType == some.schema["headers"].dataType
    assert [len(row.headers) for row in filled.orderBy("id").collect()] == [0, 1]
    for other in ("id", "'no list' AS headers"):
        assert with_header_lists(spark.range(1).selectExpr(other)).count() == 1
