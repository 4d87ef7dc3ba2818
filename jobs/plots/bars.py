"""What was measured of topics as bars of text, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kafkalog.files.system import system
from kafkalog.jobs.inspection.figures import summed
from kafkalog.jobs.inspection.units import shown_duration, shown_size
from kafkalog.model import many
from kafkalog.streaming.options.quantities import shown_time

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from kafkalog.jobs.inspection.figures import Measured
    from kafkalog.model import TopicPartition

__all__ = ["Row", "charts_of", "lines_of"]

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
