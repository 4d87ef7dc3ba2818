"""The command that shows the positions of consumer groups: ``groups``."""

from __future__ import annotations

from kafkalog.jobs.cli.arguments import Json, Paths  # noqa: TC001 - typer reads annotations
from kafkalog.jobs.cli.output import one_line_errors, print_rows

__all__ = ["groups"]


def groups(paths: Paths, as_json: Json = False) -> None:
    """Show the positions that consumer groups have committed, and how far they are behind."""
    with one_line_errors():
        from kafkalog.jobs.cli.group_rows import list_groups  # noqa: PLC0415

        rows = list_groups(paths)
    print_rows(rows, as_json=as_json)
