"""From a table back to log directories: one atomic write for each topic, at the offsets it had.

Also from a remote tier into a log in an object store; ``admin/tier_restore`` makes directories.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from kafkalog.errors import OptionError
from kafkalog.files.storage import RemoteRoot
from kafkalog.jobs.archiving import DELTA_FORMAT
from kafkalog.jobs.pipelines.copied_logs import (
    paths_of_target,
    storage_options,
    topics_of_target,
)
from kafkalog.jobs.pipelines.delta_tables import DeltaTable
from kafkalog.jobs.pipelines.inputs import with_header_lists
from kafkalog.jobs.pipelines.restore_plan import NO_END, Progress, Seen, TopicPlan, Until
from kafkalog.jobs.pipelines.topic_facts import read_facts
from kafkalog.model import OFFSETS_TOPIC, TopicPartition, listed, many
from kafkalog.streaming.admin.tier_restore import (
    RestoredPartition,
    RestoredTier,
    partitions_of_tier,
    settings_of_cluster,
)
from kafkalog.streaming.admin.topics import Bounds, alter, create, set_bounds
from kafkalog.streaming.api import append, read
from kafkalog.streaming.coordinator.group_replay import (
    ReplayRecord,
    group_positions,
    read_group_positions,
)
from kafkalog.streaming.groups.administration import GroupWriter
from kafkalog.streaming.groups.position_topics import is_of_earlier_topic
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.sink.write_options import WriteOptions
from kafkalog.streaming.spark.versions import repartition_by_number
from kafkalog.streaming.store.ends.tracker import LogEndTracker

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from kafkalog.jobs.inspection.log_dirs import TieredPaths
    from kafkalog.jobs.pipelines.topic_facts import TopicFacts
    from kafkalog.streaming.tiers.tiered_store import TieredPath


__all__ = ["Restore", "restore_groups", "restore_into_bucket"]


# ----------------------------------------------------------------------------------------------
# The positions of consumer groups in topics that are restored, from an archived offsets topic.


_MOST_NAMED: Final = 10

Positions = dict[str, dict["TopicPartition", int]]


def restore_groups(
    rows: DataFrame | None, paths: Sequence[str], plans: Iterable[TopicPlan]
) -> list[str]:
    """Write where groups stood, at most where restored logs end and at least where they start.

    Args:
        rows: the table's records, the offsets topic's among them; None if it has none of those.
        paths: the log directories. A position that is there already stays, unless it is of an
            earlier topic of that name: there it counts for nothing.
        plans: the topics that were restored.

    Returns:
        what is to be said of it.
    """
    archived = None if rows is None else _archived(rows)
    if archived is None:
        return [f"no positions of groups are restored: the table has no records of {OFFSETS_TOPIC}"]
    by_topic = {plan.topic: plan.bounds for plan in plans}
    there = _there(paths, {OFFSETS_TOPIC, *by_topic})
    written, moved = 0, []
    for group, positions in sorted(archived.items()):
        restored = {}
        for key, offset in positions.items():
            bounds = by_topic.get(key.topic, ())
            if key.partition >= len(bounds) or key in there.get(group, ()):
                continue
            start, end = bounds[key.partition]
            restored[key] = min(max(offset, start), end)
            if restored[key] != offset:
                moved.append(f"{group} in {key} from {offset} to {restored[key]}")
        if restored:
            GroupWriter(paths, group).commit(restored)
            written += len(restored)
    said = [f"{written} positions of groups are restored"]
    if moved:
        more = f", and {len(moved) - _MOST_NAMED} more" if len(moved) > _MOST_NAMED else ""
        named = "; ".join(moved[:_MOST_NAMED])
        said.append(f"positions were moved to offsets that are restored: {named}{more}")
    return said


def _archived(rows: DataFrame) -> Positions | None:
    """Replay the newest record of each key; None where there are none."""
    commits = rows.where((sf.col("topic") == OFFSETS_TOPIC) & sf.col("key").isNotNull())
    newest = commits.groupBy("partition", "key").agg(
        sf.max("offset").alias("offset"), sf.max_by("value", "offset").alias("value")
    )
    by_partition: dict[int, list[ReplayRecord]] = {}
    for row in newest.collect():
        key, value = bytes(row["key"]), row["value"]
        record = ReplayRecord(row["offset"], key, None if value is None else bytes(value))
        by_partition.setdefault(row["partition"], []).append(record)
    if not by_partition:
        return None
    found: Positions = {}
    for number, records in by_partition.items():
        replayed = group_positions(sorted(records), log_name=f"{OFFSETS_TOPIC}-{number}")
        for group, positions in replayed.items():
            offsets = {key: position.offset for key, position in positions.items()}
            found.setdefault(group, {}).update(offsets)
    return found


def _there(paths: Sequence[str], topics: Collection[str]) -> Positions:
    """Read the positions in topics that log directories have, but for those of earlier topics."""
    watch = LogEndTracker(paths, lambda key: key.topic in topics)
    ends = watch.look().offsets
    ids, is_changed = watch.topic_ids(), watch.is_changed_id
    found: Positions = {}
    for key in (key for key in ends if key.topic == OFFSETS_TOPIC):
        with watch.open(key) as log:
            for group, positions in read_group_positions(log, ends[key]).items():
                offsets = {
                    each: position.offset
                    for each, position in positions.items()
                    if not is_of_earlier_topic(each, position.metadata, ids, is_changed)
                }
                found.setdefault(group, {}).update(offsets)
    return found


# ----------------------------------------------------------------------------------------------
# From a table back to log directories: one atomic write for each topic, at the offsets it had.
#
# **Steps.** The topic is created, empty. Its records are written, in one commit under an id that
# tells what is restored. Then its logs are given their starts and ends, and last the settings by
# which old records are deleted. Each step finds out whether it was done. So the same restore ends
# what a killed one has begun, and another one is refused.


_NEEDED: Final = ("partition", "offset", "value")
_WRITTEN: Final = ("partition", "offset", "timestamp", "timestampType", "key", "value", "headers")
_ROWS_PER_TASK: Final = 500_000


@dataclass(frozen=True, kw_only=True)
class Restore:
    """What is restored, and where to.

    Args:
        table: the table's folder.
        log: the log directory, or several with commas between them; or a log in an object store.
            Made if missing.
        topics: which topics. A table without a column ``topic`` has one topic.
        until: where to end.
        keys: only records with these keys; None for all.
        suppressed: keys whose records do not come back.
        as_tombstones: whether they come back without value and headers.
        with_deleted: whether to begin with the first record that the table holds, even if the topic
            started later when it was archived last.
        partitions: how many a topic has, where the table does not tell.
        config: settings of topics, by Kafka's names, where the table does not tell.
        table_format: ``delta``, ``parquet``, or another one that Spark reads.
        options: how the store of the log is reached, by the sink's names.
    """

    table: str
    log: str
    topics: tuple[str, ...]
    until: Until = NO_END
    keys: frozenset[bytes] | None = None
    suppressed: frozenset[bytes] = frozenset()
    as_tombstones: bool = False
    with_deleted: bool = False
    partitions: int | None = None
    config: Mapping[str, str]
    table_format: str = DELTA_FORMAT
    options: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def place(self) -> str:
        """The log: in an object store, with how that is reached."""
        place = WriteOptions.parse({"path": self.log, **self.options}).paths[0]
        return place if isinstance(place, RemoteRoot) else self.log

    @property
    def name(self) -> str:
        """What this is called."""
        return f"restore {','.join(self.topics)}"

    def run(self, spark: SparkSession) -> list[str]:
        """Restore all topics; return what is to be said of it, the numbers last.

        Raises:
            OptionError: a table, or a topic in it, that cannot be restored as it was asked for.
            LogDirectoryError: a topic that has other records.
            KafkaLogError: the log directories are no whole set, or somebody else holds them.
        """
        rows, facts = _opened(spark, self)
        seen = _seen(rows, {*self.topics, OFFSETS_TOPIC}, self.until.time_ms)
        plans, said = self.restore_topics(rows, facts, seen)
        archived = rows if seen[OFFSETS_TOPIC] else None
        groups = restore_groups(archived, paths_of_target(self.place), plans)
        return [*said[:-1], *groups, said[-1]]

    def restore_topics(
        self,
        rows: DataFrame,
        facts: Mapping[str, TopicFacts],
        seen: Mapping[str, Mapping[int, Seen]],
    ) -> tuple[list[TopicPlan], list[str]]:
        """Restore what a table has of the topics; return how, and what is to be said of it.

        Args:
            rows: of the table.
            facts: what the table keeps of its topics.
            seen: what it holds of each of the topics, by partition.

        Raises:
            KafkaLogError: as of :meth:`run`.
        """
        plans = [self._plan(topic, facts.get(topic), seen[topic]) for topic in self.topics]
        said = [f"{p.topic}: the table does not tell {what}" for p in plans for what in p.unknown]
        total = sum(self._restore(rows, plan, said) for plan in plans)
        said.append(f"{self.name}: {many(total, 'record')} in {many(len(plans), 'topic')}")
        return plans, said

    def _plan(self, topic: str, facts: TopicFacts | None, seen: Mapping[int, Seen]) -> TopicPlan:
        return TopicPlan.of(
            topic,
            facts,
            seen,
            self.until,
            partitions=self.partitions,
            config=self.config,
            with_deleted=self.with_deleted,
        )

    def _restore(self, rows: DataFrame, plan: TopicPlan, said: list[str]) -> int:
        """Restore one topic, or the rest of it; return how many records it has."""
        version = plan.version(self._choice)
        log, topic = self.place, plan.topic
        paths = paths_of_target(log)
        progress = plan.progress(log, version)
        if progress is None:
            starts = {number: bounds.start for number, bounds in enumerate(plan.bounds)}
            create(
                paths,
                topic,
                partitions=len(plan.bounds),
                config=plan.first_settings,
                starts=starts,
            )
        if progress is Progress.WRITTEN:
            said.append(f"{topic}: its records were restored before")
        else:
            self._write(rows, plan, version)
        bounds = plan.bounds_now(log)
        since = [f"{topic}-{n} up to {it.end}" for n, it in bounds.items() if it != plan.bounds[n]]
        if since:
            said.append(f"{topic}: somebody else has appended to it since: {listed(since)}")
        set_bounds(paths, {TopicPartition(topic, number): it for number, it in bounds.items()})
        if settings := plan.unset(log):
            alter(paths, topic, config=settings)
            limits = " ".join(f"{name}={text}" for name, text in sorted(settings.items()))
            said.append(f"{topic}: has {limits}: who writes or serves it deletes what has expired")
        return plan.written(log, version)

    def _write(self, rows: DataFrame, plan: TopicPlan, version: str) -> None:
        starts, ends = (_by_partition(numbers) for numbers in zip(*plan.bounds, strict=True))
        is_in = (sf.col("offset") >= starts) & (sf.col("offset") < ends)
        mine = rows.where((sf.col("topic") == plan.topic) & is_in)
        chosen = self._without_suppressed(self._with_keys(mine)).select(*_WRITTEN)
        rows = with_header_lists(_in_order(chosen, plan))
        writer = rows.write.format("kafkalog").mode("append")
        identity = {"txnAppId": version, "txnVersion": "0"}
        given = {**self.options, **identity}
        writer.options(topic=plan.topic, preserveOffsets="true", **given).save(self.log)

    @property
    def _choice(self) -> str:
        """Tell which records are restored, beside the offsets."""
        keys = None if self.keys is None else sorted(map(bytes.hex, self.keys))
        told = [self.table, keys, sorted(map(bytes.hex, self.suppressed)), self.as_tombstones]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

    def _with_keys(self, rows: DataFrame) -> DataFrame:
        if self.keys is None:
            return rows
        return rows.join(_keys(rows.sparkSession, self.keys), "key", "left_semi")

    def _without_suppressed(self, rows: DataFrame) -> DataFrame:
        if not self.suppressed:
            return rows
        keys = _keys(rows.sparkSession, self.suppressed)
        if not self.as_tombstones:
            return rows.join(keys, "key", "left_anti")
        rows = rows.join(keys.withColumn("suppressed", sf.lit(True)), "key", "left")
        kept = sf.col("suppressed").isNull()
        return rows.withColumns(
            {name: sf.when(kept, sf.col(name)) for name in ("value", "headers")}
        )


def _opened(spark: SparkSession, given: Restore) -> tuple[DataFrame, Mapping[str, TopicFacts]]:
    """Read a table as it is now, and what it keeps of its topics."""
    if given.table_format == DELTA_FORMAT:
        table = DeltaTable(spark, given.table)
        facts = read_facts(table.properties)  # before the version, which has all that they tell of
        rows = spark.read.format(DELTA_FORMAT).option("versionAsOf", table.version).load(table.path)
        return _as_records(rows, given), facts
    reader = spark.read.format(given.table_format)
    found = reader.load(given.table).schema
    if "topic" in found.names:  # it may be in the names of folders, which look like numbers
        kept = [each for each in found.fields if each.name != "topic"]
        reader = reader.schema(StructType([*kept, StructField("topic", StringType())]))
    return _as_records(reader.load(given.table), given), {}


def _seen(
    rows: DataFrame, topics: Collection[str], time_ms: int | None
) -> dict[str, dict[int, Seen]]:
    """Look through a table once: what it holds of each topic, by partition."""
    at_time = sf.min(sf.lit(None).cast("bigint"))
    if time_ms is not None:
        is_late = sf.unix_millis("timestamp") >= sf.lit(time_ms)
        at_time = sf.min(sf.when(is_late, sf.col("offset")))
    groups = rows.where(sf.col("topic").isin(*topics)).groupBy("topic", "partition")
    numbers = groups.agg(sf.count("*"), sf.min("offset"), sf.max("offset"), at_time)
    seen: dict[str, dict[int, Seen]] = {topic: {} for topic in topics}
    for topic, partition, *found in numbers.collect():
        seen[topic][partition] = Seen(*found)
    return seen


def _as_records(rows: DataFrame, given: Restore) -> DataFrame:
    """Take the columns of records; those that may be missing are null."""
    missing = [name for name in _NEEDED if name not in rows.columns]
    if missing:
        raise OptionError(f"{given.table} has no column {missing[0]!r}, so it is no archive")
    if "topic" not in rows.columns:
        if len(given.topics) > 1:
            raise OptionError(f"{given.table} has no column 'topic', so it has one topic")
        rows = rows.withColumn("topic", sf.lit(given.topics[0]))
    missed = {
        "key": "binary",
        "timestamp": "timestamp",
        "timestampType": "int",
        "headers": "array<struct<key:string,value:binary>>",
    }
    for name, kind in missed.items():
        if name not in rows.columns:
            rows = rows.withColumn(name, sf.lit(None).cast(kind))
    return rows.withColumns({name: sf.col(name).cast("binary") for name in ("key", "value")})


def _keys(spark: SparkSession, keys: Collection[bytes]) -> DataFrame:
    schema = StructType([StructField("key", BinaryType())])
    return sf.broadcast(spark.createDataFrame([(bytearray(key),) for key in sorted(keys)], schema))


def _by_partition(numbers: Sequence[int]) -> Column:
    """Look a row's number up by its partition."""
    return sf.get(sf.array(*map(sf.lit, numbers)), sf.col("partition"))


