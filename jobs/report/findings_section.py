"""The part of a page about what is wrong, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.jobs.cli.batch_rows import Fault
from kafkalog.jobs.report.findings import new_warnings
from kafkalog.jobs.report.markup import NOTHING, Markup, joined, tag
from kafkalog.model import many

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.jobs.report.facts import Facts
    from kafkalog.jobs.report.findings import Finding

__all__ = ["findings_section"]

_MOST_TEXTS: Final = 5
_MOST: Final = 200
"""More than that nobody reads: the commands list them all."""


def findings_section(facts: Facts, findings: Sequence[Finding]) -> Markup:
    """Return what is wrong, each with the commands that mend it, and what was looked at."""
    shown = [_finding(each) for each in findings[:_MOST]]
    if len(findings) > _MOST:
        left = f"And {len(findings) - _MOST:,} more: kafkalog verify and groups list them."
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
