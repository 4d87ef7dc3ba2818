"""Commands about consumer groups: ``group list|describe|reset|delete``, ``lag``, metrics of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kafkalog.jobs.cli.arguments import (
    NO_TIER,
    DryRun,
    Json,
    Paths,
    Tier,
    Topics,
    topics_there,
    with_tier,
)
from kafkalog.jobs.cli.output import (
    Loss,
    Yes,
    act_if_agreed,
    end_with,
    exit_if,
    one_line_errors,
    print_rows,
    tell_dry_run,
)
from kafkalog.jobs.process.arguments import (
    ALLOW_BROKER,
    milliseconds,
    point_in_time,
    select_topics,
    split_names,
)
from kafkalog.jobs.process.running import Form, print_line, printing
from kafkalog.model import many

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.jobs.inspection.lag import LagMeter, LagTargets
    from kafkalog.model import TopicPartition, TopicSelection
    from kafkalog.streaming.groups.administration import Changed


__all__ = ["delete_group", "groups", "lag", "list_all_groups", "reset_group", "serve_metrics"]


# ----------------------------------------------------------------------------------------------
# The commands about consumer groups: ``group list``, ``describe``, ``reset``, ``delete``.


_SPARE: Final = ("generation", "host", "process", "member", "bytes", "instance", "client", "state")
_SECOND_WORDS: Final = ("delete", "reset")


def _second_words(context: typer.Context, incomplete: str) -> list[str]:
    """Return what a shell completes in place of a folder, once a letter of it is there."""
    is_first = incomplete and not context.params.get("paths")
    return [word for word in _SECOND_WORDS if is_first and word.startswith(incomplete)]


_Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH…",
        help="The log directories that belong together. Default: KAFKALOG_PATH.",
        autocompletion=_second_words,
    ),
]
_Groups = Annotated[
    list[str] | None,
    typer.Option("--group", "-g", help="This group; may be repeated. Default: all."),
]
_Group = Annotated[str, typer.Option("--group", "-g", help="The group. It must have no members.")]
_Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        help="This topic; may be repeated. Default: those that the group has read.",
        autocompletion=topics_there,
    ),
]
_To = Annotated[
    str | None,
    typer.Option(
        metavar="PLACE", help="earliest, latest, or a time: 1h (ago), 2026-11-22T10:15:00Z."
    ),
]
_Offsets = Annotated[str | None, typer.Option(help='Offsets to go to: {"t":{"0":5}}.')]


def list_all_groups(paths: Paths, as_json: Json = False) -> None:
    """List consumer groups, one a line: members, partitions, and how far each is behind in all."""
    with one_line_errors():
        from kafkalog.jobs.inspection.groups import summarize_groups  # noqa: PLC0415

        rows = summarize_groups(paths)
    print_rows(rows if as_json else _without_empty(rows, ("problems",)), as_json=as_json)
    if not rows and not as_json:
        print_line(_NO_GROUP, err=True)
    with_problems = [row["group"] for row in rows if row["problems"]]
    if with_problems and not as_json:
        print_line(
            f"problem: {many(len(with_problems), 'group')} cannot go on everywhere: kafkalog group "
            "describe says why",
            err=True,
        )
    exit_if(with_problems)


def groups(paths: _Paths, group: _Groups = None, as_json: Json = False) -> None:
    """Show consumer groups: their members, their positions, and how far they are behind.

    `kafkalog group reset` sets one elsewhere, `kafkalog group delete` forgets one.
    """
    with one_line_errors():
        from kafkalog.jobs.inspection.groups import list_groups  # noqa: PLC0415

        rows = list_groups(paths, group or ())
    print_rows(rows if as_json else _shown(rows), as_json=as_json, spare=_SPARE)
    if not rows and not as_json:
        print_line(_NO_GROUP, err=True)
    problems = [row for row in rows if row["problem"]]
    end_with(
        [
            f"{row['group']} in {row['topic']}-{row['partition']}: {row['problem']}"
            for row in problems
        ],
        as_json=as_json,
    )


_NO_GROUP: Final = "no consumer group has members or positions here"


def _without_empty(rows: list[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Leave out columns that say something in no row."""
    empty = {name for name in names if not any(row[name] for row in rows)}
    return [{name: row[name] for name in row if name not in empty} for row in rows]


