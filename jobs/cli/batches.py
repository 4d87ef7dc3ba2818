"""The commands that read batches: ``verify`` and ``dump``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kafkalog.jobs.cli.arguments import Json, Paths, TopicName  # noqa: TC001 - typer reads them
from kafkalog.jobs.cli.output import exit_if, one_line_errors, print_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["dump", "verify"]


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
        typer.echo(", ".join(f"{count} {name}" for name, count in summary.items()))
    exit_if([summary["problems"]])


def dump(
    paths: Paths,
    topic: Annotated[str, typer.Option(help="The topic.")],
    partition: Annotated[int, typer.Option(min=0, help="The partition.")] = 0,
    start: Annotated[int, typer.Option(min=0, help="The first offset.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="How many batches.")] = 100,
    as_json: Json = False,
) -> None:
    """Show the headers of record batches, from an offset on."""
    with one_line_errors():
        from kafkalog.errors import KafkaLogError  # noqa: PLC0415
        from kafkalog.jobs.cli.batch_rows import dump_batches  # noqa: PLC0415

        rows: list[Mapping[str, Any]] = []
        try:
            for row in dump_batches(paths, topic, partition, start, count):
                rows.append(row)  # noqa: PERF402 - an error comes after what lies before it
        except KafkaLogError:
            if rows:
                print_rows(rows, as_json=as_json)
            raise
    print_rows(rows, as_json=as_json)
    exit_if(row["error"] for row in rows)
