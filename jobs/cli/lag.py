"""The command that shows how far readers are behind: ``lag``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kafkalog.jobs.cli.arguments import Json, Paths, TopicName  # noqa: TC001 - typer reads them
from kafkalog.jobs.cli.output import exit_if, one_line_errors, print_rows
from kafkalog.jobs.running import print_line

if TYPE_CHECKING:
    from kafkalog.jobs.lag.meter import LagMeter

__all__ = ["lag"]

Group = Annotated[
    list[str] | None,
    typer.Option(help="This consumer group; may be repeated. Default: all, if nothing is named."),
]
Checkpoint = Annotated[
    list[str] | None,
    typer.Option(help="The checkpoint folder of a Spark query, or of replay; may be repeated."),
]
Offsets = Annotated[str | None, typer.Option(help='Offsets as a query prints them: {"t":{"0":5}}.')]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")]
Every = Annotated[
    float, typer.Option(min=0.1, max=86400, help="With --watch: seconds between two looks.")
]


def lag(
    paths: Paths,
    group: Group = None,
    checkpoint: Checkpoint = None,
    offsets: Offsets = None,
    topic: TopicName = None,
    watch: Watch = False,
    every: Every = 2.0,
    as_json: Json = False,
) -> None:
    """Show how far groups and queries are behind: in offsets, in bytes, and in time."""
    with one_line_errors():
        from kafkalog.jobs.lag.meter import LagMeter  # noqa: PLC0415
        from kafkalog.jobs.lag.readers import ReadersNamed  # noqa: PLC0415

        named = ReadersNamed(group or (), checkpoint or (), offsets)
        meter = LagMeter(paths, named, topic)
        if watch:
            _show_for_ever(meter, every, as_json=as_json)
        rows = meter.look()
    print_rows(rows if as_json else _without_times(rows), as_json=as_json)
    if not rows:
        print_line(f"no position is known in topic {topic}", err=True)
    exit_if(row["lag"] is None for row in rows)


def _show_for_ever(meter: LagMeter, every: float, *, as_json: bool) -> None:
    """Show a table that changes in its place or, where it is read on, the rows of each look."""
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from kafkalog.files.system import system  # noqa: PLC0415
    from kafkalog.jobs.cli.output import each_message_once  # noqa: PLC0415
    from kafkalog.jobs.cli.tables import Lines, lines_of  # noqa: PLC0415
    from kafkalog.streaming.times import shown_time  # noqa: PLC0415

    console = Console()
    with each_message_once():
        if as_json or not console.is_terminal:
            lines = Lines()
            while True:
                rows = meter.look()
                time = system.time_ns() // 1_000_000
                if as_json:
                    print_rows([{"time": time, **row} for row in rows], as_json=True)
                else:
                    shown = shown_time(time)
                    for line in lines.of({"time": shown, **row} for row in _without_times(rows)):
                        print_line(line)
                system.sleep(every)
        with Live(console=console, auto_refresh=False) as live:
            while True:
                told = lines_of(_without_times(meter.look()), width=console.width)
                live.update(Text("\n".join(told)), refresh=True)
                system.sleep(every)


def _without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out when the next record was written: a table says how long ago that was."""
    return [{name: row[name] for name in row if name != "nextTimestamp"} for row in rows]
