from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.object_store import ObjectStore, object_store
from tests.support.spark import small_session
from tests.support.streams import Log, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Give the session that the tests of a file share; other files may need another one."""
    with small_session() as session:
        yield session


@pytest.fixture(scope="session")
def store() -> Iterator[ObjectStore]:
    """Give a store for logs in a bucket."""
    with object_store() as started:
        started.make_bucket()
        yield started


@pytest.fixture(params=["directory", pytest.param("bucket", marks=pytest.mark.nightly)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Give a log that is yet to be made: a directory, or the URI of one in a bucket."""
    if request.param == "directory":
        return tmp_path / "log"
    store: ObjectStore = request.getfixturevalue("store")
    return store.whole_uri(f"log-{uuid.uuid4().hex}")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Give ``t-0`` with 5 records and ``t-1`` with 3."""
    log = Log(tmp_path / "log")
    log.append("t-0", 5)
    log.append("t-1", 3)
    return log


@pytest.fixture
def read(spark: SparkSession, log: Log) -> Callable[..., DataFrame]:
    def load(schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.format("kafkalog").options(**{"subscribe": "t"} | options)
        return (reader.schema(schema) if schema else reader).load(str(log.path))

    return load


@pytest.fixture
def start(
    spark: SparkSession, log: Log, tmp_path: Path
) -> Callable[..., tuple[StreamingQuery, Run]]:
    """Start a query over ``t`` with one checkpoint for all; ``trigger`` is availableNow."""

    def begin(
        *,
        trigger: dict[str, Any] | None = None,
        fail_in: int = -1,
        **options: str,
    ) -> tuple[StreamingQuery, Run]:
        options = {"subscribe": "t", "fetchOffset.retryIntervalMs": "10"} | options
        reader = spark.readStream.format("kafkalog").schema("value STRING")
        run = Run(fail_in=fail_in)
        writer = reader.options(**options).load(str(log.path)).writeStream
        writer = writer.foreachBatch(run.take).trigger(**trigger or {"availableNow": True})
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(), run

    return begin
