"""The page: one file of HTML that fetches nothing."""

from __future__ import annotations

import os
from base64 import b64encode
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from kafkalog import __version__
from kafkalog.errors import OptionError
from kafkalog.files.atomic import prepare, publish
from kafkalog.files.system import system
from kafkalog.jobs.inspection.units import shown_duration, shown_size
from kafkalog.jobs.process.arguments import check_file, check_replaced
from kafkalog.jobs.report.charts import (
    NOTHING,
    Growth,
    Markup,
    charts_of,
    joined,
    per_span,
    shown_second,
    shown_span,
    tag,
)
from kafkalog.jobs.report.findings import changes_since, figures_of, is_internal, summary_of
from kafkalog.jobs.report.sections import (
    batches_table,
    changes_section,
    disks_section,
    findings_section,
    partitions_table,
    positions_table,
    readers_section,
    replicas_section,
    settings_table,
    topics_section,
    writers_section,
)
from kafkalog.model import many

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kafkalog.jobs.report.charts import Row
    from kafkalog.jobs.report.facts import Facts
    from kafkalog.jobs.report.findings import Finding


__all__ = ["MARK", "SCRIPT", "STYLE", "check_target", "page_of", "write_page"]


# ----------------------------------------------------------------------------------------------
# How the page looks: light and dark by what the reader's system says, and on paper.