def _in_order(rows: DataFrame, plan: TopicPlan) -> DataFrame:
    """Give each task a range of offsets of one partition, in order."""
    firsts: list[int] = []
    sizes: list[int] = []
    slices: list[int] = []
    for number, (start, end) in enumerate(plan.bounds):
        held = plan.rows.get(number, 0)
        firsts.append(sum(slices))
        slices.append(max(1, -(-held // _ROWS_PER_TASK)))
        sizes.append(max(1, -(-(end - start) // slices[-1])))
    starts = [start for start, _ in plan.bounds]
    after_start = sf.col("offset") - _by_partition(starts)
    task = _by_partition(firsts) + sf.floor(after_start / _by_partition(sizes))
    # A task has one partition, mostly. By a single number Spark sorts without a look at the rows.
    return repartition_by_number(rows, sum(slices), task).sortWithinPartitions("offset")


# ----------------------------------------------------------------------------------------------
# Out of a remote tier, into a log in an object store. Such a log has batches of its own: what is
# committed is written into them, at the offsets that it had.


_TIER_WRITER: Final = "tier restore"
_CHUNK_BYTES: Final = 32 << 20
_COLUMNS: Final = ("key", "value", "partition", "offset", "timestamp", "headers")


def restore_into_bucket(
    places: TieredPaths,
    target: str,
    topics: Collection[str] = (),
    *,
    cluster_metadata: Sequence[str] = (),
    config: Mapping[str, str] | None = None,
) -> RestoredTier:
    """Write what is committed in a tier into a log in an object store, at the same offsets.

    Run again after it was killed, it goes on where each partition ends. The arguments are those of
    :func:`~kafkalog.streaming.admin.tier_restore.restore_from_tier`.

    Raises:
        OptionError: a topic is in the target already, and was not restored from a tier.
        UnknownTopicOrPartitionError: the tier has nothing of a topic.
        KafkaLogError: a store fails, or what the tier has cannot be read.
    """
    LogConfig.from_mapping(config or {})
    reached = storage_options(places.options)
    (place,) = WriteOptions.parse({"path": target, **reached}).paths
    found = partitions_of_tier(places, topics)
    ends = LogEndTracker(places, found.__contains__, committed_only=True).look().offsets
    done = RestoredTier([_tier_bounds(key, path, ends[key]) for key, path in found.items()])
    known = settings_of_cluster(done, cluster_metadata)
    for topic in sorted({key.topic for key in found}):
        bounds = [each for each in done.partitions if each.key.topic == topic]
        done.settings[topic] = known[topic] | dict(config or {})
        version = _begin_topic(place, topic, bounds, done.settings[topic])
        for rows in _rows_left(places, place, topic, bounds):
            options = {**reached, "preserveOffsets": "true"}
            append(
                place, topic, rows, transactional_id=_TIER_WRITER, version=version, options=options
            )
            version += 1
        set_bounds([place], {each.key: Bounds(each.start, each.end) for each in bounds})
        if done.settings[topic]:
            alter([place], topic, config=done.settings[topic])
    return done


def _tier_bounds(key: TopicPartition, path: TieredPath, end: int) -> RestoredPartition:
    view = path.view()
    start = view.pieces[0].start if view.pieces else 0
    size = sum(piece.segment.size or 0 for piece in view.pieces)
    pieces, gaps = len(view.pieces), tuple(path.gaps())
    return RestoredPartition(key, view.topic_id, start, max(start, end), pieces, size, gaps)


def _begin_topic(
    place: str, topic: str, bounds: Sequence[RestoredPartition], settings: Mapping[str, str]
) -> int:
    """Create a topic that is not there; return the number of the next append to it."""
    known = topics_of_target(place).get(topic)
    if known is None:
        starts = {each.key.partition: each.start for each in bounds}
        # the others come last: a limit or a policy would refuse, stamp or delete what is written
        first = {name: settings[name] for name in ("max.message.bytes",) if name in settings}
        create([place], topic, partitions=max(starts) + 1, config=first, starts=starts)
        return 0
    if (writer := known.versions.get(_TIER_WRITER)) is not None:
        return writer.batch_id + 1
    if any(each.log_end > each.log_start for each in known.partitions.values()):
        raise OptionError(
            f"topic {topic} is in {place} already, and has records: a tier is restored into topics "
            "of its own. Delete it, or give another place"
        )
    return 0


def _rows_left(
    places: TieredPaths, place: str, topic: str, bounds: Sequence[RestoredPartition]
) -> Iterator[pa.Table]:
    """Yield what the target lacks, in pieces that fit into memory."""
    there = topics_of_target(place)[topic].partitions
    given = {name: value for name, value in places.options.items() if name != "path"}
    given["kafka.isolation.level"] = "read_committed"
    for each in bounds:
        number = each.key.partition
        for start, end in _between(each, max(each.start, there[number].log_end)):
            held: list[pa.RecordBatch] = []
            limits = {
                "assign": json.dumps({topic: [number]}),
                "startingOffsets": json.dumps({topic: {str(number): start}}),
                "endingOffsets": json.dumps({topic: {str(number): end}}),
            }
            for batch in read(places.options["path"], columns=_COLUMNS, options=given | limits):
                held.append(batch)
                if sum(one.nbytes for one in held) >= _CHUNK_BYTES:
                    yield pa.Table.from_batches(held)
                    held = []
            if held:
                yield pa.Table.from_batches(held)


def _between(bounds: RestoredPartition, begin: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of offsets from one on that the tier has, between its gaps."""
    for gap, end in bounds.gaps:
        if begin < gap:
            yield begin, gap
        begin = max(begin, end)
    if begin < bounds.end:
        yield begin, bounds.end
