"""Play a range of topics again, at the pace of its timestamps or another one.

**Pieces.** The range is cut by time. What lies before a time, in each partition's order, is due
then. What is due is one batch job of Spark, from offsets to offsets. So nothing is held back in
memory, and partitions keep their order: a record with a later time than those after it holds them
up.

**Exactly once into a log.** With a checkpoint a piece is written down before it is played. The
commit state of the target keeps, by the rename that makes rows visible, how far this replay is
(:class:`~kafkalog.checkpoints.commit_state.TopicOrigin`). A piece continues there, whatever the
checkpoint knows (:mod:`~kafkalog.jobs.pipelines.continuation`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

import typer
from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as sf

import kafkalog
from kafkalog.errors import DataLossError, KafkaLogError, OptionError
from kafkalog.files.paths import folder_in_both
from kafkalog.files.system import system
from kafkalog.jobs.pipelines.continuation import WaysOn, first_offsets
from kafkalog.jobs.pipelines.copied_logs import (
    SourceLogs,
    state_of_target,
    storage_options,
    topics_of_target,
)
from kafkalog.jobs.pipelines.inputs import read_brokers, require_answer, with_header_lists
from kafkalog.jobs.pipelines.restore_plan import NO_END, Until
from kafkalog.jobs.process.running import json_line
from kafkalog.model import partition_counts, validate_topic_name
from kafkalog.streaming.admin.topics import create
from kafkalog.streaming.objects.bucket_store import bucket_of
from kafkalog.streaming.options.quantities import iso_time, shown_time
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.sink.write_options import WriteOptions
from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.source.loss import LossPolicy
from kafkalog.streaming.source.offsets import to_json
from kafkalog.streaming.source.start import PositionValidator
from kafkalog.streaming.source.subscription import Subscription
from kafkalog.streaming.store.ends.tracker import LogEndTracker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from kafkalog.jobs.pipelines.continuation import PlannedBatch, TargetState
    from kafkalog.jobs.pipelines.replay_checkpoint import Piece, ReplayCheckpoint
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.commit.preserved_offsets import CopiedBatch
    from kafkalog.streaming.source.offsets import PartitionOffsets


__all__ = ["NO_OFFSETS", "WAYS", "Replay", "Target", "parse_speed", "reader_of", "target_of"]

NO_OFFSETS: Final[Mapping[TopicPartition, int]] = MappingProxyType({})

_COLUMNS: Final = (
    "topic STRING, partition INT, offset BIGINT, timestamp BIGINT, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
_LOOK_SECONDS: Final = 0.2
_OFFSETS_PER_PIECE: Final = 2_000_000
"""What is played again at most after a kill, and waited for when the job is asked to end."""


def parse_speed(text: str) -> float | None:
    """Read how fast time passes in a range: 2 is twice as fast as it did; None is ``max``.

    Raises:
        OptionError: neither a number above 0 nor ``max``.
    """
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise OptionError(f"--speed is {text!r}, expected a number above 0, or max")
    return speed


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What is played.

    Args:
        log: the log directory, or several with commas between them; also remote ones.
        topics: which topics.
        since: where to begin; each partition at its log start, unless it is given.
        until: where to end; each partition where its log ends now, unless it is given.
        follow: play what comes later, too.
        speed: how fast time passes, see :func:`parse_speed`.
        options: of the source.
        most: how many offsets a piece has at most.
    """

    log: str
    topics: tuple[str, ...]
    since: Until = NO_END
    until: Until = NO_END
    follow: bool = False
    speed: float | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    most: int = _OFFSETS_PER_PIECE

    @property
    def name(self) -> str:
        """What this is called."""
        return f"replay {','.join(self.topics)}"

    @property
    def paths(self) -> tuple[str, ...]:
        """The log directories that are on this machine."""
        return tuple(path for path in self._parsed().paths if isinstance(path, str))

    def check(self) -> None:
        """Check what was given, before Spark starts.

        Raises:
            OptionError, InvalidTopicError, UnknownTopicOrPartitionError: it cannot be used.
        """
        if self.follow and self.until != NO_END:
            raise OptionError("--follow has no end: leave out --until")
        begin, end = self.since.time_ms, self.until.time_ms
        if begin is not None and end is not None and end <= begin:
            raise OptionError(
                f"--until {shown_time(end)} leaves nothing: --from is {shown_time(begin)}"
            )
        parsed = self._parsed()
        parsed.refuse_for_streaming()
        _refuse_other_range(parsed)
        logs = self._logs
        ends = logs.look().offsets
        Subscription.of(parsed).require_topics(logs.existing(), parsed.paths)
        for option, place in (("--from", self.since), ("--until", self.until)):
            if unknown := place.offsets.keys() - ends.keys():
                raise OptionError(f"{option} names {min(unknown)}, which is not in what is played")

    def partition_counts(self) -> dict[str, int]:
        """Return how many partitions each topic has."""
        return partition_counts(self._logs.look().offsets)

    def plan(self, piece: Piece, held: TargetState, ways: WaysOn) -> tuple[Piece, PlannedBatch]:
        """Decide what of a piece a target is to get, of which it holds so much.

        Raises:
            TargetMismatchError: the piece does not continue the target.
            KafkaLogError: a log is not as it should be.
        """
        ranges = {
            key: (None if key in piece.begins else piece.start[key], end)
            for key, end in piece.end.items()
        }
        source = self._source
        planned = source.planned(ranges, held)
        first = first_offsets(held, planned, ways, is_changed_id=source.is_changed_id)
        end = {key: planned.ranges[key][1] for key in piece.end}
        start = {key: min(max(at, first[key]), end[key]) for key, at in piece.start.items()}
        return piece._replace(start=start, end=end), planned

    def pieces(
        self, checkpoint: ReplayCheckpoint, held: PartitionOffsets = NO_OFFSETS
    ) -> Iterator[Piece | None]:
        """Yield each piece when it is due; None after a look, a moment later, at which none was.

        What a checkpoint has begun comes first. A piece is noted as begun before it is yielded. Who
        plays it notes that it has ended. What the target ``held`` at the beginning is not due.
        """
        logs, seen = self._logs, _Seen(self._logs, fails=self._parsed().fail_on_data_loss)
        end = self._ends(logs, checkpoint.reached)
        self._check_ids(logs, checkpoint)
        if checkpoint.unfinished is not None:
            yield checkpoint.unfinished
        pace, reached = _Pace(self), dict(checkpoint.reached)
        for key, offset in held.items():
            reached[key] = max(offset, reached.get(key, 0))
        while True:
            seen.check(reached)
            end = {key: max(end[key], reached.get(key, 0)) for key in end}
            at = {
                key: reached[key] if key in reached else self._start(logs, key, end[key])
                for key in end
            }
            due = self._cut(at, pace.due(logs, at, end))
            if due != at:
                seen.note(due)
                begins = frozenset(at.keys() - reached.keys())
                yield checkpoint.note_begin({**reached, **at}, {**reached, **due}, begins)
                reached = {**reached, **due}
            elif not self.follow and at == end:
                return
            else:
                yield None
                system.sleep(_LOOK_SECONDS)
            now = self._ends(logs, reached)
            end = now if self.follow else end
            self._check_ids(logs, checkpoint)

    def check_topics(self, checkpoint: ReplayCheckpoint) -> None:
        """Refuse topics that were deleted and recreated since a checkpoint knows them.

        Raises:
            DataLossError: one was.
        """
        self._logs.look()
        self._check_ids(self._logs, checkpoint)

    @staticmethod
    def _check_ids(logs: EndOffsets, checkpoint: ReplayCheckpoint) -> None:
        """Refuse topics that were deleted and recreated: the offsets are of other records."""
        now = {key.topic: known for key, known in logs.topic_ids().items() if known is not None}
        for topic, topic_id in now.items():
            before = checkpoint.ids.get(topic, topic_id)
            if before != topic_id and not logs.is_changed_id(topic, before, topic_id):
                raise DataLossError(
                    f"topic {topic!r} was deleted and recreated: what was played is of the topic "
                    f"with id {before}, and {topic_id} is there. Give another --checkpoint"
                )
        checkpoint.ids = {**checkpoint.ids, **now}

    def rows(self, spark: SparkSession, piece: Piece) -> DataFrame:
        """Read the records of a piece."""
        reader = spark.read.format("kafkalog").schema(_COLUMNS)
        start = {key: at for key, at in piece.start.items() if at < piece.end[key]}
        between = _between(start, {key: piece.end[key] for key in start})
        numbers = {
            topic: [int(number) for number in offsets] for topic, offsets in to_json(start).items()
        }
        between = {**between, "assign": json.dumps(numbers)}
        del between["subscribe"]
        return reader.options(**self.options, **between).load(self.log)

    def first_time(self, at: PartitionOffsets, end: PartitionOffsets) -> int | None:
        """Return the earliest of the times (ms) of the partitions' next records; None: no records.

        What comes first in a partition counts, not what is the earliest in it.
        """
        found = []
        for key in at:
            alone = {**end, key: at[key]}
            options = {**self.options, **_between(alone, end)}
            options.pop("subscribe")
            options["onTimestampOverflow"] = "null"
            rows = kafkalog.read(self.log, self.topics, columns=["timestamp"], options=options)
            for batch in rows:
                if batch.num_rows:
                    micros = batch.column(0)[0].value  # None for what a pace knows no wait to
                    found += [] if micros is None else [micros // 1000]
                    break
        return min(found, default=None)

    @cached_property
    def _source(self) -> SourceLogs:
        return SourceLogs(self._parsed())

    @cached_property
    def _logs(self) -> EndOffsets:
        parsed = self._parsed()
        return EndOffsets.of(parsed, Subscription.of(parsed).selects)

    def _start(self, logs: EndOffsets, key: TopicPartition, end: int) -> int:
        if self.since.time_ms is not None:
            found = logs.offset_of_time(key, self.since.time_ms, end)
            return end if found is None else found
        return min(self.since.offsets.get(key, logs.log_start(key)), end)

    def _ends(self, logs: EndOffsets, reached: PartitionOffsets) -> dict[TopicPartition, int]:
        """Look where the range ends now, of which so much was played."""
        ends = {}
        for key, end in logs.look(reached).offsets.items():
            ends[key] = min(self.until.offsets.get(key, end), end)
            if self.until.time_ms is not None:
                ends[key] = _offset_at(logs, key, self.until.time_ms, end)
        return ends

    def _cut(self, at: PartitionOffsets, due: PartitionOffsets) -> dict[TopicPartition, int]:
        """Bound what is due to a piece."""
        share = max(1, self.most // max(1, sum(due[key] > at[key] for key in due)))
        return {key: max(at[key], min(end, at[key] + share)) for key, end in due.items()}

    def _parsed(self) -> ReadOptions:
        chosen = {"path": self.log, "subscribe": ",".join(self.topics)}
        return ReadOptions.parse({**self.options, **chosen})


class _Pace:
    """Tells what is due: time passes from the first record on, when it is first looked at."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._first_ms: int | None = None
        self._began = 0.0

    def due(
        self, logs: EndOffsets, at: PartitionOffsets, end: PartitionOffsets
    ) -> PartitionOffsets:
        """Return up to where records are due now; up to ``end`` at most."""
        speed = self._replay.speed
        if speed is None or not any(end[key] > at[key] for key in end):
            return end
        if self._first_ms is None:
            self._first_ms = self._replay.first_time(at, end)
            self._began = system.monotonic()
        if self._first_ms is None:  # nothing but gaps
            return end
        passed_ms = int((system.monotonic() - self._began) * 1000 * speed)
        now = self._first_ms + passed_ms + 1
        return {key: max(at[key], _offset_at(logs, key, now, end[key])) for key in end}


def _refuse_other_range(options: ReadOptions) -> None:
    """Refuse options by which each piece would be read from, or up to, elsewhere."""
    given = {
        "startingOffsets": options.starting_offsets,
        "startingOffsetsByTimestamp": options.starting_offsets_by_timestamp,
        "startingTimestamp": options.starting_timestamp,
        "stopAtOffsets": options.stop_at_offsets,
        "endingTimestamp": options.ending_timestamp,
    }
    for name, value in given.items():
        if value is not None:
            way = "--from says where to begin" if "start" in name else "--until says where to end"
            raise OptionError(f"option {name!r} is not for a replay: {way}")


class _Seen:
    """Looks whether the logs still hold what was played."""

    def __init__(self, logs: EndOffsets, *, fails: bool) -> None:
        self._logs, self._policy = logs, LossPolicy(fail=fails)
        self._validator = PositionValidator(logs)
        self._losses: tuple[PartitionOffsets, PartitionOffsets] | None = None

    def note(self, due: PartitionOffsets) -> None:
        """Note what lies below the end of a piece before it is played."""
        self._validator.note(due)

    def check(self, reached: PartitionOffsets) -> None:
        """Say, once, what is gone of what was played, as of the last look.

        Raises:
            DataLossError: partitions are gone, end lower, or have another history.
        """
        if (losses := _losses(reached, self._logs)) != self._losses:
            self._policy.partitions_deleted(losses[0])
            self._policy.ends_before_start(losses[1], self._logs.ends.offsets)
            self._losses = losses
        diverged = self._validator.find_diverged(reached)
        self._validator.forget(diverged)
        self._policy.history_changed(diverged)


def _losses(
    reached: PartitionOffsets, logs: EndOffsets
) -> tuple[PartitionOffsets, PartitionOffsets]:
    """Return up to where partitions were played that are gone, and those that end below that.

    A log that goes so far has lost nothing: for a while after it has started, a broker writes down
    less than before of what is committed.
    """
    end = logs.ends.offsets
    gone = {key: at for key, at in reached.items() if key not in end}
    short = {key: at for key, at in reached.items() if key in end and end[key] < at}
    if logs.lacks_majority():  # others may have committed as much
        return gone, {}
    return gone, {key: at for key, at in short.items() if not logs.reaches(key, at)}


def _offset_at(logs: EndOffsets, key: TopicPartition, time_ms: int, end: int) -> int:
    """Return the offset of a partition's first record of a time or a later one; else ``end``."""
    with logs.open(key) as log:
        found = log.offset_for_timestamp(time_ms, end_offset=end)
    return end if found is None else min(found.offset, end)


def _between(start: PartitionOffsets, end: PartitionOffsets) -> dict[str, str]:
    """Return the options of the source that read from offsets to offsets (exclusive)."""
    return {
        "subscribe": ",".join(sorted({key.topic for key in start})),
        "startingOffsets": json.dumps(to_json(start)),
        "endingOffsets": json.dumps(to_json(end)),
    }


# ----------------------------------------------------------------------------------------------
# Where records go that are played again: a log, Kafka, or the terminal.


_KAFKA: Final = "kafka:"
_TERMINAL: Final = "-"
_KAFKA_ERROR: Final = re.compile(r"org\.apache\.kafka\.[\w.$]*\.(\w+Exception: .+)")


class Target(Protocol):
    """Takes the records of one piece after the other."""

    @property
    def needs_kafka(self) -> bool:
        """Whether Spark needs its connector to Kafka."""
        ...

    @property
    def paths(self) -> tuple[str, ...]:
        """The log directories that are written to; none of another target."""
        ...

    def prepare(self) -> None:
        """Check what is there, and make what is missing."""
        ...

    @property
    def names(self) -> Mapping[str, str]:
        """The topics that records go to, by those that they come from, where it keeps any."""
        ...

    def held(self, replay_id: str) -> TargetState | None:
        """Return how far a replay is in it; None where it cannot keep that."""
        ...

    def take(self, rows: DataFrame, copied: CopiedBatch | None) -> int:
        """Take the records of a piece; return their number. ``copied`` is what it is to keep."""
        ...


WAYS: Final = WaysOn(
    "TARGET",
    "LOG",
    "the checkpoint",
    from_target="--from-target plays what TARGET lacks, from where this replay is in it",
    rebuild="",
    other_target="another TARGET, or another topic by --as, with another --checkpoint gets the "
    "range anew",
)
"""What to do where a checkpoint does not go with what its target holds."""


def target_of(
    text: str, replay: Replay, name: str | None, options: Mapping[str, str] | None = None
) -> Target:
    """Find out what a target is.

    Args:
        text: TARGET, as it was given.
        replay: what is played.
        name: the topic of all records, if they get a new one.
        options: of the format that writes them.

    Raises:
        OptionError, InvalidTopicError: it cannot be used.
    """
    given = dict(options or {})
    if name is not None:
        validate_topic_name(name)
    if text == _TERMINAL:
        if name is not None or given:
            raise OptionError("--as and --target-set are not for the terminal")
        return _Terminal()
    if text.startswith(_KAFKA):
        servers = text.removeprefix(_KAFKA)
        read_brokers(servers, "TARGET")
        return _Kafka(servers, name, given)
    paths = WriteOptions.parse({**given, "path": text}).paths
    if folder_in_both(paths, replay.paths) and name in {None, *replay.topics}:
        raise OptionError("a topic is not played into itself: --as gives its copy a name")
    return _Log(paths, replay, name, given)


@dataclass(frozen=True)
class _Terminal:
    needs_kafka: bool = False
    paths: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    def prepare(self) -> None:
        """Do nothing."""

    def held(self, replay_id: str) -> None:
        """Return nothing: what was printed is not known."""

    def take(self, rows: DataFrame, copied: CopiedBatch | None) -> int:
        """Print a JSON object a line."""
        del copied
        count = 0
        for row in rows.toLocalIterator():
            headers = [[each.key, _text(each.value)] for each in row.headers or ()]
            shown = {
                "topic": row.topic,
                "partition": row.partition,
                "offset": row.offset,
                "timestamp": iso_time(row.timestamp) or row.timestamp,
                "key": _text(row.key),
                "value": _text(row.value),
                **({"headers": headers} if headers else {}),
            }
            typer.echo(json_line(shown))
            count += 1
        return count


def _text(data: bytearray | None) -> str | None:
    return None if data is None else data.decode(errors="replace")


@dataclass(frozen=True)
class _Kafka:
    servers: str
    name: str | None
    options: Mapping[str, str]
    needs_kafka: bool = True
    paths: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    def prepare(self) -> None:
        """Ask whether somebody answers; the cluster decides whether it makes topics."""
        require_answer(read_brokers(self.servers, "TARGET"))

    def held(self, replay_id: str) -> None:
        """Return nothing: Spark's connector writes no position with the records."""

    def take(self, rows: DataFrame, copied: CopiedBatch | None) -> int:
        """Send records by Spark's connector: at least once, stamped by the producer.

        Raises:
            KafkaLogError: a broker did not take them.
        """
        del copied
        count = rows.select("offset").count()  # Spark observes nothing that this sink takes
        # Two tasks that send to one partition would mix its records.
        tasks = rows.sparkSession.sparkContext.defaultParallelism
        ordered = rows.repartition(tasks, "topic", "partition").sortWithinPartitions(
            "topic", "partition", "offset"
        )
        sent = _named(ordered, self.name).drop("offset", "timestamp")
        servers = {"kafka.bootstrap.servers": self.servers}
        try:
            sent.write.format("kafka").options(**{**self.options, **servers}).save()
        except PySparkException as error:
            reason = _KAFKA_ERROR.search(str(error))
            if reason is None:
                raise
            raise KafkaLogError(f"Kafka at {self.servers}: {reason[1]}") from error
        return count


@dataclass(frozen=True)
class _Log:
    paths: tuple[str, ...]
    replay: Replay
    name: str | None
    options: Mapping[str, str]
    needs_kafka: bool = False

    def prepare(self) -> None:
        """Create topics that are not there, with as many partitions.

        Raises:
            OptionError: a topic that is there has fewer partitions.
        """
        there = self._partition_counts()
        wanted: dict[str, int] = {}
        for topic, count in self.replay.partition_counts().items():
            name = self.name or topic
            wanted[name] = max(count, wanted.get(name, 0))
        for name, count in wanted.items():
            if name not in there:
                create(self.paths, name, partitions=count)
            elif there[name] < count:
                raise OptionError(
                    f"topic {name!r} has {there[name]} partitions in TARGET, and what is played "
                    f"has {count}: `kafkalog topic alter PATH --topic {name} --partitions {count}` "
                    "adds "
                    "some"
                )

    def _partition_counts(self) -> dict[str, int]:
        """Return how many partitions each topic has that is there."""
        if bucket_of(self.paths) is not None:
            known = topics_of_target(self.paths).items()
            return {name: len(topic.partitions) for name, topic in known}
        folders = [path for path in self.paths if Path(path).is_dir()]
        return partition_counts(LogEndTracker(folders).look().offsets if folders else ())

    def held(self, replay_id: str) -> TargetState:
        """Return what the commit state says of how far a replay is."""
        known = topics_of_target(self.paths)
        return state_of_target(known, reader_of(replay_id), self.names)

    @property
    def names(self) -> dict[str, str]:
        """The topics that records go to, by those that they come from."""
        return {topic: self.name or topic for topic in self.replay.topics}

    def take(self, rows: DataFrame, copied: CopiedBatch | None) -> int:
        """Append records in one commit, and how far they bring the replay."""
        seen = Observation()
        named = with_header_lists(_named(rows, self.name)).drop("offset")
        counted = named.observe(seen, sf.count("*").alias("n"))
        kept = {} if copied is None else self._keeping(copied)
        writer = counted.write.format("kafkalog").mode("append")
        writer.options(**{**kept, **self.options}).save(",".join(self.paths))
        return int(seen.get["n"])

    def _keeping(self, copied: CopiedBatch) -> dict[str, str]:
        """Return the options that let the sink keep what a batch copies, and look at its source.

        It reaches stores in one way: if the source's is reached in another, it does not look there.
        """
        reached = storage_options(self.replay.options)
        if bucket_of(self.paths) is None:
            return {**reached, "copiedFrom": copied.to_json()}
        if "://" in copied.path and storage_options(self.options) != reached:
            copied = replace(copied, path="")
        return {"copiedFrom": copied.to_json()}


def reader_of(replay_id: str) -> str:
    """Return the name under which a target keeps how far a replay is."""
    return f"replay {replay_id}"


def _named(rows: DataFrame, name: str | None) -> DataFrame:
    return rows if name is None else rows.withColumn("topic", sf.lit(name))
