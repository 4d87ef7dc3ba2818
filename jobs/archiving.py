"""From topics to tables: a query that keeps every record, or the newest one of each key.

**Exactly once.** Delta keeps the number of the last micro-batch in its own log, under the query's
id, and skips one that comes again. The table of newest records is merged into: the same
micro-batch again changes nothing there.

**Properties.** After each micro-batch, how far the topics were read is noted in the table's
properties (:mod:`~kafkalog.jobs.topic_facts`). A job that is killed before that repeats the
micro-batch, and notes it then.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from pyspark.sql import functions as sf

from kafkalog.checkpoints.query_offsets import query_offsets
from kafkalog.errors import CheckpointError
from kafkalog.jobs.delta_tables import DeltaTable
from kafkalog.jobs.hadoop import read_text
from kafkalog.jobs.topic_facts import FactsOfLogs, read_facts, to_properties
from kafkalog.model import TopicPartition
from kafkalog.streaming.source.offsets import from_json_text
from kafkalog.streaming.source.read_options import ReadOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from kafkalog.streaming.source.offsets import PartitionOffsets

__all__ = ["DELTA_FORMAT", "Archive", "reached_of"]

DELTA_FORMAT: Final = "delta"

_COLUMNS: Final = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "key {0}, value {0}, headers ARRAY<STRUCT<key: STRING, value: BINARY>>".format
)
_BY_DAY: Final = ("topic", "day")
_BATCHES_BETWEEN_COMPACTIONS: Final = 100
_OPEN_FILES: Final = ("spark.sql.maxConcurrentOutputFileWriters", "4")
"""So many folders a task writes to at once, each with a row group in memory. With none Spark sorts
all rows by their folders, which takes as long as to write them. A task that meets more folders
sorts the rest of its rows. Either way rows of a partition stay in the order of their offsets."""

_IS_NEWER: Final = (
    "CASE WHEN s.partition = t.partition THEN s.offset > t.offset "
    "ELSE s.timestamp >= t.timestamp END"
)
_MERGE: Final = f"""\
MERGE INTO {{0}} AS t USING kafkalog_newest AS s ON t.topic = s.topic AND t.key = s.key
WHEN MATCHED AND {_IS_NEWER} AND s.value IS NULL THEN DELETE
WHEN MATCHED AND {_IS_NEWER} THEN UPDATE SET *
WHEN NOT MATCHED AND s.value IS NOT NULL THEN INSERT *
""".format


@dataclass(kw_only=True)
class Archive:
    """What is archived, and where to.

    Args:
        log: the log directory, or several with commas between them.
        table: the table's folder; made if it is missing.
        topics: what to read, from the earliest offset unless the options say otherwise.
        checkpoint: the query's own folder.
        latest: the folder of a Delta table of the newest record of each key; ``table`` itself for
            that one and no other.
        by_day: whether a new table has files for each topic and day (UTC); one that is there keeps
            to what it has.
        text: keep keys and values as text instead of bytes.
        table_format: ``delta``, or another one that Spark can stream into.
        options: of the source, such as ``maxOffsetsPerTrigger``.
    """

    log: str
    table: str
    topics: tuple[str, ...]
    checkpoint: str
    latest: str | None = None
    by_day: bool = True
    text: bool = False
    table_format: str = DELTA_FORMAT
    options: Mapping[str, str] = field(default_factory=dict)
    _tables: _Tables | None = field(default=None, init=False, repr=False)

    @property
    def name(self) -> str:
        """What the query is called."""
        return f"archive {','.join(self.topics)}"

    @property
    def is_delta(self) -> bool:
        """Whether the table is one of Delta."""
        return self.table_format == DELTA_FORMAT

    def start(self, spark: SparkSession, *, follow: bool = False) -> StreamingQuery:
        """Start the query.

        Args:
            spark: a session with Delta, or with the table's format.
            follow: tail the topics instead of ending where they end now.
        """
        records = (
            spark.readStream.format("kafkalog")
            .schema(self._columns)
            .options(**{"startingOffsets": "earliest", **self.options})
            .option("subscribe", ",".join(self.topics))
            .load(self.log)
        )
        writer = self._into_delta(spark, records) if self.is_delta else self._into_files(records)
        writer = writer.queryName(self.name).option("checkpointLocation", self.checkpoint)
        return (writer if follow else writer.trigger(availableNow=True)).start()

    def finish(self, spark: SparkSession) -> None:
        """Put small files together, and note where logs start now; of Delta tables only."""
        if self.is_delta:
            tables = self._tables or _Tables.of(self, spark)
            tables.finish()

    @property
    def _columns(self) -> str:
        return _COLUMNS("STRING" if self.text else "BINARY")

    def _into_delta(self, spark: SparkSession, records: DataFrame) -> DataStreamWriter:
        tables = self._tables = _Tables.of(self, spark)
        tables.create(self._columns)
        return records.writeStream.foreachBatch(tables.take)

    def _into_files(self, records: DataFrame) -> DataStreamWriter:
        by = _BY_DAY if self.by_day else ()
        writer = _with_day(records, by).writeStream.format(self.table_format)
        return writer.partitionBy(*by).option("path", self.table)


@dataclass
class _Tables:
    """The Delta tables of an archive, and what is done to them with each micro-batch."""

    archive: Archive
    facts: FactsOfLogs
    kept: DeltaTable
    """The one with the properties."""
    records: DeltaTable | None
    newest: DeltaTable | None
    query_id: str = ""

    @classmethod
    def of(cls, archive: Archive, spark: SparkSession) -> Self:
        table = DeltaTable(spark, archive.table)
        newest = None if archive.latest is None else DeltaTable(spark, archive.latest)
        records = None if newest is not None and newest.path == table.path else table
        given = {"path": archive.log, "subscribe": ",".join(archive.topics)}
        parsed = ReadOptions.parse({**archive.options, **given})
        return cls(archive, FactsOfLogs(parsed.paths, archive.topics), table, records, newest)

    def create(self, columns: str) -> None:
        if self.records is not None:
            by_day = self.archive.by_day
            self.records.create(columns + ", day DATE" * by_day, _BY_DAY if by_day else ())
        if self.newest is not None:
            self.newest.create(columns, ())

    def take(self, rows: DataFrame, batch_id: int) -> None:
        """Take in a micro-batch; all of it changes nothing when it comes again."""
        spark = rows.sparkSession
        both = self.records is not None and self.newest is not None
        rows = rows.persist() if both else rows
        try:
            if self.records is not None:
                self._append(self.records, rows, batch_id)
            if self.newest is not None:
                _merge(self.newest, rows)
        finally:
            if both:
                rows.unpersist()
        self._note(self._reached(spark, batch_id))
        if (batch_id + 1) % _BATCHES_BETWEEN_COMPACTIONS == 0:
            self._compact()

    def finish(self) -> None:
        self._note(
            {
                TopicPartition(topic, number): bounds.end
                for topic, facts in read_facts(self.kept.properties).items()
                if topic in self.archive.topics
                for number, bounds in facts.partitions.items()
            }
        )
        self._compact()

    def _append(self, table: DeltaTable, rows: DataFrame, batch_id: int) -> None:
        if not self.query_id:
            metadata = read_text(rows.sparkSession, f"{self.archive.checkpoint}/metadata")
            self.query_id = json.loads(metadata)["id"]
        by = table.partition_columns
        rows.sparkSession.conf.set(*_OPEN_FILES)  # of the query's own session
        writer = _with_day(rows, by).write.format(DELTA_FORMAT)
        version = {"txnAppId": self.query_id, "txnVersion": str(batch_id)}
        writer.mode("append").options(**version).save(table.path)

    def _reached(self, spark: SparkSession, batch_id: int) -> PartitionOffsets:
        """Return where a micro-batch ends, trailing markers included, as Spark has planned it."""
        path = f"{self.archive.checkpoint}/offsets/{batch_id}"
        return reached_of(read_text(spark, path), path)

    def _note(self, reached: PartitionOffsets) -> None:
        known = read_facts(self.kept.properties)
        self.kept.set_properties(to_properties(self.facts.look(reached, known)))

    def _compact(self) -> None:
        for table in (self.records, self.newest):
            if table is not None:
                table.compact()


def reached_of(planned: str, path: str) -> PartitionOffsets:
    """Return where a micro-batch of a query with one source ends, of what Spark has planned.

    Raises:
        CheckpointError: the file, which is named by ``path``, does not tell.
    """
    try:
        (end,) = query_offsets(planned).values()
        return from_json_text(end)
    except (CheckpointError, ValueError) as error:
        raise CheckpointError(
            f"{path} does not tell how far the topics are read: {error}"
        ) from error


def _with_day(rows: DataFrame, partitioned_by: Sequence[str]) -> DataFrame:
    """Add the day where files are divided by it."""
    return rows.withColumn("day", sf.to_date("timestamp")) if "day" in partitioned_by else rows


def _merge(table: DeltaTable, rows: DataFrame) -> None:
    """Bring the newest record of each key into a table; one without a value removes the key's."""
    whole = sf.struct(*[sf.col(f"`{name}`") for name in rows.columns])
    keyed = rows.where("key IS NOT NULL").withColumn("record", whole)
    by_partition = keyed.groupBy("topic", "key", "partition").agg(
        sf.max_by("record", "offset").alias("record")
    )
    last = sf.max_by("record", sf.struct("record.timestamp", "partition"))
    newest = by_partition.groupBy("topic", "key").agg(last.alias("record")).select("record.*")
    newest = newest.persist()
    try:
        newest.createOrReplaceTempView("kafkalog_newest")
        newest.sparkSession.sql(_MERGE(table.name))
    finally:
        newest.unpersist()
