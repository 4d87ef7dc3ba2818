"""Stream files into a topic: CSV, JSON or Parquet in, records with JSON values out.

    kafkalog run ingest INPUT LOG --topic T --checkpoint C [OPTIONS]
    spark-submit --py-files kafkalog.zip ingest.py INPUT LOG --topic T --checkpoint C [OPTIONS]

Each row becomes one record: its value is the row as a JSON object, its key and its timestamp are
expressions over the row's columns. Files that are there are taken in and the job ends; with
``--follow`` it continues with those that come later. A job that was killed continues from its
checkpoint, and every row is in the log once. After Ctrl-C or SIGTERM the job ends with the
micro-batch that runs.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from pyspark.sql import functions as sf

from kafkalog.jobs.arguments import (
    CHECKPOINT,
    FOLLOW,
    GRACE,
    LOG,
    SETTINGS,
    TOPIC,
    milliseconds,
    pairs,
)
from kafkalog.jobs.attended import attend
from kafkalog.jobs.running import check_input, run
from kafkalog.jobs.session import session
from kafkalog.streaming.sink.write_options import WriteOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["InputFormat", "read_files", "start_ingest", "to_records"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class InputFormat(StrEnum):
    """What the files to read are."""

    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def read_files(
    spark: SparkSession,
    path: str,
    input_format: InputFormat,
    *,
    schema: str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Stream the rows of the files in a folder.

    Args:
        spark: the session.
        path: a folder, or a pattern, as Spark's file source takes it.
        input_format: what they are; CSV files start with a line of column names.
        schema: the columns as DDL; by default those of the files that are there now (all of them
            text, for CSV).
        options: of Spark's file source, such as ``maxFilesPerTrigger``.
    """
    chosen = {"header": "true", **(options or {})} if input_format is InputFormat.CSV else options
    if schema is None:
        now = spark.read.format(input_format).options(**chosen or {}).load(path)
        schema = now.schema.toDDL()
    return spark.readStream.format(input_format).options(**chosen or {}).schema(schema).load(path)


def to_records(
    rows: DataFrame, *, key: str | None = None, timestamp: str | None = None
) -> DataFrame:
    """Make records of rows: the whole row as JSON, nulls included, is the value.

    Args:
        rows: any columns.
        key: an SQL expression, cast to text; without it records have no key.
        timestamp: an SQL expression, cast to a timestamp; without it records get the time at which
            they are written.
    """
    whole = sf.struct(*[sf.col(f"`{name}`") for name in rows.columns])
    columns = [sf.to_json(whole, {"ignoreNullFields": "false"}).alias("value")]
    if key is not None:
        columns.append(sf.expr(key).cast("string").alias("key"))
    if timestamp is not None:
        columns.append(sf.expr(timestamp).cast("timestamp").alias("timestamp"))
    return rows.select(*columns)


def start_ingest(
    records: DataFrame,
    log: str,
    *,
    topic: str,
    checkpoint: str,
    follow: bool = False,
    options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start the query that appends records to a topic.

    Args:
        records: the sink's columns: value, and optionally key, timestamp, headers, partition.
        log: the log directory, or several with commas between them.
        topic: where all records go.
        checkpoint: the query's own folder; it is what tells a restart from a new job.
        follow: continue when all input is taken in.
        options: of the sink, such as ``compression.type``.
    """
    writer = (
        records.writeStream.format("kafkalog")
        .queryName(f"ingest {topic}")
        .options(**options or {})
        .option("topic", topic)
        .option("checkpointLocation", checkpoint)
    )
    if not follow:
        writer = writer.trigger(availableNow=True)
    return writer.start(log)


@app.command(help=__doc__)
def main(
    source: Annotated[str, typer.Argument(metavar="INPUT", help="The folder of files to read.")],
    log: LOG,
    *,
    topic: TOPIC,
    checkpoint: CHECKPOINT,
    input_format: Annotated[
        InputFormat, typer.Option("--format", help="What the files are.")
    ] = InputFormat.CSV,
    schema: Annotated[
        str | None, typer.Option(help="Columns of the files as DDL; default: as found.")
    ] = None,
    input_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="For Spark's file source.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="SQL expression of the key.")] = None,
    timestamp: Annotated[str | None, typer.Option(help="SQL expression of the timestamp.")] = None,
    setting: SETTINGS = None,
    follow: FOLLOW = False,
    grace: GRACE = "60s",
) -> None:
    """Run the pipeline."""
    grace_ms = milliseconds("--grace", grace)
    file_options, options = pairs(input_option), pairs(setting)
    check_input(source)
    WriteOptions.parse({**options, "path": log, "topic": topic})
    with session(f"kafkalog ingest {topic}") as spark:
        rows = read_files(spark, source, input_format, schema=schema, options=file_options)
        records = to_records(rows, key=key, timestamp=timestamp)
        query = start_ingest(
            records, log, topic=topic, checkpoint=checkpoint, follow=follow, options=options
        )
        ended = attend(query, grace_ms=grace_ms)
    ended.tell()


if __name__ == "__main__":
    run(app)
