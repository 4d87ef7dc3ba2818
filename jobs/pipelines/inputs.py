"""What a pipeline can take in: files, a Kafka topic, a table, or what else Spark streams from."""

from __future__ import annotations

import contextlib
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType

from kafkalog.errors import KafkaLogError
from kafkalog.jobs.process.running import check_input

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession


__all__ = ["FILES", "Input", "read_brokers", "read_files", "require_answer", "with_header_lists"]


# ----------------------------------------------------------------------------------------------
# Headers on their way to the sink: an empty list where a record has none, instead of null.
#
# To the sink both are the same record. To Spark they are not: before it adds a row to an Arrow
# batch, it asks how large the batch is (``spark.sql.execution.arrow.maxBytesPerBatch``), and
# Arrow's vector of lists then goes again through all null lists since the last that was none.
# Batches of 10,000 rows without headers took 9 µs a row, and take 1.2 µs with empty lists.


def with_header_lists(rows: DataFrame) -> DataFrame:
    """Replace null in the column ``headers`` by an empty list, if there is one, of lists."""
    for column in rows.schema:
        if column.name == "headers" and isinstance(column.dataType, ArrayType):
            empty = sf.array().cast(column.dataType)
            return rows.withColumn("headers", sf.coalesce("headers", empty))
    return rows


# ----------------------------------------------------------------------------------------------

FILES: Final = ("csv", "json", "orc", "parquet", "text")
"""Formats of files that Spark reads by itself."""

_WITH_COLUMNS: Final = ("delta", "kafka", "table")
"""Formats that know their own columns."""

_SUBSCRIPTIONS: Final = ("subscribe", "subscribepattern", "assign")
_SERVERS: Final = "kafka.bootstrap.servers"
_SERVER: Final = re.compile(r"(?:\[([0-9a-fA-F:]+)\]|([^\s:,/\[\]]+)):([0-9]{1,5})")
_CONNECT_SECONDS: Final = 10


@dataclass(frozen=True)
class Input:
    """Something to stream from.

    Args:
        place: a folder or pattern of files, a Delta table's folder, a table's name, or HOST:PORT of
            Kafka's brokers with commas between them; else what the format loads.
        format: one of `FILES`, ``kafka``, ``delta``, ``table``, or Spark's name of another one.
        schema: the columns as DDL; by default as found.
        options: of Spark's source.
        topic: what to read from Kafka, unless the options name it.
        isolation: Kafka's ``isolation.level``.
    """

    place: str
    format: str = "csv"
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    topic: str = ""
    isolation: str | None = None

    @property
    def is_kafka(self) -> bool:
        """Whether its rows are records already."""
        return self.format == "kafka"

    def check(self) -> None:
        """Check it as far as can be done without Spark.

        Raises:
            BadParameter: it cannot be read.
            KafkaLogError: none of the brokers answers.
        """
        if self.schema is not None and self.format in _WITH_COLUMNS:
            raise typer.BadParameter(f"--schema is not for --format {self.format}: it has columns")
        if self.isolation is not None and not self.is_kafka:
            raise typer.BadParameter("--isolation is for --format kafka")
        if self.format in FILES or self.format == "delta":
            check_input(self.place)
        if self.format == "delta":
            self._check_table()
        if self.is_kafka:
            self._check_kafka()

    def read(self, spark: SparkSession) -> DataFrame:
        """Stream its rows."""
        if self.format in FILES:
            return read_files(
                spark, self.place, self.format, schema=self.schema, options=self.options
            )
        reader = spark.readStream
        if self.schema is not None:
            reader = reader.schema(self.schema)
        if self.is_kafka:
            return reader.format("kafka").options(**self.kafka_options()).load()
        reader = reader.options(**self.options)
        if self.format == "table":
            return reader.table(self.place)
        return reader.format(self.format).load(self.place)

    def _check_table(self) -> None:
        if "://" not in self.place and not (Path(self.place) / "_delta_log").is_dir():
            raise typer.BadParameter(
                f"{self.place} is no Delta table: it has no folder _delta_log", param_hint="INPUT"
            )

    def _check_kafka(self) -> None:
        names = [name.lower() for name in self.options]
        if _SERVERS in names:
            raise typer.BadParameter(f"{_SERVERS} is what INPUT says")
        if sum(name in _SUBSCRIPTIONS for name in names) > 1:
            raise typer.BadParameter("give one of subscribe, subscribePattern and assign")
        require_answer(read_brokers(self.place, "INPUT"))

    def kafka_options(self) -> dict[str, str]:
        """Return the options of Spark's connector."""
        names = {name.lower() for name in self.options}
        chosen = {} if names & set(_SUBSCRIPTIONS) else {"subscribe": self.topic}
        if self.isolation is not None:
            chosen["kafka.isolation.level"] = self.isolation
        return {
            _SERVERS: self.place,
            "startingOffsets": "earliest",
            "includeHeaders": "true",
            "kafka.isolation.level": "read_committed",
            **chosen,
            **self.options,
        }


def read_files(
    spark: SparkSession,
    path: str,
    input_format: str,
    *,
    schema: str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Stream the rows of the files in a folder.

    Args:
        spark: the session.
        path: a folder, or a pattern, as Spark's file source takes it.
        input_format: one of `FILES`; CSV files start with a line of column names.
        schema: the columns as DDL; by default those of the files that are there now (all of them
            text, for CSV).
        options: of Spark's file source, such as ``maxFilesPerTrigger``.
    """
    chosen = {"header": "true", **(options or {})} if input_format == "csv" else options
    if schema is None:
        if input_format == "csv":  # by names: Spark would take columns in the order of other files
            chosen = {"enforceSchema": "false", **(chosen or {})}
        now = spark.read.format(input_format).options(**chosen or {}).load(path)
        schema = now.schema.toDDL()
    return spark.readStream.format(input_format).options(**chosen or {}).schema(schema).load(path)


def read_brokers(place: str, argument: str) -> list[tuple[str, int]]:
    """Read HOST:PORT of brokers, with commas between them.

    Raises:
        BadParameter: the text has another form.
    """
    servers = [_SERVER.fullmatch(word.strip()) for word in place.split(",")]
    if None in servers:
        raise typer.BadParameter(f"{place!r} is not of the form HOST:PORT,…", param_hint=argument)
    return [(found[1] or found[2], int(found[3])) for found in servers if found]


def require_answer(servers: Iterable[tuple[str, int]]) -> None:
    """Refuse brokers none of which can be reached: Spark would try for minutes, and say less.

    Raises:
        KafkaLogError: none of them answers.
    """
    failures = []
    for host, port in servers:
        try:
            with contextlib.closing(socket.create_connection((host, port), _CONNECT_SECONDS)):
                return
        except (OSError, OverflowError) as error:
            failures.append(f"{host}:{port} ({error})")
    raise KafkaLogError(f"none of the brokers answers: {', '.join(failures)}")
