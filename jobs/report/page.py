"""The page: one file of HTML that fetches nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog import __version__
from kafkalog.jobs.plots.bars import charts_of
from kafkalog.jobs.report.charts import Growth
from kafkalog.jobs.report.findings_section import findings_section
from kafkalog.jobs.report.markup import NOTHING, Markup, joined, tag
from kafkalog.jobs.report.readers import positions_table, readers_section
from kafkalog.jobs.report.scales import per_span, shown_second, shown_span
from kafkalog.jobs.report.style import STYLE
from kafkalog.jobs.report.summary import is_internal, summary_of
from kafkalog.jobs.report.topics import batches_table, partitions_table, topics_section
from kafkalog.jobs.units import shown_duration, shown_size
from kafkalog.model import many

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.jobs.plots.bars import Row
    from kafkalog.jobs.report.facts import Facts
    from kafkalog.jobs.report.findings import Finding

__all__ = ["MARK", "page_of"]

MARK: Final = "<!DOCTYPE html>\n<!-- a report by kafkalog -->\n"
"""How each page begins, by which it is known again."""

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def _only(facts: Facts) -> str:
    return "" if facts.topic is None else f": topic {facts.topic} alone"


def page_of(facts: Facts, findings: Sequence[Finding]) -> str:
    """Return the page as a whole."""
    title = f"kafkalog report: {', '.join(facts.paths)}{_only(facts)}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", Markup(STYLE)),
    )
    growth = Growth(facts.measured)
    body = tag(
        "body",
        _header(facts, findings),
        tag(
            "main",
            findings_section(facts, findings),
            topics_section(facts, growth),
            _growth_section(growth),
            _batches_section(facts),
            readers_section(facts),
            _details(facts),
        ),
        tag(
            "footer",
            f"Made by kafkalog {__version__}. Sizes are of record batches as they lie in "
            "the logs, compressed; times are UTC.",
        ),
    )
    return f"{MARK}{tag('html', head, body, lang='en')}\n"


def _header(facts: Facts, findings: Sequence[Finding]) -> Markup:
    found = summary_of(facts, findings)
    first, last = found["firstTimestamp"], found["lastTimestamp"]
    internal = sum(is_internal(row["topic"]) for row in facts.topics)
    shown = [
        _figure("Topics", found["topics"], f"{internal} internal" if internal else ""),
        _figure("Partitions", f"{found['partitions']:,}"),
    ]
    if found["records"] is not None:
        batches = f"in {many(found['batches'], 'batch')}"
        shown.append(_figure("Records", f"{found['records']:,}", batches))
    shown.append(_figure("Size", shown_size(found["bytes"])))
    if first is not None:
        shown.append(_figure("Time range", shown_duration(last - first)))
    if found["groups"] is not None:
        shown.append(_figure("Groups", found["groups"]))
    shown.append(_verdict(facts, found["problems"]))
    return tag(
        "header",
        tag("h1", "Log report"),
        tag(
            "p",
            joined((tag("code", path) for path in facts.paths), ", "),
            _only(facts),
            class_="path",
        ),
        tag("p", f"As of {shown_second(facts.made_at)} UTC", class_="quiet"),
        tag("dl", *shown, class_="sum"),
        NOTHING
        if first is None
        else tag("p", f"Records from {shown_span(first, last)} UTC", class_="quiet"),
    )


def _figure(name: str, value: object, more: str = "", kind: str | None = None) -> Markup:
    small = tag("small", more) if more else NOTHING
    return tag("div", tag("dt", name), tag("dd", value, small, class_=kind))


def _verdict(facts: Facts, problems: int) -> Markup:
    if problems:
        return _figure("Problems", problems, kind="bad")
    if facts.checks:
        return _figure("Problems", "none", kind="good")
    return _figure("Problems", "none seen", "not verified")


def _details(facts: Facts) -> Markup:
    parts = [each for each in (partitions_table(facts), positions_table(facts)) if each]
    return tag("section", tag("h2", "In detail"), *parts, class_="detail") if parts else NOTHING


def _growth_section(growth: Growth) -> Markup:
    if not growth:
        return NOTHING
    said = (
        "What lies in the logs now, by the timestamps of records: what was deleted or compacted "
        "away is not in it."
    )
    if growth.untimed:
        said += f" {shown_size(growth.untimed)} have no timestamp and are left out."
    each = per_span(growth.width_ms)
    return tag(
        "section",
        tag("h2", "Growth over time"),
        growth.legend(),
        _chart("Bytes in the log", growth.cumulative(), said),
        tag(
            "div",
            _chart(f"Bytes {each}", growth.columns_of_bytes()),
            _chart(f"Records {each}", growth.columns_of_records()),
            class_="two",
        ),
    )


def _chart(name: str, drawing: Markup, said: str = "") -> Markup:
    caption = tag("figcaption", said) if said else NOTHING
    return tag("figure", tag("h3", name), drawing, caption)


def _batches_section(facts: Facts) -> Markup:
    charts = {name: rows for name, rows in charts_of(facts.measured.values()).items() if rows}
    if not charts:
        return NOTHING
    parts = (
        joined((tag("h3", name[0].upper() + name[1:]), _bars(rows)))
        for name, rows in charts.items()
    )
    return tag(
        "section",
        tag("h2", "Batches, compression and segments"),
        batches_table(facts),
        *parts,
    )


def _bars(rows: Sequence[Row]) -> Markup:
    longest = max(1, *(size for _, size, _ in rows))
    cells = (
        (
            tag("span", name),
            tag("span", tag("div", class_="bar", style=f"width:{100 * size / longest:.2f}%")),
            tag("span", said, class_="said"),
        )
        for name, size, said in rows
    )
    return tag("div", *(joined(each) for each in cells), class_="bars")
