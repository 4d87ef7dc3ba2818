"""Show what was measured: a table for the terminal, a page of Markdown, and plots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.engine import DROPPING_SINK, READY_SOURCE
from matplotlib.figure import Figure
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from benchmarks.measure import Goal, Measured, Workload

__all__ = [
    "BUCKETS",
    "CLIENTS",
    "COMPACTION",
    "CRON",
    "DEFAULTS",
    "GROUPS",
    "LATEST",
    "LOOK_UPS",
    "PIPELINES",
    "REPLICAS",
    "section_table",
    "table",
    "write",
    "write_section",
]

CLIENTS: Final = "Without Spark"
COMPACTION: Final = "Compaction"
CRON: Final = "A job from cron"
DEFAULTS: Final = "With Spark's default settings"
GROUPS: Final = "Consumer groups"
LATEST: Final = "The newest row of each key"
BUCKETS: Final = "A bucket, beside Delta"
LOOK_UPS: Final = "Look-ups"
REPLICAS: Final = "Replicas"
PIPELINES: Final = "Pipelines"
"""Sections of the page that other benchmarks write."""

_HEADINGS: Final = (
    "work",
    "who",
    "median",
    "min to max",
    "CPU",
    "rows/s",
    "ratio",
    "goal",
    "result",
)
_OURS: Final = "kafkalog"
_OF_TIME: Final = {"s", "ms"}
_RATIOS: Final = "benchmarks-ratios.png"
_WHOLE: Final = 10
_TICKS: Final = (1, 2, 5, 10, 20, 50, 100)
_FLOORS: Final = {READY_SOURCE, DROPPING_SINK}
_SHORT: Final = (
    "batch read, 7 columns",
    "batch read, value only",
    "availableNow read, 7 columns",
    "batch write",
    "one micro-batch of 100 rows",
    "appended to seen, one record at a time",
)
"""The works of the summary on top of the page."""


class _Line(NamedTuple):
    """One contender's line in the table; ``result`` is empty where nothing is to be reached."""

    work: str
    who: str
    median: str
    spread: str
    cpu: str
    rate: str
    ratio: str
    goal: str
    result: str


def table(measured: Sequence[Measured]) -> Table:
    """Return the results as a table for the terminal."""
    shown = Table(*_HEADINGS, title="kafkalog beside its peers", title_justify="left")
    for number in (2, 4, 5, 6):
        shown.columns[number].justify = "right"
    for one in measured:
        for line in _lines(one):
            style = {"reached": "green", "missed": "red"}.get(line.result)
            shown.add_row(*line, style=style)
        shown.add_section()
    return shown


def write(
    directory: Path, measured: Sequence[Measured], facts: Mapping[str, str], summary: str
) -> None:
    """Write ``benchmarks.md`` and its plots into ``directory``, over those of an earlier run."""
    directory.mkdir(parents=True, exist_ok=True)
    plots = [
        name
        for name, title, chosen in (
            ("benchmarks-latency.png", "milliseconds (less is better)", _in_milliseconds),
        )
        if _plot(directory / name, title, chosen(measured))
    ]
    if _plot_ratios(directory / _RATIOS, measured):
        plots.insert(0, _RATIOS)
    path = directory / "benchmarks.md"
    kept = (
        *(BUCKETS, CRON, DEFAULTS, CLIENTS, COMPACTION, GROUPS, LATEST, LOOK_UPS, PIPELINES),
        REPLICAS,
    )
    others = "".join(_section_of(path, title) for title in kept)
    path.write_text(_page(measured, facts, summary, plots) + others, encoding="utf-8")


def write_section(directory: Path, title: str, text: str, *, page: str = "benchmarks.md") -> None:
    """Put a section of its own benchmark at the end of a page, or in its old place."""
    path = directory / page
    before, section = path.read_text(encoding="utf-8"), _section_of(path, title)
    new = f"\n## {title}\n\n{text}"
    after = before.replace(section, new) if section else before + new
    path.write_text(after, encoding="utf-8")


