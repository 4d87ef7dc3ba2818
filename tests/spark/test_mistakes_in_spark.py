"""Common mistakes in Spark: what docs/mistakes.md says of each is what comes, word for word."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import kafkalog
from kafkalog.jobs.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"


class Grounds:
    """A log with a topic ``t``, and what one does with it in Spark."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.log = str(folder / "log")
        self.append(2)

    def append(self, count: int, **columns: Any) -> None:
        kafkalog.append(self.log, "t", pa.table({"value": ["v"] * count, **columns}))

    def read(self, **options: str) -> DataFrame:
        given = {"subscribe": "t", **options}
        return self.spark.read.format("kafkalog").options(**given).load(self.log)

    def tail(self, **options: str) -> DataFrame:
        given = {"subscribe": "t", "startingOffsets": "earliest", **options}
        return self.spark.readStream.format("kafkalog").options(**given).load(self.log)

    def run(self, frame: DataFrame, mode: str = "append", **trigger: Any) -> int:
        """Write a stream to topic ``copy``; return how many rows it took."""
        writer = frame.writeStream.format("kafkalog").option("topic", "copy").outputMode(mode)
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        query = writer.trigger(**trigger or {"availableNow": True}).start(self.log)
        query.awaitTermination()
        return sum(each["numInputRows"] for each in query.recentProgress)

    def write(self, frame: DataFrame, mode: str = "append") -> None:
        frame.write.format("kafkalog").mode(mode).option("topic", "t").save(self.log)

    def command(self, *words: str) -> None:
        app(words, standalone_mode=False)


@pytest.fixture
def at(spark: SparkSession, tmp_path: Path) -> Grounds:
    return Grounds(spark, tmp_path)


def no_checkpoint(at: Grounds) -> None:
    writer = at.tail().writeStream.format("kafkalog").option("topic", "copy")
    writer.trigger(availableNow=True).start(at.log)


def another_topic_at_the_same_checkpoint(at: Grounds) -> None:
    at.run(at.tail())
    kafkalog.append(at.log, "u", pa.table({"value": ["v"]}))
    at.run(at.tail(subscribe="u"))


def older_checkpoint(at: Grounds) -> None:
    at.run(at.tail())
    shutil.copytree(at.folder / "checkpoint", at.folder / "older")
    at.append(1)
    at.run(at.tail())
    shutil.rmtree(at.folder / "checkpoint")
    (at.folder / "older").rename(at.folder / "checkpoint")
    at.append(1)
    at.run(at.tail())


def lost_records(at: Grounds) -> None:
    at.run(at.tail())
    at.append(2)
    at.command("delete-records", at.log, "--offsets", '{"t":{"0":-1}}')
    at.run(at.tail())


def more_partitions_in_the_source(at: Grounds) -> None:
    at.run(at.tail())
    at.command("alter", at.log, "--topic", "t", "--partitions", "2")
    at.append(1, partition=pa.array([1], pa.int32()))
    at.run(at.tail())


def words(at: Grounds) -> DataFrame:
    return at.spark.range(2).selectExpr("CAST(id AS STRING) AS word")


def counts(at: Grounds) -> DataFrame:
    counted = at.tail().groupBy("value").count()
    return counted.selectExpr("value AS key", "CAST(count AS STRING) AS value")


TOLD: dict[str, Callable[[Grounds], object]] = {
    "a stream without a checkpoint": no_checkpoint,
    "the trigger `continuous`": lambda at: at.run(at.tail(), continuous="1 second"),
    'counts, with `outputMode("update")`': lambda at: at.run(counts(at), "update"),
    "a stream, and `show()` or `collect()`": lambda at: at.tail().collect(),
    "a batch read, and `writeStream`": lambda at: at.read().writeStream,
    "a stream with `endingOffsets`": lambda at: at.run(at.tail(endingOffsets="latest")),
    "reading with `topic`": lambda at: (
        at.spark.read.format("kafkalog").option("topic", "t").load(at.log)
    ),
    "a topic with a typo": lambda at: at.run(at.tail(subscribe="tt")),
    "a write without `mode`": lambda at: at.write(words(at), "error"),
    'a write with `mode("overwrite")`': lambda at: at.write(words(at), "overwrite"),
    "rows without a column `value`": lambda at: at.write(words(at)),
    "a `value` that is a number": lambda at: at.write(at.spark.range(2).toDF("value")),
    "a schema without columns": lambda at: (
        at.spark.read.format("kafkalog")
        .schema(StructType([]))
        .option("subscribe", "t")
        .load(at.log)
        .count()
    ),
    "the checkpoint of a query over another topic": another_topic_at_the_same_checkpoint,
    "a checkpoint from a copy": older_checkpoint,
    "records were deleted before the query read them": lost_records,
    "the source got more partitions than the target": more_partitions_in_the_source,
}


@pytest.mark.parametrize("mistake", TOLD)
def test_what_comes_stands_on_the_page(at: Grounds, mistake: str) -> None:
    with pytest.raises(Exception, match=r".") as raised:
        TOLD[mistake](at)
    said = sentence(str(raised.value), at.log)
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {mistake} |")]
    assert len(rows) == 1, said
    # what is told of this one time and query
    shown = re.sub(r"…", "\0", rows[0].split(" | ")[1].strip("` "))
    assert re.fullmatch(re.escape(shown).replace("\0", ".+"), said), said


def sentence(text: str, log: str) -> str:
    """Return what is said in one line: ours, or the first of Spark's."""
    ours = re.findall(r"^kafkalog\.errors\.(.+)$", text, re.MULTILINE)
    said = (
        ours[-1] if ours else text.strip().splitlines()[0].partition("terminated with exception: ")
    )
    shown = said if isinstance(said, str) else said[2] or said[0]
    return re.sub(r"( SQLSTATE: \w+)+$", "", shown).strip().replace(log, "LOG")


def test_what_spark_says_nothing_of(at: Grounds) -> None:
    """The page has these as ``nothing``: what happens is what it says."""
    assert at.run(at.tail(startingOffsets="latest")) == 0  # a restart goes on from there
    assert at.run(at.tail(startingOffsets="earliest")) == 0
    shutil.rmtree(at.folder / "checkpoint")
    assert at.run(at.tail()) == at.run(at.tail()) + 2
    shutil.rmtree(at.folder / "checkpoint")
    assert at.run(at.tail()) == 2  # a new checkpoint is a new query: the rows are there twice
    assert kafkalog.read(at.log, "copy").read_all().num_rows == 4
    kafkalog.append(at.log, "t", pa.table({"value": ["v"]}), options={"numPartitions": 8})
    assert [path.name for path in Path(at.log).glob("t-*")] == ["t-0"]
