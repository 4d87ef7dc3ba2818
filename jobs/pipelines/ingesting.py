"""Into a topic, from what Spark can stream, each row once.

**Sources that count offsets as Kafka does**: topics of brokers, and of log directories. How far
they are taken in is kept in the commit state of the target, with the topic that gets the rows and
by the rename that makes these visible (:class:`~kafkalog.checkpoints.commit_state.TopicOrigin`). A
micro-batch continues there, whatever its checkpoint knows
(:mod:`~kafkalog.jobs.pipelines.continuation`).

**Other sources**, such as files, tell by their checkpoint alone what was taken in. The writer's id
is made of the input's name. So the batches of an older checkpoint, or of a new one, do not follow
the last one that the log knows, and are refused (:mod:`~kafkalog.streaming.store.identity`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias

from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, MapType

from kafkalog.errors import KafkaLogError, OptionError
from kafkalog.files.paths import SCHEME, refuse_among_logs
from kafkalog.jobs.pipelines.checkpoint_folder import CheckpointFolder
from kafkalog.jobs.pipelines.continuation import (
    PlannedBatch,
    WaysOn,
    continuing_options,
    first_offsets,
)
from kafkalog.jobs.pipelines.copied_logs import (
    SourceLogs,
    copied_batch,
    path_for_sink,
    state_of_target,
    topics_of_target,
    without_held_rows,
)
from kafkalog.jobs.pipelines.inputs import FILES, with_header_lists
from kafkalog.jobs.process.arguments import check_folders, check_folders_of_spark
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.topics import create
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.sink.write_options import WriteOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from kafkalog.jobs.pipelines.continuation import TargetState
    from kafkalog.jobs.pipelines.inputs import Input
    from kafkalog.streaming.source.offsets import PartitionOffsets

    _Ranges: TypeAlias = dict[TopicPartition, tuple[int | None, int]]

__all__ = ["CountedIngest", "Ingest", "start_ingest", "to_records"]

_PATTERNS: Final = frozenset({"subscribepattern", "assign"})
_IDS: Final = frozenset({"transactional.id", "kafka.transactional.id"})
_ID: Final = "transactional.id"


@dataclass(frozen=True, kw_only=True)
class Ingest:
    """What is taken in, and where to.

    Args:
        source: what is read.
        log: the log directory, or several with commas between them.
        topic: where all records go.
        checkpoint: the query's own folder.
        columns: SQL expressions, as :func:`to_records` takes them.
        options: of the sink, such as ``compression.type``.
        from_target: put the checkpoint aside, and continue where the topic ends.
    """

    source: Input
    log: str
    topic: str
    checkpoint: str
    columns: Mapping[str, str | None] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    from_target: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """Where the records go, with what reaches the store of a place that is a URI."""
        written = WriteOptions.parse({**self.options, "path": self.log, "topic": self.topic})
        return written.paths

    @property
    def counts_offsets(self) -> bool:
        """Whether the log can know how much it holds of the source.

        A source with a pattern may get topics at any time. Who gives a ``transactional.id`` decides
        by it what belongs together.
        """
        given = {name.lower() for name in self.source.options}
        if given & _PATTERNS or _IDS & {name.lower() for name in self.options}:
            return False
        return self.source.is_kafka or (self.source.format == "kafkalog" and "subscribe" in given)

    def check(self) -> None:
        """Check what was given, before Spark starts.

        Raises:
            OptionError, InvalidTopicError, BadParameter: it cannot be used.
            KafkaLogError: none of the brokers answers.
        """
        paths = self.paths
        refuse_among_logs("--checkpoint", self.checkpoint, paths)
        self.source.check()
        check_folders({"LOG": paths})
        check_folders_of_spark({"--checkpoint": self.checkpoint})
        if self.from_target and not self.counts_offsets:
            raise OptionError(
                "--from-target is for topics with Kafka's offsets that are named, and without an "
                "option transactional.id: of other inputs the checkpoint alone knows what is in LOG"
            )

    def start(self, spark: SparkSession, *, follow: bool = False) -> StreamingQuery:
        """Start the query; ``follow`` lets it continue when all input is taken in.

        Raises:
            TargetMismatchError: the topic does not hold what the checkpoint has read.
        """
        if self.counts_offsets:
            return CountedIngest(self, spark).start(follow=follow)
        options = dict(self.options)
        if not _IDS & {name.lower() for name in options}:
            options[_ID] = f"ingest {self.source.format} {self._place}"
        return start_ingest(
            to_records(self.source.read(spark), **self.columns),
            self.log,
            topic=self.topic,
            checkpoint=self.checkpoint,
            follow=follow,
            options=options,
        )

    @property
    def _place(self) -> str:
        """The input's name, in whatever words it is given."""
        is_local = self.source.format in {*FILES, "delta"} and not SCHEME.match(self.source.place)
        return os.path.realpath(self.source.place) if is_local else self.source.place