STYLE: Final = """
:root {
  color-scheme: light dark;
  --back: #ffffff; --text: #1d2329; --quiet: #5d6872; --line: #e2e6ea; --soft: #f5f7f8;
  --bad: #b3261e; --bad-soft: #fcf1f0; --note: #8a5a00; --note-soft: #fbf6ea; --good: #2b7a4b;
  --s0: #3c6eb4; --s1: #d98a3d; --s2: #4a9e86; --s3: #b35c86; --s4: #7f6fc0; --s5: #8d9a3f;
  --rest: #aab2ba;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --back: #14181b; --text: #e3e7ea; --quiet: #97a2ab; --line: #2b3237; --soft: #1b2024;
    --bad: #f28b82; --bad-soft: #2a1c1c; --note: #e2b65c; --note-soft: #262117; --good: #74c794;
    --s0: #6f9fe0; --s1: #e3a262; --s2: #6abfa6; --s3: #d485ab; --s4: #a395e0; --s5: #b0bd62;
    --rest: #6b757d;
  }
}
* { box-sizing: border-box; }
html { background: var(--back); }
body {
  margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 72rem;
  background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans",
    "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums;
}
code, pre, .path { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono",
  "DejaVu Sans Mono", monospace; font-size: 0.9em; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 0.25rem; font-weight: 650; }
h2 { font-size: 1.1rem; margin: 2.75rem 0 0.75rem; font-weight: 650; }
h3 { font-size: 0.95rem; margin: 0 0 0.35rem; font-weight: 600; }
p { margin: 0.35rem 0; }
.quiet, figcaption, footer { color: var(--quiet); font-size: 0.87rem; }
.path { color: var(--quiet); }
dl.sum { display: flex; flex-wrap: wrap; gap: 0.9rem 2.4rem; margin: 1.5rem 0 0;
  padding: 1rem 0; border-top: 1px solid var(--line); border-bottom: 1px solid var(--line); }
dl.sum div { min-width: 5rem; }
dt { color: var(--quiet); font-size: 0.82rem; }
dd { margin: 0; font-size: 1.3rem; font-weight: 600; line-height: 1.35; white-space: nowrap; }
dd small { display: block; font-size: 0.82rem; font-weight: 400; color: var(--quiet); }
dd.bad { color: var(--bad); } dd.good { color: var(--good); }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; }
.wide { overflow-x: auto; margin-bottom: 1.4rem; background:
    linear-gradient(to right, var(--back) 40%, transparent) 0 0 / 2.5rem 100% no-repeat local,
    linear-gradient(to left, var(--back) 40%, transparent) 100% 0 / 2.5rem 100% no-repeat local,
    linear-gradient(to right, var(--rest), transparent) 0 0 / 0.8rem 100% no-repeat scroll,
    linear-gradient(to left, var(--rest), transparent) 100% 0 / 0.8rem 100% no-repeat scroll; }
th { text-align: left; font-weight: 500; color: var(--quiet); font-size: 0.82rem;
  border-bottom: 1px solid var(--line); padding: 0.3rem 1.1rem 0.3rem 0; vertical-align: bottom;
  white-space: nowrap; }
td { border-bottom: 1px solid var(--line); padding: 0.38rem 1.1rem 0.38rem 0;
  vertical-align: top; }
th:last-child, td:last-child { padding-right: 0; }
th.n, td.n { text-align: right; white-space: nowrap; }
td.name { overflow-wrap: anywhere; min-width: 9rem; }
td.t { white-space: nowrap; }
tr.internal td { color: var(--quiet); }
tr:last-child td { border-bottom-color: transparent; }
.bad { color: var(--bad); }
.finding { border-left: 3px solid var(--bad); background: var(--bad-soft);
  padding: 0.75rem 1rem; margin: 0 0 0.75rem; border-radius: 0 4px 4px 0; }
.finding.note { border-color: var(--note); background: var(--note-soft); }
.finding h3 { margin: 0; overflow-wrap: anywhere; }
.finding .kind { color: var(--bad); font-weight: 600; font-size: 0.82rem; margin-right: 0.6em; }
.finding.note .kind { color: var(--note); }
.finding p { overflow-wrap: anywhere; }
.finding pre { margin: 0.5rem 0 0; padding: 0.45rem 0.7rem; background: var(--back);
  border: 1px solid var(--line); border-radius: 4px; overflow-x: auto; }
.finding pre code { white-space: pre-wrap; overflow-wrap: anywhere; }
.finding pre code span { display: block; user-select: all; -webkit-user-select: all; }
.finding pre button { float: right; margin: 0 0 0 0.6rem; padding: 0 0.5rem; cursor: pointer;
  font: 0.8rem/1.5 system-ui, sans-serif; color: var(--text); background: var(--soft);
  border: 1px solid var(--quiet); border-radius: 3px; }
.narrow { display: none; }
.fine { color: var(--good); }
figure { margin: 0 0 1.25rem; }
figure svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--quiet); font-size: 11.5px; }
svg .grid { stroke: var(--line); } svg .base { stroke: var(--quiet); stroke-opacity: 0.5; }
.s0 { fill: var(--s0); background: var(--s0); } .s1 { fill: var(--s1); background: var(--s1); }
.s2 { fill: var(--s2); background: var(--s2); } .s3 { fill: var(--s3); background: var(--s3); }
.s4 { fill: var(--s4); background: var(--s4); } .s5 { fill: var(--s5); background: var(--s5); }
.rest { fill: var(--rest); background: var(--rest); }
.spark { width: 96px; height: 18px; vertical-align: middle; fill: var(--s0); }
.two { display: grid; grid-template-columns: 1fr 1fr; gap: 0 1rem; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 0.2rem 1.2rem; padding: 0;
  margin: 0 0 0.9rem; font-size: 0.87rem; }
.legend li { overflow-wrap: anywhere; }
.key { display: inline-block; width: 0.7em; height: 0.7em; border-radius: 2px;
  margin-right: 0.45em; }
.bars { display: grid; grid-template-columns: 9.5rem minmax(3rem, 1fr) 10.5rem;
  gap: 0.28rem 0.9rem; align-items: center; font-size: 0.87rem; margin: 0 0 1.6rem; }
.bars .bar { height: 0.75rem; background: var(--s0); border-radius: 2px; min-width: 1px; }
.bars .said { color: var(--quiet); text-align: right; }
details { margin: 0.75rem 0; }
summary { cursor: pointer; color: var(--quiet); font-size: 0.9rem; }
details[open] summary { margin-bottom: 0.4rem; }
ul.said { margin: 0.3rem 0; padding-left: 1.2rem; overflow-wrap: anywhere; }
footer { margin-top: 3rem; padding-top: 0.75rem; border-top: 1px solid var(--line); }
@media (max-width: 44rem) {
  .two { grid-template-columns: 1fr; }
  .broad { display: none; } .narrow { display: block; }
  .bars { grid-template-columns: minmax(4.5rem, auto) minmax(2rem, 1fr) minmax(5rem, 9rem); }
  dl.sum { gap: 0.7rem 1.6rem; } dd { font-size: 1.1rem; }
  body { padding: 1.5rem 1rem 3rem; }
}
@page { margin: 16mm 14mm; }
@media print {
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  body { padding: 0; max-width: none; font-size: 10.5pt; }
  h2, h3, .legend { break-after: avoid; }
  table, .bars, .legend, figcaption, .quiet { font-size: 8.5pt; }
  th { font-size: 8pt; }
  dl.sum { gap: 0.6rem 1.5rem; }
  dl.sum div { min-width: 3.5rem; }
  dd { font-size: 13pt; }
  td.name { min-width: 6rem; }
  .spark { width: 60px; }
  h2 { margin-top: 1.75rem; }
  figure, .finding, tr, .bars, dl.sum { break-inside: avoid; }
  thead { display: table-header-group; }
  .finding pre button { display: none; }
  .wide, .finding pre { overflow: visible; }
  .finding pre { white-space: pre-wrap; }
  td, th { padding-right: 0.7rem; }
  section.detail { break-before: page; }
  summary { list-style: none; break-after: avoid; }
  details::details-content { content-visibility: visible; display: block; height: auto; }
}
"""


