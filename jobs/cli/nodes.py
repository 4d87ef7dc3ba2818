"""The commands about the nodes of a set: ``replicas``, ``elect``, ``reassign``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kafkalog.errors import OptionError
from kafkalog.jobs.cli.arguments import (  # noqa: TC001 - typer reads them  # noqa: TC001 - typer reads annotations
    DryRun,
    Json,
    Paths,
    TopicName,
)
from kafkalog.jobs.cli.output import (
    PROBLEM,
    exit_if,
    one_line_errors,
    print_rows,
    standard_input,
    tell_dry_run,
    tell_if_nothing,
)
from kafkalog.jobs.process.running import print_line

if TYPE_CHECKING:
    from kafkalog.streaming.admin.nodes.elect import Elected
    from kafkalog.streaming.admin.nodes.reassign import Move, Moving
    from kafkalog.streaming.admin.nodes.replicas import NodeView, ReplicasView
    from kafkalog.streaming.admin.nodes.voters import ChangedVoters


__all__ = ["elect", "reassign", "replica_row", "replicas"]


# ----------------------------------------------------------------------------------------------
# The command ``replicas``: who leads, who is in sync, and which nodes are there.


def replicas(paths: Paths, topic: TopicName = None, as_json: Json = False) -> None:
    """Show the replicas of each partition of a set of several nodes; 1 if any is not in sync."""
    with one_line_errors():
        from kafkalog.streaming.admin.nodes.replicas import inspect_replicas  # noqa: PLC0415

        found = inspect_replicas(paths, topic)
    rows = [replica_row(each) for each in found.partitions]
    if not as_json:  # what is rare is a column where it is so
        rare = [n for n in ("adding", "removing", "missing") if not any(row[n] for row in rows)]
        rows = [{name: row[name] for name in row if name not in rare} for row in rows]
    print_rows(rows, as_json=as_json, has_units=False)
    if not as_json:
        for node in found.nodes:
            print_line(_node_line(node))
    for problem in found.problems:
        print_line(f"problem: {problem}", err=True)
    bad = [each for each in found.partitions if each.is_under_replicated or each.is_offline]
    exit_if([*bad, *found.problems, *(node.missing for node in found.nodes)])


def replica_row(each: ReplicasView) -> dict[str, Any]:
    """Return what is shown of a partition; ``missing`` says why nodes of it are not there."""
    return {
        "topic": each.key.topic,
        "partition": each.key.partition,
        "leader": each.leader,
        "replicas": list(each.replicas),
        "isr": list(each.isr),
        "leaderEpoch": each.leader_epoch,
        "highWatermark": each.high_watermark,
        "logEndOffsets": {str(node): end for node, end in each.log_ends.items()},
        "adding": list(each.adding),
        "removing": list(each.removing),
        "missing": {str(node): why for node, why in each.missing.items()},
    }


def _node_line(node: NodeView) -> str:
    kind = "witness" if node.is_witness else "node"
    if node.missing:
        return f"{kind} {node.node} is not there: {node.missing}"
    return f"{kind} {node.node}: {', '.join(map(str, node.directories))}"


# ----------------------------------------------------------------------------------------------
# The command ``elect``: leaders of a set of several nodes, because a person asks for it.


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
        from kafkalog.streaming.admin.nodes.elect import (  # noqa: PLC0415
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


# ----------------------------------------------------------------------------------------------
# The command ``reassign``: other nodes for partitions, and other nodes for a set.


Plan = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Kafka's JSON: which partitions on which nodes; - reads it."),
]
Partition = Annotated[int | None, typer.Option(min=0, help="This partition only.")]
To = Annotated[str | None, typer.Option(metavar="NODES", help="Nodes for the topic, such as 0,2.")]
Dir = Annotated[
    str | None, typer.Option("--to-dir", metavar="DIR", help="Another log directory of their node.")
]
Throttle = Annotated[
    int | None, typer.Option(min=0, metavar="BYTES", help="Copy so much a second; 0 for all.")
]
Verify = Annotated[bool, typer.Option("--verify", help="Only say how far it is.")]
Cancel = Annotated[bool, typer.Option("--cancel", help="Let what moves stay where it was.")]
Replace = Annotated[
    str | None,
    typer.Option(metavar="OLD=NEW", help="Put an empty node in the place of another one."),
]
Add = Annotated[str | None, typer.Option(metavar="NODE", help="Take an empty node into the set.")]


def reassign(  # noqa: PLR0917 - what the command line offers
    paths: Paths,
    plan: Plan = None,
    topic: TopicName = None,
    partition: Partition = None,
    to: To = None,
    to_dir: Dir = None,
    throttle: Throttle = None,
    verify: Verify = False,
    cancel: Cancel = False,
    replace: Replace = None,
    add: Add = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Move partitions between nodes, or go on with that; or change the nodes of a set."""
    given = [each is not None for each in (plan, to, to_dir, replace, add)]
    if sum(given) + cancel > 1 or (cancel and verify):
        raise typer.BadParameter("say one of --plan, --to, --to-dir, --cancel, --replace, --add")
    if (to is None and to_dir is None) != (topic is None) or (partition is not None and not topic):
        raise typer.BadParameter("--topic, and --partition, go with --to or --to-dir")
    if (replace or add) and (verify or throttle is not None):
        raise typer.BadParameter("--verify and --throttle are for partitions that move")
    if replace is not None or add is not None:
        _change_nodes(paths, replace, add, dry_run=dry_run, as_json=as_json)
    elif topic is not None and to_dir is not None:
        if verify:
            raise typer.BadParameter("--verify is for partitions that move between nodes")
        _move_folders(
            paths, topic, to_dir, partition, throttle or 0, dry_run=dry_run, as_json=as_json
        )
    else:
        moves = _moves(paths, plan, topic, partition, to)
        _move(
            paths, moves, throttle, verify=verify, cancel=cancel, dry_run=dry_run, as_json=as_json
        )


