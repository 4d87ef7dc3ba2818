"""From topics to tables: a query that keeps every record, or the newest one of each key.

**Exactly once.** Each Delta table keeps what it holds of the source in the very commit that adds
rows (:mod:`~kafkalog.jobs.pipelines.delta_tables`). So the table decides where a batch continues,
and not the checkpoint's number of it (:mod:`~kafkalog.jobs.pipelines.continuation`): rows that the
table holds are left out, and a batch that would leave a gap is refused. That makes an older
checkpoint, a new one, and two runs at once come out right.

**Properties.** After each micro-batch, how far the topics were read is noted in the table's
properties (:mod:`~kafkalog.jobs.pipelines.topic_facts`). A job that is killed before that notes it
later.

**Deleted keys.** A record without a value removes the row of its key from the table of newest
records. A key may have records in several partitions, once a topic got more of them, and the
partitions are read in any order. So a table ``_kafkalog_deleted``, in the folder of the table of
newest records, keeps for each key the newest record without a value: an older record of another
partition that comes later does not bring the key back. It is written before the rows are merged,
and says nothing but what the log has said. Nothing is kept there of topics with one partition.
The property ``kafkalog.deletedKeys`` names the folder. So a clone, which gets the property and not
the folder, finds that of its original, and copies it. Where half of its rows are so old that no
older record is waited for any more, the others go to a folder of another name: a version that is
restored names the one of its time.

**Other formats** have no transactions. There the table and the checkpoint must be of one time,
which is decided before anything is read. The ids of their topics are kept with the checkpoint.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from kafkalog.errors import OptionError, TargetMismatchError
from kafkalog.files.paths import SCHEME
from kafkalog.files.system import system
from kafkalog.jobs.pipelines.checkpoint_folder import (
    CheckpointFolder,
    exists,
    list_names,
    read_text,
    remove_older,
    write_text,
)
from kafkalog.jobs.pipelines.continuation import (
    TargetState,
    WaysOn,
    continuing_options,
    first_offsets,
)
from kafkalog.jobs.pipelines.copied_logs import SourceLogs, without_held_rows
from kafkalog.jobs.pipelines.delta_tables import DeltaTable, HeldByTable, sql_text
from kafkalog.jobs.pipelines.inputs import FILES
from kafkalog.jobs.pipelines.topic_facts import FactsOfLogs, property_of, read_facts, to_properties
from kafkalog.model import TopicPartition, partition_counts
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.options.topic_settings import LogConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from kafkalog.jobs.pipelines.continuation import PlannedBatch
    from kafkalog.streaming.source.offsets import PartitionOffsets

    _Ranges: TypeAlias = dict[TopicPartition, tuple[int | None, int]]

__all__ = ["DELTA_FORMAT", "Archive"]

_LOGGER: Final = logging.getLogger("kafkalog.jobs")

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

_DELETED: Final = "_kafkalog_deleted"
_DELETED_KEYS: Final = "kafkalog.deletedKeys"
_KEPT_TO_RESTORE_MS: Final = 30 * 86_400_000
"""How long a folder of deleted keys stays that newer versions do not name: as Delta's log does."""

_QUERY: Final = "_kafkalog_query"
"""A file beside those of a table without transactions: the id of the query that writes it."""

_WAYS_OF_FILES: Final = (
    "Ways on: restore both of one time; remove both, which archives all that the log has; another "
    "TABLE and another --checkpoint leave these as they are"
)

_REBUILD: Final = "--rebuild empties the table and takes all that the log has"

_IS_NEWER: Final = (
    "CASE WHEN s.partition = t.partition THEN s.offset > t.offset ELSE "
    "struct(s.timestamp, s.partition) > struct(t.timestamp, t.partition) END"
)
"""Of records of one partition offsets tell, and else timestamps. So the order in which partitions
are read does not count."""

