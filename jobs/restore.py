r"""Restore topics from a table: the same records at the same offsets, ready for a broker.

    kafkalog run restore TABLE LOG --topic T [OPTIONS]
    spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 --py-files kafkalog.zip \
        restore.py TABLE LOG --topic T [OPTIONS]

Up to a point in time, and without the keys of people who have asked for that:

    kafkalog run restore TABLE LOG --topic T --until 2026-03-01T00:00:00Z --suppress keys.txt

TABLE is what `kafkalog run archive` has written, or any table with the columns partition, offset
and value. A topic becomes visible at once. If the job is killed, run the same command again: it
ends what was begun. A topic that has other records is refused.

    kafkalog run restore --from-tiers BUCKET LOG

writes what lies in a remote tier (KIP-405) into a new log directory, with the offsets, epochs and
ids that the topics had; or into a log in a bucket, at the same offsets. --cluster-metadata names
what is left of a broker, which tells settings.
"""

from __future__ import annotations

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from kafkalog.errors import OptionError
from kafkalog.files.storage import is_object_uri
from kafkalog.jobs.archiving import DELTA_FORMAT
from kafkalog.jobs.pipelines.copied_logs import storage_options
from kafkalog.jobs.pipelines.restore_plan import Until, check_target
from kafkalog.jobs.process.arguments import (
    LOG,
    NOT_GIVEN,
    SETTINGS,
    TABLE,
    TABLE_FORMAT,
    TOPICS,
    given_settings,
    help_text,
    pairs,
    split_names,
)
from kafkalog.jobs.process.running import Command, check_input, print_line, run
from kafkalog.jobs.restoring import Restore, restore_into_bucket
from kafkalog.jobs.session import session
from kafkalog.model import listed, many

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafkalog.streaming.admin.tier_restore import RestoredTier

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


FROM_TIERS = Annotated[
    str | None,
    typer.Option(metavar="TIER", help="Restore from a remote tier, a path or URI, and no table."),
]
CLUSTER_METADATA = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DIR", help="With --from-tiers: a log directory of the cluster; may be repeated."
    ),
]

_ALL: Final = "*"


class _Restoring(Command):
    """A tier is no table: where one is named, the words are those of the log alone."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - of typer
        """Read the words of the command."""
        names = {word.partition("=")[0] for word in args}
        if "--from-tiers" in names:
            args = [_ALL, *args]
            if not names & {"--topic", "-t"}:
                args += ["--topic", _ALL]
        return super().parse_args(ctx, args)


@app.command(cls=_Restoring, help=help_text(__doc__))
def main(
    table: TABLE,
    log: LOG,
    *,
    topic: TOPICS,
    from_tiers: FROM_TIERS = None,
    cluster_metadata: CLUSTER_METADATA = None,
    settings: SETTINGS = None,
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
    path, given = ",".join(log), (pairs(settings), cluster_metadata or (), given_settings(config))
    if _restore_tier(from_tiers, path, topic, *given):
        return
    check_input(table)
    options = pairs(settings)
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
        options=options,
    )
    check_target(path, restore.topics, restore.config, restore.until, options)
    _run(restore)


def _restore_tier(
    tier: str | None,
    log: str,
    topic: Sequence[str],
    settings: Mapping[str, str],
    cluster_metadata: Sequence[str],
    config: Mapping[str, str],
) -> bool:
    """Restore from a tier, and say in numbers what came back and what did not.

    Returns:
        whether a tier is named.
    """
    if tier is None:
        if cluster_metadata or storage_options(settings) != settings:
            raise OptionError(
                "--cluster-metadata and --set go with --from-tiers; of a table, --set says how the "
                "store of LOG is reached (storage.…)"
            )
        return False
    from kafkalog.jobs.inspection.tiers import tiered_paths  # noqa: PLC0415 - few need it
    from kafkalog.streaming.admin.tier_restore import restore_from_tier  # noqa: PLC0415

    topics = () if topic == [_ALL] else split_names(topic)
    places = tiered_paths([tier], None, settings)
    act = restore_into_bucket if is_object_uri(log) else restore_from_tier
    done = act(places, log, topics, cluster_metadata=cluster_metadata, config=config)
    _say_restored(done)
    return True


def _say_restored(done: RestoredTier) -> None:
    for each in done.partitions:
        lost = sum(end - start for start, end in each.gaps)
        gone = f", without {lost} offsets that the tier lacks" if lost else ""
        above = done.not_uploaded(each)
        gone += f", without the last {above}, which were not uploaded" if above else ""
        print_line(
            f"{each.key}: offsets {each.start} to {each.end} in {many(each.segments, 'segment')}, "
            f"{each.size} bytes{gone}"
        )
    if done.unknown_settings:
        print_line(f"nobody tells the settings of {listed(done.unknown_settings)}", err=True)
    if done.positions:
        print_line(
            f"{many(sum(done.positions.values()), 'position')} of "
            f"{many(len(done.positions), 'consumer group')} were not tiered, and are not restored",
            err=True,
        )
    print_line(
        "What the brokers had not uploaded is not in a tier: the records above these ends, and the "
        "positions of consumer groups",
        err=True,
    )


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
