"""What real brokers wrote reads back exactly as real clients read it."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.corpus import UnpackedCase

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

CASES = [
    "p01-codecs",
    "p02-nulls-headers",
    "p03-large",
    "p04-timestamps",
    "p05-segments",
    "p07-compacted",
    "p08-retention-deleterecords",
    "p09-groups",
    "p10-many-partitions-deleted",
    "p11-live-copy",
    "p12-killed",
    "p13-v0v1",
]
UNCLEAN = {"p11-live-copy", "p12-killed"}


@pytest.fixture(params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def case(name: str, tmp_path: Path) -> UnpackedCase:
    return UnpackedCase(name, tmp_path / "case")


def options(name: str, case: UnpackedCase) -> dict[str, str]:
    return {
        "subscribe": case.topics,
        "includeHeaders": "true",
        "readUpTo": "logEnd" if name in UNCLEAN else "highWatermark",
        "splitBytes": "64k",  # so that the larger partitions are cut
    }


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """Collect rows in the order of tasks, with timestamps in ms."""
    in_ms = frame.withColumn("timestamp", frame["timestamp"].cast("decimal(38, 6)") * 1000)
    rows = [row.asDict(recursive=True) for row in in_ms.collect()]
    return [row | {"timestamp": int(row["timestamp"])} for row in rows]


def assert_offset_order(rows: list[dict[str, Any]]) -> None:
    """Each task reads one partition, so that neighbours of one partition are in order."""
    ordered = sorted(rows, key=lambda row: (row["topic"], row["partition"]))
    for _, group in groupby(ordered, key=lambda row: (row["topic"], row["partition"])):
        offsets = [row["offset"] for row in group]
        assert offsets == sorted(offsets)


def test_a_batch_read_gives_the_rows_of_the_corpus(
    spark: SparkSession, name: str, case: UnpackedCase
) -> None:
    reader = spark.read.format("kafkalog").options(**options(name, case))
    rows = rows_of(reader.load(case.path))
    assert case.differences(rows) == []
    assert_offset_order(rows)
    assert case.changed_files() == []


def test_a_stream_gives_the_rows_of_the_corpus(
    spark: SparkSession, name: str, case: UnpackedCase, tmp_path: Path
) -> None:
    stream = (
        spark.readStream.format("kafkalog")
        .options(**options(name, case), startingOffsets="earliest", maxOffsetsPerTrigger="1000")
        .load(case.path)
    )
    rows: list[dict[str, Any]] = []
    query = (
        stream.writeStream.foreachBatch(lambda frame, _: rows.extend(rows_of(frame)))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()
    assert case.differences(rows) == []
    assert_offset_order(rows)
    assert case.changed_files() == []
