"""From log to log: a query that keeps offsets and ends, between topics that are alike.

**Exactly once.** The commit state of the copy keeps of which topics it is a copy, and how far
(:class:`~kafkalog.checkpoints.commit_state.TopicOrigin`), by the rename that makes rows visible. A
micro-batch continues there, whatever its checkpoint knows
(:mod:`~kafkalog.jobs.pipelines.continuation`). It moves the ends of the copy to where it was
planned to read. So a checkpoint that is older, new or gone loses and doubles nothing, and a copy or
an original that was set back is refused.

**Starts.** A topic is created to start where the original does. Starts that have moved since are
moved before and after the query. What was deleted at the head of the original before it was read is
a loss, and fails the query as any other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.query_checkpoint import QueryCheckpoint, last_batch
from kafkalog.errors import OptionError, TargetMismatchError
from kafkalog.files.paths import folder_in_both, refuse_among_logs, split_paths
from kafkalog.files.storage import RemoteRoot
from kafkalog.jobs.pipelines.continuation import (
    HeldTopic,
    TargetState,
    WaysOn,
    continuing_options,
    first_offsets,
)
from kafkalog.jobs.pipelines.copied_logs import (
    SourceLogs,
    copied_batch,
    first_cut,
    path_for_sink,
    paths_of_target,
    put_checkpoint_aside,
    state_of_target,
    storage_options,
    topics_of_target,
    without_held_rows,
)
from kafkalog.jobs.pipelines.inputs import with_header_lists
from kafkalog.jobs.pipelines.topic_facts import FactsOfLogs
from kafkalog.jobs.process.arguments import check_folders
from kafkalog.model import TopicPartition, partition_counts
from kafkalog.streaming.admin.retention import delete_records
from kafkalog.streaming.admin.topics import alter, create, delete
from kafkalog.streaming.commit.preserved_offsets import origin_key
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.options.topic_settings import REMOTE_STORAGE, understood
from kafkalog.streaming.sink.write_options import WriteOptions
from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.source.subscription import Subscription
from kafkalog.streaming.store.ends.tracker import LogEndTracker
from kafkalog.streaming.store.log_dirs import LogDirs, live_partitions
from kafkalog.streaming.store.open_set import check_no_broker_lived
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from kafkalog.checkpoints.commit_state import TopicState
    from kafkalog.jobs.pipelines.topic_facts import TopicFacts
    from kafkalog.streaming.commit.preserved_offsets import CopiedBatch

    _Ranges = Mapping[TopicPartition, tuple[int | None, int]]

__all__ = ["KEEPS", "Mirror", "PlannedCopy"]

KEEPS: Final = {"preserveOffsets": "true", "preserveEnds": "true", "maxNewTopics": "0"}
"""The sink's options for a copy."""

_READER: Final = "mirror"