# ----------------------------------------------------------------------------------------------

MARK: Final = "<!DOCTYPE html>\n<!-- a report by kafkalog -->\n"
"""How each page begins, by which it is known again."""

SCRIPT: Final = """
for (const line of document.querySelectorAll(".finding pre code span")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy " + line.textContent);
  button.addEventListener("click", () => {
    getSelection().selectAllChildren(line);
    document.execCommand("copy");
    button.textContent = "Copied";
  });
  line.before(button);
}
"""
"""Puts a button before each command. Without scripts a click still selects the whole line."""

_HASH: Final = b64encode(sha256(SCRIPT.encode()).digest()).decode()
_POLICY: Final = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_HASH}'"


def _only(facts: Facts) -> str:
    word = "topic" if facts.wanted.only else "topics"
    return f": {word} {facts.wanted} alone" if facts.wanted.named else ""


def page_of(
    facts: Facts, findings: Sequence[Finding], earlier: Mapping[str, Any] | None = None
) -> str:
    """Return the page as a whole; ``earlier`` are the figures of a report to compare it with."""
    others = {key: each for key, each in facts.measured.items() if not is_internal(key.topic)}
    growth = Growth(others or facts.measured)
    figures = figures_of(facts, findings)
    changes = NOTHING
    if earlier is not None:
        changes = changes_section(changes_since(earlier, figures), earlier["madeAt"])
    body = tag(
        "body",
        _header(facts, findings),
        tag(
            "main",
            findings_section(facts, findings),
            changes,
            topics_section(facts, growth),
            _growth_section(growth),
            _batches_section(facts),
            readers_section(facts),
            writers_section(facts),
            replicas_section(facts),
            disks_section(facts),
            _details(facts),
        ),
        tag(
            "footer",
            f"Made by kafkalog {__version__}. Sizes are of record batches as they lie in "
            "the logs, compressed; times are UTC.",
            tag("data", "", class_="figures", value=figures),
        ),
        tag("script", Markup(SCRIPT)),
    )
    return f"{MARK}{tag('html', _head(facts), body, lang='en')}\n"


def _head(facts: Facts) -> Markup:
    title = f"kafkalog report: {', '.join(facts.paths)}{_only(facts)}"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", Markup(STYLE)),
    )


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
        tag(
            "p",
            f"As of {shown_second(facts.made_at)} UTC, on host {system.host_name()}",
            class_="quiet",
        ),
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
    tables = (partitions_table(facts), positions_table(facts), settings_table(facts))
    parts = [each for each in tables if each]
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
        tag("div", _chart("Bytes in the log", growth.cumulative(880), said), class_="broad"),
        tag("div", _chart("Bytes in the log", growth.cumulative(432), said), class_="narrow"),
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


# ----------------------------------------------------------------------------------------------
# The file of a report: written whole or not at all, and over nothing but an earlier report.


def check_target(path: Path, logs: Sequence[str]) -> None:
    """See whether a report may be written there.

    Raises:
        OptionError: it is a folder, another file, or lies in one of the log directories; or there
            is no folder for it.
    """
    check_file("--html", path, logs, example="report.html")
    check_replaced(path, MARK.encode(), "report of kafkalog")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OptionError(f"--html names {path}, but {path.parent} may not be written to")


def write_page(path: Path, page: str, logs: Sequence[str]) -> None:
    """Write a page; over a report that is there already, but over nothing else.

    Raises:
        OptionError: as in :func:`check_target`, or it cannot be written.
    """
    check_target(path, logs)
    suffix = f".{os.getpid()}.tmp"
    try:
        prepare(path, page.encode(errors="backslashreplace"), suffix=suffix)
        publish(path, suffix=suffix)
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