_SAME_KEY: Final = "s.topic = t.topic AND s.key = t.key"
_MERGE: Final = f"""\
MERGE INTO {{0}} AS t USING kafkalog_newest AS s ON {_SAME_KEY}
WHEN MATCHED AND {_IS_NEWER} AND s.value IS NULL THEN DELETE
WHEN MATCHED AND {_IS_NEWER} THEN UPDATE SET *
WHEN NOT MATCHED AND s.value IS NOT NULL THEN INSERT *
""".format
_MERGE_DELETED: Final = f"""\
MERGE INTO {{0}} AS t USING kafkalog_deleted AS s ON {_SAME_KEY}
WHEN MATCHED AND {_IS_NEWER} THEN UPDATE SET *
WHEN NOT MATCHED THEN INSERT *
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
        from_target: put the checkpoint aside, and continue where the tables end.
        rebuild: put the checkpoint aside, remove the topics from the tables, and archive all that
            the log has. Either is done by the first :meth:`start`.
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
    from_target: bool = False
    rebuild: bool = False
    _tables: _Tables | None = field(default=None, init=False, repr=False)

    @property
    def name(self) -> str:
        """What the query is called."""
        return f"archive {','.join(self.topics)}"

    @property
    def is_delta(self) -> bool:
        """Whether the table is one of Delta."""
        return self.table_format == DELTA_FORMAT

    def reading(self) -> ReadOptions:
        """Return the options of the source, checked."""
        given = {"path": self.log, "subscribe": ",".join(self.topics)}
        return ReadOptions.parse({**self.options, **given})

    def start(self, spark: SparkSession, *, follow: bool = False) -> StreamingQuery:
        """Start the query.

        Args:
            spark: a session with Delta, or with the table's format.
            follow: tail the topics instead of ending where they end now.

        Raises:
            TargetMismatchError: table, checkpoint and log do not belong together; nothing was
                written.
            KafkaLogError: one of them cannot be read.
        """
        options: Mapping[str, str] = {"startingOffsets": "earliest", **self.options}
        checkpoint = CheckpointFolder(spark, self.checkpoint)
        if self.is_delta:
            self._tables = _Tables.of(self, spark, checkpoint)
            options = self._tables.prepare(self._columns, options)
        else:
            _refuse_other_times(self, spark, checkpoint)
            options = {**self._kept_ids, **options}
        records = (
            spark.readStream.format("kafkalog")
            .schema(self._columns)
            .options(**options)
            .option("subscribe", ",".join(self.topics))
            .load(self.log)
        )
        if self._tables is not None:
            writer = records.writeStream.foreachBatch(self._tables.take)
        else:
            writer = self._into_files(records)
        writer = writer.queryName(self.name).option("checkpointLocation", self.checkpoint)
        query = (writer if follow else writer.trigger(availableNow=True)).start()
        if self.table_format in FILES:
            _note_query(self, spark, query.id)
        return query

    def finish(self, spark: SparkSession) -> None:
        """Put small files together, and note where logs start now; of Delta tables only."""
        if self.is_delta:
            checkpoint = CheckpointFolder(spark, self.checkpoint)
            tables = self._tables or _Tables.of(self, spark, checkpoint)
            tables.finish()

    @property
    def _columns(self) -> str:
        return _COLUMNS("STRING" if self.text else "BINARY")

    @property
    def _kept_ids(self) -> Mapping[str, str]:
        """Where a query whose table keeps no ids of topics keeps them."""
        is_local = not SCHEME.match(self.checkpoint)
        return {"stateLocation": f"{self.checkpoint}/kafkalog"} if is_local else {}

    def _into_files(self, records: DataFrame) -> DataStreamWriter:
        by = _BY_DAY if self.by_day else ()
        writer = _with_day(records, by).writeStream.format(self.table_format)
        return writer.partitionBy(*by).option("path", self.table)


class _Part(NamedTuple):
    """What a table takes of a micro-batch: from which offsets on, and what it holds then."""

    ranges: _Ranges
    first: Mapping[TopicPartition, int]
    after: TargetState


@dataclass
class _Tables:
    """The Delta tables of an archive, and what is done to them with each micro-batch."""

    archive: Archive
    facts: FactsOfLogs
    logs: SourceLogs
    checkpoint: CheckpointFolder
    records: HeldByTable | None
    newest: HeldByTable | None
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    """Where a query without a checkpoint starts, which Spark does not keep."""

    @classmethod
    def of(cls, archive: Archive, spark: SparkSession, checkpoint: CheckpointFolder) -> Self:
        table = DeltaTable(spark, archive.table)
        newest = None if archive.latest is None else DeltaTable(spark, archive.latest)
        is_latest = newest is not None and newest.path == table.path
        parsed = archive.reading()
        return cls(
            archive,
            FactsOfLogs(parsed.paths, archive.topics),
            SourceLogs(parsed),
            checkpoint,
            None if is_latest else HeldByTable(table),
            None if newest is None else HeldByTable(newest),
        )

    @property
    def _held(self) -> list[HeldByTable]:
        return [held for held in (self.records, self.newest) if held is not None]

    # Before the query starts

    def prepare(self, columns: str, options: Mapping[str, str]) -> Mapping[str, str]:
        """Hold tables, checkpoint and log against each other; return the options of the source.

        Raises:
            TargetMismatchError: they do not belong together.
        """
        begins = self.archive.rebuild or self.archive.from_target
        starts = {} if begins else self.checkpoint.next_starts()
        for each in self._held:
            held = each.look()
            if not self.archive.rebuild:
                ranges: _Ranges = {key: (None, end) for key, end in self._ends(held).items()}
                ranges |= {key: (start, start) for key, start in starts.items()}
                self._first_offsets(each, self.logs.planned(ranges, held))
        if self.newest is not None:
            self._copy_deleted(self.newest)
        if begins:
            self._put_checkpoint_aside()
        self._create(columns)
        if self.archive.rebuild:
            for each in self._held:
                self._empty(each)
        if self.newest is not None:
            self._forget_deleted_above(self.newest)
        self.archive.rebuild = self.archive.from_target = False  # done, also for who starts again
        return options if starts else self._continuing(options)

    def _ends(self, held: TargetState) -> dict[TopicPartition, int]:
        """Return up to where a table holds the topics that are archived here."""
        return {key: end for key, end in held.ends.items() if key.topic in self._topics}

    @property
    def _topics(self) -> frozenset[str]:
        return frozenset(self.archive.topics)

    def _first_offsets(self, each: HeldByTable, batch: PlannedBatch) -> dict[TopicPartition, int]:
        """Decide from which offsets a table takes a batch; see :func:`first_offsets`."""
        table = f"the table {each.table.path}"
        is_beside = each is self.newest and self.records is not None
        other = "another --latest FOLDER" if is_beside else "another TABLE"
        ways = WaysOn(
            f"{table} ({each.why})" if each.why else table,
            self.archive.log,
            f"the checkpoint {self.archive.checkpoint}",
            rebuild=_REBUILD,
            other_target=f"{other} and another --checkpoint leave this one as it is",
        )
        if each.is_mixed:
            raise TargetMismatchError(
                f"{ways.target} has a gap, or records twice. Nothing was written. Ways on: "
                f"{ways.rebuild}; {ways.other_target}"
            )
        if each.others:
            raise TargetMismatchError(
                f"somebody else has written records to {table}: {each.others}. Nothing was "
                "written. Ways on: RESTORE TABLE to the version before that; "
                f"{ways.rebuild}; {ways.other_target}"
            )
        return first_offsets(each.held, batch, ways, is_changed_id=self.logs.is_changed_id)

    def _put_checkpoint_aside(self) -> None:
        if (aside := self.checkpoint.put_aside()) is not None:
            _LOGGER.warning("the checkpoint %s is %s now", self.archive.checkpoint, aside)

    def _create(self, columns: str) -> None:
        if self.records is not None:
            by_day = self.archive.by_day
            self.records.table.create(columns + ", day DATE" * by_day, _BY_DAY if by_day else ())
        if self.newest is not None:
            self.newest.table.create(columns, ())

    def _empty(self, each: HeldByTable) -> None:
        """Remove the topics from a table, and from what it is known to hold."""
        each.look()
        names = ", ".join(map(sql_text, self.archive.topics))
        others = {name: it for name, it in each.held.topics.items() if name not in self._topics}
        each.delete(f"topic IN ({names})", TargetState(topics=others))
        each.table.unset_properties([property_of(topic) for topic in self.archive.topics])
        if each is self.newest and (deleted := _DeletedKeys(each).table).exists:
            deleted.delete(f"topic IN ({names})")

    def _copy_deleted(self, newest: HeldByTable) -> None:
        """Give a clone what its original knows of deleted keys."""
        gone = _DeletedKeys(newest).copy_of_original()
        if gone is not None and not self.archive.rebuild:
            raise TargetMismatchError(
                f"the deleted keys of the table {newest.table.path} are in {gone}, which is not "
                "there: keys that are gone would come back. Nothing was written. Ways on: bring "
                f"that folder back; {_REBUILD}"
            )

    def _forget_deleted_above(self, newest: HeldByTable) -> None:
        _DeletedKeys(newest).forget_above(newest.look())

    def _continuing(self, options: Mapping[str, str]) -> Mapping[str, str]:
        """Let a query without a checkpoint start where the tables end, as far as they go."""
        states = [each.look() for each in self._held]
        if not any(map(self._ends, states)):
            return options
        keys = set(self.logs.ends())
        in_all = keys.intersection(*(state.ends for state in states))
        self.starts = {key: min(state.ends[key] for state in states) for key in in_all}
        return continuing_options(options, keys, self.starts)

    # With each micro-batch

    def take(self, rows: DataFrame, batch_id: int) -> None:
        """Take in a micro-batch, as far as the tables do not hold it.

        Raises:
            TargetMismatchError: it does not continue them; nothing was written.
            CommitError: another run has written to a table meanwhile.
        """
        starts = self.checkpoint.ends(batch_id - 1) if batch_id else self.starts
        ends = self.checkpoint.ends(batch_id)
        ranges: _Ranges = {key: (starts.get(key), end) for key, end in ends.items()}
        taken = [self._plan(each, ranges) for each in self._held]
        self._note_new_topics(ends)
        is_shared = all(taken) and len(taken) > 1
        rows = rows.persist() if is_shared else rows
        try:
            for each, part in zip(self._held, taken, strict=True):
                if part is not None:
                    self._write(each, part, rows)
        finally:
            if is_shared:
                rows.unpersist()
        self._note()
        if (batch_id + 1) % _BATCHES_BETWEEN_COMPACTIONS == 0:
            self._compact()

    def finish(self) -> None:
        for each in self._held:
            each.look()
        self._note()
        self._compact()

    def _plan(self, each: HeldByTable, ranges: _Ranges) -> _Part | None:
        """Decide what a table takes of a micro-batch; None if it holds all of it."""
        held = each.look()
        batch = self.logs.planned(ranges, held)
        first = self._first_offsets(each, batch)
        after = held.after(batch)
        return None if after == held else _Part(ranges, first, after)

    def _write(self, each: HeldByTable, part: _Part, rows: DataFrame) -> None:
        rows = without_held_rows(rows, part.ranges, part.first)
        if each is self.newest:
            _merge(each, rows, part.after, self._many_partitions())
            return
        by = each.table.partition_columns
        rows.sparkSession.conf.set(*_OPEN_FILES)  # of the query's own session
        with each.committing(part.after, rows.sparkSession) as options:
            writer = _with_day(rows, by).write.format(DELTA_FORMAT).mode("append")
            writer.options(**options).save(each.table.path)

    def _many_partitions(self) -> list[str]:
        """Return the topics that have more than one partition: a key may be in several."""
        counts = partition_counts(self.logs.ends())
        return sorted(topic for topic, count in counts.items() if count > 1)

    def _note(self) -> None:
        """Note in each table's properties what is known of the topics, and how much it holds."""
        for each in self._held:
            self._note_in(each, self._ends(each.held))

    def _note_new_topics(self, ends: PartitionOffsets) -> None:
        """Note the ids of topics before their first rows, of which nothing is read yet."""
        for each in self._held:
            known = read_facts(each.table.properties)
            if new := {key: 0 for key in ends if key.topic not in known}:
                self._note_in(each, new)

    def _note_in(self, each: HeldByTable, ends: PartitionOffsets) -> None:
        known = read_facts(each.table.properties)
        found, held = self.facts.look(ends, known), each.held.topics
        noted = {name: it.of_rows(held[name]) if name in held else it for name, it in found.items()}
        each.table.set_properties(to_properties(noted))

    def _compact(self) -> None:
        for each in self._held:
            each.table.compact()
        if self.newest is not None:
            _DeletedKeys(self.newest).prune()


