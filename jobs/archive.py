r"""Stream topics into a Delta table: every record as it is, with its offset.

    kafkalog run archive LOG TABLE --topic T --checkpoint C [OPTIONS]
    spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 --py-files kafkalog.zip \
        archive.py LOG TABLE --topic T --checkpoint C [OPTIONS]

What the topics hold is taken over and the job ends; with ``--follow`` it tails them. A job that
was killed continues, and the table holds every record once. So it does with an older checkpoint, or
a new one: the table knows what it holds. What would leave a gap is refused, and the sentence says
how to go on. After Ctrl-C or SIGTERM the job ends with the micro-batch that runs.
``kafkalog run restore`` is the way back.

Each day and topic has files of its own. Settings, log starts and log ends of the topics are kept
as properties of the table. When the job ends, and every 100 micro-batches, small files are put
together, once a folder has more than 16. Let no other job write to the table.
"""

from __future__ import annotations

from typing import Annotated

import typer

from kafkalog.errors import OptionError
from kafkalog.jobs.archiving import DELTA_FORMAT, Archive
from kafkalog.jobs.pipelines.supervised import attend, ends_to_reach
from kafkalog.jobs.process.arguments import (
    CHECKPOINT,
    FOLLOW,
    FROM_TARGET,
    GRACE,
    ISOLATION,
    LOG,
    REBUILD,
    SETTINGS,
    TABLE,
    TABLE_FORMAT,
    TOPICS,
    Isolation,
    check_folders_of_spark,
    help_text,
    milliseconds,
    reading_options,
    split_names,
)
from kafkalog.jobs.process.running import Command, check_reading, run
from kafkalog.jobs.session import session

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


LATEST = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER",
        help="Keep a Delta table with the newest record of each key there, too. TABLE itself: that "
        "one and no other.",
    ),
]
BY_DAY = Annotated[
    bool, typer.Option(help="Whether each topic and day has files of its own, in a new table.")
]
TEXT = Annotated[bool, typer.Option("--text", help="Keep keys and values as text, not bytes.")]


@app.command(cls=Command, help=help_text(__doc__))
def main(
    log: LOG,
    table: TABLE,
    *,
    topic: TOPICS,
    checkpoint: CHECKPOINT,
    latest: LATEST = None,
    by_day: BY_DAY = True,
    text: TEXT = False,
    table_format: TABLE_FORMAT = DELTA_FORMAT,
    isolation: ISOLATION = Isolation.COMMITTED,
    setting: SETTINGS = None,
    follow: FOLLOW = False,
    from_target: FROM_TARGET = False,
    rebuild: REBUILD = False,
    grace: GRACE = "60s",
) -> None:
    """Run the pipeline."""
    path = ",".join(log)
    archive = Archive(
        log=path,
        table=table,
        topics=split_names(topic),
        checkpoint=checkpoint,
        latest=latest,
        by_day=by_day,
        text=text,
        table_format=table_format,
        options=reading_options(isolation, setting),
        from_target=from_target,
        rebuild=rebuild,
    )
    grace_ms = milliseconds("--grace", grace)
    _check(archive)
    _run(archive, grace_ms, follow=follow)


def _run(archive: Archive, grace_ms: int, *, follow: bool) -> None:
    with session(f"kafkalog {archive.name}", delta=archive.is_delta) as spark:
        targets = {} if follow else ends_to_reach(archive.reading())
        ended = attend(
            archive.start(spark, follow=follow),
            grace_ms=grace_ms,
            start_again=lambda: archive.start(spark),
            targets=targets,
        )
        if ended.code == 0:
            archive.finish(spark)
    ended.tell()


def _check(archive: Archive) -> None:
    if archive.latest is not None and not archive.is_delta:
        raise OptionError(f"--latest needs a Delta table, and --format is {archive.table_format!r}")
    if archive.from_target and archive.rebuild:
        raise OptionError("--from-target keeps what the table has, and --rebuild does not: one")
    check_reading(archive.log, ",".join(archive.topics), archive.checkpoint, archive.options)
    folders = {"TABLE": archive.table, "--latest": archive.latest}
    check_folders_of_spark({**folders, "--checkpoint": archive.checkpoint})


if __name__ == "__main__":
    run(app)
