"""Charts over time as inline SVG, drawn from what was measured of partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.jobs.plots.figures import summed
from kafkalog.jobs.report.markup import NOTHING, Markup, joined, tag
from kafkalog.jobs.report.scales import (
    count_ticks,
    shown_second,
    size_ticks,
    time_ticks,
)
from kafkalog.jobs.units import shown_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kafkalog.jobs.plots.figures import Measured
    from kafkalog.model import TopicPartition

    _Ticks = Callable[[int], list[tuple[int, str]]]

__all__ = ["MOST_SERIES", "Growth", "spark_columns"]

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

    def cumulative(self) -> Markup:
        """Draw how the bytes add up."""
        lows = dict.fromkeys(self._edges(), 0)
        shapes, totals = [], self._totals()
        frame = self._frame(880, 240, max(totals.values(), default=0), size_ticks)
        for each in self.series:
            highs, total = {}, 0
            for edge in lows:
                total += each.spans.get(edge - 1, (0, 0))[_BYTES]
                highs[edge] = lows[edge] + total
            there = [(edge * self.width_ms, highs[edge]) for edge in lows]
            back = [(edge * self.width_ms, low) for edge, low in reversed(lows.items())]
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
