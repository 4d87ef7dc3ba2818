"""Where records go that are played again: a log, Kafka, or the terminal."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import typer
from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as sf

from kafkalog.errors import KafkaLogError, OptionError
from kafkalog.files.paths import folder_in_both
from kafkalog.jobs.continuation import WaysOn
from kafkalog.jobs.copied_logs import state_of_target, topics_of_target
from kafkalog.jobs.header_lists import with_header_lists
from kafkalog.jobs.inputs import read_brokers, require_answer
from kafkalog.jobs.running import json_line
from kafkalog.model import partition_counts, validate_topic_name
from kafkalog.streaming.admin.topics import create
from kafkalog.streaming.options.quantities import iso_time
from kafkalog.streaming.sink.write_options import WriteOptions
from kafkalog.streaming.store.ends.tracker import LogEndTracker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from kafkalog.jobs.continuation import TargetState
    from kafkalog.jobs.replaying import Replay
    from kafkalog.streaming.commit.preserved_offsets import CopiedBatch

__all__ = ["WAYS", "Target", "reader_of", "target_of"]

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
        known = [path for path in self.paths if Path(path).is_dir()]
        there = partition_counts(LogEndTracker(known).look().offsets if known else ())
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
                    f"has {count}: `kafkalog alter PATH --topic {name} --partitions {count}` adds "
                    "some"
                )

    def held(self, replay_id: str) -> TargetState:
        """Return what the commit state says of how far a replay is."""
        known = topics_of_target(",".join(self.paths))
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
        kept = {} if copied is None else {"copiedFrom": copied.to_json()}
        writer = counted.write.format("kafkalog").mode("append")
        writer.options(**self.options, **kept).save(",".join(self.paths))
        return int(seen.get["n"])


def reader_of(replay_id: str) -> str:
    """Return the name under which a target keeps how far a replay is."""
    return f"replay {replay_id}"


def _named(rows: DataFrame, name: str | None) -> DataFrame:
    return rows if name is None else rows.withColumn("topic", sf.lit(name))
