"""Queries whose checkpoint the sink cannot read: their batches are told by their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from tests.support.sinking import values_of

from kafkalog.checkpoints.state_file import load_state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

LOCATION = "spark.sql.streaming.checkpointLocation"


class Stage:
    """A query, named ``q``, whose checkpoint is given by a setting of the session alone."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.input = folder / "input"
        self.checkpoint = folder / "checkpoints" / "q"
        self.log = folder / "log"
        self.input.mkdir()
        spark.conf.set(LOCATION, str(self.checkpoint.parent))

    def arrive(self, number: int, *values: str) -> None:
        (self.input / f"{number}.csv").write_text("".join(f"{value}\n" for value in values))

    def run(self, extra: DataFrame | None = None, **options: str) -> None:
        stream = self.spark.readStream.schema("value STRING").csv(str(self.input))
        frame = stream if extra is None else stream.crossJoin(extra)
        writer = frame.writeStream.format("kafkalog").queryName("q").trigger(availableNow=True)
        named = {name.replace("__", "."): value for name, value in options.items()}
        query = writer.options(topic="t", **named).start(str(self.log))
        query.awaitTermination(120)

    def forget_last(self, log: str) -> None:
        """Remove the last batch from one of the checkpoint's logs."""
        last = max(
            int(path.name) for path in (self.checkpoint / log).iterdir() if path.name.isdigit()
        )
        for name in (f"{last}", f".{last}.crc"):
            (self.checkpoint / log / name).unlink(missing_ok=True)

    def values(self) -> list[str]:
        return [value for found in values_of([self.log], "t").values() for value in found]


@pytest.fixture
def stage(spark: SparkSession, tmp_path: Path) -> Iterator[Stage]:
    yield Stage(spark, tmp_path)
    spark.conf.unset(LOCATION)


def test_a_batch_that_comes_again_with_its_rows_is_skipped(stage: Stage) -> None:
    stage.arrive(1, "a", "b")
    stage.run()
    stage.forget_last("commits")
    stage.run()
    stage.arrive(2, "c")
    stage.run()
    assert stage.values() == ["a", "b", "c"]
    state = load_state(stage.log)
    assert state is not None
    assert [str(writer.digest)[:7] for writer in state.writers.values()] == ["rows 1 "]


def test_a_batch_that_was_planned_anew_with_other_rows_is_refused_and_not_dropped(
    stage: Stage,
) -> None:
    stage.arrive(1, "a")
    stage.run()
    # What a loss of power takes: Spark fsyncs nothing of its checkpoint.
    stage.forget_last("commits")
    stage.forget_last("offsets")
    stage.arrive(2, "b")
    with pytest.raises(StreamingQueryException, match="has lost what it had planned"):
        stage.run()
    assert stage.values() == ["a"]
    stage.run(transactional__id="new name")
    assert stage.values() == ["a", "a", "b"]


def test_rows_that_differ_from_run_to_run_are_told_by_a_checkpoint_given_to_the_query(
    stage: Stage, spark: SparkSession
) -> None:
    drawn = spark.range(1).select(F.expr("uuid()").alias("key"))
    stage.arrive(1, "a")
    stage.run(drawn)
    stage.forget_last("commits")
    with pytest.raises(StreamingQueryException, match="need a checkpointLocation that can be read"):
        stage.run(spark.range(1).select(F.expr("uuid()").alias("key")))
    assert stage.values() == ["a"]
    stage.log.rename(stage.log.with_name("before"))
    given = {"checkpointLocation": str(stage.checkpoint.with_name("given"))}
    stage.run(drawn, **given)
    stage.checkpoint = stage.checkpoint.with_name("given")
    stage.forget_last("commits")
    stage.run(spark.range(1).select(F.expr("uuid()").alias("key")), **given)
    assert stage.values() == ["a"]