def _move(
    paths: list[str],
    moves: list[Move],
    throttle: int | None,
    *,
    verify: bool,
    cancel: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    with one_line_errors():
        from kafkalog.streaming.admin.nodes import move_folders, reassign  # noqa: PLC0415

        move_folders.check_places(paths, moves)
        if verify:
            found = reassign.inspect_moves(paths, moves)
        elif cancel:
            found = reassign.cancel_moves(paths, dry_run=dry_run)
        else:
            found = reassign.reassign(paths, moves, rate=throttle, dry_run=dry_run)
            if all(each.is_done for each in found) and not dry_run:
                move_folders.move_planned(paths, moves, rate=throttle or 0)
    if not as_json:
        tell_dry_run(dry_run=dry_run)
    print_rows([_moving_row(each) for each in found], as_json=as_json, has_units=False)
    tell_if_nothing(found, "no partition moves between nodes")
    if not dry_run:
        exit_if(not each.is_done for each in found)


def _move_folders(
    paths: list[str],
    topic: str,
    target: str,
    partition: int | None,
    rate: int,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    with one_line_errors():
        from kafkalog.streaming.admin.nodes.move_folders import move_folders  # noqa: PLC0415

        moved = move_folders(paths, topic, target, partition, rate=rate, dry_run=dry_run)
    if not as_json:
        tell_dry_run(dry_run=dry_run)
    rows = [
        {
            "topic": each.key.topic,
            "partition": each.key.partition,
            "from": str(each.log_dir),
            "to": str(each.target),
        }
        for each in moved
    ]
    print_rows(rows, as_json=as_json, has_units=False)
    tell_if_nothing(rows, f"nothing is moved: all of it lies in {target} already")


def _moves(
    paths: list[str], plan: str | None, topic: str | None, partition: int | None, to: str | None
) -> list[Move]:
    from kafkalog.streaming.admin.nodes.reassign import (  # noqa: PLC0415
        known_state,
        moves_of_topic,
        parse_plan,
    )

    with one_line_errors():
        if plan is not None:
            return parse_plan(standard_input().read() if plan == "-" else _text_of(plan))
        if topic is None or to is None:
            return []
        try:
            nodes = [int(each) for each in to.split(",")]
        except ValueError:
            raise OptionError(f"--to {to!r}: expected the ids of nodes, such as 0,2") from None
        return moves_of_topic(known_state(paths), topic, partition, nodes)


def _text_of(plan: str) -> str:
    try:
        return Path(plan).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise OptionError(f"--plan names {plan}, which is no plan: it is no text") from None
    except OSError as error:
        raise OptionError(
            f"--plan names {plan}, which cannot be read: {error.strerror}; - reads standard input"
        ) from None


def _moving_row(each: Moving) -> dict[str, Any]:
    return {
        "topic": each.key.topic,
        "partition": each.key.partition,
        "replicas": list(each.replicas),
        "adding": list(each.adding),
        "removing": list(each.removing),
        "isr": list(each.isr),
        "done": each.is_done,
    }


def _change_nodes(
    paths: list[str], replace: str | None, add: str | None, *, dry_run: bool, as_json: bool
) -> None:
    with one_line_errors():
        from kafkalog.streaming.admin.nodes.voters import add_node, replace_node  # noqa: PLC0415

        if add is not None:
            done = add_node(paths, add, dry_run=dry_run)
        else:
            old, new = _pair(replace or "")
            done = replace_node(paths, old, new, dry_run=dry_run)
    row = _node_row(done)
    if not as_json:
        tell_dry_run(dry_run=dry_run)
        # What is rare is a column where it is so.
        row = {name: value for name, value in row.items() if value is not False}
    print_rows([row], as_json=as_json, has_units=False)
    if not as_json and not dry_run:
        sys.stdout.flush()
        print_line(_advice(done), err=True)


def _pair(text: str) -> tuple[str, str]:
    old, separator, new = text.partition("=")
    if not separator or not old or not new:
        raise typer.BadParameter(f"{text!r} is not of the form OLD=NEW", param_hint="--replace")
    return old, new


def _node_row(done: ChangedVoters) -> dict[str, Any]:
    return {
        "node": done.node,
        "directories": [str(folder) for folder in done.directories],
        "witness": done.is_witness,
        "replaces": done.replaces,
        "replicas": done.replicas,
        "wasThere": done.was_there,
    }


def _advice(done: ChangedVoters) -> str:
    """Say what a person has to do next."""
    name = ",".join(map(str, done.directories))
    name = f"witness:{name}" if done.is_witness else name
    text = f"name {name} in the path of each query from now on"
    if done.replaces is not None:
        old = f"node {done.replaces}"
        return (
            f"{text}, and {old} no more. Its replicas are brought in sync by the next commits, or "
            "by kafkalog recover"
        )
    return text if done.is_witness else f"{text}. No partition moves to it by itself"
