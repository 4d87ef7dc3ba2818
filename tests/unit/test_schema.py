from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kafkalog.errors import OptionError
from kafkalog.streaming.source.schema import RowSchema, source_schema
from kafkalog.streaming.spark.versions import arrow_type

HEADER = StructType().add("key", "string").add("value", "binary")


def test_the_schema_is_that_of_sparks_kafka_source() -> None:
    assert source_schema(include_headers=False).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )
    assert source_schema(include_headers=True)["headers"].simpleString() == (
        "headers:array<struct<key:string,value:binary>>"
    )


@pytest.mark.parametrize("include_headers", [False, True])
def test_the_arrow_schema_is_what_spark_compares_with(include_headers: bool) -> None:
    schema = source_schema(include_headers=include_headers)
    expected = pa.schema(list(arrow_type(schema)))
    assert expected.equals(RowSchema.of(schema).to_arrow())


def test_a_user_schema_selects_columns_in_any_order_and_case() -> None:
    schema = (
        StructType()
        .add("VALUE", "string")
        .add("offset", "long", nullable=False)
        .add("key", "binary")
    )
    rows = RowSchema.of(schema)
    assert rows.columns == ("value", "offset", "key")
    assert rows.strings == {"value"}
    assert rows.to_arrow().equals(pa.schema(list(arrow_type(schema))))
    assert rows.to_arrow() == pa.schema(
        [
            pa.field("VALUE", pa.string()),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("key", pa.binary()),
        ]
    )


def test_a_timestamp_may_be_read_as_ms() -> None:
    schema = StructType().add("timestamp", "long").add("key", "binary")
    rows = RowSchema.of(schema)
    assert rows.has_ms
    assert rows.to_arrow().equals(pa.schema(list(arrow_type(schema))))
    assert not RowSchema.of(source_schema(include_headers=True)).has_ms


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (StructField("leader_epoch", IntegerType()), "'leader_epoch', which the source does not"),
        (StructField("offset", IntegerType()), "'offset' type int, but it can be read as bigint"),
        (StructField("value", LongType()), "'value' type bigint, .* as binary or string"),
        (StructField("topic", BinaryType()), "'topic' type binary, .* as string"),
        (StructField("headers", ArrayType(StringType())), "'headers' type array<string>"),
        (
            StructField("headers", ArrayType(HEADER, containsNull=False)),
            "parts of column 'headers' NOT NULL",
        ),
        (StructField("timestamp", StringType()), "'timestamp' type string, .* or bigint"),
        (StructField("timestamp", TimestampType(), nullable=False), "'timestamp' NOT NULL"),
        (StructField("value", BinaryType(), nullable=False), "'value' NOT NULL"),
    ],
)
def test_a_user_schema_beyond_the_columns_is_refused(field: StructField, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        RowSchema.of(StructType([field]))


def test_a_user_schema_without_columns_or_with_one_twice_is_refused() -> None:
    with pytest.raises(OptionError, match="no columns; choose some of: key binary or string,"):
        RowSchema.of(StructType([]))
    with pytest.raises(OptionError, match="'value' twice"):
        RowSchema.of(StructType().add("value", "string").add("Value", "binary"))


def test_a_row_schema_can_be_sent_to_a_task() -> None:
    rows = RowSchema.of(source_schema(include_headers=True))
    assert pickle.loads(pickle.dumps(rows)) == rows
