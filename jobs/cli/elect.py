"""The command ``elect``: leaders of a set of several nodes, because a person asks for it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kafkalog.jobs.cli.arguments import (  # noqa: TC001 - typer reads annotations
    DryRun,
    Json,
    Paths,
    TopicName,
)
from kafkalog.jobs.cli.output import (
    PROBLEM,
    one_line_errors,
    print_rows,
    tell_dry_run,
    tell_if_nothing,
)
from kafkalog.jobs.running import print_line

if TYPE_CHECKING:
    from kafkalog.streaming.operate.elect import Elected

__all__ = ["elect"]


def elect(
    paths: Paths,
    preferred: Annotated[
        bool, typer.Option("--preferred", help="The first replica of each that is in sync.")
    ] = False,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="One that lacks records, if none in sync is left.")
    ] = False,
    topic: TopicName = None,
    partition: Annotated[int | None, typer.Option(min=0, help="This partition only.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Lose what is lost without asking.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Elect leaders again: preferred ones, or unclean ones, which loses records."""
    if preferred == unclean:
        raise typer.BadParameter("say either --preferred or --unclean")
    if unclean and topic is None:
        raise typer.BadParameter("--unclean goes with --topic")
    if preferred and (topic, partition) != (None, None):
        raise typer.BadParameter("--preferred is for all topics")
    with one_line_errors():
        from kafkalog.streaming.operate.elect import (  # noqa: PLC0415
            elect_preferred,
            elect_unclean,
        )

        if topic is None:
            done = elect_preferred(paths, dry_run=dry_run)
        else:
            done = elect_unclean(paths, topic, partition, dry_run=True)
            if done and not dry_run:
                _ask(done, yes=yes)
                done = elect_unclean(paths, topic, partition)
    if not as_json:
        tell_dry_run(dry_run=dry_run)
    print_rows([_row(each) for each in done], as_json=as_json, has_units=False)
    tell_if_nothing(done, _nothing(topic, partition))


def _nothing(topic: str | None, partition: int | None) -> str:
    if topic is None:
        return "nothing is elected: all that can be led by their preferred replicas are"
    name = f"each partition of {topic}" if partition is None else f"{topic}-{partition}"
    return f"nothing is elected: {name} has a leader, or a replica in sync that can lead"


def _ask(would: list[Elected], *, yes: bool) -> None:
    """Say what would be lost, and end unless that is wanted."""
    for each in would:
        print_line(
            f"{each.key}: node {each.leader} would lead. Lost would be offsets [{each.end}, "
            f"{each.end_before}), which were acknowledged, and are not written again",
            err=True,
        )
    if not yes and not _agreed():
        print_line("nothing was changed: --yes loses them without asking", err=True)
        raise typer.Exit(PROBLEM)


def _agreed() -> bool:
    """Ask; that nobody is there who could answer, as under cron, is a no."""
    try:
        return sys.stdin is not None and typer.confirm("Lose them?", err=True)
    except typer.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise
        typer.echo("", err=True)  # the question's line has no end yet
        return False


def _row(each: Elected) -> dict[str, Any]:
    return {
        "topic": each.key.topic,
        "partition": each.key.partition,
        "leaderBefore": each.leader_before,
        "leader": each.leader,
        "leaderEpoch": each.leader_epoch,
        "lostFrom": each.end,
        "lostTo": each.end_before,
    }
