r"""Restore topics from a table: the same records at the same offsets, ready for a broker.

    kafkalog run restore TABLE LOG --topic T [OPTIONS]
    spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 --py-files kafkalog.zip \
        restore.py TABLE LOG --topic T [OPTIONS]

Up to a point in time, and without the keys of people who have asked for that:

    kafkalog run restore TABLE LOG --topic T --until 2026-03-01T00:00:00Z --suppress keys.txt

TABLE is what `kafkalog run archive` has written, or any table with the columns partition, offset
and value. A topic becomes visible at once. If the job is killed, run the same command again: it
ends what was begun. A topic that has other records is refused.
"""

from __future__ import annotations

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kafkalog.errors import OptionError
from kafkalog.jobs.archiving import DELTA_FORMAT
from kafkalog.jobs.pipelines.restore_plan import Until, check_target
from kafkalog.jobs.process.arguments import (
    LOG,
    NOT_GIVEN,
    TABLE,
    TABLE_FORMAT,
    TOPICS,
    given_settings,
    help_text,
    split_names,
)
from kafkalog.jobs.process.running import Command, check_input, run
from kafkalog.jobs.restoring import Restore
from kafkalog.jobs.session import session

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


class SuppressAs(StrEnum):
    """What becomes of records whose key is suppressed."""

    LEAVE_OUT = "leave-out"
    TOMBSTONE = "tombstone"


UNTIL = Annotated[
    str | None,
    typer.Option(
        metavar="OFFSETS|TIME",
        help='Where to end: offsets as {"T":{"0":23}}, or a time such as 2026-03-01T00:00:00Z. '
        "Each partition ends before its first record of that time or a later one.",
    ),
]
KEYS = Annotated[
    list[str] | None, typer.Option("--key", help="Only records with this key; may be repeated.")
]
SUPPRESS = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Keys that are not to come back, one a line, in UTF-8."),
]
SUPPRESS_AS = Annotated[
    SuppressAs, typer.Option(help="Whether their records are left out, or lose value and headers.")
]
WITH_DELETED = Annotated[
    bool,
    typer.Option(
        "--with-deleted", help="Restore also what the topic had deleted below its log start."
    ),
]
PARTITIONS = Annotated[
    int | None,
    typer.Option(min=1, help="How many partitions the topic has, where the table tells not."),
]


@app.command(cls=Command, help=help_text(__doc__))
def main(
    table: TABLE,
    log: LOG,
    *,
    topic: TOPICS,
    until: UNTIL = None,
    key: KEYS = None,
    suppress: SUPPRESS = None,
    suppress_as: SUPPRESS_AS = SuppressAs.LEAVE_OUT,
    with_deleted: WITH_DELETED = False,
    partitions: PARTITIONS = None,
    config: NOT_GIVEN = None,
    table_format: TABLE_FORMAT = DELTA_FORMAT,
) -> None:
    """Run the pipeline."""
    path = ",".join(log)
    check_input(table)
    restore = Restore(
        table=table,
        log=path,
        topics=split_names(topic),
        until=Until.parse(until),
        keys=None if key is None else frozenset(each.encode() for each in key),
        suppressed=frozenset() if suppress is None else _lines(suppress),
        as_tombstones=suppress_as is SuppressAs.TOMBSTONE,
        with_deleted=with_deleted,
        partitions=partitions,
        config=given_settings(config),
        table_format=table_format,
    )
    check_target(path, restore.topics, restore.config, restore.until)
    _run(restore)


def _run(restore: Restore) -> None:
    """Restore, show meanwhile that it runs, and say what there is to say when Spark has ended."""
    console = Console(stderr=True)
    is_delta = restore.table_format == DELTA_FORMAT
    with session(f"kafkalog {restore.name}", delta=is_delta) as spark, console.status(restore.name):
        said = restore.run(spark)
    for line in said:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _lines(file: str) -> frozenset[bytes]:
    """Read a list of keys; empty lines are none."""
    try:
        data = Path(file).read_bytes().removeprefix(BOM_UTF8)  # an editor's, and no part of a key
    except OSError as error:
        raise OptionError(f"--suppress cannot be read: {error}") from None
    if data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise OptionError(f"--suppress {file} is UTF-16, expected UTF-8")
    return frozenset(data.splitlines()) - {b""}


if __name__ == "__main__":
    run(app)
