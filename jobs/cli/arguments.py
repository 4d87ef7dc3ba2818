"""Arguments that the commands share."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["DryRun", "Json", "Paths", "TopicName"]

Paths = Annotated[
    list[str], typer.Argument(metavar="PATH…", help="The log directories that belong together.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")
]
TopicName = Annotated[str | None, typer.Option("--topic", help="This topic only.")]