class _Source(Protocol):
    """Topics with offsets, as they are now."""

    def ends(self) -> Iterable[TopicPartition]: ...

    def planned(self, ranges: _Ranges, held: TargetState) -> PlannedBatch: ...

    def is_changed_id(self, topic: str, before: str, now: str, /) -> bool: ...


class CountedIngest:
    """Takes in topics whose offsets the target knows."""

    def __init__(self, given: Ingest, spark: SparkSession) -> None:
        self._given = given
        self._folder = CheckpointFolder(spark, given.checkpoint)
        self._source, self._reader = _source_of(given.source, spark)
        self._starts: PartitionOffsets = {}
        self._spark = spark

    def start(self, *, follow: bool) -> StreamingQuery:
        """Start the query; see :meth:`Ingest.start`."""
        given = self._given
        writer = self.prepare().read(self._spark).writeStream.foreachBatch(self.take)
        writer = writer.queryName(f"ingest {given.topic}")
        writer = writer.option("checkpointLocation", given.checkpoint)
        return (writer if follow else writer.trigger(availableNow=True)).start()

    def prepare(self) -> Input:
        """Hold topic and checkpoint against each other; return the source, from where it is read.

        Raises:
            TargetMismatchError: they do not belong together.
        """
        given, folder = self._given, self._folder
        topics = {key.topic for key in self._source.ends()}
        held = self._held(topics)
        starts = {} if given.from_target else folder.next_starts()
        ranges: _Ranges = {key: (None, end) for key, end in held.ends.items()}
        ranges |= {key: (start, start) for key, start in starts.items()}
        self._first_offsets(held, self._source.planned(ranges, held))
        if given.from_target:
            folder.put_aside()
        return given.source if starts else self._continuing(held)

    def _held(self, topics: Iterable[str]) -> TargetState:
        known = topics_of_target(self._given.paths)
        into = dict.fromkeys(sorted(topics), self._given.topic)
        return state_of_target(known, self._reader, into)

    def _first_offsets(
        self, held: TargetState, batch: PlannedBatch
    ) -> Mapping[TopicPartition, int]:
        given = self._given
        deletion = (
            f"`kafkalog topic delete PATH --topic {given.topic}` deletes the topic there, and "
            "--from-target takes all that the source has then"
        )
        ways = WaysOn(
            f"the topic {given.topic!r} in {given.log}",
            given.source.place,
            f"the checkpoint {given.checkpoint}",
            rebuild=deletion if given.topic in topics_of_target(given.paths) else "",
            other_target="another topic and another --checkpoint leave this one as it is",
            without_lost="--input-option failOnDataLoss=false leaves them out",
        )
        return first_offsets(held, batch, ways, is_changed_id=self._source.is_changed_id)

    def _continuing(self, held: TargetState) -> Input:
        """Let a query without a checkpoint start where the topic ends, if it holds anything."""
        source = self._given.source
        if not held.ends:
            return source
        keys = set(self._source.ends())
        self._starts = {key: end for key, end in held.ends.items() if key in keys}
        return replace(source, options=continuing_options(source.options, keys, self._starts))

    def take(self, rows: DataFrame, batch_id: int) -> None:
        """Append the rows of a micro-batch that the topic does not hold, in one commit.

        Raises:
            TargetMismatchError: it does not continue the topic; nothing was written.
            CommitError: another run has written to the topic meanwhile.
        """
        ends = self._folder.ends(batch_id)
        starts = self._folder.ends(batch_id - 1) if batch_id else self._starts
        ranges: _Ranges = {key: (starts.get(key), end) for key, end in ends.items()}
        held = self._held({key.topic for key in ends})
        batch = self._source.planned(ranges, held)
        first = self._first_offsets(held, batch)
        if held.after(batch) == held:
            return
        given = self._given
        into = dict.fromkeys({key.topic for key in ends}, given.topic)
        path, options = given.source.place, given.source.options
        is_log = given.source.format == "kafkalog"
        path = path_for_sink(path, options, in_stores=False) if is_log else ""
        copied = copied_batch(self._reader, path, into, batch, held)
        self._append(rows, batch, first, copied.to_json())

    def _append(
        self,
        rows: DataFrame,
        batch: PlannedBatch,
        first: Mapping[TopicPartition, int],
        copied: str,
    ) -> None:
        given = self._given
        left = to_records(without_held_rows(rows, batch.ranges, first), **given.columns)
        if given.topic not in topics_of_target(given.paths) and left.isEmpty():
            self._create()
        writer = left.write.format("kafkalog").mode("append").options(**given.options)
        writer.options(topic=given.topic, copiedFrom=copied).save(given.log)

    def _create(self) -> None:
        """Make the topic: a commit without rows makes none, and none could keep the offsets."""
        given = self._given
        count = int(given.options.get("numPartitions", "1"))
        create(given.paths, given.topic, partitions=count)


