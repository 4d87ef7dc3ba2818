"""A topic in numbers: what its partitions hold, and how far another store has followed them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf
from rich.table import Table

from kafkalog.jobs.units import shown_size
from kafkalog.streaming.source.followed_logs import FollowedLogs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame

__all__ = ["PartitionReport", "render", "report_partitions", "topic_logs"]

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


def topic_logs(log: str, topic: str) -> FollowedLogs:
    """Follow the committed ends of a topic's partitions."""
    return FollowedLogs(log.split(","), lambda partition: partition.topic == topic)


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
    for topic_partition, end in logs.look().items():
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
