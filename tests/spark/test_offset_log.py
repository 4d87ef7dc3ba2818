"""What Spark writes down of a micro-batch is read right, in each format of its offset log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.sinking import Writer, rows, values_of

from kafkalog.checkpoints.query_checkpoint import QueryCheckpoint
from kafkalog.jobs.inspection.lag import read_checkpoint
from kafkalog.jobs.pipelines.checkpoint_folder import reached_of
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.topics import create

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

VERSION = "spark.sql.streaming.offsetLog.formatVersion"
ENDS = {TopicPartition("t", 0): 2}


@pytest.fixture(params=["1", "2"])
def session(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    spark.conf.set(VERSION, request.param)
    yield spark
    spark.conf.unset(VERSION)


def test_ends_of_a_micro_batch_are_read(session: SparkSession, tmp_path: Path) -> None:
    """The sink needs them for ``preserveEnds``, and moves the copy's end by them."""
    Writer(tmp_path / "a", topic="t").write(0, rows(["x", "y"]))
    (tmp_path / "b").mkdir()
    create([str(tmp_path / "b")], "t")
    folder = tmp_path / "c"
    options = {"subscribe": "t", "startingOffsets": "earliest"}
    stream = session.readStream.format("kafkalog").options(**options).load(str(tmp_path / "a"))
    stream = stream.select("topic", "partition", "offset", "value")
    kept = {"preserveOffsets": "true", "preserveEnds": "true", "checkpointLocation": str(folder)}
    writer = stream.writeStream.format("kafkalog").options(**kept).trigger(availableNow=True)
    assert writer.start(str(tmp_path / "b")).awaitTermination(600)
    assert values_of([tmp_path / "b"], "t") == {0: ["x", "y"]}
    assert QueryCheckpoint(folder).ends(0) == ENDS
    assert reached_of((folder / "offsets" / "0").read_text(), "") == ENDS
    assert read_checkpoint(str(folder)) == (ENDS, frozenset("t"))
