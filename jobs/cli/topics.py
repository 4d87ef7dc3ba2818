"""The commands about topics: show, count, create, alter, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from kafkalog.jobs.cli.arguments import (  # noqa: TC001 - typer reads them  # noqa: TC001 - typer reads annotations
    DryRun,
    Json,
    Paths,
    Topic,
    TopicName,
)
from kafkalog.jobs.cli.output import (
    exit_if,
    one_line_errors,
    print_rows,
    progress_bar,
    tell_dry_run,
    tell_if_nothing,
)
from kafkalog.jobs.inspection.units import shown_place
from kafkalog.jobs.process.arguments import ALLOW_BROKER, SETTINGS, pairs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkalog.streaming.admin.topics import Altered


__all__ = ["alter", "create", "delete", "describe", "offsets", "stats", "topics"]


# ----------------------------------------------------------------------------------------------
# The commands that show topics and partitions: ``topics``, ``describe``, ``offsets``.


def topics(paths: Paths, as_json: Json = False) -> None:
    """List topics with their ids, partitions and sizes."""
    with one_line_errors():
        from kafkalog.jobs.inspection.topics import list_topics  # noqa: PLC0415

        rows = list_topics(paths)
    print_rows(rows, as_json=as_json)


def describe(paths: Paths, topic: TopicName = None, as_json: Json = False) -> None:
    """Show partitions: where they lie, their offsets, segments, sizes and settings."""
    with one_line_errors():
        from kafkalog.jobs.inspection.topics import describe_partitions  # noqa: PLC0415

        rows = describe_partitions(paths, topic)
    print_rows(rows, as_json=as_json, spare=("topicId", "retention", "unfinished", "segments"))


def offsets(paths: Paths, topic: TopicName = None, as_json: Json = False) -> None:
    """Show the first and the committed end offset of each partition."""
    with one_line_errors():
        from kafkalog.jobs.inspection.topics import list_offsets  # noqa: PLC0415

        rows = list_offsets(paths, topic)
    print_rows(rows, as_json=as_json)
    exit_if(row["missing"] for row in rows)


# ----------------------------------------------------------------------------------------------
# The commands that change topics: ``create``, ``alter``, ``delete``.


_MOST_PARTITIONS: Final = 100_000
"""More than any log directory is meant for: a typing error, which would fill the disk's table."""

_Config = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE", help="A topic setting, such as retention.ms; may be repeated."
    ),
]


def create(
    paths: Paths,
    topic: Topic,
    partitions: Annotated[
        int, typer.Option(min=1, max=_MOST_PARTITIONS, help="How many partitions it gets.")
    ] = 1,
    config: _Config = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(min=1, help="How many nodes get it, of a set of several. Up to 3 without."),
    ] = None,
    allow_broker: ALLOW_BROKER = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Create a topic with empty partitions."""
    settings = pairs(config)
    with one_line_errors():
        from kafkalog.jobs.inspection.log_dirs import check_no_new_beside_old  # noqa: PLC0415
        from kafkalog.streaming.admin.topics import create as act  # noqa: PLC0415

        check_no_new_beside_old(paths)
        done = act(
            paths,
            topic,
            partitions=partitions,
            config=settings,
            replication_factor=replication_factor,
            allows_broker=allow_broker,
            dry_run=dry_run,
        )
    _report(done, as_json=as_json, dry_run=dry_run)


def alter(
    paths: Paths,
    topic: Topic,
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_MOST_PARTITIONS,
            help="How many partitions it has after that: no fewer.",
        ),
    ] = None,
    config: _Config = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A setting to take away; may be repeated."),
    ] = None,
    allow_broker: ALLOW_BROKER = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Give a topic more partitions, or other settings."""
    settings = pairs(config)
    if partitions is None and not settings and not delete_config:
        raise typer.BadParameter("say what to change: --partitions, --config or --delete-config")
    with one_line_errors():
        from kafkalog.streaming.admin.topics import alter as act  # noqa: PLC0415

        done = act(
            paths,
            topic,
            partitions=partitions,
            config=settings,
            unset=delete_config or (),
            allows_broker=allow_broker,
            dry_run=dry_run,
        )
    _report(done, as_json=as_json, dry_run=dry_run)
    changes = done.partitions_before != done.partitions or done.settings_before != done.settings
    tell_if_nothing(changes, f"nothing is changed: {topic} has all of that already")


def delete(
    paths: Paths,
    topic: Topic,
    allow_broker: ALLOW_BROKER = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Delete a topic with all of its records."""
    with one_line_errors():
        from kafkalog.streaming.admin.topics import delete as act  # noqa: PLC0415

        done = act(paths, topic, allows_broker=allow_broker, dry_run=dry_run)
    row: dict[str, object] = {
        "topic": done.topic,
        "partitions": len(done.folders),
        "bytes": done.bytes,
    }
    if as_json:
        row["paths"] = list(map(str, done.folders))
    else:
        row["directories"] = sorted({shown_place(str(each.parent)) for each in done.folders})
    _print(row, done.set_id, as_json=as_json, dry_run=dry_run)


def _report(done: Altered, *, as_json: bool, dry_run: bool) -> None:
    row = {
        "topic": done.topic,
        "partitionsBefore": done.partitions_before,
        "partitions": done.partitions,
        "settingsBefore": dict(done.settings_before),
        "settings": dict(done.settings),
    }
    _print(row, done.set_id, as_json=as_json, dry_run=dry_run)


def _print(row: Mapping[str, object], set_id: str, *, as_json: bool, dry_run: bool) -> None:
    if as_json:
        row = {"dryRun": dry_run, "set": set_id or None, **row}
    else:
        tell_dry_run(dry_run=dry_run)
    print_rows([row], as_json=as_json)


# ----------------------------------------------------------------------------------------------
# The command that counts what is in topics: ``stats``.


_SPARE: Final = (
    "bytesPerBatch",
    "recordsPerBatch",
    "producers",
    "markers",
    "firstTimestamp",
    "codecs",
    "batches",
)


def stats(
    paths: Paths, topic: TopicName = None, settings: SETTINGS = None, as_json: Json = False
) -> None:
    """Count records, batches and bytes of each partition; when, by whom, how compressed."""
    with one_line_errors(), progress_bar() as told:
        from kafkalog.jobs.inspection.figures import count_partitions  # noqa: PLC0415

        rows = count_partitions(paths, topic, pairs(settings), told)
    print_rows(rows, as_json=as_json, spare=_SPARE)
