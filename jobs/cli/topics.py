"""The commands about topics: show, count, create, alter, delete."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kafkalog.jobs.cli.arguments import (
    NO_TIER,
    DryRun,
    Json,
    Paths,
    Tier,
    Topic,
    Topics,
    with_tier,
)
from kafkalog.jobs.cli.output import (
    Loss,
    Yes,
    act_if_agreed,
    exit_if,
    one_line_errors,
    print_rows,
    progress_bar,
    tell_dry_run,
    tell_if_nothing,
)
from kafkalog.jobs.inspection.units import shown_place
from kafkalog.jobs.process.arguments import (
    ALLOW_BROKER,
    SETTINGS,
    given_settings,
    pairs,
    select_topics,
)
from kafkalog.jobs.process.running import print_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.admin.topics import Altered, Deleted


__all__ = ["alter", "create", "delete", "describe", "offsets", "stats", "tiers", "topics"]


# ----------------------------------------------------------------------------------------------
# The commands that show topics and partitions: ``topic list``, ``describe``, ``offsets``.


@with_tier
def topics(paths: Paths, as_json: Json = False, tier: Tier = NO_TIER) -> None:
    """List topics with their ids, partitions, and the bytes of their segments."""
    with one_line_errors():
        from kafkalog.jobs.inspection.topics import list_topics  # noqa: PLC0415

        rows = list_topics(tier.below(paths))
    if not as_json:  # `topic describe` has room for settings
        rows = [{name: row[name] for name in row if name != "settings"} for row in rows]
    print_rows(rows, as_json=as_json)


@with_tier
def describe(
    paths: Paths, topic: Topics = None, as_json: Json = False, tier: Tier = NO_TIER
) -> None:
    """Show partitions: where they lie, their offsets, segments, sizes and settings."""
    with one_line_errors():
        from kafkalog.jobs.inspection.topics import describe_partitions  # noqa: PLC0415

        there = tier.below(paths)
        rows = describe_partitions(there, select_topics(topic))
    print_rows(rows, as_json=as_json, spare=("topicId", "retention", "unfinished", "segments"))


@with_tier
def offsets(
    paths: Paths, topic: Topics = None, as_json: Json = False, tier: Tier = NO_TIER
) -> None:
    """Show the first and the committed end offset of each partition."""
    with one_line_errors():
        from kafkalog.jobs.inspection.topics import list_offsets  # noqa: PLC0415

        there = tier.below(paths)
        rows = list_offsets(there, select_topics(topic))
    print_rows(rows, as_json=as_json)
    exit_if(row["missing"] for row in rows)


@with_tier
def tiers(
    paths: Paths,
    topic: Topics = None,
    settings: SETTINGS = None,  # noqa: ARG001 - they are the tier's
    as_json: Json = False,
    tier: Tier = NO_TIER,
) -> None:
    """Show what lies in a remote tier, and in log directories: segments, orphans, gaps."""
    with one_line_errors():
        from kafkalog.jobs.inspection.tiers import list_tiers, tiered_paths  # noqa: PLC0415

        remote = tier.settings.get("remote.path")  # without it, the path is the tier
        there = tiered_paths(paths, remote, tier.settings)
        rows = list_tiers(there, select_topics(topic))
    shown = rows if as_json else [_shown_tier(row) for row in rows]
    spare = ("topicId", "path", "localSegments", "remoteStart", "remoteEnd", "localStart")
    print_rows(shown, as_json=as_json, spare=spare)
    tell_if_nothing(rows, "nothing of these topics is in the tier")
    exit_if(row["gaps"] for row in rows)


def _shown_tier(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with ranges of offsets as text: where the tier starts and ends is in them."""
    ranges = {name: row.get(name) or [] for name in ("onlyRemote", "both", "onlyLocal", "gaps")}
    texts = {
        name: ", ".join(f"[{start}, {end})" for start, end in some) or None
        for name, some in ranges.items()
    }
    return {**row, "orphans": len(row["orphans"]), **texts}


# ----------------------------------------------------------------------------------------------
# The commands that change topics: ``topic create``, ``alter``, ``delete``.


_MOST_PARTITIONS: Final = 100_000
"""More than any log directory is meant for: a typing error, which would fill the disk's table."""

