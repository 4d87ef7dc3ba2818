"""Stream files, a Kafka topic or a table into a topic.

    kafkalog run ingest INPUT LOG --topic T --checkpoint C [OPTIONS]
    spark-submit --py-files kafkalog.zip ingest.py INPUT LOG --topic T --checkpoint C [OPTIONS]

What is there is taken in and the job ends; with ``--follow`` it continues with what comes later. A
job that was killed continues from its checkpoint, and every row is in the log once. After Ctrl-C or
SIGTERM the job ends with the micro-batch that runs.

What INPUT is depends on ``--format``: a folder of files (csv, json, parquet, orc, text), a broker's
HOST:PORT (kafka: its topic T, unless ``--input-option subscribe=NAME`` names another), a Delta
table's folder (delta), a table's name (table), or what another format of Spark loads, by its name.

Without ``--value`` a record's value is the row as a JSON object. Records from Kafka keep their key,
value, headers and timestamp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, MapType

from kafkalog.files.local_paths import refuse_among_logs
from kafkalog.jobs.arguments import (
    CHECKPOINT,
    FOLLOW,
    GRACE,
    LOG,
    SETTINGS,
    TOPIC,
    Isolation,
    help_text,
    milliseconds,
    pairs,
)
from kafkalog.jobs.attended import attend
from kafkalog.jobs.commands import Command
from kafkalog.jobs.header_lists import with_header_lists
from kafkalog.jobs.inputs import Input
from kafkalog.jobs.running import run
from kafkalog.jobs.session import session
from kafkalog.jobs.targets import check_folders, check_folders_of_spark
from kafkalog.streaming.sink.write_options import WriteOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["start_ingest", "to_records"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def to_records(
    rows: DataFrame,
    *,
    key: str | None = None,
    value: str | None = None,
    headers: str | None = None,
    timestamp: str | None = None,
    partition: str | None = None,
) -> DataFrame:
    """Make records of rows by SQL expressions over their columns.

    Args:
        rows: any columns.
        key: bytes as they are, anything else cast to text; without it records have no key.
        value: the same; without it the whole row as JSON, nulls included.
        headers: a map of names to bytes or text, or the sink's column; without it there are none.
        timestamp: cast to a timestamp; without it records get the time at which they are written.
        partition: cast to an integer; without it keys and the sink decide.
    """
    columns = [_whole(rows) if value is None else _bytes_or_text(rows, value)]
    columns[0] = columns[0].alias("value")
    if key is not None:
        columns.append(_bytes_or_text(rows, key).alias("key"))
    if headers is not None:
        columns.append(_headers(rows, headers).alias("headers"))
    if timestamp is not None:
        columns.append(sf.expr(timestamp).cast("timestamp").alias("timestamp"))
    if partition is not None:
        columns.append(sf.expr(partition).cast("int").alias("partition"))
    return with_header_lists(rows.select(*columns))


def _whole(rows: DataFrame) -> Column:
    whole = sf.struct(*[sf.col(f"`{name}`") for name in rows.columns])
    return sf.to_json(whole, {"ignoreNullFields": "false"})


def _bytes_or_text(rows: DataFrame, expression: str) -> Column:
    column = sf.expr(expression)
    is_bytes = isinstance(rows.select(column).schema[0].dataType, BinaryType)
    return column if is_bytes else column.cast("string")


def _headers(rows: DataFrame, expression: str) -> Column:
    column = sf.expr(expression)
    found = rows.select(column).schema[0].dataType
    if not isinstance(found, MapType):
        return column
    text = column if isinstance(found.valueType, BinaryType) else column.cast("map<string,string>")
    return sf.map_entries(text.cast("map<string,binary>"))


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


_INPUT = Annotated[
    str, typer.Argument(metavar="INPUT", help="What to read: a folder, HOST:PORT, a name.")
]
_FORMAT = Annotated[
    str,
    typer.Option("--format", help="csv, json, orc, parquet, text, kafka, delta, table or another."),
]
_SCHEMA = Annotated[
    str | None, typer.Option(help="Columns of the files as DDL; default: as found.")
]
_INPUT_OPTION = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="For Spark's source.")
]
_KEY = Annotated[str | None, typer.Option(help="SQL expression of the key.")]
_VALUE = Annotated[str | None, typer.Option(help="SQL expression of the value.")]
_HEADERS = Annotated[
    str | None, typer.Option(help="SQL expression of the headers, such as map('from', file).")
]
_TIMESTAMP = Annotated[str | None, typer.Option(help="SQL expression of the timestamp.")]
_PARTITION = Annotated[str | None, typer.Option(help="SQL expression of the partition.")]
_ISOLATION = Annotated[
    Isolation | None,
    typer.Option(help="Which records to take from Kafka; read_committed if not given."),
]


@app.command(cls=Command, help=help_text(__doc__))
def main(
    source: _INPUT,
    log: LOG,
    *,
    topic: TOPIC,
    checkpoint: CHECKPOINT,
    input_format: _FORMAT = "csv",
    schema: _SCHEMA = None,
    input_option: _INPUT_OPTION = None,
    key: _KEY = None,
    value: _VALUE = None,
    headers: _HEADERS = None,
    timestamp: _TIMESTAMP = None,
    partition: _PARTITION = None,
    isolation: _ISOLATION = None,
    setting: SETTINGS = None,
    follow: FOLLOW = False,
    grace: GRACE = "60s",
) -> None:
    """Run the pipeline."""
    grace_ms = milliseconds("--grace", grace)
    options = pairs(setting)
    read_from = Input(source, input_format, schema, pairs(input_option), topic, isolation)
    written = WriteOptions.parse({**options, "path": log, "topic": topic})
    refuse_among_logs("--checkpoint", checkpoint, written.paths)
    read_from.check()
    check_folders({"LOG": written.paths})
    check_folders_of_spark({"--checkpoint": checkpoint})
    columns = {"key": key, "value": value, "headers": headers, "timestamp": timestamp}
    if read_from.is_kafka:
        columns = {name: given or name for name, given in columns.items()}
    name = f"kafkalog ingest {topic}"
    with session(name, delta=input_format == "delta", kafka=read_from.is_kafka) as spark:
        records = to_records(read_from.read(spark), **columns, partition=partition)
        query = start_ingest(
            records, log, topic=topic, checkpoint=checkpoint, follow=follow, options=options
        )
        ended = attend(query, grace_ms=grace_ms)
    ended.tell()


if __name__ == "__main__":
    run(app)
