"""Copy topics from log to log: the same offsets, timestamps, headers, settings, starts and ends.

    kafkalog run mirror FROM TO --topic T --checkpoint C [OPTIONS]
    spark-submit --py-files kafkalog.zip mirror.py FROM TO --topic T --checkpoint C [OPTIONS]

For example, from an object store, topics whose names begin with "flights", and what comes later:

    kafkalog run mirror s3://bucket/log /var/copy --pattern '^flights' --checkpoint /var/c --follow

What FROM holds is copied and the job ends; with --follow it tails, and takes topics and partitions
that come later. Topics are created in TO as they are in FROM. Offsets of transaction markers, of
aborted records, and of what was compacted away stay gaps. A job that was killed continues from its
checkpoint, and every record is in TO once. Let nobody else write to the topics in TO. After Ctrl-C
or SIGTERM the job ends with the micro-batch that runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from pyspark.errors import StreamingQueryException

from kafkalog.jobs.mirroring import Mirror
from kafkalog.jobs.pipelines.supervised import attend, ends_to_reach
from kafkalog.jobs.process.arguments import (
    FOLLOW,
    FROM_TARGET,
    GRACE,
    ISOLATION,
    REBUILD,
    SETTINGS,
    Isolation,
    help_text,
    milliseconds,
    reading_options,
    split_names,
)
from kafkalog.jobs.process.running import Command, print_line, run
from kafkalog.jobs.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafkalog.jobs.pipelines.supervised import Ended

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


FROM = Annotated[
    list[str],
    typer.Argument(metavar="FROM", help="The log directories to copy. Default: KAFKALOG_PATH."),
]
TO = Annotated[
    str,
    typer.Argument(
        metavar="TO", help="The log directory to make or continue; several with commas."
    ),
]
TOPICS = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", help="The topic; several with commas, or repeated."),
]
PATTERN = Annotated[
    str | None, typer.Option(help="Topics whose names match this regular expression.")
]
CHECKPOINT = Annotated[
    str, typer.Option(help="The query's checkpoint: a folder of its own, local or mounted.")
]


@app.command(cls=Command, help=help_text(__doc__))
def main(
    source: FROM,
    target: TO,
    *,
    topic: TOPICS = None,
    pattern: PATTERN = None,
    checkpoint: CHECKPOINT,
    isolation: ISOLATION = Isolation.COMMITTED,
    setting: SETTINGS = None,
    from_target: FROM_TARGET = False,
    rebuild: REBUILD = False,
    follow: FOLLOW = False,
    grace: GRACE = "60s",
) -> None:
    """Run the pipeline."""
    grace_ms = milliseconds("--grace", grace)
    mirror = Mirror(
        source=",".join(source),
        target=target,
        topics=split_names(topic or ()),
        pattern=pattern,
        checkpoint=checkpoint,
        options=reading_options(isolation, setting),
        from_target=from_target,
        rebuild=rebuild,
    )
    mirror.check()
    for line in mirror.begin_again():
        typer.echo(line, err=True)
    with session(f"kafkalog {mirror.name}") as spark:
        ended = _run(mirror, spark, follow=follow, grace_ms=grace_ms)
        mirror.finish()
    ended.tell()


def _run(mirror: Mirror, spark: SparkSession, *, follow: bool, grace_ms: int) -> Ended:
    """Copy until that ends; with topics and partitions that come meanwhile."""
    while True:
        for line in mirror.prepare():
            print_line(line, err=True)
        try:
            targets = {} if follow else ends_to_reach(mirror.reading())
            return attend(
                mirror.start(spark, follow=follow),
                grace_ms=grace_ms,
                start_again=lambda: mirror.start(spark),
                targets=targets,
            )
        except StreamingQueryException:
            if not mirror.lacks_partitions():
                raise
            print_line(
                f"{mirror.name}: FROM has more partitions now; continues with them", err=True
            )


if __name__ == "__main__":
    run(app)