class _DeletedKeys:
    """The newest records without a value, of the keys that a table of newest records had."""

    def __init__(self, newest: HeldByTable) -> None:
        self._newest = newest.table
        self._telling_conflicts = newest.telling_conflicts

    @property
    def table(self) -> DeltaTable:
        """The table that goes with the present version; it may not be there."""
        noted = self._newest.properties.get(_DELETED_KEYS, _DELETED)
        return self._in_folder(noted.rpartition("/")[2])

    def _in_folder(self, name: str) -> DeltaTable:
        return DeltaTable(self._newest.spark, f"{self._newest.path}/{name}")

    def copy_of_original(self) -> str | None:
        """Copy those of a clone's original; return where they should be, if they are not there."""
        if self._newest.rows() is None:
            return None
        noted = self._newest.properties.get(_DELETED_KEYS)
        if noted is None or self.table.rows() is not None:
            return None
        rows = DeltaTable(self._newest.spark, noted).rows()
        if rows is None:
            return noted
        rows.write.format(DELTA_FORMAT).mode("append").save(self.table.path)
        self._newest.set_properties({_DELETED_KEYS: self.table.path})
        return None

    def add(self, gone: DataFrame) -> None:
        """Keep what is newer than what is known of a key."""
        self._newest.refresh()  # another run may have pruned
        table = self.table
        table.create(gone.schema, ())
        self._newest.set_properties({_DELETED_KEYS: table.path})
        gone.createOrReplaceTempView("kafkalog_deleted")
        with self._telling_conflicts():
            gone.sparkSession.sql(_MERGE_DELETED(table.name))

    def forget_above(self, held: TargetState) -> None:
        """Leave those out that a run has kept which was killed before it merged their batch.

        The log may have other records there by now, or belong to another topic.
        """
        table = self.table
        rows = table.rows() if table.exists else None
        if rows is None:
            return
        lasts = rows.groupBy("topic", "partition").agg(sf.max("offset")).collect()
        above = [
            f"(topic = {sql_text(topic)} AND partition = {partition} AND offset >= {end})"
            for topic, partition, last in lasts
            if last >= (end := held.end_of(TopicPartition(topic, partition)) or 0)
        ]
        if above:
            table.delete(" OR ".join(above))

    def prune(self) -> None:
        """Leave those out that no older record is waited for, if these are half of them.

        A record of another partition may come as late as a broker keeps a record without a value
        for who reads a compacted topic: ``delete.retention.ms`` behind the partition that is least
        far. Times are those of the records.
        """
        before = self.table
        rows = before.rows() if before.exists else None
        is_old = self._are_old(rows) if rows is not None else ""
        if rows is None or not is_old:
            return
        is_kept = sf.expr(f"NOT coalesce({is_old}, false)")
        version = before.version
        kept, all_rows = rows.where(is_kept).count(), rows.count()
        if 2 * kept > all_rows:
            before.compact()
            return
        after = self._in_folder(f"{_DELETED}-{system.random_id().hex[:12]}")
        rows.where(is_kept).write.format(DELTA_FORMAT).mode("append").save(after.path)
        if before.version != version:  # another run has added some: the next run does this
            return
        self._newest.set_properties({_DELETED_KEYS: after.path})
        for name in list_names(self._newest.spark, self._newest.path):
            if name.startswith(_DELETED) and name not in {_name(before), _name(after)}:
                remove_older(self._newest.spark, f"{self._newest.path}/{name}", _KEPT_TO_RESTORE_MS)

    def _are_old(self, rows: DataFrame) -> str:
        """Return a condition in SQL; "" where nothing is old."""
        newest = self._newest.rows()
        named = ("topic", "partition", "timestamp")
        stamps = (
            rows.select(*named)
            if newest is None
            else rows.select(*named).union(newest.select(*named))
        )
        latest = stamps.groupBy("topic", "partition").agg(
            sf.max(sf.unix_micros("timestamp")).alias("us")
        )
        found = latest.groupBy("topic").agg(sf.min("us")).collect()
        facts = read_facts(self._newest.properties)
        conditions = []
        for topic, us in found:
            settings = facts[topic].settings if topic in facts else None
            late_ms = LogConfig.of_topic(settings or {}).delete_retention_ms
            if us is not None:
                conditions.append(
                    f"topic = {sql_text(topic)} AND unix_micros(timestamp) < {us - late_ms * 1000}"
                )
        return " OR ".join(f"({each})" for each in conditions)


