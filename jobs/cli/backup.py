"""The command that copies log directories while they are written to."""

from __future__ import annotations

from typing import Annotated

import typer

from kafkalog.jobs.cli.arguments import Json  # noqa: TC001 - typer reads annotations
from kafkalog.jobs.cli.output import end_with, one_line_errors, print_rows
from kafkalog.jobs.running import print_line

__all__ = ["backup"]


def backup(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH… TARGET",
            help="The log directories that belong together, then a new folder for the copy.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Copy log directories while they are written to: the copy can be read, and written."""
    if len(words) < 2:
        raise typer.BadParameter("name the log directories, and then the folder for the copy")
    with one_line_errors():
        from kafkalog.streaming.operate.backup import back_up  # noqa: PLC0415

        done = back_up(words[:-1], words[-1])
    rows = [
        {
            "path": str(each.source),
            "copy": str(each.target),
            "partitions": each.partitions,
            "bytes": each.bytes,
        }
        for each in done.directories
    ]
    print_rows(rows, as_json=as_json)
    if not done.at_one_moment:
        print_line(
            "note: no writer of ours was kept waiting, so each partition is copied as of a moment "
            "of its own; each reaches to its high watermark in the copy, or further",
            err=True,
        )
    missing = [f"the copy is not whole: {problem}" for problem in done.problems]
    end_with(missing, as_json=False)  # rows have no place for that