def _source_of(source: Input, spark: SparkSession) -> tuple[_Source, str]:
    """Return what tells of a source's topics now, and the name under which a target knows it."""
    if source.is_kafka:
        cluster = _KafkaCluster(source, spark)
        return cluster, f"ingest {cluster.cluster_id}"
    return SourceLogs(ReadOptions.parse({**source.options, "path": source.place})), "ingest"


class _KafkaCluster:
    """Topics of a running cluster, by the client of Spark's connector."""

    def __init__(self, source: Input, spark: SparkSession) -> None:
        """Ask for the cluster's id.

        Raises:
            KafkaLogError: it does not answer.
        """
        self._jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Spark offers no other way
        self._options = source.kafka_options()
        with self._admin() as admin:
            self.cluster_id = str(admin.call.describeCluster().clusterId().get())

    def ends(self) -> Iterable[TopicPartition]:
        """List the partitions of the topics."""
        with self._admin() as admin:
            return [key for topic in admin.topics(self._names) for key in topic.partitions]

    def planned(self, ranges: _Ranges, held: TargetState) -> PlannedBatch:
        """Ask for what the cluster says of a batch, and of where the target ends."""
        with self._admin() as admin:
            topics = admin.topics(self._names)
            there = {key for topic in topics for key in topic.partitions}
            return PlannedBatch(
                ranges,
                topic_ids={topic.name: topic.topic_id for topic in topics},
                set_id=self.cluster_id,
                log_ends=admin.ends(held.ends.keys() & there),
            )

    @staticmethod
    def is_changed_id(_topic: str, _before: str, _now: str, /) -> bool:
        """Whether a topic got another id and kept its records: none does in a cluster."""
        return False

    @property
    def _names(self) -> list[str]:
        given = {name.lower(): value for name, value in self._options.items()}
        return [name.strip() for name in given["subscribe"].split(",")]

    def _admin(self) -> _Admin:
        settings = self._jvm.java.util.Properties()
        for name, value in self._options.items():
            if name.lower().startswith("kafka."):
                settings.setProperty(name[len("kafka.") :], value)
        return _Admin(self._jvm, self._jvm.org.apache.kafka.clients.admin.Admin.create(settings))


@dataclass(frozen=True)
class _KafkaTopic:
    name: str
    topic_id: str
    partitions: tuple[TopicPartition, ...]


class _Admin:
    """Kafka's ``Admin``, as a context manager."""

    def __init__(self, jvm: Any, admin: Any) -> None:  # noqa: ANN401 - Java's
        self._jvm = jvm
        self.call = admin

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.call.close()
        if isinstance(error, Py4JJavaError):
            reason = str(error.java_exception).rpartition("Exception: ")[2]
            raise KafkaLogError(f"Kafka has not told of its topics: {reason}") from None

    def topics(self, names: Iterable[str]) -> list[_KafkaTopic]:
        """Describe topics."""
        wanted = self._jvm.java.util.ArrayList()
        for name in names:
            wanted.add(name)
        found = self.call.describeTopics(wanted).allTopicNames().get()
        topics = []
        for name in found:
            topic = found[name]
            numbers = sorted(int(each.partition()) for each in topic.partitions())
            keys = tuple(TopicPartition(str(name), number) for number in numbers)
            topics.append(_KafkaTopic(str(name), str(topic.topicId().toString()), keys))
        return topics

    def ends(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where logs end now."""
        kafka = self._jvm.org.apache.kafka
        asked = self._jvm.java.util.HashMap()
        named = {key: kafka.common.TopicPartition(key.topic, key.partition) for key in keys}
        for java in named.values():
            asked.put(java, kafka.clients.admin.OffsetSpec.latest())
        found = self.call.listOffsets(asked).all().get()
        return {key: int(found.get(java).offset()) for key, java in named.items()}


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