def _name(table: DeltaTable) -> str:
    return table.path.rpartition("/")[2]


def _refuse_other_query(archive: Archive, noted: str | None, query: str | None) -> None:
    if None not in {noted, query} and noted != query:
        raise TargetMismatchError(
            f"the table {archive.table} was written by the query {noted}, and the checkpoint "
            f"{archive.checkpoint} is of the query {query}, so records would be missing or "
            f"twice. Nothing was written. {_WAYS_OF_FILES}"
        )


def _refuse_other_times(
    archive: Archive, spark: SparkSession, checkpoint: CheckpointFolder
) -> None:
    """Refuse a table in files that is of another time than the checkpoint.

    Spark's file sink skips a micro-batch whose number its folder ``_spark_metadata`` has, whatever
    rows it has now, and knows nothing of another checkpoint. Formats that keep no such folder are
    not looked into, but for whether there are rows. A checkpoint of another query may know as many
    micro-batches; so the id of the query that writes a table is kept in its folder.
    """
    if archive.rebuild or archive.from_target:
        raise OptionError(
            f"--rebuild and --from-target need a Delta table, and --format is "
            f"{archive.table_format!r}: remove TABLE and the checkpoint's folder to archive again"
        )
    names = list_names(spark, f"{archive.table}/_spark_metadata")
    numbers = (name.partition(".")[0] for name in names)
    written = max((int(number) for number in numbers if number.isdecimal()), default=-1)
    ended = -1 if checkpoint.ended is None else checkpoint.ended
    planned = -1 if checkpoint.planned is None else checkpoint.planned
    if names:
        is_of_time = ended <= written <= planned
    else:
        has_rows = _has_rows(archive, spark)
        is_of_time = has_rows is None or (planned >= 0 if has_rows else ended < 0)
    if is_of_time:
        _refuse_other_query(archive, _noted_query(archive, spark), checkpoint.query_id)
    else:
        raise TargetMismatchError(
            f"the table {archive.table} and the checkpoint {archive.checkpoint} are not of the "
            f"same time: {_batches(written, 'the table')}, and {_batches(ended, 'the checkpoint')}."
            f" Files of the format {archive.table_format} do not tell what of the log is in them, "
            f"so records would be missing or twice. Nothing was written. {_WAYS_OF_FILES}"
        )


