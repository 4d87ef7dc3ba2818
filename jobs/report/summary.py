"""What a report adds up, for the page and for ``--json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kafkalog.jobs.inspection.figures import rows_of
from kafkalog.jobs.inspection.units import shown_size
from kafkalog.model import many

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kafkalog.jobs.report.facts import Facts
    from kafkalog.jobs.report.findings import Finding


__all__ = [
    "facts_as_rows",
    "finding_lines",
    "is_internal",
    "reader_table",
    "summary_line",
    "summary_of",
    "topic_rows",
    "topic_table",
]

Row = dict[str, Any]


def is_internal(topic: str) -> bool:
    """Return whether a topic is Kafka's own, by its name."""
    return topic.startswith("__")


def summary_of(facts: Facts, findings: Sequence[Finding]) -> Row:
    """Return what is in log directories as one row; None where that could not be found out."""
    counts, is_known = facts.counts, "records" not in facts.unknown
    firsts = [row["firstTimestamp"] for row in counts if row["firstTimestamp"] is not None]
    lasts = [row["lastTimestamp"] for row in counts if row["lastTimestamp"] is not None]
    return {
        "paths": list(facts.paths),
        "topic": facts.topic,
        "time": facts.made_at,
        "topics": len({key.topic for key in facts.measured}),
        "partitions": len(facts.measured),
        "records": sum(row["records"] for row in counts) if is_known else None,
        "batches": sum(row["batches"] for row in counts) if is_known else None,
        "bytes": sum(row["bytes"] for row in facts.topics),
        "firstTimestamp": min(firsts, default=None),
        "lastTimestamp": max(lasts, default=None),
        "groups": None if "groups" in facts.unknown else len({r["group"] for r in facts.groups}),
        "verified": facts.checks,
        "problems": sum(each.is_problem for each in findings),
    }


def topic_rows(facts: Facts) -> list[Row]:
    """Return a row for each topic, of all its partitions: the largest first, internal ones last."""
    if "records" in facts.unknown:
        rows = {row["topic"]: {**_UNKNOWN, **row} for row in facts.topics}
    else:
        rows = _added_up(facts)
    return sorted(
        rows.values(), key=lambda row: (is_internal(row["topic"]), -row["bytes"], row["topic"])
    )


_TIMES: Final[Row] = {"firstTimestamp": None, "lastTimestamp": None}
_UNKNOWN: Final[Row] = {**dict.fromkeys(("records", "batches", "markers")), "codecs": {}, **_TIMES}


def _added_up(facts: Facts) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for count in facts.counts:
        row = rows.setdefault(count["topic"], _no_topic(count["topic"]))
        row["partitions"] += 1
        for name in ("records", "batches", "bytes", "markers"):
            row[name] += count[name]
        for codec, batches in count["codecs"].items():
            row["codecs"][codec] = row["codecs"].get(codec, 0) + batches
        for name, choose in (("firstTimestamp", min), ("lastTimestamp", max)):
            known = [each for each in (row[name], count[name]) if each is not None]
            row[name] = choose(known, default=None)
    return rows


def _no_topic(topic: str) -> Row:
    zeros = dict.fromkeys(("partitions", "records", "batches", "bytes", "markers"), 0)
    return {"topic": topic, **zeros, "codecs": {}, **_TIMES}


def facts_as_rows(facts: Facts, findings: Sequence[Finding]) -> Iterator[Row]:
    """Yield all facts as rows of plain values; ``kind`` says of what one is."""
    yield {"kind": "summary", **summary_of(facts, findings)}
    yield from (each.row() for each in findings)
    yield from ({"kind": "warning", "text": text} for text in facts.warnings)
    for kind, rows in {
        "topic": facts.topics,
        "partition": facts.partitions,
        "stats": facts.counts,
        "group": facts.groups,
        "reader": facts.readers,
        "openTransaction": facts.open_transactions,
    }.items():
        yield from ({"kind": kind, **row} for row in rows)
    yield from rows_of(facts.measured)


# ----------------------------------------------------------------------------------------------
# A report as text, for a terminal.


def summary_line(facts: Facts, findings: Sequence[Finding]) -> str:
    """Return what there is, in one line."""
    found = summary_of(facts, findings)
    parts = [
        *_counted(found, "topic", "partition", "record"),
        shown_size(found["bytes"]),
        *_counted(found, "group", "problem"),
    ]
    return ", ".join(parts)


def _counted(found: Row, *names: str) -> Iterator[str]:
    yield from (many(found[f"{name}s"], name) for name in names if found[f"{name}s"] is not None)


def topic_table(facts: Facts) -> list[Row]:
    """Return the rows of a table of topics."""
    left_out = {"batches", "markers"}
    return [{name: row[name] for name in row if name not in left_out} for row in topic_rows(facts)]


def reader_table(facts: Facts) -> list[Row]:
    """Return the rows of a table of positions."""
    fields = ("topic", "partition", "offset", "end", "lag", "bytes", "behindMs")
    rows = [*({"reader": row["group"], **row} for row in facts.groups), *facts.readers]
    return [{name: row[name] for name in ("reader", *fields)} for row in rows]


def finding_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield what is wrong and what to do."""
    for each in findings:
        kind = "problem" if each.is_problem else "note"
        for text in each.texts:
            yield f"{kind}: {each.where}: {text}"
        yield f"  {each.advice}"
        yield from (f"    {line}" for line in each.commands)
