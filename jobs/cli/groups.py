"""The commands that show how far readers are: ``groups`` and ``lag``."""

from __future__ import annotations

from typing import Annotated

import typer

from kafkalog.jobs.cli.arguments import Json, Paths  # noqa: TC001 - typer reads annotations
from kafkalog.jobs.cli.output import exit_if, one_line_errors, print_rows

__all__ = ["groups", "lag"]


def groups(paths: Paths, as_json: Json = False) -> None:
    """Show the positions that consumer groups have committed, and how far they are behind."""
    with one_line_errors():
        from kafkalog.jobs.cli.group_rows import list_groups  # noqa: PLC0415

        rows = list_groups(paths)
    print_rows(rows, as_json=as_json)


def lag(
    paths: Paths,
    offsets: Annotated[str, typer.Option(help='Offsets as a query prints them: {"t":{"0":5}}.')],
    as_json: Json = False,
) -> None:
    """Show how many offsets lie between given ones and the committed ends."""
    with one_line_errors():
        from kafkalog.jobs.cli.group_rows import list_lag  # noqa: PLC0415

        rows = list_lag(paths, offsets)
    print_rows(rows, as_json=as_json)
    exit_if(row["lag"] is None for row in rows)
