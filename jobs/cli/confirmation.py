"""Ask before something is destroyed: one rule for all commands.

Whoever sits at a terminal is told which topics and partitions it is about, how many bytes go, and
which consumer groups read there, as the plan of the command has it, and asked. ``--yes`` asks
nothing; ``--dry-run`` shows the plan. Where nobody can answer, as in a script, nothing is asked.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, NamedTuple, TextIO, TypeVar, cast

import typer

from kafkalog.jobs.cli.output import PROBLEM, print_list
from kafkalog.jobs.inspection.units import shown_size
from kafkalog.jobs.process.running import print_line
from kafkalog.model import listed, many

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from kafkalog.model import TopicPartition

__all__ = ["Loss", "Yes", "act_if_agreed", "ask"]

Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]

PlanT = TypeVar("PlanT")


class Loss(NamedTuple):
    """What a plan destroys: ``what`` ends the sentence that says what would be done.

    ``bytes`` is None where no records go; ``details`` are lines of their own. ``question`` and
    ``without`` say what a yes does, and what ``--yes`` does.
    """

    what: str
    partitions: Collection[TopicPartition] = ()
    bytes: int | None = None
    details: Sequence[str] = ()
    question: str = "Go on?"
    without: str = "does it"


def act_if_agreed(
    act: Callable[[bool], PlanT],
    loss_of: Callable[[PlanT], Loss | None],
    paths: Sequence[str],
    *,
    yes: bool,
    dry_run: bool,
) -> PlanT:
    """Do what ``act`` does, after a person at a terminal has seen the plan of it and agreed.

    Args:
        act: is called with whether it only plans. What it does then it plans anew, under the locks:
            a plan that the answer has made stale is never applied.
        loss_of: what a plan destroys; None for nothing, which is done without a question.
        paths: the log directories.
        yes: whether to ask nobody.
        dry_run: whether only to plan.

    Raises:
        Exit: nobody has agreed; nothing was changed.
    """
    if not dry_run and not yes and _is_seen():
        loss = loss_of(act(True))
        if loss is not None:
            ask(paths, loss)
    return act(dry_run)


def ask(paths: Sequence[str], loss: Loss) -> None:
    """Say what would go, and ask; that nobody is there who could answer, as under cron, is a no.

    Raises:
        Exit: the answer is no.
    """
    size = "" if loss.bytes is None else f", {shown_size(loss.bytes)}"
    print_line(f"This would {loss.what}{size}.", err=True)
    if loss.partitions:
        print_line(f"  partitions: {_names(loss.partitions)}", err=True)
        print_line(f"  groups that read there: {_readers(paths, loss.partitions)}", err=True)
    print_list(loss.details, "of these", err=True)
    if not _agrees(loss.question):
        print_line(f"nothing was changed: --yes {loss.without} without asking", err=True)
        raise typer.Exit(PROBLEM)


def _is_seen() -> bool:
    """Whether somebody sees the question, and can answer."""
    streams = (cast("TextIO | None", sys.stdin), cast("TextIO | None", sys.stderr))
    return all(each is not None and each.isatty() for each in streams)


def _agrees(question: str) -> bool:
    try:
        return sys.stdin is not None and typer.confirm(question, err=True)
    except typer.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise
        typer.echo("", err=True)  # the question's line has no end yet
        return False


def _names(partitions: Collection[TopicPartition]) -> str:
    """Name partitions: of many the topics, with how many there are of each."""
    found = sorted(partitions)
    if len(found) <= 10:
        return listed(map(str, found))
    counts: dict[str, int] = {}
    for key in found:
        counts[key.topic] = counts.get(key.topic, 0) + 1
    return f"{many(len(found), 'partition')} of {listed(f'{t} ({n})' for t, n in counts.items())}"


def _readers(paths: Sequence[str], partitions: Collection[TopicPartition]) -> str:
    """Name the groups that read partitions, or have positions there."""
    from kafkalog.errors import KafkaLogError  # noqa: PLC0415
    from kafkalog.jobs.inspection.groups import list_groups  # noqa: PLC0415

    concerned = {(key.topic, key.partition) for key in partitions}
    with suppress(KafkaLogError, OSError):
        rows = [row for row in list_groups(paths) if (row["topic"], row["partition"]) in concerned]
        return listed(dict.fromkeys(row["group"] for row in rows)) or "none"
    return "cannot be told"
