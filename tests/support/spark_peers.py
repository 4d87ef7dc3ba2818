"""Spark's own Kafka source beside ours: the same options to both, over one broker's topics.

What a query gives becomes a plain value, so that two of them can be compared: the rows and how
they were cut into tasks and micro-batches, or the refusal.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from py4j.java_gateway import JavaObject, is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from tests.support.peer_topics import copy_to_bucket
from tests.support.spark import end_jvm, small_session

from kafkalog.jobs.process.jars import fetch, kafka_jars

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from tests.support.kafka import Broker
    from tests.support.object_store import ObjectStore

__all__ = [
    "FORMATS",
    "OURS",
    "BatchResult",
    "MicroBatch",
    "Peers",
    "Refusal",
    "StreamResult",
    "progress_of",
    "session_with_both",
]

OURS: Final = ("kafkalog", "kafkalog in a bucket")
FORMATS: Final = ("kafka", *OURS)
"""Spark's own source; ours over the broker's directory, and over a copy of it in a bucket."""

_CODE: Final = re.compile(r"\[([A-Z_]{12,}(\.[A-Z_]+)?)\]")
_WRAPPERS: Final = ("STREAM_FAILED", "PYTHON_", "_LEGACY", "INTERNAL_ERROR")
_QUERY_SECONDS: Final = 120


@dataclass(frozen=True)
class Refusal:
    """A query that failed, and why: the names of error conditions, outermost first, and the text.

    A name is such as ``KAFKA_DATA_LOSS.PARTITIONS_DELETED``; many refusals have none.
    """

    conditions: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class BatchResult:
    """Columns, rows with how often they came, and which rows came from one task."""

    columns: str
    rows: Counter[str]
    tasks: Counter[frozenset[tuple[str, int, int]]]


@dataclass(frozen=True)
class MicroBatch:
    """Where a micro-batch ended, ``{"topic":{"0":5}}``, and how many rows it had."""

    end: dict[str, dict[str, int]]
    rows: int


@dataclass(frozen=True)
class StreamResult:
    """Columns, rows with how often they came, and the micro-batches."""

    columns: str
    rows: Counter[str]
    batches: list[MicroBatch]


@contextmanager
def session_with_both() -> Iterator[SparkSession]:
    """Run a session that has Spark's Kafka connector on its class path, in a JVM of its own."""
    end_jvm()  # of an earlier session: jars reach the driver's class path when a JVM starts
    jars = ",".join(map(str, fetch(kafka_jars())))
    with small_session(**{"spark.jars": jars}) as session:
        yield session