_Config = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE", help="A topic setting, such as retention.ms=7d; may be repeated."
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
    settings = given_settings(config)
    with one_line_errors():
        from kafkalog.jobs.inspection import log_dirs  # noqa: PLC0415
        from kafkalog.streaming.admin.topics import create as act  # noqa: PLC0415

        log_dirs.check_no_new_beside_old(paths)
        new = log_dirs.new_folders(paths) if dry_run else []
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
    for folder in new:
        print_line(f"{shown_place(str(folder))} is not there, and would be made", err=True)


_PartitionsAfter = Annotated[
    int | None,
    typer.Option(
        min=1, max=_MOST_PARTITIONS, help="How many partitions it has after that: no fewer."
    ),
]
_Unset = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="A setting to take away; may be repeated."),
]


def alter(  # noqa: PLR0917 - what the command line offers
    paths: Paths,
    topic: Topic,
    partitions: _PartitionsAfter = None,
    config: _Config = None,
    delete_config: _Unset = None,
    allow_broker: ALLOW_BROKER = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Give a topic more partitions, or other settings."""
    settings = given_settings(config)
    if partitions is None and not settings and not delete_config:
        raise typer.BadParameter("say what to change: --partitions, --config or --delete-config")
    with one_line_errors():
        from kafkalog.streaming.admin.topics import alter as act  # noqa: PLC0415

        change = partial(
            act,
            paths,
            topic,
            partitions=partitions,
            config=settings,
            unset=delete_config or (),
            allows_broker=allow_broker,
        )
        done = act_if_agreed(
            lambda plans: change(dry_run=plans), _lost_by, paths, yes=yes, dry_run=dry_run
        )
    _report(done, as_json=as_json, dry_run=dry_run)
    changes = done.partitions_before != done.partitions or done.settings_before != done.settings
    tell_if_nothing(changes, f"nothing is changed: {topic} has all of that already")


def delete(
    paths: Paths,
    topic: Topic,
    allow_broker: ALLOW_BROKER = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Delete a topic with all of its records."""
    with one_line_errors():
        from kafkalog.streaming.admin.topics import delete as act  # noqa: PLC0415

        done = act_if_agreed(
            lambda plans: act(paths, topic, allows_broker=allow_broker, dry_run=plans),
            lambda plan: Loss(f"delete topic {topic}", _partitions(plan), plan.bytes),
            paths,
            yes=yes,
            dry_run=dry_run,
        )
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


def _partitions(plan: Deleted) -> list[TopicPartition]:
    from kafkalog.streaming.log.files import parse_partition_directory  # noqa: PLC0415

    keys = (parse_partition_directory(folder.name) for folder in plan.folders)
    return [key for key in keys if key is not None]


def _lost_by(plan: Altered) -> Loss | None:
    """Return what settings take away: other settings, or records that were kept until now."""
    before, after = plan.settings_before, plan.settings
    taken = (f"{name}={text}" for name, text in before.items() if name not in after)
    details = [f"  {setting} is taken away" for setting in taken]
    details += [
        f"  {name}={after[name]} instead of {before.get(name, 'no limit')}: older records go"
        for name in ("retention.ms", "retention.bytes")
        if name in after and _is_less(after[name], before.get(name))
    ]
    if "compact" in after.get("cleanup.policy", "") and "compact" not in before.get(
        "cleanup.policy", ""
    ):
        details.append("  cleanup.policy: only the newest record of each key is kept")
    return Loss(f"change topic {plan.topic}", details=details) if details else None


def _is_less(limit: str, before: str | None) -> bool:
    kept, kept_before = _limit(limit), _limit(before)
    return kept is not None and (kept_before is None or kept < kept_before)


def _limit(text: str | None) -> int | None:
    """Return a limit of retention; None for none."""
    with suppress(ValueError):  # what a broker has given
        return int(text or -1) if int(text or -1) >= 0 else None
    return None


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
# The command that counts what is in topics: ``topic stats``.


_SPARE: Final = (
    "bytesPerBatch",
    "recordsPerBatch",
    "producers",
    "markers",
    "firstTimestamp",
    "codecs",
    "batches",
)


@with_tier
def stats(
    paths: Paths,
    topic: Topics = None,
    settings: SETTINGS = None,
    as_json: Json = False,
    tier: Tier = NO_TIER,
) -> None:
    """Count what can be read of each partition: records, batches, bytes; when, how compressed."""
    with one_line_errors(), progress_bar() as told:
        from kafkalog.jobs.inspection.figures import count_partitions  # noqa: PLC0415

        there, given = tier.below(paths), pairs(settings)
        rows = count_partitions(there, select_topics(topic), given, told)
    print_rows(rows, as_json=as_json, spare=_SPARE)
