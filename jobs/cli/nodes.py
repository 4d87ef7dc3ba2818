"""The commands about the nodes of a set: ``node list``, ``elect``, ``reassign``, ``vote``."""

from __future__ import annotations

import sys
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kafkalog.errors import OptionError
from kafkalog.jobs.cli.arguments import (  # noqa: TC001 - typer reads them
    DryRun,
    Json,
    Partition,
    Paths,
    TopicName,
    Topics,
)
from kafkalog.jobs.cli.output import (
    Loss,
    Yes,
    act_if_agreed,
    ask,
    exit_if,
    one_line_errors,
    print_list,
    print_rows,
    standard_input,
    tell_dry_run,
    tell_if_nothing,
)
from kafkalog.jobs.process.arguments import select_topics
from kafkalog.jobs.process.running import print_line

if TYPE_CHECKING:
    from kafkalog.streaming.admin.nodes.elect import Elected
    from kafkalog.streaming.admin.nodes.reassign import Move, Moving
    from kafkalog.streaming.admin.nodes.replicas import NodeView, ReplicasView
    from kafkalog.streaming.admin.nodes.voters import ChangedVoters


__all__ = ["elect", "reassign", "replica_row", "replicas", "vote"]


# ----------------------------------------------------------------------------------------------
# The command ``node list``: who leads, who is in sync, and which nodes are there.


def replicas(paths: Paths, topic: Topics = None, as_json: Json = False) -> None:
    """Show the replicas of each partition of a set of several nodes; 1 if any is not in sync."""
    with one_line_errors():
        from kafkalog.streaming.admin.nodes.replicas import inspect_replicas  # noqa: PLC0415

        found = inspect_replicas(paths, select_topics(topic))
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
        **each.key._asdict(),
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
# The command ``node elect``: leaders of a set of several nodes, because a person asks for it.


def _agree_to_loss(paths: list[str], done: list[Elected], *, yes: bool) -> None:
    if yes:
        print_list(_lost_by(done).details, "that lose records", err=True)
    else:  # of a script, too: nothing brings back what is lost
        ask(paths, _lost_by(done))


def elect(
    paths: Paths,
    preferred: Annotated[
        bool, typer.Option("--preferred", help="Elect the preferred replica if it is in sync.")
    ] = False,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="One that lacks records, if none in sync is left.")
    ] = False,
    topic: TopicName = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="This partition only.")
    ] = None,
    yes: Yes = False,
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
                _agree_to_loss(paths, done, yes=yes)
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


def _lost_by(would: list[Elected]) -> Loss:
    """Return what an unclean election loses."""
    details = [
        f"{each.key}: node {each.leader} would lead. Lost would be offsets [{each.end}, "
        f"{each.end_before}), which were acknowledged, and are not written again"
        for each in would
    ]
    keys = [each.key for each in would]
    return Loss("lose records", keys, details=details, question="Lose them?", without="loses them")


def _row(each: Elected) -> dict[str, Any]:
    return {
        **each.key._asdict(),
        "leaderBefore": each.leader_before,
        "leader": each.leader,
        "leaderEpoch": each.leader_epoch,
        "lostFrom": each.end,
        "lostTo": each.end_before,
    }


# ----------------------------------------------------------------------------------------------
# ``node reassign`` and ``node vote``: other nodes for partitions, and other nodes for a set.


Plan = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Kafka's JSON: which partitions on which nodes; - reads it."),
]
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
    yes: Yes = False,
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
        _change_nodes(paths, replace, add, yes=yes, dry_run=dry_run, as_json=as_json)
    elif topic is not None and to_dir is not None:
        if verify:
            raise typer.BadParameter("--verify is for partitions that move between nodes")
        _move_folders(
            paths, topic, to_dir, partition, throttle or 0, dry_run=dry_run, as_json=as_json
        )
    else:
        moves = _moves(paths, plan, topic, partition, to)
        way = _Way.VERIFY if verify else _Way.CANCEL if cancel else _Way.MOVE
        _move(paths, moves, throttle, way, yes=yes, dry_run=dry_run, as_json=as_json)


class _Way(Enum):
    """What is done about partitions that move."""

    MOVE = auto()
    VERIFY = auto()
    CANCEL = auto()


def _replicas_that_go(plan: list[Moving]) -> Loss | None:
    going = [each for each in plan if each.removing and not each.is_done]
    details = [
        f"  {each.key}: gone from node {', '.join(map(str, each.removing))} when it is in sync on "
        f"{', '.join(map(str, each.replicas))}"
        for each in going
    ]
    keys = [each.key for each in going]
    return Loss("move replicas", keys, details=details) if going else None


def _move(
    paths: list[str],
    moves: list[Move],
    throttle: int | None,
    way: _Way,
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    with one_line_errors():
        from kafkalog.streaming.admin.nodes import reassign  # noqa: PLC0415

        reassign.check_places(paths, moves)
        if way is _Way.VERIFY:
            found = reassign.inspect_moves(paths, moves)
        elif way is _Way.CANCEL:
            found = reassign.cancel_moves(paths, dry_run=dry_run)
        else:
            found = act_if_agreed(
                lambda plans: reassign.reassign(paths, moves, rate=throttle, dry_run=plans),
                _replicas_that_go,
                paths,
                yes=yes,
                dry_run=dry_run,
            )
            if all(each.is_done for each in found) and not dry_run:
                reassign.move_planned(paths, moves, rate=throttle or 0)
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
        from kafkalog.streaming.admin.nodes.reassign import move_folders  # noqa: PLC0415

        moved = move_folders(paths, topic, target, partition, rate=rate, dry_run=dry_run)
    if not as_json:
        tell_dry_run(dry_run=dry_run)
    rows = [
        {
            **each.key._asdict(),
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
        **each.key._asdict(),
        "replicas": list(each.replicas),
        "adding": list(each.adding),
        "removing": list(each.removing),
        "isr": list(each.isr),
        "done": each.is_done,
    }


def vote(
    paths: Paths,
    replace: Replace = None,
    add: Add = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Change the nodes of a set, which vote on its state: put one in another's place, or add it."""
    if (replace is None) == (add is None):
        raise typer.BadParameter("say either --replace or --add")
    _change_nodes(paths, replace, add, yes=yes, dry_run=dry_run, as_json=as_json)


def _change_nodes(
    paths: list[str],
    replace: str | None,
    add: str | None,
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    with one_line_errors():
        from kafkalog.streaming.admin.nodes.voters import add_node, replace_node  # noqa: PLC0415

        if add is not None:
            done = add_node(paths, add, dry_run=dry_run)
        else:
            old, new = _pair(replace or "")
            done = act_if_agreed(
                lambda plans: replace_node(paths, old, new, dry_run=plans),
                lambda plan: Loss(f"give up node {plan.replaces}: {new} takes its place"),
                paths,
                yes=yes,
                dry_run=dry_run,
            )
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
