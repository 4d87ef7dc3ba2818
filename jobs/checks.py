"""Whether a log and a Delta table made from it hold the same records, each once and in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["compare_contents", "find_disorder", "find_gaps"]

_RECORD: Final = ("key", "value", "timestamp")


def compare_contents(
    expected: DataFrame, actual: DataFrame, *, identity: str, name: str
) -> list[str]:
    """Say where ``actual`` does not hold exactly the records of ``expected``, each once.

    Args:
        expected: columns key, value (text) and timestamp.
        actual: the same columns.
        identity: the path in the JSON value of what makes a record unique, such as ``$.id``.
        name: what ``actual`` is called in findings.
    """
    wanted, found = (_summary(records, identity) for records in (expected, actual))
    if wanted == found:
        return []
    count, distinct, _ = found
    return [
        f"{name} holds {count:,} records of {distinct:,} different {identity}, instead of "
        f"{wanted[0]:,} of {wanted[1]:,}" + ("" if count != wanted[0] else ", or others")
    ]


def find_gaps(records: DataFrame, *, name: str) -> list[str]:
    """Say where the offsets of a partition are not exactly 0, 1, 2, ... each once."""
    per_partition = records.groupBy("partition").agg(
        sf.count("*").alias("count"),
        sf.count_distinct("offset").alias("distinct"),
        sf.min("offset").alias("first"),
        sf.max("offset").alias("last"),
    )
    return [
        f"{name}: partition {row['partition']} has {row['count']:,} records with "
        f"{row['distinct']:,} different offsets from {row['first']} to {row['last']}"
        for row in per_partition.sort("partition").collect()
        if (row["first"], row["last"] + 1) != (0, row["count"]) or row["distinct"] != row["count"]
    ]


def find_disorder(table: DataFrame, *, name: str) -> list[str]:
    """Return the data files of a Delta table that do not hold records in offset order."""
    lines = table.select(
        "partition",
        "offset",
        sf.col("_metadata.file_path").alias("file"),
        sf.monotonically_increasing_id().alias("row"),  # rises within a file
    )
    in_file = Window.partitionBy("file", "partition").orderBy("row")
    steps = lines.withColumn("step", sf.col("offset") - sf.lag("offset").over(in_file))
    wrong = steps.where("step <= 0").groupBy("file", "partition").count().sort("file").limit(10)
    return [
        f"{name}: partition {row['partition']} goes back {row['count']} times in {row['file']}"
        for row in wrong.collect()
    ]


def _summary(records: DataFrame, identity: str) -> tuple[int, int, int]:
    """Count records and identities, and add up hashes: equal for equal contents in any order."""
    row = records.agg(
        sf.count("*"),
        sf.count_distinct(sf.get_json_object("value", identity)),
        sf.sum(sf.xxhash64(*_RECORD).cast("decimal(38,0)")),
    ).head()
    if row is None:  # an aggregate without groups has one row
        raise AssertionError
    return row[0], row[1], int(row[2] or 0)
