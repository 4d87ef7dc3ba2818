"""Charts: over time as inline SVG, as bars of text, as a picture; HTML from escaped parts."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from html import escape
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kafkalog.errors import OptionError
from kafkalog.files.system import system
from kafkalog.jobs.inspection.figures import summed
from kafkalog.jobs.inspection.units import shown_duration, shown_size
from kafkalog.model import many
from kafkalog.streaming.options.quantities import shown_time

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kafkalog.jobs.inspection.figures import Measured
    from kafkalog.model import TopicPartition

    _Ticks = Callable[[int], list[tuple[int, str]]]

__all__ = [
    "MOST_SERIES",
    "NOTHING",
    "Column",
    "Growth",
    "Markup",
    "Row",
    "charts_of",
    "count",
    "count_ticks",
    "draw",
    "joined",
    "lines_of",
    "per_span",
    "require_matplotlib",
    "shown",
    "shown_count",
    "shown_moment",
    "shown_second",
    "shown_span",
    "size_ticks",
    "spark_columns",
    "table",
    "tag",
    "time_ticks",
]

_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufffe\uffff]"
)
"""What HTML or XML does not allow, and what is invisible or turns the direction of a text."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


NOTHING: Final = Markup()


def shown(value: object) -> Markup:
    """Return any text as HTML; characters that cannot be seen by their numbers."""
    return value if isinstance(value, Markup) else _escaped(str(value))


@lru_cache(4096)  # cells of a table are much alike
def _escaped(text: str) -> Markup:
    return Markup(escape(_UNSAFE.sub(_numbered, text)))


def _numbered(found: re.Match[str]) -> str:
    char = found.group()
    if char == "\n":
        return " "
    name = unicodedata.category(char)
    return f"\\x{ord(char):02x}" if name == "Cc" else f"\\u{ord(char):04x}"


def joined(parts: Iterable[object], between: str = "") -> Markup:
    """Return parts one after the other."""
    return Markup(between.join(shown(part) for part in parts))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element. Of an attribute's name ``class_`` is ``class``, other ``_`` are ``-``.

    An attribute that is None is left out; one that is True has its name as its value.
    """
    words = [name]
    for key, value in attributes.items():
        if value is not None and value is not False:
            known = key.rstrip("_").replace("_", "-")
            words.append(f'{known}="{shown(known if value is True else value)}"')
    start = " ".join(words)
    if not children:
        return Markup(f"<{start} />" if name in _VOID else f"<{start}></{name}>")
    return Markup(f"<{start}>{joined(children)}</{name}>")


_VOID: Final = {"meta", "rect", "line", "path", "br", "circle"}


# ----------------------------------------------------------------------------------------------
# Tables of a page.


class Column(NamedTuple):
    """A heading, and how its cells look: ``n`` numbers, ``t`` times, ``name`` long words."""

    heading: str
    kind: str = ""


def count(number: int | None) -> str:
    """Return a number for a cell."""
    return "" if number is None else f"{number:,}"


def _shown_cell(cell: object) -> Markup:
    return NOTHING if cell is None else shown(cell)


def table(columns: Sequence[Column], rows: Iterable[tuple[Sequence[object], str | None]]) -> Markup:
    """Return a table of rows with their classes, without columns whose cells are all empty."""
    found = list(rows)
    used = [
        number
        for number in range(len(columns))
        if any(cells[number] not in {"", None} for cells, _ in found)
    ]
    kinds = [columns[at].kind or None for at in used]
    head = (
        tag("th", columns[at].heading, class_=kind) for at, kind in zip(used, kinds, strict=True)
    )
    # the same for each row: a topic may have thousands of partitions
    frame = "".join(tag("td", Markup("%s"), class_=kind) for kind in kinds)
    body = (
        tag("tr", Markup(frame % tuple(_shown_cell(cells[at]) for at in used)), class_=kind)
        for cells, kind in found
    )
    return tag(
        "div",
        tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body)),
        class_="wide",
        tabindex="0",
        role="region",
        aria_label=f"Table: {columns[used[0]].heading if used else 'nothing'}",
    )


# ----------------------------------------------------------------------------------------------
# Numbers and times for people: what a page says, and where the ticks of an axis lie.


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS: Final = 253_402_300_799_999
"""Of the year 9999: the calendar knows no later time."""
_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
_STEPS: Final = (
    *(each * _SECOND for each in (1, 2, 5, 10, 15, 30)),
    *(each * _MINUTE for each in (1, 2, 5, 10, 15, 30)),
    *(each * _HOUR for each in (1, 2, 3, 6, 12)),
    *(each * _DAY for each in (1, 2, 5, 10, 20)),
)
_MONTHS: Final = (1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 2400, 6000, 12000, 24000)
_MONTH_NAMES: Final = (
    *("Jan", "Feb", "Mar", "Apr", "May", "Jun"),
    *("Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
)
_ONE: Final = {_SECOND: "second", _MINUTE: "minute", _HOUR: "hour", _DAY: "day"}
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def shown_count(number: int) -> str:
    """Return a number as an axis shows it: ``950``, ``12 k``, ``1.5 M``."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:g} {unit}"
    return str(number)


