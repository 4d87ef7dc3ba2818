"""Rows per batch, and internal topics decoded, in batch and streaming queries."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from tests.support.coordinator_corpus import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    internal_records,
)
from tests.support.corpus import UnpackedCase
from tests.support.dumped_batches import comparable, dumped_batches, file_of
from tests.support.registry_records import framed, schema_record, write_records, write_values

from kafkalog.model import TopicPartition
from kafkalog.streaming.coordinator.views import (
    decode_offsets_batch,
    decode_transactions_batch,
)
from kafkalog.streaming.spark.versions import HAS_ADMISSION_CONTROL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def read(spark: SparkSession, case: UnpackedCase, **options: str) -> DataFrame:
    reader = spark.read.format("kafkalog")
    return reader.options(**{"subscribe": case.topics} | options).load(case.path)


def stream(spark: SparkSession, case: UnpackedCase, checkpoint: Path, **options: str) -> list[Any]:
    """Give all rows that a stream reads until it has caught up."""
    given = {"subscribe": case.topics, "startingOffsets": "earliest"} | options
    frame = spark.readStream.format("kafkalog").options(**given).load(case.path)
    rows: list[Any] = []
    write = frame.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
    write = write.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    known = -1
    while known < len(rows):
        known = len(rows)
        query = write.start()
        try:
            assert query.awaitTermination(300)
        finally:
            query.stop()
        if HAS_ADMISSION_CONTROL:  # without it a limit ends each run after one micro-batch
            break
    return rows


def by_file(rows: Iterable[Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        assert row["error"] is None
        partition = TopicPartition(row["topic"], row["partition"])
        assert file_of(row["file"]).startswith(f"{partition}/")
        found.setdefault(file_of(row["file"]), []).append(comparable(row.asDict()))
    return {file: sorted(each, key=lambda row: row["position"]) for file, each in found.items()}


def expected_batches(name: str, case: UnpackedCase) -> dict[str, list[dict[str, Any]]]:
    """Give what the dump tool printed of live partitions."""
    found = dumped_batches(name).items()
    return {file: batches for file, batches in found if file.split("/")[0] in case.live_folders}


def test_a_stream_of_batches_gives_each_batch_once(spark: SparkSession, tmp_path: Path) -> None:
    case = UnpackedCase("p08-retention-deleterecords", tmp_path / "case")
    rows = stream(spark, case, tmp_path / "checkpoint", view="batches", maxOffsetsPerTrigger="700")
    assert by_file(rows) == expected_batches("p08-retention-deleterecords", case)


def in_place(rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Give rows as mappings, in the order of their records."""
    kept = (row.asDict(recursive=True) for row in rows)
    return sorted(kept, key=lambda row: (row["logPartition"], row["logOffset"]))


@pytest.mark.parametrize(
    ("view", "topic", "expected"),
    [
        ("offsets", OFFSETS_TOPIC, decode_offsets_batch),
        ("transactions", TRANSACTIONS_TOPIC, decode_transactions_batch),
    ],
)
def test_internal_topics_are_read_decoded(
    spark: SparkSession,
    view: str,
    topic: str,
    expected: Callable[[pa.RecordBatch], pa.RecordBatch],
    tmp_path: Path,
) -> None:
    case = UnpackedCase("p09-groups", tmp_path / "case")
    given = {"subscribe": topic, "view": view}
    rows = in_place(read(spark, case, **given).collect())
    records = internal_records("p09-groups", topic)
    wanted = expected(records).to_pylist()
    assert rows
    assert [untimed(row) for row in rows] == [untimed(row) for row in wanted]
    assert in_place(stream(spark, case, tmp_path / "checkpoint", **given)) == rows


def untimed(value: Any) -> Any:
    """Put "set" in place of every time: Spark gives them in the zone of this process."""
    if isinstance(value, dict):
        return {name: untimed(each) for name, each in value.items()}
    if isinstance(value, list):
        return [untimed(each) for each in value]
    return "set" if isinstance(value, datetime) else value


SCHEMA = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "here", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "stops", "type": {"type": "array", "items": "string"}},
        {"name": "seats", "type": {"type": "map", "values": "int"}},
        {"name": "price", "type": ["null", {"type": "bytes", "logicalType": "decimal",
                                            "precision": 9, "scale": 2}]},
    ],
}  # fmt: skip


def test_values_of_a_registry_are_decoded_in_batches_and_streams(
    spark: SparkSession, tmp_path: Path
) -> None:
    parsed = fastavro.parse_schema(SCHEMA)
    at = datetime(2013, 1, 1, 5, 15, tzinfo=UTC)
    values: list[bytes | None] = []
    for number in range(3):
        row = {"id": number, "at": at, "here": at.replace(tzinfo=None), "stops": ["EWR"]}
        out = io.BytesIO()
        fastavro.schemaless_writer(
            out, parsed, row | {"seats": {"A": number}, "price": Decimal("12.50")}
        )
        values.append(framed(4, out.getvalue()))
    write_values(tmp_path, "t", [*values, b"none", None])
    write_records(tmp_path, schema_record("t-value", 1, 4, json.dumps(SCHEMA)))
    given = {"subscribe": "t", "decode.value": "avro", "readUpTo": "logEnd"}
    frame = spark.read.format("kafkalog").options(**given).load(str(tmp_path))
    assert frame.schema["valueDecoded"].dataType.simpleString() == (
        "struct<id:bigint,at:timestamp,here:timestamp_ntz,stops:array<string>,"
        "seats:map<string,int>,price:decimal(9,2)>"
    )
    chosen = ["valueDecoded.*", "valueSchemaId", "valueError", "value"]
    rows = [row.asDict() for row in frame.orderBy("offset").select(*chosen).collect()]
    first = rows[0]
    assert (first["id"], first["stops"], first["seats"]) == (0, ["EWR"], {"A": 0})
    assert (first["here"], first["price"]) == (at.replace(tzinfo=None), Decimal("12.50"))
    assert (first["valueSchemaId"], first["valueError"], first["value"]) == (4, None, values[0])
    assert "expected a byte 0" in rows[3]["valueError"]
    assert (rows[4]["id"], rows[4]["valueError"]) == (None, None)
    streamed = spark.readStream.format("kafkalog").options(startingOffsets="earliest", **given)
    read: list[Any] = []
    query = (
        streamed.load(str(tmp_path))
        .writeStream.foreachBatch(
            lambda batch, _: read.extend(batch.orderBy("offset").select(*chosen).collect())
        )
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()
    assert [row.asDict() for row in read] == rows
