"""The command that shows what is in topics as a picture: ``plot``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from kafkalog.jobs.arguments import SETTINGS, pairs
from kafkalog.jobs.cli.arguments import Json, Paths, TopicName  # noqa: TC001 - typer reads them
from kafkalog.jobs.cli.output import one_line_errors, print_rows, progress_bar, terminal_width
from kafkalog.jobs.targets import check_file, check_replaced

__all__ = ["plot"]

_SPANS_OF_BARS: Final = 24
_SPANS_OF_A_CHART: Final = 120
_MARK: Final = b"\x89PNG\r\n\x1a\n"
"""What such a file begins with."""

Png = Annotated[
    Path | None, typer.Option("--png", metavar="FILE", help="Draw a PNG instead of bars.")
]


def plot(
    paths: Paths,
    topic: TopicName = None,
    png: Png = None,
    settings: SETTINGS = None,
    as_json: Json = False,
) -> None:
    """Show records and bytes over time, ages of segments, sizes of batches, and compression."""
    with one_line_errors():
        from kafkalog.jobs.plots.bars import lines_of  # noqa: PLC0415
        from kafkalog.jobs.plots.chart import draw, require_matplotlib  # noqa: PLC0415
        from kafkalog.jobs.plots.figures import measure, rows_of  # noqa: PLC0415

        if png is not None:
            check_file("--png", png, paths, example="plot.png")
            check_replaced(png, _MARK, "PNG")
            require_matplotlib()
        most = _SPANS_OF_BARS if png is None and not as_json else _SPANS_OF_A_CHART
        with progress_bar() as told:
            found = measure(
                paths, topic, pairs(settings), told, most_spans=most, has_gaps=png is None
            )
        if png is not None:
            draw(found, png, topic or ", ".join(paths))
    if as_json:
        print_rows(list(rows_of(found)), as_json=True)
    elif png is None:
        for line in lines_of(found, terminal_width()):
            typer.echo(line)
