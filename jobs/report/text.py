"""A report as text, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkalog.jobs.report.summary import summary_of, topic_rows
from kafkalog.jobs.units import shown_size
from kafkalog.model import many

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kafkalog.jobs.report.facts import Facts
    from kafkalog.jobs.report.findings import Finding

__all__ = ["finding_lines", "reader_table", "summary_line", "topic_table"]

Row = dict[str, Any]


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
