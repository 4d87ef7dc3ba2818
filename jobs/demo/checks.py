"""What the demo checks: that log and table hold the same records, and topics in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf
from rich.table import Table

from kafkalog.jobs.inspection.units import shown_size
from kafkalog.streaming.source.end_offsets import EndOffsets

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame


__all__ = [
    "PartitionReport",
    "compare_contents",
    "find_disorder",
    "find_gaps",
    "render",
    "report_partitions",
    "topic_logs",
]


# ----------------------------------------------------------------------------------------------
# Whether a log and a Delta table made from it hold the same records, each once and in order.


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


# ----------------------------------------------------------------------------------------------
# A topic in numbers: what its partitions hold, and how far another store has followed them.


_HEADINGS: Final = ("partition", "records", "segments", "size", "compression", "end offset", "lag")


@dataclass(frozen=True)
class PartitionReport:
    """One partition: its log, and what a copy of its records holds."""

    partition: int
    records: int
    segments: int
    size_bytes: int
    payload_bytes: int
    """Of keys and values, as they are without compression."""
    end_offset: int
    copied_to: int
    """The offset after the copy's last record."""

    @property
    def lag(self) -> int:
        """How many offsets the copy has still to come."""
        return self.end_offset - self.copied_to


def topic_logs(log: str, topic: str) -> EndOffsets:
    """Follow the committed ends of a topic's partitions."""
    return EndOffsets(log.split(","), lambda partition: partition.topic == topic)


def report_partitions(log: str, topic: str, copy: DataFrame) -> list[PartitionReport]:
    """Measure every partition of a topic.

    Args:
        log: the log directories, with commas between them.
        topic: the topic.
        copy: what was copied from it: columns partition, offset, key, value.
    """
    payload = sf.sum(sf.octet_length("value") + sf.coalesce(sf.octet_length("key"), sf.lit(0)))
    per_partition = copy.groupBy("partition").agg(payload, sf.max("offset") + 1)
    copied = {partition: (size, end) for partition, size, end in per_partition.collect()}
    logs = topic_logs(log, topic)
    reports = []
    for topic_partition, end in logs.look().offsets.items():
        with logs.open(topic_partition) as partition_log:
            payload_bytes, copied_to = copied.get(topic_partition.partition, (0, 0))
            reports.append(
                PartitionReport(
                    partition=topic_partition.partition,
                    records=end - partition_log.log_start_offset,
                    segments=len(partition_log.segments),
                    size_bytes=sum(segment.size for segment in partition_log.segments),
                    payload_bytes=payload_bytes,
                    end_offset=end,
                    copied_to=copied_to,
                )
            )
    return reports


def render(topic: str, reports: Iterable[PartitionReport]) -> Table:
    """Show the partitions as a table."""
    table = Table(title=f"topic {topic}")
    for heading in _HEADINGS:
        table.add_column(heading, justify="right")
    for report in reports:
        ratio = report.payload_bytes / report.size_bytes if report.size_bytes else 0.0
        table.add_row(
            str(report.partition),
            f"{report.records:,}",
            f"{report.segments:,}",
            shown_size(report.size_bytes),
            f"{ratio:.1f} : 1",
            f"{report.end_offset:,}",
            f"{report.lag:,}",
        )
    return table
