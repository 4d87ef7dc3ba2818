"""The command that looks for the newest records of keys: ``get``."""

from __future__ import annotations

from typing import Annotated

import typer

from kafkalog.jobs.arguments import READ_ISOLATION, SETTINGS, Isolation, reading_options
from kafkalog.jobs.cli.arguments import Json, Paths, Topic  # noqa: TC001 - typer reads annotations
from kafkalog.jobs.cli.output import end_if_nothing, one_line_errors, print_found

__all__ = ["get"]

Key = Annotated[str | None, typer.Option(help="The key.")]
Prefix = Annotated[str | None, typer.Option(help="All keys that begin with it.")]
Low = Annotated[str | None, typer.Option("--from", help="All keys from this one on, by bytes.")]
High = Annotated[str | None, typer.Option("--to", help="All keys below this one.")]
Hex = Annotated[bool, typer.Option("--hex", help="Keys and values are hexadecimal digits.")]
Partition = Annotated[
    int | None,
    typer.Option(min=0, help="The partition. Default: for --key, the one that its hash chooses."),
]
AllPartitions = Annotated[
    bool, typer.Option("--all-partitions", help="Look for --key in all partitions.")
]
Offset = Annotated[
    int | None,
    typer.Option("--as-of-offset", min=0, help="The newest below this offset of the partition."),
]
Time = Annotated[
    str | None,
    typer.Option(
        "--as-of-timestamp",
        metavar="TIME",
        help="The newest before the first record of this time (ISO 8601 or ms) or a later one.",
    ),
]
Stats = Annotated[
    bool, typer.Option("--stats", help="Say on stderr what the cache of the process did.")
]


def get(  # noqa: PLR0917 - what the command line offers
    paths: Paths,
    topic: Topic,
    key: Key = None,
    prefix: Prefix = None,
    low: Low = None,
    high: High = None,
    is_hex: Hex = False,
    partition: Partition = None,
    all_partitions: AllPartitions = False,
    as_of_offset: Offset = None,
    as_of_timestamp: Time = None,
    isolation: READ_ISOLATION = Isolation.UNCOMMITTED,
    settings: SETTINGS = None,
    as_json: Json = False,
    stats: Stats = False,
) -> None:
    """Show the newest record of a key, or of several; ends with 1 if there is none."""
    with one_line_errors():
        from kafkalog.jobs.cli.lookup_rows import Sought, find_rows  # noqa: PLC0415
        from kafkalog.streaming.source.lookup import AsOf  # noqa: PLC0415
        from kafkalog.streaming.times import milliseconds_of  # noqa: PLC0415

        time = None
        if as_of_timestamp is not None:
            time = milliseconds_of("--as-of-timestamp", as_of_timestamp)
        rows = find_rows(
            {"path": ",".join(paths), **reading_options(isolation, settings)},
            topic,
            Sought(key, prefix, low, high, is_hex=is_hex),
            partition=partition,
            all_partitions=all_partitions,
            as_of=AsOf(as_of_offset, time),
        )
        found = print_found(rows, as_json=as_json)
    if stats:
        from kafkalog.files.block_cache import block_cache  # noqa: PLC0415

        typer.echo(f"cache: {block_cache().stats()}", err=True)
    end_if_nothing(found, f"no record of such a key is in {topic}")
