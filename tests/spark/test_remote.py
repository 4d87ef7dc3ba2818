"""Real queries over an object store: options and places travel to Spark's processes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from tests.support.corpus import UnpackedCase
from tests.support.object_store import ObjectStore, object_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SECRET = "a-well-kept-secret"


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as started:
        yield started


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    in_ms = frame.withColumn("timestamp", frame["timestamp"].cast("decimal(38, 6)") * 1000)
    rows = [row.asDict(recursive=True) for row in in_ms.collect()]
    return [row | {"timestamp": int(row["timestamp"])} for row in rows]


def upload(store: ObjectStore, tmp_path: Path, name: str) -> tuple[UnpackedCase, dict[str, str]]:
    case = UnpackedCase(name, tmp_path / "case")
    store.upload(Path(case.path), name)
    more = {"subscribe": case.topics, "includeHeaders": "true"}
    return case, {"path": store.uri(name), **more, **store.options}


def test_a_batch_and_a_stream_give_the_rows_of_the_corpus(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    case, options = upload(store, tmp_path, "p06-transactions")
    options["kafka.isolation.level"] = "read_committed"
    rows = rows_of(spark.read.format("kafkalog").options(**options).load())
    assert case.differences(rows, isolation="read_committed") == []
    streamed: list[dict[str, Any]] = []
    checkpoint = tmp_path / "checkpoint"
    query = (
        spark.readStream.format("kafkalog")
        .options(**options, startingOffsets="earliest", maxOffsetsPerTrigger="300")
        .load()
        .writeStream.foreachBatch(lambda frame, _: streamed.extend(rows_of(frame)))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    assert query.exception() is None
    assert case.differences(streamed, isolation="read_committed") == []
    kept = [path.read_text() for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()]
    assert len(kept) > 1
    assert not any(SECRET in text or "s3:" in text for text in kept)


def test_a_store_that_fails_in_a_task_is_reported_without_secrets(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    _, options = upload(store, tmp_path, "p02-nulls-headers")
    frame = spark.read.format("kafkalog").options(**options, **{"storage.tries": "2"}).load()
    frame.explain()  # planned while the store answers
    store.fault = lambda request: "500" if request.name.endswith(".log") else None
    with pytest.raises(
        PySparkException, match=r"s3://archive/p02-nulls-headers/.*\(2 tries\)"
    ) as e:
        frame.collect()
    store.reset()
    assert SECRET not in str(e.value)


def test_nothing_is_written_to_a_store(spark: SparkSession, store: ObjectStore) -> None:
    rows = spark.createDataFrame([("t", b"v")], "topic string, value binary")
    writer = rows.write.format("kafkalog").mode("append")
    with pytest.raises(PySparkException, match=r"not on a local file system.*locks") as caught:
        writer.save(f"s3://an-id:{SECRET}@archive/new?region=us-east-1")
    assert "archive/new" in str(caught.value)
    assert SECRET not in str(caught.value).split("Traceback")[0]