def _noted_query(archive: Archive, spark: SparkSession) -> str | None:
    """Return the id of the query that writes a table in files; None where none is noted."""
    path = f"{archive.table}/{_QUERY}"
    is_noted = archive.table_format in FILES and exists(spark, path)
    return read_text(spark, path).strip() if is_noted else None


def _note_query(archive: Archive, spark: SparkSession, query_id: str) -> None:
    if _noted_query(archive, spark) != query_id:
        write_text(spark, f"{archive.table}/{_QUERY}", f"{query_id}\n")


def _batches(last: int, what: str) -> str:
    return f"{what} ends with micro-batch {last}" if last >= 0 else f"{what} knows no micro-batch"


def _has_rows(archive: Archive, spark: SparkSession) -> bool | None:
    """Whether there is a table with rows; None of a format that cannot be read."""
    if archive.table_format in FILES:
        return any(not name.startswith(("_", ".")) for name in list_names(spark, archive.table))
    try:
        return not spark.read.format(archive.table_format).load(archive.table).isEmpty()
    except PySparkException:
        return None if exists(spark, archive.table) else False


def _with_day(rows: DataFrame, partitioned_by: Sequence[str]) -> DataFrame:
    """Add the day where files are divided by it."""
    return rows.withColumn("day", sf.to_date("timestamp")) if "day" in partitioned_by else rows


