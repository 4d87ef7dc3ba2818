"""Arguments that the commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = ["DryRun", "Json", "Paths", "Topic", "TopicName", "topics_there"]


# ----------------------------------------------------------------------------------------------
# What a shell completes beyond commands, options and files: the topics of log directories.


def topics_there(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics whose names begin so, of the log directories typed before; sorted.

    Whatever is wrong with these is said when the command runs: here it means no names.
    """
    from kafkalog.errors import KafkaLogError  # noqa: PLC0415
    from kafkalog.jobs.inspection.log_dirs import log_dirs_of  # noqa: PLC0415

    given: Mapping[str, Any] = context.params
    # Words after which an option has no value yet are left as they came.
    paths = given.get("paths") or [word for word in context.args if not word.startswith("-")]
    if not paths:
        return []
    try:
        names = {key.topic for key in log_dirs_of(paths).partitions()}
    except (KafkaLogError, OSError):
        return []
    return sorted(name for name in names if name.startswith(incomplete))


# ----------------------------------------------------------------------------------------------

Paths = Annotated[
    list[str], typer.Argument(metavar="PATH…", help="The log directories that belong together.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")
]
Topic = Annotated[str, typer.Option(help="The topic.", autocompletion=topics_there)]
TopicName = Annotated[
    str | None, typer.Option("--topic", help="This topic only.", autocompletion=topics_there)
]