def _shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out of a table what no row has, the next record's time, and problems.

    These are sentences, and stand below it.
    """
    names = {name for row in rows for name, value in row.items() if value is not None}
    names -= {"nextTimestamp", "problem"}
    return [{name: row[name] for name in row if name in names} for row in rows]


def reset_group(  # noqa: PLR0917 - what the command line offers
    paths: Paths,
    group: _Group,
    to: _To = None,
    offsets: _Offsets = None,
    topic: _Topics = None,
    allow_broker: ALLOW_BROKER = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Let a group go on elsewhere: at the start, the end, a time, or at offsets."""
    with one_line_errors():
        from kafkalog.streaming.groups.administration import reset_group as act  # noqa: PLC0415

        topics = split_names(topic or ())
        reset = partial(act, topics=topics, allows_broker=allow_broker)
        target = _target(to, offsets)
        done = act_if_agreed(
            lambda plans: reset(paths, group, target, dry_run=plans),
            lambda plan: _lost_by("set", group, plan),
            paths,
            yes=yes,
            dry_run=dry_run,
        )
    _report(group, done, as_json=as_json, dry_run=dry_run)


def delete_group(
    paths: Paths,
    group: _Group,
    allow_broker: ALLOW_BROKER = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Forget a group, with all of its positions."""
    with one_line_errors():
        from kafkalog.streaming.groups.administration import delete_group as act  # noqa: PLC0415

        done = act_if_agreed(
            lambda plans: act(paths, group, allows_broker=allow_broker, dry_run=plans),
            lambda plan: _lost_by("forget", group, plan),
            paths,
            yes=yes,
            dry_run=dry_run,
        )
    _report(group, done, as_json=as_json, dry_run=dry_run)


def _lost_by(verb: str, group: str, plan: Sequence[Changed]) -> Loss | None:
    changed = [each for each in plan if each.before != each.after]
    details = [
        f"  {each.partition}: from {_place(each.before)} to {_place(each.after)}"
        for each in changed
    ]
    count = many(len(changed), "position")
    return Loss(f"{verb} {count} of group {group}", details=details) if changed else None


def _place(offset: int | None) -> str:
    return "nowhere" if offset is None else f"{offset:,}"


_LEAST_TIME_MS: Final = 10**9
"""Below it, a number is more likely an offset than the milliseconds of a time."""


def _target(to: str | None, offsets: str | None) -> str | int | dict[TopicPartition, int]:
    from kafkalog.errors import OptionError  # noqa: PLC0415
    from kafkalog.streaming.groups.administration import EARLIEST, LATEST  # noqa: PLC0415
    from kafkalog.streaming.source.offsets import meant_by, parse_partition_longs  # noqa: PLC0415

    if (to is None) == (offsets is None):
        raise OptionError("say where the group goes: either --to or --offsets")
    if offsets is not None:
        return dict(parse_partition_longs("offsets", offsets, 0))
    if to in {EARLIEST, LATEST}:
        return to
    meant = meant_by(to or "")
    if meant is not None:
        raise OptionError(f"--to is {to!r}: did you mean {meant}?")
    time = point_in_time("--to", to or "")
    if to is not None and to.strip().isdecimal() and time < _LEAST_TIME_MS:
        raise OptionError(
            f"--to is {to}, a time in the first days of 1970. If it is an offset, name the "
            f'partition too: --offsets \'{{"t":{{"0":{to.strip()}}}}}\''
        )
    return time


def _report(group: str, done: Sequence[Changed], *, as_json: bool, dry_run: bool) -> None:
    rows = [
        {
            "group": group,
            **each.partition._asdict(),
            "offsetBefore": each.before,
            "offset": each.after,
        }
        for each in done
    ]
    if as_json:
        rows = [{"dryRun": dry_run, **row} for row in rows]
    else:
        tell_dry_run(dry_run=dry_run)
    print_rows(rows, as_json=as_json)


# ----------------------------------------------------------------------------------------------
# The command that shows how far readers are behind: ``lag``.


Host = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0: for other machines too.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any that is free.")]
Group = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        "-g",
        help="This consumer group; may be repeated. Default: all, if nothing is named.",
    ),
]
Checkpoint = Annotated[
    list[str] | None,
    typer.Option(help="The checkpoint folder of a Spark query, or of replay; may be repeated."),
]
Offsets = Annotated[str | None, typer.Option(help='Offsets as a query prints them: {"t":{"0":5}}.')]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")]
MetricsFormat = Annotated[
    Form | None,
    typer.Option(
        "--format", "-f", metavar="FORM", help="As --output; prometheus: all metrics of the log."
    ),
]
Every = Annotated[
    str, typer.Option(metavar="TIME", help="With --watch: how long between two looks.")
]


_DAY_MS: Final = 86_400_000


@with_tier
def lag(  # noqa: PLR0917 - what the command line offers
    paths: Paths,
    group: Group = None,
    checkpoint: Checkpoint = None,
    offsets: Offsets = None,
    topic: Topics = None,
    watch: Watch = False,
    every: Every = "2s",
    metrics_format: MetricsFormat = None,  # noqa: ARG001 - the class of all commands reads it
    as_json: Json = False,
    tier: Tier = NO_TIER,
) -> None:
    """Show how far groups and queries are behind: in offsets, in bytes, and in time."""
    with one_line_errors():
        from kafkalog.jobs.inspection.lag import LagMeter, LagTargets  # noqa: PLC0415

        paths = tier.below(paths)
        named = LagTargets(group or (), checkpoint or (), offsets)
        rest_ms = milliseconds("--every", every, minimum=100, maximum=_DAY_MS)
        if printing().form is Form.PROMETHEUS:
            _print_metrics(paths, named, select_topics(topic))
            return
        meter = LagMeter(paths, named, select_topics(topic))
        if watch:
            _show_for_ever(meter, rest_ms / 1000, as_json=as_json)
        rows = meter.look()
    print_rows(rows if as_json else _without_times(rows), as_json=as_json)
    if not rows:
        print_line(f"no position is known in topic {select_topics(topic)}", err=True)
    exit_if(row["lag"] is None for row in rows)


def _print_metrics(paths: Sequence[str], named: LagTargets, topics: TopicSelection) -> None:
    """Print what Prometheus reads: for the textfile collector of its node exporter."""
    from kafkalog.jobs.inspection.metrics import LogMetrics  # noqa: PLC0415
    from kafkalog.texts import metrics_text  # noqa: PLC0415

    typer.echo(metrics_text(LogMetrics(paths, named, topics).collect()), nl=False)


@with_tier
def serve_metrics(
    paths: Paths,
    group: Group = None,
    checkpoint: Checkpoint = None,
    topic: Topics = None,
    host: Host = "127.0.0.1",
    port: Port = 9308,
    tier: Tier = NO_TIER,
) -> None:
    """Serve metrics of a log to Prometheus, until Ctrl-C: lag, sizes, ages, writers, disks."""
    with one_line_errors():
        from kafkalog.jobs.inspection.lag import LagTargets  # noqa: PLC0415
        from kafkalog.jobs.inspection.metrics import LogMetrics, serve  # noqa: PLC0415

        named = LagTargets(group or (), checkpoint or ())
        metrics = LogMetrics(tier.below(paths), named, select_topics(topic))
        metrics.collect()  # what is wrong with the paths is said here
        server, thread = serve(metrics, host, port)
        shown = f"[{host}]" if ":" in host else host
        print_line(f"metrics: http://{shown}:{server.server_port}/metrics", err=True)
        try:
            thread.join()
        finally:
            server.shutdown()
            server.server_close()


def _show_for_ever(meter: LagMeter, rest_s: float, *, as_json: bool) -> None:
    """Show a table that changes in its place or, where it is read on, the rows of each look."""
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from kafkalog.files.system import system  # noqa: PLC0415
    from kafkalog.jobs.cli.output import (  # noqa: PLC0415
        Lines,
        each_message_once,
        lines_of,
    )
    from kafkalog.streaming.options.quantities import shown_time  # noqa: PLC0415

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
                system.sleep(rest_s)
        with Live(console=console, auto_refresh=False) as live:
            while True:
                told = lines_of(_without_times(meter.look()), width=console.width)
                live.update(Text("\n".join(told)), refresh=True)
                system.sleep(rest_s)


def _without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out when the next record was written: a table says how long ago that was."""
    return [{name: row[name] for name in row if name != "nextTimestamp"} for row in rows]
