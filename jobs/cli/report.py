"""The commands that show a log as a picture or a page: ``plot``, ``report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kafkalog.jobs.cli.arguments import (
    NO_TIER,
    Json,
    Paths,
    Tier,
    Topics,
    with_tier,
)
from kafkalog.jobs.cli.output import (
    exit_if,
    one_line_errors,
    print_rows,
    print_screen,
    progress_bar,
    terminal_width,
)
from kafkalog.jobs.process.arguments import (
    SETTINGS,
    check_file,
    check_replaced,
    milliseconds,
    pairs,
    select_topics,
)
from kafkalog.jobs.process.running import print_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafkalog.jobs.report.facts import Facts
    from kafkalog.jobs.report.findings import Finding


__all__ = ["plot", "report"]


# ----------------------------------------------------------------------------------------------
# The command that shows what is in topics as a picture: ``plot``.


_SPANS_OF_BARS: Final = 24
_SPANS_OF_A_CHART: Final = 120
_MARK: Final = b"\x89PNG\r\n\x1a\n"
"""What such a file begins with."""

Png = Annotated[
    Path | None, typer.Option("--png", metavar="FILE", help="Draw a PNG instead of bars.")
]


@with_tier
def plot(
    paths: Paths,
    topic: Topics = None,
    png: Png = None,
    settings: SETTINGS = None,
    as_json: Json = False,
    tier: Tier = NO_TIER,
) -> None:
    """Show records and bytes over time, ages of segments, sizes of batches, and compression."""
    with one_line_errors():
        from kafkalog.jobs.inspection.figures import measure, rows_of  # noqa: PLC0415
        from kafkalog.jobs.report.charts import (  # noqa: PLC0415
            draw,
            lines_of,
            require_matplotlib,
        )

        if png is not None:
            check_file("--png", png, paths, example="plot.png")
            check_replaced(png, _MARK, "PNG")
            require_matplotlib()
        most = _SPANS_OF_BARS if png is None and not as_json else _SPANS_OF_A_CHART
        with progress_bar() as told:
            there = tier.below(paths)
            wanted, given = select_topics(topic), pairs(settings)
            found = measure(there, wanted, given, told, most_spans=most, has_gaps=png is None)
        if png is not None:
            draw(found, png, str(wanted) or ", ".join(paths))
    if as_json:
        print_rows(list(rows_of(found)), as_json=True)
    elif png is None:
        print_screen([*lines_of(found, terminal_width())], more="-t shows one topic")


# ----------------------------------------------------------------------------------------------
# The command that puts what is to know about log directories on one page: ``report``.


Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a page for a browser.")
]
Compare = Annotated[
    Path | None,
    typer.Option(metavar="OLD.html", help="Show what has changed since an earlier page."),
]
Checkpoint = Annotated[
    list[str] | None,
    typer.Option(help="Show this Spark query too, by its checkpoint folder; may be repeated."),
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify/--no-verify", help="Check every batch and index, which reads the logs once more."
    ),
]


WarnLag = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="A reader that is further behind is a problem: 1h."),
]
WarnDays = Annotated[
    float | None,
    typer.Option(metavar="DAYS", min=0, help="A disk that is full in fewer days is a problem."),
]


def report(
    paths: Paths,
    topic: Topics = None,
    html: Html = None,
    compare: Compare = None,
    checkpoint: Checkpoint = None,
    verify: Verify = True,
    *,
    warn_lag: WarnLag = None,
    warn_days: WarnDays = None,
    as_json: Json = False,
) -> None:
    """Show what is in here, how it grew, who reads it, what is wrong and what to do."""
    with one_line_errors():
        from kafkalog.jobs.report.facts import gather  # noqa: PLC0415
        from kafkalog.jobs.report.findings import (  # noqa: PLC0415
            Limits,
            find_problems,
            read_figures,
        )
        from kafkalog.jobs.report.page import check_target, page_of, write_page  # noqa: PLC0415

        most = None if warn_lag is None else milliseconds("--warn-lag", warn_lag)
        if html is not None:
            check_target(html, paths)
        earlier = None if compare is None else read_figures(compare)
        with progress_bar() as told:
            facts = gather(
                paths, checkpoint or (), told, checks=verify, topics=select_topics(topic)
            )
        findings = find_problems(facts, Limits(most, warn_days))
        if html is not None:
            write_page(html, page_of(facts, findings, earlier), paths)
    _print(facts, findings, html, as_json=as_json)
    if earlier is not None and html is None:
        _print_changes(facts, findings, earlier, as_json=as_json)
    exit_if(each.is_problem for each in findings)


def _print_changes(
    facts: Facts, findings: Sequence[Finding], earlier: Mapping[str, Any], *, as_json: bool
) -> None:
    from kafkalog.jobs.report.findings import changes_since, figures_of  # noqa: PLC0415

    rows = changes_since(earlier, figures_of(facts, findings))
    if as_json:
        print_rows([{"kind": "change", **row} for row in rows], as_json=True)
        return
    print_line(f"changes since that report: {len(rows) or 'none'}")
    print_rows(rows, as_json=False)


_SPARE: Final = ("codecs", "firstTimestamp", "bytes")


def _print(facts: Facts, findings: Sequence[Finding], html: Path | None, *, as_json: bool) -> None:
    from kafkalog.jobs.report import findings as text  # noqa: PLC0415
    from kafkalog.jobs.report.findings import facts_as_rows, new_warnings  # noqa: PLC0415

    if as_json:
        print_rows(list(facts_as_rows(facts, findings)), as_json=True)
        return
    if html is None:
        for rows in (text.topic_table(facts), text.reader_table(facts)):
            print_rows(rows, as_json=False, spare=_SPARE, share=3)
            if rows:
                typer.echo()
    for warning in new_warnings(facts, findings):
        print_line(f"WARNING {warning}", err=True)
    for line in text.finding_lines(findings):
        print_line(line)
    where = "" if html is None else f"{html}: "
    print_line(f"{where}{text.summary_line(facts, findings)}")
