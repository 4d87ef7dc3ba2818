"""The part of a page about topics and their partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kafkalog.jobs.report.charts import Growth, spark_columns
from kafkalog.jobs.report.markup import NOTHING, Markup, tag
from kafkalog.jobs.report.scales import shown_moment
from kafkalog.jobs.report.summary import is_internal, topic_rows
from kafkalog.jobs.report.tables import Column, count, table
from kafkalog.jobs.units import shown_size

if TYPE_CHECKING:
    from kafkalog.jobs.report.facts import Facts

__all__ = ["batches_table", "partitions_table", "topics_section"]

_TOPIC: Final = (
    Column("Topic", "name"),
    Column("Partitions", "n"),
    Column("Records", "n"),
    Column("Size", "n"),
    Column("Over time"),
    Column("First record", "t"),
    Column("Last record", "t"),
    Column("Retention", "t"),
)
_BATCHES: Final = (
    Column("Topic", "name"),
    Column("Batches", "n"),
    Column("Records per batch", "n"),
    Column("Bytes per batch", "n"),
    Column("Bytes per record", "n"),
    Column("Compression"),
)
_PARTITION: Final = (
    Column("Partition", "name"),
    Column("Start", "n"),
    Column("Committed end", "n"),
    Column("Records", "n"),
    Column("Segments", "n"),
    Column("Size", "n"),
    Column("Last record", "t"),
    Column("Log directory", "name"),
)


def topics_section(facts: Facts, growth: Growth) -> Markup:
    """Return what is in here: a row for each topic."""
    rows = topic_rows(facts)
    if not rows:
        return tag("section", tag("h2", "Topics"), tag("p", "There is no partition here yet."))
    shown = (
        (_topic(facts, growth, row), "internal" if is_internal(row["topic"]) else None)
        for row in rows
    )
    return tag("section", tag("h2", "Topics"), table(_TOPIC, shown))


def _topic(facts: Facts, growth: Growth, row: dict[str, Any]) -> list[object]:
    parts = [each for key, each in facts.measured.items() if key.topic == row["topic"]]
    return [
        row["topic"],
        count(row["partitions"]),
        count(row["records"]),
        shown_size(row["bytes"]),
        spark_columns(parts, *growth.ends) if growth else NOTHING,
        _moment(row["firstTimestamp"]),
        _moment(row["lastTimestamp"]),
        next((each["retention"] for each in facts.partitions if each["topic"] == row["topic"]), ""),
    ]


def batches_table(facts: Facts) -> Markup:
    """Return how large the batches of each topic are, and how they are compressed."""
    rows = [row for row in topic_rows(facts) if row["batches"]]
    if not rows:
        return NOTHING
    shown = ((_batches(row), "internal" if is_internal(row["topic"]) else None) for row in rows)
    return table(_BATCHES, shown)


def _batches(row: dict[str, Any]) -> list[object]:
    batches, records, size = row["batches"], row["records"], row["bytes"]
    return [
        row["topic"],
        count(batches),
        f"{records / max(1, batches - row['markers']):,.1f}",
        shown_size(size // batches),
        shown_size(size // records) if records else "",
        ", ".join(row["codecs"]),
    ]


def _moment(milliseconds: int | None) -> str:
    return "" if milliseconds is None else shown_moment(milliseconds)


def partitions_table(facts: Facts) -> Markup:
    """Return a table of the partitions, closed at first."""
    if not facts.partitions:
        return NOTHING
    counts = {(row["topic"], row["partition"]): row for row in facts.counts}
    folders = {row["path"].rpartition("/")[0] for row in facts.partitions}
    shown, left_out = [], 0
    for row in sorted(facts.partitions, key=_internal_last):
        counted = counts.get((row["topic"], row["partition"]), {})
        is_ours = is_internal(row["topic"])
        if is_ours and row["start"] == row["end"]:
            left_out += 1
            continue
        folder = row["path"].rpartition("/")[0]
        cells = [
            f"{row['topic']}-{row['partition']}",
            count(row["start"]),
            count(row["end"]),
            count(counted.get("records")),
            count(row["segments"]),
            shown_size(row["bytes"]),
            _moment(counted.get("lastTimestamp")),
            tag("code", folder) if len(folders) > 1 else "",
        ]
        shown.append((cells, "internal" if is_ours else None))
    note = f"{left_out:,} empty partitions of internal topics are left out." if left_out else ""
    return tag(
        "details",
        tag("summary", f"Partitions ({len(shown):,})"),
        table(_PARTITION, shown),
        tag("p", note, class_="quiet") if note else NOTHING,
    )


def _internal_last(row: dict[str, Any]) -> tuple[bool, str, int]:
    return is_internal(row["topic"]), row["topic"], row["partition"]
