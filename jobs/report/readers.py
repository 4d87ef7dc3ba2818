"""The part of a page about who reads topics, and how far they are behind."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from kafkalog.jobs.report.markup import NOTHING, Markup, joined, tag
from kafkalog.jobs.report.tables import Column, count, table
from kafkalog.jobs.units import shown_duration, shown_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.jobs.report.facts import Facts

__all__ = ["positions_table", "readers_section"]

_READER: Final = (
    Column("Reader", "name"),
    Column("State"),
    Column("Members", "n"),
    Column("Topics", "name"),
    Column("Partitions", "n"),
    Column("Offsets behind", "n"),
    Column("Bytes behind", "n"),
    Column("Time behind", "n"),
)
_PLACE: Final = (
    Column("Reader", "name"),
    Column("Partition", "name"),
    Column("Next offset", "n"),
    Column("Committed end", "n"),
    Column("Offsets behind", "n"),
    Column("Bytes behind", "n"),
    Column("Time behind", "n"),
    Column("Client", "name"),
)
_MOST_TOPICS: Final = 4


def readers_section(facts: Facts) -> Markup:
    """Return who reads, and how far behind each is."""
    rows = _rows(facts)
    heading = tag("h2", "Who reads, and how far behind")
    if not rows:
        why = "could not be read" if "groups" in facts.unknown else "have no positions here"
        text = f"Consumer groups {why}. A Spark query can be named with --checkpoint."
        return tag("section", heading, tag("p", text, class_="quiet"))
    by_reader = groupby(rows, lambda row: row["reader"])
    readers = [(name, list(group)) for name, group in by_reader]
    return tag(
        "section",
        heading,
        table(_READER, ((_reader(name, group), None) for name, group in readers)),
        tag(
            "p",
            "Time behind is the age of the next unread record, of the partition where that is "
            "largest.",
            class_="quiet",
        ),
    )


def positions_table(facts: Facts) -> Markup:
    """Return a table of where each reader is in each partition, closed at first."""
    places = [(_place(row), None) for row in _rows(facts) if row["topic"] is not None]
    if not places:
        return NOTHING
    summary = tag("summary", f"Positions ({len(places):,})")
    return tag("details", summary, table(_PLACE, places))


def _rows(facts: Facts) -> list[dict[str, Any]]:
    return [*({"reader": row["group"], **row} for row in facts.groups), *facts.readers]


def _reader(name: str, rows: Sequence[dict[str, Any]]) -> list[object]:
    topics = sorted({row["topic"] for row in rows if row["topic"] is not None})
    said = ", ".join(topics[:_MOST_TOPICS])
    if len(topics) > _MOST_TOPICS:
        said += f" and {len(topics) - _MOST_TOPICS} more"
    members = {row["member"] for row in rows if row.get("member") is not None}
    is_unknown = any(row.get("problem") for row in rows)
    return [
        name,
        rows[0].get("state") or "",
        count(len(members)) if "member" in rows[0] else "",
        said,
        count(sum(row["topic"] is not None for row in rows)),
        *_lag(rows, is_unknown=is_unknown),
    ]


def _lag(rows: Sequence[dict[str, Any]], *, is_unknown: bool) -> list[object]:
    """Add up what is known; say if that is not all."""
    lags = [row["lag"] for row in rows if row["lag"] is not None]
    if not lags:
        text = tag("span", "unknown", class_="bad") if is_unknown else ""
        return [text, "", ""]
    sizes = [row["bytes"] for row in rows if row["bytes"] is not None]
    times = [row["behindMs"] for row in rows if row["behindMs"] is not None]
    more = tag("span", " + ?", class_="bad") if is_unknown else NOTHING
    return [
        joined((count(sum(lags)), more)),
        shown_size(sum(sizes)) if sizes else "",
        _behind(max(times, default=None)),
    ]


def _behind(milliseconds: int | None) -> str:
    if milliseconds is None:
        return ""
    return shown_duration(milliseconds) if milliseconds else "none"


def _place(row: dict[str, Any]) -> list[object]:
    has_lag = row["lag"] is not None
    return [
        row["reader"],
        f"{row['topic']}-{row['partition']}",
        count(row["offset"]),
        count(row["end"]),
        count(row["lag"]) if has_lag else tag("span", "unknown", class_="bad"),
        "" if row["bytes"] is None else shown_size(row["bytes"]),
        _behind(row["behindMs"]),
        row.get("client") or "",
    ]