def shown_moment(milliseconds: int) -> str:
    """Return a time to the minute, in UTC: ``2023-11-14 22:13``."""
    return _cut(milliseconds, 16)


def shown_second(milliseconds: int) -> str:
    """Return a time to the second, in UTC: ``2023-11-14 22:13:20``."""
    return _cut(milliseconds, 19)


def _cut(milliseconds: int, length: int) -> str:
    text = shown_time(milliseconds)
    return text[:length].replace("T", " ") if "T" in text else text


def per_span(width_ms: int) -> str:
    """Return what a column of that width stands for: ``per day``, ``per 10 s``."""
    return f"per {_ONE.get(width_ms) or shown_duration(width_ms)}"


def shown_span(start: int, end: int) -> str:
    """Return a span of time by its ends (ms), without what both have in common."""
    first, last = shown_second(start), shown_second(end)
    if first == last:
        return first
    if len(first) == len(last) == 19 and first[:10] == last[:10]:
        return f"{first} \u2013 {last[11:]}"
    return f"{first} \u2013 {last}"


def size_ticks(most: int, number: int = 4) -> list[tuple[int, str]]:
    """Return where an axis of bytes from 0 on has ticks, and what they say."""
    step = 1
    while step * number < most:
        step *= 2
    return [(at, _size(at)) for at in range(0, most + step, step)]


def _size(size: int) -> str:
    unit = 0
    amount = float(size)
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount /= 1024
        unit += 1
    return f"{amount:g} {_UNITS[unit]}" if size else "0"


def count_ticks(most: int, number: int = 4) -> list[tuple[int, str]]:
    """Return where an axis of numbers from 0 on has ticks, and what they say."""
    power = 1
    while 10 * power * number < most:
        power *= 10
    step = next(each * power for each in (1, 2, 5, 10) if each * power * number >= most)
    return [(at, shown_count(at)) for at in range(0, most + step, step)]


