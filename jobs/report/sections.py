"""The sections of a page: findings, readers, topics."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from kafkalog.jobs.inspection.batches import Fault
from kafkalog.jobs.inspection.units import shown_duration, shown_size
from kafkalog.jobs.report.charts import (
    NOTHING,
    Column,
    Growth,
    Markup,
    count,
    joined,
    shown_moment,
    spark_columns,
    table,
    tag,
)
from kafkalog.jobs.report.findings import is_internal, new_warnings, topic_rows
from kafkalog.model import many

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.jobs.report.facts import Facts
    from kafkalog.jobs.report.findings import Finding


__all__ = [
    "batches_table",
    "changes_section",
    "disks_section",
    "findings_section",
    "partitions_table",
    "positions_table",
    "readers_section",
    "replicas_section",
    "settings_table",
    "topics_section",
    "writers_section",
]


# ----------------------------------------------------------------------------------------------
# The part of a page about what is wrong, and what to do.


_MOST_TEXTS: Final = 5
_MOST: Final = 200
"""More than that nobody reads: the commands list them all."""


def findings_section(facts: Facts, findings: Sequence[Finding]) -> Markup:
    """Return what is wrong, each with the commands that mend it, and what was looked at."""
    shown = [_finding(each) for each in findings[:_MOST]]
    if len(findings) > _MOST:
        left = (
            f"And {len(findings) - _MOST:,} more: kafkalog verify and kafkalog group list show all."
        )
        shown.append(tag("p", left))
    if not any(each.is_problem for each in findings):
        said = "Nothing is wrong." if facts.checks else "Nothing wrong was seen."
        shown.insert(0, tag("p", said))
    return tag(
        "section",
        tag("h2", "What is wrong, and what to do"),
        *shown,
        tag("p", _looked_at(facts), class_="quiet"),
        _warnings(facts, findings),
    )


def _looked_at(facts: Facts) -> str:
    if not facts.checks:
        return "Batches and indexes were not verified (--no-verify)."
    checked = [each.row for each in facts.verified if each.row["segment"] is not None]
    batches = sum(row["batches"] for row in checked)
    text = f"Verified: {many(batches, 'batch')} and the indexes of {many(len(checked), 'segment')}."
    if any(each.fault is Fault.BATCHES for each in facts.verified):
        text += " What follows a damaged batch in its segment was counted, and not verified."
    return text


def _finding(finding: Finding) -> Markup:
    kind = tag("span", "Problem" if finding.is_problem else "Note", class_="kind")
    texts = list(finding.texts[:_MOST_TEXTS])
    if len(finding.texts) > len(texts):
        texts.append(f"and {len(finding.texts) - len(texts):,} more")
    lines = (tag("span", each) for each in finding.commands)
    return tag(
        "article",
        tag("h3", kind, finding.where),
        tag("p", texts[0]) if len(texts) == 1 else _list(texts),
        tag("p", finding.advice) if finding.advice else NOTHING,
        tag("pre", tag("code", joined(lines, "\n"))) if finding.commands else NOTHING,
        class_="finding" if finding.is_problem else "finding note",
    )


def _list(texts: Sequence[str]) -> Markup:
    return tag("ul", *(tag("li", each) for each in texts), class_="said")


def _warnings(facts: Facts, findings: Sequence[Finding]) -> Markup:
    new = new_warnings(facts, findings)
    if not new:
        return NOTHING
    summary = tag("summary", f"{many(len(new), 'warning')} while reading")
    return tag("details", summary, _list(new[:_MOST]))


# ----------------------------------------------------------------------------------------------
# The part of a page about who reads topics, and how far they are behind.


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
    cells = [_reader(name, list(group)) for name, group in by_reader]
    said = (
        "Time behind is the age of the next unread record, of the partition where that is largest."
    )
    return tag(
        "section",
        heading,
        table(_READER, ((row, None) for row in cells)),
        tag("p", said, class_="quiet") if any(row[-1] for row in cells) else NOTHING,
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


# ----------------------------------------------------------------------------------------------
# The parts of a page about who writes, and about replicas.


_WRITER: Final = (
    Column("Writer", "name"),
    Column("Topic", "name"),
    Column("Last batch", "n"),
    Column("Committed at", "t"),
    Column("Ago", "n"),
    Column("Replaced runs", "n"),
)
_REPLICAS: Final = (
    Column("Topic with replicas", "name"),
    Column("Partitions", "n"),
    Column("Replicas", "n"),
    Column("Under-replicated", "n"),
    Column("Leaders by node", "name"),
)


def writers_section(facts: Facts) -> Markup:
    """Return who writes, the newest first, and what each has committed last."""
    if not facts.writers:
        return NOTHING
    rows = [
        [
            row["writer"],
            row["topic"],
            count(row["batch"]),
            _moment(row["lastCommit"]),
            shown_duration(max(0, facts.made_at - row["lastCommit"])),
            count(row["replacedRuns"]) if row["replacedRuns"] else "",
        ]
        for row in sorted(facts.writers, key=lambda row: -row["lastCommit"])
    ]
    said = f"And {len(rows) - _MOST:,} more." if len(rows) > _MOST else ""
    return tag(
        "section",
        tag("h2", "Who writes"),
        table(_WRITER, ((row, None) for row in rows[:_MOST])),
        tag("p", said, class_="quiet") if said else NOTHING,
    )


def replicas_section(facts: Facts) -> Markup:
    """Return how many replicas topics have, which lack some, and who leads."""
    rows = []
    known = [row for row in facts.partitions if row.get("replicas")]
    for topic, each in groupby(sorted(known, key=_internal_last), lambda row: row["topic"]):
        parts = list(each)
        leaders = Counter(str(row["leader"]) for row in parts if row["leader"] is not None)
        short = sum(len(row["isr"]) < len(row["replicas"]) for row in parts)
        said = ", ".join(f"{node}: {number:,}" for node, number in sorted(leaders.items()))
        cells = [
            topic,
            count(len(parts)),
            count(max(len(row["replicas"]) for row in parts)),
            tag("span", count(short), class_="bad") if short else "0",
            said,
        ]
        rows.append((cells, "internal" if is_internal(topic) else None))
    if not rows:
        return NOTHING
    return tag("section", tag("h2", "Replicas"), table(_REPLICAS, rows))


# ----------------------------------------------------------------------------------------------
# The parts of a page about disks, and about what an earlier report said.


_DISK: Final = (
    Column("Disk of", "name"),
    Column("Size", "n"),
    Column("Free", "n"),
    Column("Written a day", "n"),
    Column("Days until full", "n"),
)
_CHANGE: Final = (
    Column("What", "name"),
    Column("Before", "n"),
    Column("Now", "n"),
    Column("Change", "n"),
)


def disks_section(facts: Facts) -> Markup:
    """Return how much room there is, and for how long it lasts."""
    if not facts.disks:
        return NOTHING
    rows = [
        [
            ", ".join(row["paths"]),
            shown_size(row["sizeBytes"]),
            shown_size(row["freeBytes"]),
            "" if row["bytesPerDay"] is None else shown_size(row["bytesPerDay"]),
            "" if row["daysUntilFull"] is None else f"{row['daysUntilFull']:,.0f}",
        ]
        for row in facts.disks
    ]
    said = (
        "What was written in the last seven days, by the times of files. Topics from which "
        "retention deletes already do not grow."
    )
    return tag(
        "section",
        tag("h2", "Disks"),
        table(_DISK, ((row, None) for row in rows)),
        tag("p", said, class_="quiet") if any(row[-2] for row in rows) else NOTHING,
    )


def changes_section(changes: Sequence[dict[str, Any]], made_at: int) -> Markup:
    """Return what is other than it was when an earlier report was made."""
    rows = []
    for row in changes:
        before, now = row["before"], row["now"]
        grown = "" if before is None or now is None else f"{now - before:+,}"
        rows.append([row["what"], count(before), count(now), grown])
    return tag(
        "section",
        tag("h2", f"Since the report of {shown_moment(made_at)} UTC"),
        table(_CHANGE, ((row, None) for row in rows)) if rows else tag("p", "Nothing has changed."),
    )


# ----------------------------------------------------------------------------------------------
# The part of a page about topics and their partitions.


_TOPIC: Final = (
    Column("Topic", "name"),
    Column("Partitions", "n"),
    Column("Records", "n"),
    Column("Size", "n"),
    Column("Over time"),
    Column("First record", "t"),
    Column("Last record", "t"),
    Column("Retention", "t"),
    Column("Skew", "n"),
)
_SETTINGS: Final = (Column("Settings of", "name"), Column("Given", "name"))
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
    said = "Skew: the largest partition, as so many times their mean."
    has_skew = any(_skew(row) for row in rows)
    return tag(
        "section",
        tag("h2", "Topics"),
        table(_TOPIC, shown),
        tag("p", said, class_="quiet") if has_skew else NOTHING,
    )


def _skew(row: dict[str, Any]) -> str:
    """Say how much larger the largest partition is than their mean; of one nothing."""
    if row["partitions"] < 2 or not row["bytes"] or row["largest"] is None:
        return ""
    return f"{row['largest'] * row['partitions'] / row['bytes']:.1f}"


def settings_table(facts: Facts) -> Markup:
    """Return what was given to topics, closed at first."""
    given = {row["topic"]: row["settings"] for row in facts.partitions if row["settings"]}
    rows = [
        (
            [topic, tag("code", " ".join(f"{name}={value}" for name, value in each.items()))],
            "internal" if is_internal(topic) else None,
        )
        for topic, each in sorted(given.items(), key=lambda item: (is_internal(item[0]), item[0]))
    ]
    if not rows:
        return NOTHING
    return tag("details", tag("summary", f"Settings ({len(rows):,})"), table(_SETTINGS, rows))


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
        _skew(row),
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