def _merge(
    each: HeldByTable,
    rows: DataFrame,
    after: TargetState,
    topics: Sequence[str],
) -> None:
    """Bring the newest record of each key into a table; one without a value removes the key's.

    ``topics`` are those of which the newest records without a value are kept.
    """
    deleted = _DeletedKeys(each)
    newest = _newest(rows).persist()
    spark = newest.sparkSession
    try:
        newest.createOrReplaceTempView("kafkalog_newest")
        gone = newest.where("value IS NULL").where(sf.col("topic").isin(*topics))
        if not gone.isEmpty():
            deleted.add(gone.select("topic", "partition", "offset", "timestamp", "key"))
        older = deleted.table.rows() if deleted.table.exists else None
        if older is not None:
            is_older = sf.expr(f"{_SAME_KEY} AND s.value IS NOT NULL AND NOT ({_IS_NEWER})")
            left = newest.alias("s").join(older.alias("t"), is_older, "left_anti")
            left.createOrReplaceTempView("kafkalog_newest")
        with each.committing(after, spark):
            spark.sql(_MERGE(each.table.name))
    finally:
        newest.unpersist()


def _newest(rows: DataFrame) -> DataFrame:
    """Return the newest record of each key: of one partition by offset, among them by time."""
    whole = sf.struct(*[sf.col(f"`{name}`") for name in rows.columns])
    keyed = rows.where("key IS NOT NULL").withColumn("record", whole)
    by_partition = keyed.groupBy("topic", "key", "partition").agg(
        sf.max_by("record", "offset").alias("record")
    )
    last = sf.max_by("record", sf.struct("record.timestamp", "partition"))
    return by_partition.groupBy("topic", "key").agg(last.alias("record")).select("record.*")