def section_table(*measured: Measured) -> str:
    """Return the results of some works as a table of a page."""
    results = (line for one in measured for line in _lines(one))
    lines = (_HEADINGS, ["---"] * len(_HEADINGS), *results)
    return "\n".join(map(_row, lines))


def _section_of(path: Path, title: str) -> str:
    """Return a section of a page, with its heading, or nothing."""
    page = path.read_text(encoding="utf-8") if path.exists() else ""
    _, heading, rest = page.partition(f"\n## {title}\n")
    return heading + rest.split("\n## ")[0]


def _lines(one: Measured) -> Iterator[_Line]:
    """Yield a line per contender; ratios are against the first one, the floor, and its goals'."""
    workload, first = one.workload, one.workload.contenders[0].name
    floor = _floor(one)
    for number, (who, samples) in enumerate(one.samples.items()):
        goals = [goal for goal in workload.goals if goal.who == who]
        against = dict.fromkeys((first, *(goal.against for goal in goals if goal.against)))
        if floor is not None and who.startswith(_OURS):
            against[floor] = None
        ratios = [f"{one.speed(who, peer):.2f} x {peer}" for peer in against if peer != who]
        yield _Line(
            workload.title if number == 0 else "",
            who,
            _quantity(samples.median, workload.unit),
            f"{_quantity(samples.low, workload.unit)} to {_quantity(samples.high, workload.unit)}",
            _cpu(one.cpu[who].median) if workload.unit in _OF_TIME else "",
            f"{workload.rows / samples.median / 1e6:.2f} M" if workload.rows else "",
            "; ".join(ratios),
            "; ".join(_told(goal, workload) for goal in goals),
            _verdict(one, goals),
        )


def _cpu(seconds: float) -> str:
    """Return CPU time; nothing where processes have ended whose time nobody has taken over."""
    return "" if seconds < 0 else f"{seconds:.1f} s"


def _verdict(one: Measured, goals: Sequence[Goal]) -> str:
    if not goals:
        return ""
    return "reached" if all(one.reached(goal) for goal in goals) else "missed"


def _told(goal: Goal, workload: Workload) -> str:
    """Say a goal in words."""
    if goal.limit is not None:
        return f"at most {_quantity(goal.limit, workload.unit)}"
    return f"at least {goal.factor:g} x {goal.against}"


def _quantity(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value:.2f} s"
    if unit == "ms":
        return f"{value:.3g} ms" if value < 10 else f"{value:.0f} ms"
    return f"{value:,.0f} {unit}"


def _page(
    measured: Sequence[Measured], facts: Mapping[str, str], summary: str, plots: Sequence[str]
) -> str:
    """Put the page together: machine, table, plots, and what each work is."""
    parts = ["# Benchmarks\n", *_short(measured), f"{summary}\n", "| machine | |\n| --- | --- |"]
    parts += [f"| {label} | {value} |" for label, value in facts.items()]
    parts += ["", _row(_HEADINGS), _row(["---"] * len(_HEADINGS))]
    parts += [_row(line) for one in measured for line in _lines(one)]
    if any(not one.reached(goal) for one in measured for goal in one.workload.goals):
        parts.append(
            "\n[speed.md](speed.md#what-was-aimed-at) says what stands in the way of each goal that"
            " is missed, and where the time goes."
        )
    parts += ["", *(f"![{name.removesuffix('.png')}]({name})\n" for name in plots)]
    parts += ["## What each work is\n"]
    parts += [f"- **{one.workload.title}**: {one.workload.notes}" for one in measured]
    return "\n".join(parts) + "\n"


def _short(measured: Sequence[Measured]) -> list[str]:
    """Put a few works in front: ours beside the peer, and beside what Spark allows."""
    lines = []
    for one in measured:
        ours = _ours(one)
        if one.workload.title not in _SHORT or ours is None:
            continue
        first, unit = one.workload.contenders[0].name, one.workload.unit
        floor = _floor(one)
        found = (_quantity(one.samples[who].median, unit) for who in (ours, first))
        share = f"{one.speed(ours, floor):.0%}" if floor else ""
        lines.append((one.workload.title, *found, f"{one.speed(ours, first):.2g} x {first}", share))
    if not lines:
        return []
    heading = ("work", "kafkalog", "the peer", "ratio", "share of what Spark's pipe allows")
    return [_row(heading), _row(["---"] * len(heading)), *map(_row, lines), ""]


