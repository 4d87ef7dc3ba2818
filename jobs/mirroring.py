"""From log to log: a query that keeps offsets and ends, between topics that are alike.

**Exactly once.** The sink knows the last micro-batch of the query, as of any other. Each one moves
the ends of the copy to where it was planned to read, with the rows, by one rename. Before it, the
copy must end where the micro-batch before it did: so nothing that somebody else wrote to the copy
gets in between.

**Starts.** A topic is created to start where the original does. Starts that have moved since are
moved before and after the query. What was deleted at the head of the original before it was read is
a loss, and fails the query as any other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from kafkalog.checkpoints.query_offsets import last_batch
from kafkalog.errors import LogDirectoryError, OptionError
from kafkalog.files.local_paths import folder_in_both, refuse_among_logs, split_paths
from kafkalog.jobs.header_lists import with_header_lists
from kafkalog.jobs.targets import check_folders
from kafkalog.jobs.topic_facts import FactsOfLogs
from kafkalog.model import TopicPartition
from kafkalog.streaming.commit.query_checkpoint import QueryCheckpoint
from kafkalog.streaming.log.config import REMOTE_STORAGE, understood
from kafkalog.streaming.log.log_dir import LogDirs
from kafkalog.streaming.operate.retain import delete_records
from kafkalog.streaming.operate.topics import alter, create
from kafkalog.streaming.sink.write_options import WriteOptions
from kafkalog.streaming.source.followed_logs import FollowedLogs
from kafkalog.streaming.source.read_options import ReadOptions
from kafkalog.streaming.source.subscription import Subscription
from kafkalog.streaming.store.deleted import live_partitions
from kafkalog.streaming.store.ends.watch import EndsWatch
from kafkalog.streaming.store.open_set import check_no_broker_lived
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from kafkalog.jobs.topic_facts import TopicFacts

    _Copied: TypeAlias = Mapping[TopicPartition, set[int]]

__all__ = ["Mirror"]

_KEEPS: Final = {"preserveOffsets": "true", "preserveEnds": "true", "maxNewTopics": "0"}


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """What is copied, and where to.

    Args:
        source: the log directory to read, or several with commas between them; also remote ones.
        target: the log directory to write, or several with commas between them; made if missing.
        topics: which topics.
        pattern: a regular expression of their names, in place of ``topics``.
        checkpoint: the query's own folder, on a file system that is mounted here.
        options: of the source, such as ``maxOffsetsPerTrigger``.
    """

    source: str
    target: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    checkpoint: str
    options: Mapping[str, str] = field(default_factory=dict)

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
        if len(split_paths(self.checkpoint)) != 1:
            raise OptionError(f"--checkpoint is {self.checkpoint!r}, expected one folder")
        into = WriteOptions.parse({"path": self.target, **_KEEPS})
        parsed = self._parsed()
        parsed.refuse_for_streaming()
        chosen = Subscription.of(parsed)
        local = [path for path in parsed.paths if isinstance(path, str)]
        if (both := folder_in_both(into.paths, local)) is not None:
            raise OptionError(f"{both} is in FROM and in TO: a log is no copy of itself")
        for path in into.paths:
            check_no_broker_lived(Path(path), SetPolicy())
        refuse_among_logs("--checkpoint", self.checkpoint, [*into.paths, *local])
        check_folders({"TO": into.paths, "--checkpoint": self.checkpoint})
        if self._is_new:
            chosen.require_topics(live_partitions(LogDirs(parsed.paths)), parsed.paths)

    def prepare(self) -> list[str]:
        """Let the topics be in the target as they are in the source; return what is to be said.

        Raises:
            OptionError: a topic has more partitions there, or records that this did not copy.
            KafkaLogError: a log, or the set, is not as it should be.
        """
        said = []
        there, topics, copied = self._in_target(), self._facts(), self._copied()
        for topic, facts in topics.items():
            present = {key.partition: end for key, end in there.items() if key.topic == topic}
            said += self._prepare(topic, facts, present, copied)
        self._move_starts(topics, copied)
        return said

    def start(self, spark: SparkSession, *, follow: bool = False) -> StreamingQuery:
        """Start the query; ``follow`` lets it tail the source, else it ends where that ends now."""
        records = (
            spark.readStream.format("kafkalog")
            .options(**{"startingOffsets": "earliest", **self.options, **self._chosen})
            .option("includeHeaders", "true")
            .load(self.source)
        )
        writer = (
            with_header_lists(records)
            .writeStream.format("kafkalog")
            .queryName(self.name)
            .options(**_KEEPS)
            .option("checkpointLocation", self.checkpoint)
        )
        if not follow:
            writer = writer.trigger(availableNow=True)
        return writer.start(self.target)

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
        self._move_starts(self._facts(), self._copied())

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

    def _parsed(self) -> ReadOptions:
        return ReadOptions.parse({**self.options, "path": self.source, **self._chosen})

    def _facts(self) -> dict[str, TopicFacts]:
        """Look at the topics of the source."""
        parsed = self._parsed()
        ends = FollowedLogs.of(parsed, Subscription.of(parsed).selects).look()
        topics = {key.topic for key in ends}
        return FactsOfLogs(parsed.paths, topics).look(ends)

    def _in_target(self) -> Mapping[TopicPartition, int]:
        paths = [path for path in split_paths(self.target) if Path(path).is_dir()]
        return EndsWatch(paths).look().offsets if paths else {}

    def _prepare(
        self, topic: str, facts: TopicFacts, present: Mapping[int, int], copied: _Copied
    ) -> list[str]:
        paths, count = split_paths(self.target), facts.partition_count
        if not present:
            given = facts.settings or {}
            known = {n: text for n, text in understood(given).items() if n != REMOTE_STORAGE}
            starts = {number: each.start for number, each in facts.partitions.items()}
            create(paths, topic, partitions=count, config=known, starts=starts)
            if facts.settings is None:
                return [f"{topic}: nobody tells its settings in {self.source}"]
            left_out = sorted(given.keys() - known.keys())
            return [f"{topic}: left out the settings {', '.join(left_out)}"] if left_out else []
        if len(present) > count:
            raise OptionError(
                f"topic {topic!r} has {len(present)} partitions in TO and {count} in FROM, so it "
                "is no copy"
            )
        self._refuse_records(topic, present, copied)
        if len(present) < count:
            alter(paths, topic, partitions=count)
        return []

    def _copied(self) -> _Copied:
        """Return where the query's last two micro-batches end: the copy ends at one of these."""
        copied: dict[TopicPartition, set[int]] = {}
        last = self._last_batch
        for number in () if last is None else range(max(0, last - 1), last + 1):
            for key, end in QueryCheckpoint(self._folder).ends(number).items():
                copied.setdefault(key, set()).add(end)
        return copied

    def _refuse_records(self, topic: str, present: Mapping[int, int], copied: _Copied) -> None:
        """Refuse a topic that holds offsets which this checkpoint has not copied."""
        watch = EndsWatch(split_paths(self.target), lambda key: key.topic == topic)
        watch.look()
        for number, end in sorted(present.items()):
            start = watch.log_start(key := TopicPartition(topic, number))
            if end > start and end not in (ends := copied.get(key, ())):
                up_to = f"has copied up to {max(ends)}" if ends else "has copied none of it"
                raise LogDirectoryError(
                    f"{topic}-{number} holds offsets {start} to {end - 1} in TO, and the "
                    f"checkpoint {self.checkpoint} {up_to}: nothing tells that they are a copy of "
                    "FROM. Give the checkpoint that they were copied with, or delete the topic in "
                    "TO (`kafkalog delete`)"
                )

    def _move_starts(self, topics: Mapping[str, TopicFacts], copied: _Copied) -> None:
        ends = self._in_target()
        starts = {
            key: min(bounds.start, ends[key])
            for topic, facts in topics.items()
            for number, bounds in facts.partitions.items()
            if ends.get(key := TopicPartition(topic, number)) in copied.get(key, ())
        }
        if starts:
            delete_records(split_paths(self.target), starts, heeds_policy=False)
