"""The rows that every contender reads and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as f

from kafkalog.model import many

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Shape", "make_rows"]


class Shape(NamedTuple):
    """What the rows look like: how many, their keys and values in bytes, topic and codec."""

    rows: int = 4_000_000
    key_bytes: int = 10
    value_bytes: int = 100
    partitions: int = 4
    codec: str = "lz4"

    def __str__(self) -> str:
        """Say it in words."""
        return (
            f"{many(self.rows, 'row')}, key {many(self.key_bytes, 'byte')}, value "
            f"{many(self.value_bytes, 'byte')}, {self.codec}, {many(self.partitions, 'partition')}"
        )


def make_rows(spark: SparkSession, shape: Shape) -> DataFrame:
    """Return the rows as a cached frame of ``key`` and ``value``, both binary, one task per core.

    A value is a piece of JSON: half of it hex digits of a hash, which no codec but an entropy coder
    makes smaller, the other half the same in every row. Cached, they cost each sink the same.
    """
    row = f.col("id").cast("string")
    head = f.concat(f.lit('{"id":"'), f.lpad(row, shape.key_bytes, "0"), f.lit('","hash":"'))
    digits = f.sha2(row, 256).substr(1, min(64, shape.value_bytes // 2))
    text = f.rpad(f.concat(head, digits, f.lit('","pad":"')), shape.value_bytes, "kafkalog ")
    key = f.lpad(row, shape.key_bytes, "0").cast("binary").alias("key")
    cores = spark.sparkContext.defaultParallelism
    made = spark.range(0, shape.rows, 1, cores).select(key, text.cast("binary").alias("value"))
    cached = made.cache()
    assert cached.count() == shape.rows
    return cached
