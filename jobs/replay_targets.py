"""Where records go that are played again: a log, Kafka, or the terminal."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import typer
from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as sf

from kafkalog.errors import KafkaLogError, OptionError
from kafkalog.files.local_paths import folder_in_both
from kafkalog.jobs.header_lists import with_header_lists
from kafkalog.jobs.inputs import read_brokers, require_answer
from kafkalog.jobs.running import json_line
from kafkalog.model import partition_counts, validate_topic_name
from kafkalog.streaming.operate.topics import create
from kafkalog.streaming.sink.write_options import WriteOptions
from kafkalog.streaming.store.ends.watch import EndsWatch
from kafkalog.streaming.times import iso_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from kafkalog.jobs.replaying import Replay

__all__ = ["Target", "target_of"]

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

    def take(self, rows: DataFrame, version: tuple[str, int]) -> int:
        """Take the records of a piece, by its replay's id and its number; return their number."""
        ...


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

    def prepare(self) -> None:
        """Do nothing."""

    def take(self, rows: DataFrame, version: tuple[str, int]) -> int:
        """Print a JSON object a line."""
        del version
        count = 0
        for row in rows.withColumn("timestamp", sf.unix_millis("timestamp")).toLocalIterator():
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

    def prepare(self) -> None:
        """Ask whether somebody answers; the cluster decides whether it makes topics."""
        require_answer(read_brokers(self.servers, "TARGET"))

    def take(self, rows: DataFrame, version: tuple[str, int]) -> int:
        """Send records by Spark's connector: at least once, stamped by the producer.

        Raises:
            KafkaLogError: a broker did not take them.
        """
        del version
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
        there = partition_counts(EndsWatch(known).look().offsets if known else ())
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
                    f"has {count}: add some (`kafkalog alter`)"
                )

    def take(self, rows: DataFrame, version: tuple[str, int]) -> int:
        """Append records in one commit, once."""
        seen = Observation()
        named = with_header_lists(_named(rows, self.name)).drop("offset")
        counted = named.observe(seen, sf.count("*").alias("n"))
        identity = {"txnAppId": f"replay {version[0]}", "txnVersion": str(version[1])}
        writer = counted.write.format("kafkalog").mode("append")
        writer.options(**self.options, **identity).save(",".join(self.paths))
        return int(seen.get["n"])


def _named(rows: DataFrame, name: str | None) -> DataFrame:
    return rows if name is None else rows.withColumn("topic", sf.lit(name))
