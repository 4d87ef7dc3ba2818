"""Stream a topic into a Delta table, with the offset of every record.

    kafkalog run archive LOG TABLE --topic T --checkpoint C [OPTIONS]
    spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 --py-files kafkalog.zip \
        archive.py LOG TABLE --topic T --checkpoint C [OPTIONS]

What the topic holds is taken over and the job ends; with ``--follow`` it tails the topic. A job
that was killed continues from its checkpoint, and the table holds every record once: Delta keeps
the number of the last micro-batch in its own log. After Ctrl-C or SIGTERM the job ends with the
micro-batch that runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from kafkalog.jobs.arguments import (
    CHECKPOINT,
    FOLLOW,
    GRACE,
    ISOLATION,
    LOG,
    SETTINGS,
    TOPIC,
    Isolation,
    milliseconds,
    pairs,
)
from kafkalog.jobs.attended import attend
from kafkalog.jobs.running import check_reading, run
from kafkalog.jobs.session import session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["start_archive"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_COLUMNS: Final = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key {0}, value {0}".format
)


def start_archive(
    spark: SparkSession,
    log: str,
    table: str,
    *,
    topic: str,
    checkpoint: str,
    text: bool = False,
    follow: bool = False,
    options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start the query that appends a topic's records to a Delta table.

    Args:
        spark: a session with Delta.
        log: the log directory, or several with commas between them.
        table: the table's folder; made if it is missing.
        topic: what to read, from its earliest offset unless the options say otherwise.
        checkpoint: the query's own folder.
        text: keep keys and values as text instead of bytes.
        follow: tail the topic instead of ending where it ends now.
        options: of the source, such as ``maxOffsetsPerTrigger``.
    """
    records = (
        spark.readStream.format("kafkalog")
        .schema(_COLUMNS("STRING" if text else "BINARY"))
        .options(**{"startingOffsets": "earliest", **(options or {})})
        .option("subscribe", topic)
        .load(log)
    )
    writer = (
        records.writeStream.format("delta")
        .queryName(f"archive {topic}")
        .option("checkpointLocation", checkpoint)
    )
    if not follow:
        writer = writer.trigger(availableNow=True)
    return writer.start(table)


@app.command(help=__doc__)
def main(
    log: LOG,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The folder of the Delta table.")],
    *,
    topic: TOPIC,
    checkpoint: CHECKPOINT,
    text: Annotated[
        bool, typer.Option("--text", help="Keep keys and values as text, not bytes.")
    ] = False,
    isolation: ISOLATION = Isolation.COMMITTED,
    setting: SETTINGS = None,
    follow: FOLLOW = False,
    grace: GRACE = "60s",
) -> None:
    """Run the pipeline."""
    grace_ms = milliseconds("--grace", grace)
    options = {"kafka.isolation.level": isolation.value, **pairs(setting)}
    check_reading(log, topic, checkpoint, options)
    with session(f"kafkalog archive {topic}", delta=True) as spark:
        query = start_archive(
            spark,
            log,
            table,
            topic=topic,
            checkpoint=checkpoint,
            text=text,
            follow=follow,
            options=options,
        )
        ended = attend(query, grace_ms=grace_ms)
    ended.tell()


if __name__ == "__main__":
    run(app)
