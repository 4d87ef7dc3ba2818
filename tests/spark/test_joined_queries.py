"""Two queries of Spark share a topic by a group, and one of them goes: each row is there once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from tests.support.consuming import positions, table, written

from kafkalog.streaming.api import append
from kafkalog.streaming.groups.group_commits import GroupCommits
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

DEADLINE_S = 90


def start(spark: SparkSession, folder: Path, name: str) -> StreamingQuery:
    group = {"kafka.group.id": "g", "kafka.group.instance.id": name}
    timing = {"kafka.session.timeout.ms": "12000", "kafka.heartbeat.interval.ms": "500"}
    source = {"subscribe": "in", "startingOffsets": "earliest", "joinGroup": "true"}
    reader = spark.readStream.format("kafkalog").options(**source, **group, **timing)
    rows = reader.load(str(folder)).selectExpr("CAST(value AS STRING) AS value")
    writer = rows.writeStream.format("kafkalog").options(topic="out", **group)
    checkpoint = str(folder.parent / f"checkpoint-{name}")
    return writer.option("checkpointLocation", checkpoint).start(str(folder))


def shares(folder: Path) -> dict[str | None, int]:
    members = GroupCommits([folder], "g", SetPolicy()).look().record.members
    return {each.settings.instance: len(each.assigned) for each in members.values()}


def eventually(is_so: Callable[[], bool], *queries: StreamingQuery) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        for each in queries:
            assert each.exception() is None
        assert time.monotonic() < deadline, "that did not come"
        time.sleep(0.1)


def test_queries_share_a_topic_and_go_on_without_one_that_is_stopped(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "logs"
    append(folder, "in", table(range(40)), options={"numPartitions": 4})
    first = start(spark, folder, "a")
    second = start(spark, folder, "b")
    try:
        eventually(lambda: shares(folder) == {"a": 2, "b": 2}, first, second)
        append(folder, "in", table(range(40, 80)))
        eventually(lambda: sum(positions(folder).values()) == 80, first, second)
        first.stop()
        append(folder, "in", table(range(80, 120)))
        eventually(lambda: shares(folder) == {"b": 4}, second)
        eventually(lambda: sum(positions(folder).values()) == 120, second)
        first = start(spark, folder, "a")  # comes back with its old checkpoint
        eventually(lambda: shares(folder) == {"a": 2, "b": 2}, first, second)
        append(folder, "in", table(range(120, 160)))
        eventually(lambda: sum(positions(folder).values()) == 160, first, second)
    finally:
        first.stop()
        second.stop()
    assert written(folder) == list(range(160))
