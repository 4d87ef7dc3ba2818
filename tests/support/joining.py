"""Streaming queries that are members of a group, driven as Spark drives source and sink."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from kafkalog.streaming.consumer.query_member import JoinedControl
from kafkalog.streaming.sink.task_writer import TaskWriter
from kafkalog.streaming.source.offsets import from_json
from kafkalog.streaming.source.schema import RowSchema
from kafkalog.streaming.spark.datasource import KafkaLogDataSource
from kafkalog.streaming.spark.readers import LogStreamReader
from kafkalog.streaming.spark.versions import ReadAllAvailable, ReadMaxRows
from kafkalog.streaming.spark.writers import LogStreamWriter, StagedMessage, make_stream_writer
from kafkalog.streaming.store.identity import BatchIdentity

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.streaming.consumer.query_member import QueryMember
    from kafkalog.streaming.source.offsets import OffsetJson

__all__ = ["Queries", "Query"]

VALUE = StructType([StructField("value", StringType())])
ROWS = RowSchema.of(VALUE)

SOURCE = {
    "subscribe": "in",
    "startingOffsets": "earliest",
    "joinGroup": "true",
    "kafka.group.id": "g",
    "kafka.session.timeout.ms": "60000",
    "kafka.heartbeat.interval.ms": "50",
    "fetchOffset.retryIntervalMs": "1",
}


@dataclass
class Query:
    """A query and what Spark keeps of it: batches that were planned, and how many were done."""

    folder: Path
    name: str
    checkpoint: Path
    source: dict[str, str] = field(default_factory=dict)
    joins_sink: bool = True
    shows_checkpoint: bool = True
    planned: list[OffsetJson] = field(default_factory=list)
    done: int = 0
    run: int = 0
    seen: list[int] = field(default_factory=list)
    reader: LogStreamReader | None = None

    def start(self) -> LogStreamReader:
        """Begin a run, as a process of its own would: a batch that was not done comes again."""
        self.run += 1
        given = {**SOURCE, "kafka.group.instance.id": self.name, **self.source}
        given = {name: text for name, text in given.items() if text}
        source = KafkaLogDataSource({"path": str(self.folder), **given})
        reader = source.streamReader(VALUE)
        self.reader = cast("LogStreamReader", reader)
        return self.reader

    @property
    def member(self) -> QueryMember:
        """Its member of the group."""
        assert self.reader is not None
        control = self.reader.control
        assert isinstance(control, JoinedControl)
        return control.member

    def look(self) -> bool:
        """Do what the thread of heartbeats does, ten times a second."""
        member = self.member._member
        return member is not None and member.look()

    def kill(self) -> None:
        """End the run without a word: nothing beats any more, and the system frees the lock."""
        if isinstance(self.reader, LogStreamReader):
            self.reader.stop()
            self.reader = None

    @property
    def at(self) -> OffsetJson:
        """Where the last batch that was planned ends."""
        return self.planned[-1] if self.planned else {}

    def plan(self, *, once: bool = False) -> bool:
        """Ask for the end of the next batch; return whether there is one."""
        reader = self.reader or self.start()
        if self.done < len(self.planned):
            return True
        if not self.planned:
            assert reader.initialOffset() == {}
        limit = ReadAllAvailable() if once else ReadMaxRows(1 << 60)
        end = reader.latestOffset(self.at, limit)
        if end == self.at:
            return False
        self._write_down(end)
        return True

    def plan_without(self) -> None:
        """Plan a batch for which the query has rows of another source alone: no tasks are asked."""
        assert self.plan() is False
        self._write_down(self.at)

    def bring(self, values: list[str]) -> None:
        """Run that batch with rows of another source."""
        writer, messages = self.stage(pa.table({"value": values}))
        writer.commit([*messages], len(self.planned) - 1)
        self.done = len(self.planned)

    def _write_down(self, end: OffsetJson) -> None:
        self.planned.append(end)
        offsets = self.checkpoint / "offsets"
        offsets.mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": f"id-{self.name}"}))
        text = "\n".join(["v1", "{}", json.dumps(end)])
        (offsets / str(len(self.planned) - 1)).write_text(text)

    def read(self) -> pa.RecordBatch:
        """Plan the tasks of the batch, and read their rows."""
        assert self.reader is not None
        start = self.planned[-2] if len(self.planned) > 1 else {}
        parts = self.reader.partitions(start, self.planned[-1])
        batches = [rows for part in parts for rows in self.reader.read(part)]
        return pa.Table.from_batches(batches, ROWS.to_arrow()).combine_chunks()

    def stage(self, rows: pa.Table) -> tuple[LogStreamWriter, list[StagedMessage]]:
        """Make the writer of the batch, and let one task stage its rows."""
        given = {"path": str(self.folder), "topic": "out"}
        if self.joins_sink:
            given |= {"kafka.group.id": "g", "kafka.group.instance.id": self.name}
        if self.shows_checkpoint:
            given["checkpointLocation"] = str(self.checkpoint)
        writer: Any = make_stream_writer(given, VALUE, overwrite=False)
        plan = writer._plan
        batch = len(self.planned) - 1
        identity = BatchIdentity(f"query:id-{self.name}", batch, f"run-{self.run}")
        task = TaskWriter(plan, identity, query_id=f"id-{self.name}")
        return writer, [StagedMessage(task.write(rows.to_batches()))]

    def batch(self) -> list[int] | None:
        """Run one batch from its planning to Spark's commit; return its numbers, None if none."""
        if not self.plan():
            return None
        rows = self.read()
        writer, messages = self.stage(rows)
        writer.commit([*messages], len(self.planned) - 1)
        self.done = len(self.planned)
        found = [int(each) for each in rows.column("value").to_pylist()]
        self.seen += found
        return found

    def batches(self) -> list[int]:
        """Run batches until there is none."""
        found: list[int] = []
        while (rows := self.batch()) is not None:
            found += rows
        return found

    @property
    def partitions(self) -> set[int]:
        """The numbers of the partitions in its present offsets."""
        return {key.partition for key in from_json(self.at)}


class Queries:
    """Makes queries over one folder, and ends them."""

    def __init__(self, folder: Path, place: Path) -> None:
        self.folder = folder
        self._place = place
        self._made: list[Query] = []

    def new(self, name: str = "a", **named: Any) -> Query:
        """Make a query; it joins when it is first asked."""
        query = Query(self.folder, name, self._place / f"checkpoint-{name}", **named)
        self._made.append(query)
        return query

    def close(self) -> None:
        """End all."""
        for each in self._made:
            each.kill()