def time_ticks(start: int, end: int, number: int = 6) -> list[tuple[int, str]]:
    """Return where an axis of time (ms) has ticks, and what they say: UTC.

    Nothing is said of what lies beyond the calendar.
    """
    if end > _LAST_MS:
        return []
    step = next((each for each in _STEPS if (end - start) / each <= number), None)
    if step is None:
        return _month_ticks(start, end, number)
    ticks, day = [], -1
    for at in range(-(-start // step) * step, end + 1, step):
        time = _EPOCH + timedelta(milliseconds=at)
        is_new_day, day = at // _DAY != day, at // _DAY
        date = f"{time.day} {_MONTH_NAMES[time.month - 1]}"
        if step >= _DAY or (is_new_day and not at % _DAY):
            ticks.append((at, date))
        else:
            ticks.append((at, f"{time:%H:%M}" if step >= _MINUTE else f"{time:%H:%M:%S}"))
    return ticks


def _month_ticks(start: int, end: int, number: int) -> list[tuple[int, str]]:
    first, last = (_EPOCH + timedelta(milliseconds=each) for each in (start, end))
    months = [each.year * 12 + each.month - 1 for each in (first, last)]
    step = next((each for each in _MONTHS if (months[1] - months[0]) / each <= number), _MONTHS[-1])
    ticks = []
    for month in range(-(-(months[0] + 1) // step) * step, months[1] + 1, step):
        time = datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC)
        at = (time - _EPOCH) // timedelta(milliseconds=1)
        said = str(time.year) if step >= 12 else f"{_MONTH_NAMES[time.month - 1]} {time.year}"
        ticks.append((at, said))
    return ticks


# ----------------------------------------------------------------------------------------------
# Charts over time as inline SVG, drawn from what was measured of partitions.

MOST_SERIES: Final = 5
"""More topics than that cannot be told apart by their colours: the smaller ones are one."""
_RECORDS, _BYTES = 0, 1
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 10, 10, 26


class _Series(NamedTuple):
    """A topic, or those that are left; ``spans`` have records and bytes by their numbers."""

    name: str
    colour: str
    spans: Mapping[int, Sequence[int]]


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where a chart's values lie on the page."""

    width: int
    height: int
    start: int
    end: int
    top: int

    def x(self, time: float) -> float:
        part = (time - self.start) / max(1, self.end - self.start)
        return round(_LEFT + part * (self.width - _LEFT - _RIGHT), 2)

    def y(self, value: float) -> float:
        part = value / max(1, self.top)
        return round(self.height - _BOTTOM - part * (self.height - _TOP - _BOTTOM), 2)


class Growth:
    """What is in topics by the timestamps of its records."""

    def __init__(self, found: Mapping[TopicPartition, Measured]) -> None:
        """Add partitions up to topics; small ones, if there are many, to one."""
        sizes: dict[str, int] = {}
        for key, each in found.items():
            sizes[key.topic] = sizes.get(key.topic, 0) + each.bytes
        by_size = sorted(sizes, key=lambda topic: (-sizes[topic], topic))
        by_size = [topic for topic in by_size if sizes[topic]]
        most = MOST_SERIES if len(by_size) > MOST_SERIES + 1 else MOST_SERIES + 1
        parts = [[topic] for topic in by_size[:most]]
        if by_size[most:]:
            parts.append(by_size[most:])
        self.series = [
            _Series(
                topics[0] if len(topics) == 1 else f"{len(topics)} other topics",
                f"s{number}" if len(topics) == 1 else "rest",
                summed(found[key].timeline.spans for key in found if key.topic in topics),
            )
            for number, topics in enumerate(parts)
        ]
        self.width_ms = min((each.timeline.width_ms for each in found.values()), default=1000)
        self._numbers = sorted({number for each in self.series for number in each.spans})
        self.untimed = sum(each.timeline.untimed[_BYTES] for each in found.values())

    def __bool__(self) -> bool:
        """Return whether there is anything to draw."""
        return bool(self._numbers)

    @property
    def ends(self) -> tuple[int, int]:
        """The first and the last of the numbers of spans that hold anything."""
        return self._numbers[0], self._numbers[-1]

    def legend(self) -> Markup:
        """Return which colour is which topic."""
        items = (
            tag("li", tag("i", class_=f"key {each.colour}"), each.name) for each in self.series
        )
        return tag("ul", *items, class_="legend")

    def cumulative(self, width: int) -> Markup:
        """Draw how the bytes add up, in steps: of each span as they are at its end."""
        lows = dict.fromkeys(self._edges(), 0)
        shapes, totals = [], self._totals()
        frame = self._frame(width, 240, max(totals.values(), default=0), size_ticks)
        for each in self.series:
            highs, total = {}, 0
            for edge in lows:
                total += each.spans.get(edge, (0, 0))[_BYTES]
                highs[edge] = lows[edge] + total
            there = [(edge * self.width_ms, value) for edge, value in _in_steps(highs)]
            back = [(edge * self.width_ms, value) for edge, value in reversed(_in_steps(lows))]
            points = " L".join(f"{frame.x(time)} {frame.y(value)}" for time, value in there + back)
            name = tag("title", f"{each.name}: {shown_size(total)}")
            shapes.append(tag("path", name, d=f"M{points} Z", class_=f"area {each.colour}"))
            lows = highs
        return self._chart(frame, shapes, size_ticks, "bytes in the log over time")

    def _edges(self) -> list[int]:
        """Return the numbers of spans at whose beginnings a line can bend."""
        return sorted({edge for number in self._numbers for edge in (number, number + 1)})

    def _totals(self) -> dict[int, int]:
        total, found = 0, {}
        for number in self._numbers:
            total += sum(each.spans.get(number, (0, 0))[_BYTES] for each in self.series)
            found[number] = total
        return found

    def columns_of_bytes(self) -> Markup:
        """Draw the bytes of each span."""
        return self._columns(_BYTES, size_ticks, "bytes written over time")

    def columns_of_records(self) -> Markup:
        """Draw the records of each span."""
        return self._columns(_RECORDS, count_ticks, "records written over time")

    def _columns(self, which: int, ticks: _Ticks, said: str) -> Markup:
        heights = {
            number: sum(each.spans.get(number, (0, 0))[which] for each in self.series)
            for number in self._numbers
        }
        frame = self._frame(432, 190, max(heights.values(), default=0), ticks)
        shapes = [shape for number in self._numbers for shape in self._column(frame, number, which)]
        return self._chart(frame, shapes, ticks, said)

    def _column(self, frame: _Frame, number: int, which: int) -> Iterator[Markup]:
        start, below = number * self.width_ms, 0
        left, right = frame.x(start), frame.x(start + self.width_ms)
        gap = min(1.0, (right - left) * 0.2)
        for each in self.series:
            records, size = each.spans.get(number, (0, 0))
            value = (records, size)[which]
            if not value:
                continue
            low, high = frame.y(below), frame.y(below + value)
            below += value
            text = f"{shown_second(start)}, {each.name}: {records:,} records, {shown_size(size)}"
            yield tag(
                "rect",
                tag("title", text),
                x=left,
                y=high,
                width=round(max(0.8, right - left - gap), 2),
                height=round(max(0.5, low - high), 2),
                class_=each.colour,
            )

    def _frame(self, width: int, height: int, most: int, ticks: _Ticks) -> _Frame:
        first, last = self._numbers[0], self._numbers[-1] + 1
        top = ticks(max(1, most))[-1][0]
        return _Frame(width, height, first * self.width_ms, last * self.width_ms, top)

    def _chart(self, frame: _Frame, shapes: Iterable[Markup], ticks: _Ticks, said: str) -> Markup:
        lines = []
        for value, text in ticks(frame.top):
            if value > frame.top:
                continue
            y = frame.y(value)
            kind = "grid" if value else "base"
            lines.append(tag("line", x1=_LEFT, x2=frame.width - _RIGHT, y1=y, y2=y, class_=kind))
            lines.append(tag("text", text, x=_LEFT - 8, y=y + 4, text_anchor="end"))
        number = 7 if frame.width > 600 else 5
        below = [
            tag("text", text, x=frame.x(at), y=frame.height - 8, text_anchor=_anchor(frame, at))
            for at, text in time_ticks(frame.start, frame.end, number)
        ]
        return tag(
            "svg",
            *(tag("title", said), *lines, *shapes, *below),
            viewBox=f"0 0 {frame.width} {frame.height}",
            role="img",
            aria_label=said,
        )


def _in_steps(values: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return the corners of steps: a value holds up to the next edge."""
    corners: list[tuple[int, int]] = []
    for edge, value in values.items():
        corners += [(edge, corners[-1][1])] if corners else []
        corners.append((edge, value))
    return corners


def _anchor(frame: _Frame, at: int) -> str:
    x = frame.x(at)
    if x < _LEFT + 20:
        return "start"
    return "end" if x > frame.width - _RIGHT - 20 else "middle"


def spark_columns(parts: Iterable[Measured], first: int, last: int) -> Markup:
    """Draw the bytes of a topic in spans numbered from ``first`` to ``last``, in a few pixels."""
    spans = summed(part.timeline.spans for part in parts)
    most = max((size for _, size in spans.values()), default=0)
    if not most:
        return NOTHING
    width, height = 96.0, 18.0
    each = width / (last - first + 1)
    shapes = []
    for number, (_, size) in sorted(spans.items()):
        tall = round(max(1.0, size / most * height), 2)
        shapes.append(
            tag(
                "rect",
                x=round((number - first) * each, 2),
                y=round(height - tall, 2),
                width=round(max(1.0, each * 0.8), 2),
                height=tall,
            )
        )
    return tag("svg", joined(shapes), viewBox="0 0 96 18", class_="spark", aria_hidden="true")


# ----------------------------------------------------------------------------------------------
# Measurements of topics as bars of text, and as a picture.


_WIDTH: Final = 32
_NARROWEST: Final = 8
_GAPS: Final = 4 + 2 + 2
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_MOST_ROWS: Final = 24

Row = tuple[str, int, str]
"""A name, what the bar is as long as, and what is said beside it."""


def lines_of(found: Mapping[TopicPartition, Measured], width: int | None = None) -> Iterator[str]:
    """Yield the lines: for each topic four charts, of bytes; bars are shorter in a narrow width."""
    for topic in sorted({key.topic for key in found}):
        ours = {key: each for key, each in found.items() if key.topic == topic}
        records = sum(each.records for each in ours.values())
        size = sum(each.bytes for each in ours.values())
        yield f"{topic}: {records:,} records, {shown_size(size)}"
        charts = {
            "partitions": _partitions(ours),
            "over time": _over_time(ours.values()),
            **charts_of(ours.values()),
        }
        for name, rows in charts.items():
            if rows:
                yield f"\n  {name}"
                yield from _bars(rows, width)
        yield ""


def charts_of(found: Collection[Measured]) -> dict[str, list[Row]]:
    """Return segments by age, batches by size, and codecs, as rows of bytes; by their titles."""
    return {
        "segments by age of their last record": _segments(found),
        "batches by size": _batch_sizes(found),
        "compression": _codecs(found),
    }


def _bars(rows: list[Row], width: int | None) -> Iterator[str]:
    left_out = len(rows) - _MOST_ROWS
    rows = rows[:_MOST_ROWS] if left_out > 0 else rows
    longest = max(1, *(size for _, size, _ in rows))
    names = max(len(name) for name, _, _ in rows)
    room = _WIDTH
    if width is not None:
        beside = names + max(len(said) for _, _, said in rows)
        room = min(_WIDTH, max(_NARROWEST, width - beside - _GAPS))
    for name, size, said in rows:
        yield f"    {name:<{names}}  {_bar(size / longest, room):<{room}}  {said}"
    if left_out > 0:
        yield f"    and {left_out} more"


def _bar(part: float, width: int) -> str:
    eighths = max(1, round(part * width * 8)) if part > 0 else 0
    return _EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _partitions(found: Mapping[TopicPartition, Measured]) -> list[Row]:
    return [
        (str(key), each.bytes, _records(each.bytes, each.records)) for key, each in found.items()
    ]


def _over_time(found: Collection[Measured]) -> list[Row]:
    timelines = [each.timeline for each in found]
    shown = [
        (shown_time(number * timelines[0].width_ms), size, _records(size, records))
        for number, (records, size) in sorted(summed(t.spans for t in timelines).items())[::-1]
    ]
    records, size = (sum(counts) for counts in zip(*(t.untimed for t in timelines), strict=True))
    return [*shown, ("no timestamp", size, _records(size, records))] if size else shown


def _records(size: int, records: int) -> str:
    return f"{shown_size(size)}, {records:,} records"


def _segments(found: Iterable[Measured]) -> list[Row]:
    now = system.time_ns() // 1_000_000
    days: dict[str, list[Any]] = {}
    for each in found:
        for segment in each.segments.values():
            name, order = _age(now, segment.last_timestamp)
            counts = days.setdefault(name, [order, 0, 0])
            counts[1] += 1
            counts[2] += segment.bytes
    return [
        (name, size, f"{shown_size(size)}, {many(number, 'segment')}")
        for name, (_, number, size) in sorted(days.items(), key=lambda pair: pair[1][0])
    ]


_AGES: Final = (3_600_000, 86_400_000, 7 * 86_400_000, 30 * 86_400_000, 365 * 86_400_000)


def _age(now: int, timestamp: int) -> tuple[str, int]:
    if timestamp < 0:
        return "no timestamp", len(_AGES) + 1
    if timestamp > now:
        return "in the future", -1
    for order, age in enumerate(_AGES):
        if now - timestamp < age:
            return f"below {shown_duration(age)}", order
    return f"{shown_duration(_AGES[-1])} or more", len(_AGES)


def _batch_sizes(found: Iterable[Measured]) -> list[Row]:
    sizes = summed(each.batch_sizes for each in found)
    return [
        (
            f"{shown_size(least)} to {shown_size(2 * least)}",
            size,
            f"{shown_size(size)}, {many(batches, 'batch')}",
        )
        for least, (batches, size) in sorted(sizes.items())
    ]


def _codecs(found: Iterable[Measured]) -> list[Row]:
    codecs = summed(each.codecs for each in found)
    return [
        (codec, size, f"{shown_size(size)}, {many(batches, 'batch')}")
        for codec, (batches, size) in sorted(codecs.items())
    ]


# ----------------------------------------------------------------------------------------------
# What was measured of topics as a picture.


_MOST_PARTITIONS: Final = 9
"""More than that cannot be told apart by their colours: the smaller ones are drawn as one."""
_OTHERS: Final = "others"
_DAY_MS: Final = 86_400_000


def require_matplotlib() -> None:
    """Refuse to go on without the library that draws.

    Raises:
        OptionError: it is not installed.
    """
    try:
        import matplotlib  # noqa: F401, ICN001, PLC0415
    except ImportError:
        raise OptionError(
            "--png needs matplotlib: pip install 'kafkalog[plot]'; without --png there are bars"
        ) from None


def draw(found: Mapping[TopicPartition, Measured], path: Path, title: str) -> None:
    """Draw records and bytes over time, segments, batch sizes and codecs into a PNG.

    Raises:
        OSError: it cannot be written.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    figure = Figure(figsize=(12, 10), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplot_mosaic(
        [["records", "records"], ["bytes", "bytes"], ["segments", "sizes"], ["segments", "codecs"]]
    )
    chosen = _largest(found)
    for number, name in enumerate(("records", "bytes")):
        _draw_over_time(axes[name], chosen, number, name)
    _draw_segments(axes["segments"], chosen)
    _draw_sizes(axes["sizes"], found)
    _draw_codecs(axes["codecs"], found)
    if chosen:
        axes["records"].legend(fontsize="small", ncols=2)
    figure.savefig(path, format="png", dpi=120)


def _largest(found: Mapping[TopicPartition, Measured]) -> dict[str, list[Measured]]:
    by_size = sorted(found, key=lambda key: found[key].bytes, reverse=True)
    chosen = {str(key): [found[key]] for key in sorted(by_size[:_MOST_PARTITIONS])}
    if len(by_size) > _MOST_PARTITIONS:
        chosen[_OTHERS] = [found[key] for key in by_size[_MOST_PARTITIONS:]]
    return chosen


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(min(milliseconds, _LAST_MS) / 1000, UTC)


def _draw_over_time(axis: Any, chosen: Mapping[str, list[Measured]], which: int, name: str) -> None:  # noqa: ANN401
    below: dict[int, int] = {}
    for label, parts in chosen.items():
        width = parts[0].timeline.width_ms
        spans = summed(part.timeline.spans for part in parts)
        numbers = sorted(spans)
        axis.bar(
            [_time(number * width) for number in numbers],
            [spans[number][which] for number in numbers],
            width=width / _DAY_MS,
            bottom=[below.get(number, 0) for number in numbers],
            align="edge",
            label=label,
        )
        for number in numbers:
            below[number] = below.get(number, 0) + spans[number][which]
    axis.set_ylabel(name)
    if name == "bytes":
        axis.yaxis.set_major_formatter(lambda size, _: shown_size(int(size)))


def _draw_segments(axis: Any, chosen: Mapping[str, list[Measured]]) -> None:  # noqa: ANN401
    for label, parts in chosen.items():
        segments = [
            each for part in parts for each in part.segments.values() if each.last_timestamp >= 0
        ]
        times = [_time(each.last_timestamp) for each in segments]
        axis.scatter(times, [each.bytes for each in segments], s=16, label=label)
    axis.set_title("segments by their last record")
    axis.tick_params(axis="x", labelrotation=30)
    axis.yaxis.set_major_formatter(lambda size, _: shown_size(int(size)))


def _draw_sizes(axis: Any, found: Mapping[TopicPartition, Measured]) -> None:  # noqa: ANN401
    sizes = sorted(summed(each.batch_sizes for each in found.values()).items())
    axis.bar([shown_size(least) for least, _ in sizes], [size for _, (_, size) in sizes])
    axis.set_title("bytes in batches of at least")
    axis.tick_params(axis="x", labelrotation=30, labelsize="small")
    axis.yaxis.set_major_formatter(lambda size, _: shown_size(int(size)))


def _draw_codecs(axis: Any, found: Mapping[TopicPartition, Measured]) -> None:  # noqa: ANN401
    codecs = sorted(summed(each.codecs for each in found.values()).items())
    axis.barh([codec for codec, _ in codecs], [size for _, (_, size) in codecs])
    axis.set_title("bytes by compression")
    axis.xaxis.set_major_formatter(lambda size, _: shown_size(int(size)))
