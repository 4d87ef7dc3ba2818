"""What was measured of topics as bars of text, for a terminal."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from kafkalog.files.system import system
from kafkalog.jobs.units import shown_duration, shown_size
from kafkalog.streaming.times import shown_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kafkalog.jobs.plots.figures import Measured
    from kafkalog.model import TopicPartition

__all__ = ["lines_of"]

_WIDTH: Final = 32
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_MOST_ROWS: Final = 24

Row = tuple[str, int, str]
"""A name, what the bar is as long as, and what is said beside it."""


def lines_of(found: Mapping[TopicPartition, Measured]) -> Iterator[str]:
    """Yield the lines: for each topic four charts, of bytes."""
    for topic in sorted({key.topic for key in found}):
        ours = {key: each for key, each in found.items() if key.topic == topic}
        records = sum(each.records for each in ours.values())
        size = sum(each.bytes for each in ours.values())
        yield f"{topic}: {records:,} records, {shown_size(size)}"
        charts = {
            "partitions": _partitions(ours),
            "over time": _over_time(ours.values()),
            "segments by age of their last record": _segments(ours.values()),
            "batches by size": _batch_sizes(ours.values()),
            "compression": _codecs(ours.values()),
        }
        for name, rows in charts.items():
            if rows:
                yield f"\n  {name}"
                yield from _bars(rows)
        yield ""


def _bars(rows: list[Row]) -> Iterator[str]:
    left_out = len(rows) - _MOST_ROWS
    rows = rows[:_MOST_ROWS] if left_out > 0 else rows
    longest = max(1, *(size for _, size, _ in rows))
    names = max(len(name) for name, _, _ in rows)
    for name, size, said in rows:
        yield f"    {name:<{names}}  {_bar(size / longest):<{_WIDTH}}  {said}"
    if left_out > 0:
        yield f"    and {left_out} more"


def _bar(part: float) -> str:
    eighths = max(1, round(part * _WIDTH * 8)) if part > 0 else 0
    return _EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _partitions(found: Mapping[TopicPartition, Measured]) -> list[Row]:
    return [
        (str(key), each.bytes, f"{shown_size(each.bytes)}, {each.records:,} records")
        for key, each in found.items()
    ]


def _over_time(found: Iterable[Measured]) -> list[Row]:
    spans: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    untimed = [0, 0]
    width = 1
    for each in found:
        width = each.timeline.width_ms
        for number, counts in each.timeline.spans.items():
            _add(spans[number], counts)
        _add(untimed, each.timeline.untimed)
    shown = [
        (shown_time(number * width), size, f"{shown_size(size)}, {records:,} records")
        for number, (records, size) in sorted(spans.items(), reverse=True)
    ]
    if untimed[1]:
        records, size = untimed
        shown.append(("no timestamp", size, f"{shown_size(size)}, {records:,} records"))
    return shown


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
        (name, size, f"{shown_size(size)}, {_many(number, 'segment')}")
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
    sizes = _summed(each.batch_sizes for each in found)
    return [
        (
            f"{shown_size(least)} to {shown_size(2 * least)}",
            size,
            f"{shown_size(size)}, {_many(batches, 'batch')}",
        )
        for least, (batches, size) in sorted(sizes.items())
    ]


def _codecs(found: Iterable[Measured]) -> list[Row]:
    codecs = _summed(each.codecs for each in found)
    return [
        (codec, size, f"{shown_size(size)}, {_many(batches, 'batch')}")
        for codec, (batches, size) in sorted(codecs.items())
    ]


def _summed(found: Iterable[Mapping[Any, list[int]]]) -> dict[Any, list[int]]:
    sums: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for each in found:
        for name, counts in each.items():
            _add(sums[name], counts)
    return sums


def _add(counts: list[int], more: list[int]) -> None:
    counts[0] += more[0]
    counts[1] += more[1]


def _many(number: int, what: str) -> str:
    ending = "" if number == 1 else "es" if what.endswith("ch") else "s"
    return f"{number:,} {what}{ending}"
