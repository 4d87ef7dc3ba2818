"""A log directory that tests write to, and what streaming queries over it have given."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.logs import Row, append_batch, batch_bytes, write_segment
from tests.support.messages import offset_commit_key, offset_commit_value

from kafkalog.checkpoints.broker import new_topic_id, write_topic_id

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Log", "Run", "finish"]


class Log:
    """A log directory that a test writes to; record values are ``<topic>-<partition>:<offset>``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ends: dict[str, int] = {}

    def append(self, partition: str, count: int, **row: Any) -> None:
        start = self._ends.get(partition, 0)
        values = [f"{partition}:{start + n}".encode() for n in range(count)]
        batch = batch_bytes(start, [Row(**{"value": value} | row) for value in values])
        file = self.path / partition / f"{0:020d}.log"
        if start:
            append_batch(file, batch)
        else:
            write_segment(file.parent, 0, batch)
        self._ends[partition] = start + count

    def delete(self, partition: str) -> None:
        shutil.rmtree(self.path / partition)
        self._ends.pop(partition)

    def name_topic(self, partition: str) -> None:
        """Give a partition's topic an id that no other has."""
        write_topic_id(self.path / partition, new_topic_id())

    def commit_position(self, group: str, partition: str, offset: int) -> None:
        """Have a consumer group commit a position, in a topic of one partition."""
        topic, _, number = partition.rpartition("-")
        key = offset_commit_key(group, topic, int(number))
        self.append("__consumer_offsets-0", 1, key=key, value=offset_commit_value(offset))

    def values(self, partition: str, start: int = 0) -> set[str]:
        return {f"{partition}:{n}" for n in range(start, self._ends[partition])}


@dataclass
class Run:
    """What a streaming query has given so far: the values of each batch that had any."""

    batches: list[list[str]] = field(default_factory=list)
    fail_in: int = -1

    def take(self, frame: DataFrame, batch_id: int) -> None:
        if batch_id == self.fail_in:
            raise RuntimeError("the batch is to fail")
        values = [row.value for row in frame.select("value").collect()]
        if values:
            self.batches.append(values)

    @property
    def values(self) -> set[str]:
        found = [value for batch in self.batches for value in batch]
        assert len(found) == len(set(found)), "a row came twice"
        return set(found)


def finish(started: tuple[StreamingQuery, Run]) -> Run:
    query, run = started
    try:
        assert query.awaitTermination(600)
    finally:
        query.stop()
    return run