def _ours(one: Measured) -> str | None:
    """Return which of our contenders stands for a work: that of a broker's files, or flush=os."""
    return next((name for name in one.samples if name.startswith(_OURS)), None)


def _floor(one: Measured) -> str | None:
    """Return the contender that does nothing of its own, if there is one."""
    return next((name for name in one.samples if name in _FLOORS), None)


def _plot_ratios(path: Path, measured: Sequence[Measured]) -> bool:
    """Draw how many times as fast as the peer each work is, those with what Spark allows too."""
    bars: list[tuple[str, float, float | None]] = []
    for one in measured:
        ours, first = _ours(one), one.workload.contenders[0].name
        if ours is not None and ours != first and one.workload.unit in _OF_TIME:
            floor = _floor(one)
            allowed = one.speed(floor, first) if floor else None
            bars.append((one.workload.title, one.speed(ours, first), allowed))
    if not bars:
        return False
    figure = Figure(figsize=(9, 0.26 * len(bars) + 1.2), layout="constrained")
    panel = figure.subplots()
    names, ratios, allowed = zip(*bars, strict=True)
    panel.barh(names, ratios, color="#2a6f97", height=0.7)
    for number, most in enumerate(allowed):
        if most is not None:
            panel.plot((most, most), (number - 0.4, number + 0.4), color="#d1495b", linewidth=2)
    for number, ratio in enumerate(ratios):
        at_the_right = panel.get_yaxis_transform()
        shown = f"{ratio:.1f} x" if ratio < _WHOLE else f"{ratio:.0f} x"
        panel.text(1.08, number, shown, transform=at_the_right, va="center", ha="right")
    panel.axvline(1, color="#333", linewidth=1)
    panel.set_xscale("log")
    panel.set_xticks(_TICKS, map(str, _TICKS))
    panel.minorticks_off()
    panel.margins(y=0.01)
    panel.invert_yaxis()
    panel.spines[["top", "right"]].set_visible(False)
    panel.set_xlabel("times as fast as the peer; red: what Spark's pipe to Python allows")
    figure.savefig(path, dpi=110)
    return True


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


class _Bars(NamedTuple):
    """One group of bars: what was measured, and (median, low, high) by contender."""

    title: str
    bars: Mapping[str, tuple[float, float, float]]


def _in_milliseconds(measured: Sequence[Measured]) -> list[_Bars]:
    return [
        _Bars(one.workload.title, {w: (s.median, s.low, s.high) for w, s in one.samples.items()})
        for one in measured
        if one.workload.unit == "ms" and len(one.samples) > 1
    ]


def _plot(path: Path, label: str, groups: Sequence[_Bars]) -> bool:
    """Draw one panel per group, whiskers from the slowest to the quickest run."""
    if not groups:
        return False
    heights = [1 + len(group.bars) for group in groups]
    figure = Figure(figsize=(9, 0.45 * sum(heights) + 1), layout="constrained")
    panels = figure.subplots(len(groups), squeeze=False, height_ratios=heights)[:, 0]
    for panel, group in zip(panels, groups, strict=True):
        names = list(group.bars)
        medians, lows, highs = zip(*group.bars.values(), strict=True)
        below = [median - low for median, low in zip(medians, lows, strict=True)]
        above = [high - median for median, high in zip(medians, highs, strict=True)]
        colours = ["#2a6f97" if name.startswith(_OURS) else "#b8b8b8" for name in names]
        bars = panel.barh(
            names, medians, xerr=(below, above), color=colours, ecolor="#333", capsize=3
        )
        panel.bar_label(bars, [f" {median:,.0f}" for median in medians], padding=4)
        panel.set_title(group.title, loc="left", fontsize=10)
        panel.invert_yaxis()
        panel.set_xlim(0, 1.12 * max(highs))
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel(label)
    figure.savefig(path, dpi=110)
    return True
