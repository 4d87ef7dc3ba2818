"""What was measured of topics as a picture."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from kafkalog.errors import OptionError
from kafkalog.jobs.inspection.figures import summed
from kafkalog.jobs.inspection.units import shown_size

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kafkalog.jobs.inspection.figures import Measured
    from kafkalog.model import TopicPartition

__all__ = ["draw", "require_matplotlib"]

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
