"""Measurements of topics as bars of text, and as a picture."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from kafkalog.errors import OptionError
from kafkalog.files.system import system
from kafkalog.jobs.inspection.figures import summed
from kafkalog.jobs.inspection.units import shown_duration, shown_size
from kafkalog.model import many
from kafkalog.streaming.options.quantities import shown_time

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from kafkalog.jobs.inspection.figures import Measured
    from kafkalog.model import TopicPartition


__all__ = ["Row", "charts_of", "draw", "lines_of", "require_matplotlib"]


# ----------------------------------------------------------------------------------------------
# What was measured of topics as bars of text, for a terminal.


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
_LAST_MS: Final = 253_402_300_799_999
"""Of the year 9999: a chart knows no later time."""


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
