"""Arguments that the commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from kafkalog.jobs.cli.completing import topics_there

__all__ = ["DryRun", "Json", "Paths", "Topic", "TopicName"]

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
