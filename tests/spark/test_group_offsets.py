"""Positions of groups that streaming queries write, and what listeners make of progress."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from kafkalog.model import TopicPartition
from kafkalog.streaming.source.start import read_commits
from kafkalog.streaming.spark.listeners import GroupOffsetsListener, LagListener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

T0 = TopicPartition("t", 0)
GROUP = {"kafka.group.id": "readers", "commitGroupOffsets": "true"}


@pytest.fixture
def log_dir(spark: SparkSession, tmp_path: Path) -> Path:
    """Give a log directory of the sink with 6 records in ``t-0``."""
    append(spark, tmp_path / "log", 6)
    return tmp_path / "log"


@pytest.fixture
def run(spark: SparkSession, log_dir: Path, tmp_path: Path) -> Callable[..., StreamingQuery]:
    """Read all there is, two offsets a batch, and stop."""

    def read(**options: str) -> StreamingQuery:
        given = {"subscribe": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "2"}
        reader = spark.readStream.format("kafkalog").options(**given | GROUP | options)
        writer = reader.load(str(log_dir)).writeStream.format("noop").queryName("reader")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()
        return query

    return read


@pytest.fixture
def listening(spark: SparkSession) -> Iterator[Callable[[Any], None]]:
    """Add listeners for the length of a test."""
    added: list[Any] = []

    def add(listener: Any) -> None:
        spark.streams.addListener(listener)
        added.append(listener)

    yield add
    for listener in added:
        spark.streams.removeListener(listener)


def append(spark: SparkSession, log_dir: Path, count: int) -> None:
    rows = spark.range(count).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("kafkalog").option("topic", "t").mode("append").save(str(log_dir))


def position(log_dir: Path) -> int:
    return read_commits([str(log_dir)], "readers", to_log_end=False)[T0].offset


def eventually(value: Callable[[], object], expected: object) -> None:
    """Listeners are told a little later."""
    deadline = time.monotonic() + 60
    while value() != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    assert value() == expected


def test_a_query_commits_a_batch_when_the_next_one_begins(
    spark: SparkSession, log_dir: Path, run: Callable[..., StreamingQuery]
) -> None:
    run()
    assert position(log_dir) == 4  # Spark confirms the last batch with the first one of a next run
    append(spark, log_dir, 1)
    run()
    assert position(log_dir) == 6


def test_a_listener_commits_the_last_batch_too(
    log_dir: Path,
    run: Callable[..., StreamingQuery],
    listening: Callable[[Any], None],
) -> None:
    listening(GroupOffsetsListener(str(log_dir), "readers", query="reader"))
    lags = LagListener(query="reader")
    listening(lags)
    query = run()
    eventually(lambda: position(log_dir), 6)
    eventually(lambda: lags.lags.get(str(query.id)), [{T0: 0}])


def test_a_directory_of_a_broker_is_refused_when_the_query_starts(
    log_dir: Path, run: Callable[..., StreamingQuery]
) -> None:
    (log_dir / "meta.properties").write_text("version=1\n")
    with pytest.raises(StreamingQueryException, match="a broker lived here"):
        run()
