"""Stream files, a Kafka topic or a table into a topic.

    kafkalog run ingest INPUT LOG --topic T --checkpoint C [OPTIONS]
    spark-submit --py-files kafkalog.zip ingest.py INPUT LOG --topic T --checkpoint C [OPTIONS]

What is there is taken in and the job ends; with ``--follow`` it continues with what comes later. A
job that was killed continues from its checkpoint, and every row is in the log once. Of a Kafka
topic the log knows how much it holds: an older checkpoint, or a new one, continues there. Of other
inputs only the checkpoint knows, and another one is refused. After Ctrl-C or SIGTERM the job ends
with the micro-batch that runs.

What INPUT is depends on ``--format``: a folder of files (csv, json, parquet, orc, text), a broker's
HOST:PORT (kafka: its topic T, unless ``--input-option subscribe=NAME`` names another), a Delta
table's folder (delta), a table's name (table), or what another format of Spark loads, by its name.

Without ``--value`` a record's value is the row as a JSON object. Records from Kafka keep their key,
value, headers and timestamp.
"""

from __future__ import annotations

from typing import Annotated

import typer

from kafkalog.jobs.pipelines.ingesting import Ingest
from kafkalog.jobs.pipelines.inputs import Input
from kafkalog.jobs.pipelines.supervised import attend
from kafkalog.jobs.process.arguments import (
    CHECKPOINT,
    FOLLOW,
    FROM_TARGET,
    GRACE,
    LOG,
    SETTINGS,
    TOPIC,
    Isolation,
    help_text,
    milliseconds,
    pairs,
)
from kafkalog.jobs.process.running import Command, run
from kafkalog.jobs.session import session

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


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
    from_target: FROM_TARGET = False,
    follow: FOLLOW = False,
    grace: GRACE = "60s",
) -> None:
    """Run the pipeline."""
    grace_ms = milliseconds("--grace", grace)
    read_from = Input(source, input_format, schema, pairs(input_option), topic, isolation)
    columns = {"key": key, "value": value, "headers": headers, "timestamp": timestamp}
    if read_from.is_kafka:
        columns = {name: given or name for name, given in columns.items()}
    ingest = Ingest(
        source=read_from,
        log=",".join(log),
        topic=topic,
        checkpoint=checkpoint,
        columns={**columns, "partition": partition},
        options=pairs(setting),
        from_target=from_target,
    )
    ingest.check()
    name = f"kafkalog ingest {topic}"
    with session(name, delta=input_format == "delta", kafka=read_from.is_kafka) as spark:
        ended = attend(ingest.start(spark, follow=follow), grace_ms=grace_ms)
    ended.tell()


if __name__ == "__main__":
    run(app)
