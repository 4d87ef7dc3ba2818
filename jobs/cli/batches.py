"""The command that checks batches: ``verify``."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from kafkalog.jobs.cli.arguments import Json, Paths, TopicName  # noqa: TC001 - typer reads them
from kafkalog.jobs.cli.output import exit_if, one_line_errors, print_rows
from kafkalog.jobs.running import print_line
from kafkalog.jobs.units import shown_size
from kafkalog.model import many

__all__ = ["verify"]

_ONE: Final = {
    "partitions": "partition",
    "segments": "segment",
    "batches": "batch",
    "problems": "problem",
}


def verify(
    paths: Paths,
    topic: TopicName = None,
    show_all: Annotated[
        bool, typer.Option("--all", "-v", help="Print sound segments too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check every batch of every segment, and the indexes; changes nothing."""
    with one_line_errors():
        from kafkalog.jobs.cli.batch_rows import summary_of, verify_logs  # noqa: PLC0415

        rows = verify_logs(paths, topic)
    summary = summary_of(rows)
    shown = [row for row in rows if show_all or as_json or row["problem"]]
    if as_json:
        print_rows([*shown, summary], as_json=True)
    else:
        print_rows(shown, as_json=False)
        print_line(
            ", ".join(
                shown_size(count) if name == "bytes" else many(count, _ONE[name])
                for name, count in summary.items()
            )
        )
    exit_if([summary["problems"]])