_RECORDS: Final = (
    "topic STRING, partition INT, offset BIGINT, timestamp BIGINT, timestampType INT, key BINARY, "
    "value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
"""All that a record has; with its time in ms, which a timestamp of Spark may be unable to hold."""


class PlannedCopy(NamedTuple):
    """What a micro-batch brings into the copy."""

    ranges: Mapping[TopicPartition, tuple[int | None, int]]
    first: Mapping[TopicPartition, int]
    """The first offset of each partition that the copy does not hold."""
    copied: CopiedBatch


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """What is copied, and where to.

    Args:
        source: the log directory to read, or several with commas between them; also remote ones.
        target: the log directory to write, or several with commas between them; or a log in an
            object store. Made if missing.
        topics: which topics.
        pattern: a regular expression of their names, in place of ``topics``.
        checkpoint: the query's own folder, on a file system that is mounted here.
        options: of the source, such as ``maxOffsetsPerTrigger``; how a store is reached counts for
            the target, too.
        from_target: put the checkpoint aside, and continue where the copy ends.
        rebuild: put the checkpoint aside, and delete the topics of the copy first.
    """

    source: str
    target: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    checkpoint: str
    options: Mapping[str, str] = field(default_factory=dict)
    from_target: bool = False
    rebuild: bool = False
    _starts: dict[TopicPartition, int] = field(default_factory=dict, init=False, repr=False)
    """Where the query that was started last begins, if it is a new one."""

    @property
    def name(self) -> str:
        """What the query is called."""
        return f"mirror {self.pattern or ','.join(self.topics)}"

    def check(self) -> None:
        """Check what was given, before Spark starts.

        Raises:
            OptionError, InvalidTopicError: it cannot be used.
            UnknownTopicOrPartitionError: a topic is not there.
        """
        if bool(self.topics) == (self.pattern is not None):
            raise OptionError("--topic names what is copied, or --pattern: one of them")
        if self.from_target and self.rebuild:
            raise OptionError("--from-target keeps the copy, --rebuild deletes it: one of them")
        if len(split_paths(self.checkpoint)) != 1:
            raise OptionError(f"--checkpoint is {self.checkpoint!r}, expected one folder")
        into = self._writing
        parsed = self.reading()
        parsed.refuse_for_streaming()
        chosen = Subscription.of(parsed)
        local = [path for path in parsed.paths if isinstance(path, str)]
        if (both := folder_in_both(into.paths, local)) is not None:
            raise OptionError(f"{both} is in FROM and in TO: a log is no copy of itself")
        for path in into.paths:
            if not isinstance(path, RemoteRoot):
                check_no_broker_lived(Path(path), SetPolicy())
        refuse_among_logs("--checkpoint", self.checkpoint, [*into.paths, *local])
        check_folders({"TO": into.paths, "--checkpoint": self.checkpoint})
        if self._is_new or self.rebuild:
            chosen.require_topics(live_partitions(LogDirs(parsed.paths)), parsed.paths)

    def begin_again(self) -> list[str]:
        """Do what ``rebuild`` and ``from_target`` ask for; return what is to be said.

        Raises:
            KafkaLogError: a topic cannot be deleted.
        """
        if not (self.rebuild or self.from_target):
            return []
        aside = put_checkpoint_aside(self._folder)
        said = [] if aside is None else [f"the checkpoint was put aside as {aside}"]
        known = topics_of_target(self._place)
        for topic in sorted(self._facts().keys() & known.keys() if self.rebuild else ()):
            delete(self._paths, topic)
            said.append(f"{topic}: deleted in TO, to be copied again")
        return said

    def prepare(self) -> list[str]:
        """Let the topics be in the target as they are in the source; return what is to be said.

        Raises:
            OptionError: a topic has more partitions there.
            TargetMismatchError: the copy and the checkpoint do not go together, or the copy has
                records that this did not copy.
            KafkaLogError: a log, or the set, is not as it should be.
        """
        said = []
        there, topics = self._in_target(), self._facts()
        self._check_planned(there, topics)
        for topic, facts in topics.items():
            present = {key.partition: end for key, end in there.items() if key.topic == topic}
            said += self._prepare(topic, facts, present)
        self._move_starts(topics)
        return said

    def start(self, spark: SparkSession, *, follow: bool = False) -> StreamingQuery:
        """Start the query; ``follow`` lets it tail the source, else it ends where that ends now."""
        reader = spark.readStream.format("kafkalog").schema(_RECORDS)
        records = reader.options(**self.source_options()).load()
        writer = (
            with_header_lists(records)
            .writeStream.foreachBatch(self._take)
            .queryName(self.name)
            .option("checkpointLocation", self.checkpoint)
        )
        return (writer if follow else writer.trigger(availableNow=True)).start()

    def source_options(self) -> dict[str, str]:
        """Return the options of the source for a run that begins now."""
        given = self._continuing({"startingOffsets": "earliest", **self.options})
        return {**given, **self._chosen, "path": self.source, "includeHeaders": "true"}

    def _continuing(self, options: dict[str, str]) -> dict[str, str]:
        """Let a query without a checkpoint start where the copy ends, if there is one.

        It is noted for the first micro-batch, whose start Spark does not keep.
        """
        self._starts.clear()
        ends = self._logs.ends()
        held = self._held(self._in_target(), self._noted({key.topic for key in ends}))
        if not held.topics:
            return options
        self._starts.update((key, end) for key, end in held.ends.items() if key in ends)
        return continuing_options(options, ends, self._starts)

    def plan(self, batch_id: int) -> PlannedCopy | None:
        """Decide what of a micro-batch, as its checkpoint has it, the copy is to get.

        Returns:
            None if the copy holds all of it.

        Raises:
            TargetMismatchError: it does not continue the copy.
            DataLossError: the original has deleted records before they were copied.
            CheckpointError: the checkpoint does not tell what was planned.
            KafkaLogError: a log, or the set, is not as it should be.
        """
        checkpoint = QueryCheckpoint(self._folder)
        before = checkpoint.ends(batch_id - 1) if batch_id else self._starts
        ends = checkpoint.ends(batch_id)
        ranges: _Ranges = {key: (before.get(key), end) for key, end in ends.items()}
        there = self._in_target()
        topics = {key.topic for key in ends}
        noted = self._noted(topics)
        held = self._held(there, noted)
        planned = self._logs.planned(ranges, held)
        first = first_offsets(held, planned, self._ways, is_changed_id=self._logs.is_changed_id)
        ranges = planned.ranges
        if all(key in held.ends and end <= held.ends[key] for key, (_, end) in ranges.items()):
            return None
        into = {topic: topic for topic in topics}
        begins = {key: there[key] for key in ends if key in there}
        # in a store the query's tasks see whether what was planned is still there
        source = path_for_sink(self.source, self.options, in_stores=False)
        copied = copied_batch(_READER, source, into, planned, held, noted=noted, begins=begins)
        return PlannedCopy(ranges, first, copied)

    def _take(self, rows: DataFrame, batch_id: int) -> None:
        """Bring the rows of a micro-batch into the copy, in one commit."""
        planned = self.plan(batch_id)
        if planned is None:
            return
        left = without_held_rows(rows, planned.ranges, planned.first)
        keeps = {**KEEPS, **storage_options(self.options)}
        writer = left.write.format("kafkalog").mode("append").options(**keeps)
        writer.option("copiedFrom", planned.copied.to_json()).save(self.target)

    def lacks_partitions(self) -> bool:
        """Return whether the target lacks partitions of the source: they have come meanwhile."""
        there = self._in_target()
        return any(
            TopicPartition(topic, number) not in there
            for topic, facts in self._facts().items()
            for number in range(facts.partition_count)
        )

    def finish(self) -> None:
        """Let the logs of the target start where those of the source do now."""
        self._move_starts(self._facts())

    @property
    def _is_new(self) -> bool:
        """Whether the query has planned nothing yet."""
        return self._last_batch is None

    @property
    def _last_batch(self) -> int | None:
        """The number of the last micro-batch that the query has planned."""
        return last_batch(self._folder / "offsets")

    @property
    def _folder(self) -> Path:
        (folder,) = split_paths(self.checkpoint)
        return Path(folder)

    @property
    def _chosen(self) -> dict[str, str]:
        """The option that says which topics are read."""
        if self.pattern is not None:
            return {"subscribePattern": self.pattern}
        return {"subscribe": ",".join(self.topics)}

    def reading(self) -> ReadOptions:
        """Return the options of the source, checked."""
        return ReadOptions.parse({**self.options, "path": self.source, **self._chosen})

    def _facts(self) -> dict[str, TopicFacts]:
        """Look at the topics of the source."""
        parsed = self.reading()
        ends = EndOffsets.of(parsed, Subscription.of(parsed).selects).look().offsets
        topics = {key.topic for key in ends}
        return FactsOfLogs(parsed.paths, topics).look(ends)

    def _in_target(self) -> Mapping[TopicPartition, int]:
        paths = self._existing_paths
        return LogEndTracker(paths).look().offsets if paths else {}

    @property
    def _writing(self) -> WriteOptions:
        return WriteOptions.parse({"path": self.target, **KEEPS, **storage_options(self.options)})

    @property
    def _place(self) -> str:
        """The target: of a log in an object store, with how that is reached."""
        place = self._writing.paths[0]
        return place if isinstance(place, RemoteRoot) else self.target

    @property
    def _paths(self) -> list[str]:
        return paths_of_target(self._place)

    @property
    def _existing_paths(self) -> list[str]:
        return paths_of_target(self._place, existing=True)

    @cached_property
    def _logs(self) -> SourceLogs:
        return SourceLogs(self.reading())

    @property
    def _ways(self) -> WaysOn:
        return WaysOn(
            f"the copy {self.target}",
            self.source,
            f"the checkpoint {self.checkpoint}",
            from_target="--from-target puts the checkpoint aside and continues where the copy ends",
            rebuild="--rebuild deletes the topics of the copy, and copies all that FROM has",
            other_target="another TO with another --checkpoint leaves this copy as it is",
        )

    def _noted(self, topics: Iterable[str]) -> TargetState:
        """Return what the commit state of the copy says of topics."""
        known = topics_of_target(self._place)
        return state_of_target(known, _READER, {topic: topic for topic in topics})

    def _held(
        self, there: Mapping[TopicPartition, int], noted: TargetState, *, may_be_cut: bool = False
    ) -> TargetState:
        """Return what the copy holds: up to where its logs end, by ``from_target``."""
        held, known = dict(noted.topics), topics_of_target(self._place)
        for key, end in noted.ends.items():
            now = there.get(key, 0)
            self._refuse_written_after_cut(key, now, known[key.topic])
            if now == end:
                continue
            if now > end or key not in there or not (self.from_target or may_be_cut):
                raise self._other_end(key, end, there.get(key))
            topic = held[key.topic]
            batches = {n: each for n, each in topic.batches.items() if n != key.partition}
            ends = {**topic.ends, key.partition: now}
            held[key.topic] = HeldTopic(topic.topic_id, ends, batches)
        return replace(noted, topics=held)

    def _refuse_written_after_cut(self, key: TopicPartition, end: int, topic: TopicState) -> None:
        """Refuse a log that was cut since it was copied, and to which somebody else has written."""
        copied = topic.origins[origin_key(_READER, key.topic)].positions[key.partition]
        now = topic.partitions[key.partition]
        if now.leader_epoch <= copied.copy_epoch:
            return
        where = LogDirs(self._existing_paths).partitions().get(key)
        at = None if where is None else first_cut(where, now, copied.copy_epoch)
        if at is not None and at < min(end, copied.offset):
            raise TargetMismatchError(
                f"{key} was cut at offset {at} in {self._ways.target}, which was copied up to "
                f"{copied.offset}: somebody else has written to it since. Nothing was written. "
                f"Ways on: {self._ways.rebuild}; {self._ways.other_target}"
            )

    def _other_end(self, key: TopicPartition, end: int, now: int | None) -> TargetMismatchError:
        ways = [self._ways.rebuild, self._ways.other_target]
        found, what = f"ends at offset {now}", "somebody else has written to it"
        if now is None:
            found, what = "has no folder", "a disk may not be mounted there"
            ways.insert(0, "mount it, or restore the folder")
        elif now < end:
            what = "it was cut"
            ways.insert(0, self._ways.from_target)
        return TargetMismatchError(
            f"{key} {found} in {self._ways.target}, and was copied up to {end}: "
            f"{what}. Nothing was written. Ways on: {'; '.join(ways)}"
        )

    def _check_planned(
        self, there: Mapping[TopicPartition, int], topics: Mapping[str, TopicFacts]
    ) -> None:
        """Refuse a copy, or a checkpoint that does not go with it, before the query starts."""
        counts = partition_counts(there)
        for topic, facts in topics.items():
            if counts.get(topic, 0) > facts.partition_count:
                raise OptionError(
                    f"topic {topic!r} has {counts[topic]} partitions in TO and "
                    f"{facts.partition_count} in FROM, so it is no copy. Ways on: "
                    f"{self._ways.rebuild}; {self._ways.other_target}"
                )
        noted = self._noted(topics)
        cut = self._held(there, noted, may_be_cut=True)
        if cut != noted and not self.from_target:  # --from-target is a way on only if that goes on
            self._check_continues(cut, cut.ends)
        held = self._held(there, noted)
        self._refuse_records(there, topics, held)
        starts, last = held.ends, self._last_batch  # what is held counts, whatever was planned
        if last is not None:
            has_ended = last_batch(self._folder / "commits") == last
            starts |= QueryCheckpoint(self._folder).ends(last if has_ended else last - 1)
        self._check_continues(held, starts)

    def _check_continues(self, held: TargetState, starts: Mapping[TopicPartition, int]) -> None:
        planned = self._logs.planned({key: (end, end) for key, end in starts.items()}, held)
        first_offsets(held, planned, self._ways, is_changed_id=self._logs.is_changed_id)

    def _prepare(self, topic: str, facts: TopicFacts, present: Mapping[int, int]) -> list[str]:
        paths, count = self._paths, facts.partition_count
        if not present:
            given = facts.settings or {}
            known = {n: text for n, text in understood(given).items() if n != REMOTE_STORAGE}
            starts = {number: each.start for number, each in facts.partitions.items()}
            create(paths, topic, partitions=count, config=known, starts=starts)
            if facts.settings is None:
                return [f"{topic}: nobody tells its settings in {self.source}"]
            left_out = sorted(given.keys() - known.keys())
            return [f"{topic}: left out the settings {', '.join(left_out)}"] if left_out else []
        if len(present) < count:
            alter(paths, topic, partitions=count)
        return []

    def _refuse_records(
        self,
        there: Mapping[TopicPartition, int],
        topics: Mapping[str, TopicFacts],
        held: TargetState,
    ) -> None:
        """Refuse a topic that holds offsets of which nothing tells that they are a copy."""
        paths = self._existing_paths
        watch = LogEndTracker(paths, lambda key: key.topic in topics)
        for key in sorted(watch.look().offsets) if paths else ():
            start, end = watch.log_start(key), there[key]
            if end > start and held.end_of(key) is None:
                raise TargetMismatchError(
                    f"{key} holds offsets {start} to {end - 1} in {self._ways.target}, and nothing "
                    "tells that they are a copy of FROM. Nothing was written. Ways on: "
                    f"{self._ways.rebuild}; {self._ways.other_target}"
                )
            known = topics[key.topic].partitions.get(key.partition)
            if known is not None and held.end_of(key) is None and end > known.start:
                raise TargetMismatchError(
                    f"{key} begins at offset {start} in {self._ways.target}, which holds nothing "
                    f"of it yet, and at {known.start} in FROM: that was cut, or restored from an "
                    "older copy, since the topic was created. Nothing was written. Ways on: "
                    f"{self._ways.rebuild}; {self._ways.other_target}"
                )

    def _move_starts(self, topics: Mapping[str, TopicFacts]) -> None:
        ends, held = self._in_target(), self._noted(topics)
        starts = {
            key: min(bounds.start, ends[key])
            for topic, facts in topics.items()
            for number, bounds in facts.partitions.items()
            if ends.get(key := TopicPartition(topic, number), -1) == held.end_of(key)
        }
        if starts:
            delete_records(self._paths, starts, heeds_policy=False)
