"""What Spark shows of a broker's transactions at either isolation level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.corpus import UnpackedCase

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

LEVELS = ["read_committed", "read_uncommitted"]


@pytest.fixture
def case(tmp_path: Path) -> UnpackedCase:
    """Give three transactional producers, interleaved, one transaction left open."""
    return UnpackedCase("p06-transactions", tmp_path / "case")


def options(case: UnpackedCase, level: str) -> dict[str, str]:
    return {
        "subscribe": case.topics,
        "includeHeaders": "true",
        "kafka.isolation.level": level,
        "splitBytes": "4k",
    }


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    in_ms = frame.withColumn("timestamp", frame["timestamp"].cast("decimal(38, 6)") * 1000)
    rows = [row.asDict(recursive=True) for row in in_ms.collect()]
    return [row | {"timestamp": int(row["timestamp"])} for row in rows]


@pytest.mark.parametrize("level", LEVELS)
def test_a_batch_read_gives_what_clients_read(
    spark: SparkSession, level: str, case: UnpackedCase
) -> None:
    frame = spark.read.format("kafkalog").options(**options(case, level)).load(case.path)
    assert case.differences(rows_of(frame), isolation=level) == []
    assert case.changed_files() == []


@pytest.mark.parametrize("level", LEVELS)
def test_a_stream_gives_what_clients_read(
    spark: SparkSession, level: str, case: UnpackedCase, tmp_path: Path
) -> None:
    stream = (
        spark.readStream.format("kafkalog")
        .options(**options(case, level), startingOffsets="earliest", maxOffsetsPerTrigger="300")
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
        assert query.exception() is None
    finally:
        query.stop()
    assert case.differences(rows, isolation=level) == []
    assert case.changed_files() == []
