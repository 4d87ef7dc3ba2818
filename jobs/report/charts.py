"""Charts over time as inline SVG, and HTML from parts that are escaped."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.jobs.inspection.figures import summed
from kafkalog.jobs.inspection.units import shown_duration, shown_size
from kafkalog.streaming.options.quantities import shown_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kafkalog.jobs.inspection.figures import Measured
    from kafkalog.model import TopicPartition

    _Ticks = Callable[[int], list[tuple[int, str]]]

__all__ = [
    "MOST_SERIES",
    "NOTHING",
    "Column",
    "Growth",
    "Markup",
    "count",
    "count_ticks",
    "joined",
    "per_span",
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


# ----------------------------------------------------------------------------------------------
# Build HTML from parts: whatever is not markup already is escaped.
#
# It is written so that it is well-formed XML, too.


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
    if isinstance(value, Markup):
        return value
    return Markup(escape(_UNSAFE.sub(_numbered, str(value))))


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


def table(columns: Sequence[Column], rows: Iterable[tuple[Sequence[object], str | None]]) -> Markup:
    """Return a table of rows with their classes, without columns whose cells are all empty."""
    found = list(rows)
    used = [
        number
        for number in range(len(columns))
        if any(cells[number] not in {"", None} for cells, _ in found)
    ]
    head = (tag("th", columns[at].heading, class_=columns[at].kind or None) for at in used)
    body = (
        tag(
            "tr",
            *(
                tag("td", "" if cells[at] is None else cells[at], class_=columns[at].kind or None)
                for at in used
            ),
            class_=kind,
        )
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
# Charts over time as inline SVG, drawn from what was measured of partitions.


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
