"""Queries of Spark write and tail a replicated topic while its nodes go and come back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from tests.support.consuming import table
from tests.support.replicated import check_clean, check_equal, check_in_sync, path_of, values

import kafkalog
from kafkalog.errors import LogDirectoryError, UnknownTopicOrPartitionError
from kafkalog.streaming.admin.recovery import recover

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

DEADLINE_S = 90


class Copies:
    """A query from a plain log to a replicated topic, and one that tails that topic."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self._home = home
        self._fed = 0
        self.nodes = [home / name for name in ("a", "b", "c")]
        self.nodes_path = path_of(self.nodes)
        self.feed()
        into = {"topic": "t", "numPartitions": "4", "min.insync.replicas": "2"}
        self.queries = [self._start(spark, str(home / "in"), "in", self.nodes_path, into)]
        self._until(lambda: self.written() == self.expected)
        seen = {"topic": "seen", "numPartitions": "4"}
        self.queries.append(self._start(spark, self.nodes_path, "t", str(home / "seen"), seen))

    def _start(
        self, spark: SparkSession, source: str, topic: str, target: str, options: dict[str, str]
    ) -> StreamingQuery:
        reader = spark.readStream.format("kafkalog").option("startingOffsets", "earliest")
        rows = reader.option("subscribe", topic).load(source).select("value", "partition")
        writer = rows.writeStream.format("kafkalog").options(**options)
        checkpoint = str(self._home / f"checkpoint-{options['topic']}")
        return writer.option("checkpointLocation", checkpoint).start(target)

    @property
    def expected(self) -> list[str]:
        return sorted(map(str, range(self._fed)))

    def feed(self) -> None:
        rows = table(range(self._fed, self._fed + 30))
        kafkalog.append(self._home / "in", "in", rows, options={"numPartitions": 4})
        self._fed += 30

    def written(self) -> list[str]:
        return values(self.nodes)

    def seen(self) -> list[str]:
        return values([self._home / "seen"], "seen")

    def follow(self) -> None:
        """Feed rows, and wait until both queries have taken them."""
        self.feed()
        self._until(lambda: self.seen() == self.expected)
        assert self.written() == self.expected

    def _until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            for each in self.queries:
                assert each.exception() is None
            try:
                if is_so():
                    return
            except (LogDirectoryError, UnknownTopicOrPartitionError):
                pass  # it is not there yet
            assert time.monotonic() < deadline, "that did not come"
            time.sleep(0.2)

    def stop(self) -> None:
        for each in self.queries:
            each.stop()


def test_nodes_go_and_come_back_and_each_row_is_there_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    copies = Copies(spark, tmp_path)
    try:
        for node in copies.nodes:
            away = node.rename(tmp_path / "away")
            copies.follow()
            away.rename(node)
            copies.follow()
    finally:
        copies.stop()
    recover([copies.nodes_path])
    check_in_sync(copies.nodes)
    check_equal(copies.nodes)
    check_clean(copies.nodes)
    for gone in copies.nodes:
        assert values([node for node in copies.nodes if node != gone]) == copies.expected