class Peers:
    """Runs the same query over ``format("kafka")`` and ``format("kafkalog")``.

    With a ``store`` the topics can be copied to a bucket, and be read there.
    """

    def __init__(
        self, spark: SparkSession, broker: Broker, work: Path, store: ObjectStore | None = None
    ) -> None:
        self.spark = spark
        self.broker = broker
        self._store = store
        self._work = work
        self._queries = 0

    def copy(self, *topics: str) -> None:
        """Bring the copy of topics in the bucket up to what the broker's directory has."""
        assert self._store is not None
        (folder,) = self.broker.log_dirs
        copy_to_bucket(folder, self._store.place("copy"), *topics)

    def batch(self, format_: str, options: Mapping[str, str]) -> BatchResult | Refusal:
        """Run a batch query to its end."""
        try:
            reader = self.spark.read.format(format_.partition(" ")[0])
            frame = reader.options(**self._where(format_), **options).load()
            found = frame.selectExpr("spark_partition_id() AS _task", "*").collect()
        except (PySparkException, Py4JJavaError) as error:
            return _refusal(error, getattr(error, "java_exception", None))
        tasks: dict[int, set[tuple[str, int, int]]] = {}
        for row in found:
            tasks.setdefault(row[0], set()).add((row.topic, row["partition"], row.offset))
        return BatchResult(
            frame.schema.simpleString(),
            Counter(repr(row[1:]) for row in found),
            Counter(map(frozenset, tasks.values())),
        )

    def stream(
        self, format_: str, options: Mapping[str, str], trigger: str = "availableNow"
    ) -> StreamResult | Refusal:
        """Run a streaming query to its end; ``trigger`` is ``availableNow`` or ``once``."""
        self._queries += 1
        name = f"peer_{self._queries}"
        try:
            frame = self.frame(format_, options)
        except PySparkException as error:
            return _refusal(error, None)
        writer = frame.writeStream.format("memory").queryName(name)
        writer = writer.option("checkpointLocation", str(self._work / name))
        query = writer.trigger(**{trigger: True}).start()  # type: ignore[arg-type]
        refusal = _refusal_of(query, options)
        if refusal is not None:
            return refusal
        rows = Counter(repr(tuple(row)) for row in self.spark.table(name).collect())
        self.spark.sql(f"DROP VIEW {name}")
        return StreamResult(frame.schema.simpleString(), rows, progress_of(query))

    def resume(self, format_: str, options: Mapping[str, str]) -> list[int] | Refusal:
        """Run the query of a topic from where its last run ended; give all offsets so far."""
        home = self._work / f"{format_} {options['subscribe']}"
        writer = self.frame(format_, options).select("offset").writeStream.format("json")
        writer = writer.option("checkpointLocation", str(home / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(home / "rows"))
        refusal = _refusal_of(query, options)
        if refusal is not None:
            return refusal
        found = self.spark.read.schema("offset LONG").json(str(home / "rows"))
        return sorted(row.offset for row in found.collect())

    def frame(self, format_: str, options: Mapping[str, str]) -> DataFrame:
        """Load a stream."""
        reader = self.spark.readStream.format(format_.partition(" ")[0])
        return reader.options(**self._where(format_), **options).load()

    def _where(self, format_: str) -> dict[str, str]:
        if format_ == OURS[1]:
            assert self._store is not None
            return {"path": self._store.uri("copy"), **self._store.options}
        if format_ == "kafka":
            return {"kafka.bootstrap.servers": self.broker.bootstrap}
        (folder,) = self.broker.log_dirs
        return {"path": str(folder)}


def progress_of(query: StreamingQuery) -> list[MicroBatch]:
    """Return the micro-batches that a query's progress tells of."""
    found: dict[int, MicroBatch] = {}
    for progress in query.recentProgress:
        (source,) = progress["sources"]
        if "addBatch" in progress["durationMs"]:  # else there was no batch
            found[progress["batchId"]] = MicroBatch(
                _offsets(source["endOffset"]), source["numInputRows"]
            )
    return [found[batch_id] for batch_id in sorted(found)]


def _refusal_of(query: StreamingQuery, options: Mapping[str, str]) -> Refusal | None:
    """Wait until a query ends, and stop it; return what it failed of, if it did."""
    try:
        assert query.awaitTermination(_QUERY_SECONDS), f"{options} does not end"
    except PySparkException as error:
        return _refusal(error, query._jsq.exception().get())  # type: ignore[attr-defined]
    finally:
        query.stop()
    return None


def _refusal(error: Exception, java_error: JavaObject | None) -> Refusal:
    """Collect the names from the chain of Java's causes, and from the text of a Python error."""
    names = [match[1] for match in _CODE.finditer(str(error))]
    gateway = SparkContext._gateway
    while java_error is not None:
        if is_instance_of(gateway, java_error, "org.apache.spark.SparkThrowable"):
            names.append(java_error.getCondition())
        java_error = java_error.getCause()
    named = dict.fromkeys(name for name in names if name and not name.startswith(_WRAPPERS))
    return Refusal(tuple(named), str(error))


def _offsets(found: Any) -> Any:
    """Spark's own source shows an object, a Python source the text of one."""
    return json.loads(found) if isinstance(found, str) else found
