"""What a user did wrong is one sentence, the last line of Python's part of Spark's error."""

from __future__ import annotations

import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import psutil
import pytest
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

LINES: Final = 8
"""Spark's own sentence, ``Traceback``, two frames of pyspark's runner and the bridge's, with code.

Two hundred lines, with all that had led there, would pass unread.
"""


def sentence_of(run: Callable[[], object]) -> str:
    """Run what fails; give the last line of Python's part, if no more than that is said."""
    with pytest.raises(PySparkException) as raised:
        run()
    lines = str(raised.value).splitlines()
    at = [number for number, line in enumerate(lines) if line.startswith("kafkalog.errors.")]
    assert len(at) == 1, str(raised.value)
    assert at[0] <= LINES, str(raised.value)
    assert all(line.strip().startswith("SQLSTATE") for line in lines[at[0] + 1 : at[0] + 2])
    return lines[at[0]]


def stream(frame: DataFrame, folder: Path, log: Path | None = None, **options: str) -> None:
    writer = frame.writeStream.format("kafkalog" if log else "noop").options(**options)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(log) if log else None)
    query.awaitTermination()


def rows_of(spark: SparkSession, log: Path, *, streaming: bool, topic: str = "t") -> DataFrame:
    reader = (spark.readStream if streaming else spark.read).format("kafkalog")
    return reader.options(subscribe=topic, startingOffsets="earliest").load(str(log))


def append(frame: DataFrame, log: Path, **options: str) -> None:
    writer = frame.write.format("kafkalog").mode("append").options(**{"topic": "t"} | options)
    writer.save(str(log))


@contextmanager
def small_files() -> Iterator[None]:
    """Let Spark's Python processes, and those that they will fork, write 256 KiB to a file."""
    unlimited = resource.RLIM_INFINITY
    try:
        for process in python_processes():
            process.rlimit(psutil.RLIMIT_FSIZE, (256 << 10, unlimited))
        yield
    finally:
        for process in python_processes():
            process.rlimit(psutil.RLIMIT_FSIZE, (unlimited, unlimited))


def python_processes() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [each for each in children if "python" in each.name()]


@pytest.mark.parametrize("streaming", [False, True])
def test_damage_is_told_in_one_sentence_with_the_way_out(
    spark: SparkSession, tmp_path: Path, streaming: bool
) -> None:
    log = tmp_path / "log"
    append(spark.range(100).selectExpr("cast(id as string) as value").coalesce(1), log)
    segment = log / "t-0" / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)

    rows = rows_of(spark, log, streaming=streaming)
    said = sentence_of(lambda: stream(rows, tmp_path) if streaming else rows.collect())

    assert "ChecksumMismatchError: t-0: offsets [0, 100) cannot be read" in said
    assert "onCorruptRecord=skip" in said


@pytest.mark.parametrize("streaming", [False, True])
def test_a_log_or_topic_that_is_not_there_is_told_in_one_sentence(
    spark: SparkSession, tmp_path: Path, streaming: bool
) -> None:
    def read(log: Path) -> None:
        rows = rows_of(spark, log, streaming=streaming, topic="u")
        stream(rows, tmp_path) if streaming else rows.collect()

    assert "log does not exist" in sentence_of(lambda: read(tmp_path / "log"))
    append(spark.range(1).selectExpr("'x' as value"), tmp_path / "log")
    assert "which holds t;" in sentence_of(lambda: read(tmp_path / "log"))


@pytest.mark.parametrize("streaming", [False, True])
def test_a_full_disk_is_told_in_one_sentence(
    spark: SparkSession, tmp_path: Path, streaming: bool
) -> None:
    """A limit on file sizes fails a write in the middle, as a full disk does."""
    log, source = tmp_path / "log", tmp_path / "source"
    spark.range(20_000).selectExpr("repeat(uuid(), 9) as value").write.parquet(str(source))
    append(spark.range(1).selectExpr("'x' as value"), log)  # forks Spark's daemons

    def write() -> None:
        if streaming:
            rows = spark.readStream.schema("value STRING").parquet(str(source))
            stream(rows, tmp_path, log, topic="t")
        else:
            append(spark.read.parquet(str(source)), log)

    with small_files():
        said = sentence_of(write)
    assert "CommitError: the staged file" in said
    assert "make room there and run it again" in said


def test_wrong_options_are_told_in_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(1).selectExpr("'x' as value")
    log = tmp_path / "log"
    said = sentence_of(lambda: append(rows, log, flsh="os"))
    assert said.endswith("option 'flsh' is not known: did you mean 'flush'?")
    reader = spark.read.format("kafkalog").options(subscribe="t", startingOfsets="latest")
    assert "did you mean 'startingOffsets'" in sentence_of(lambda: reader.load(str(log)))
    overwrite = rows.write.format("kafkalog").mode("overwrite").option("topic", "t")
    assert "foreachBatch" in sentence_of(lambda: overwrite.save(str(log)))


READING: Final = [
    ({}, "exactly one of the options assign, subscribe and subscribePattern"),
    ({"subscribe": "t", "subscribePattern": "t"}, "subscribe and subscribePattern are given"),
    ({"subscribePattern": "("}, "no regular expression"),
    ({"assign": "t"}, "accepts JSON such as"),
    ({"subscribe": "t", "startingOffsets": "erliest"}, "accepts earliest, latest or JSON such as"),
    ({"subscribe": "t", "startingOffsets": "latest"}, "a batch cannot start there"),
    ({"subscribe": "t", "endingOffsets": "earliest"}, "a batch cannot end there"),
    ({"subscribe": "t", "startingOffsets": '{"t":{"0":99}}'}, "offset 99, after its end 1"),
    ({"subscribe": "t", "startingOffsets": '{"t":{"3":0}}'}, "missing t-0; not read t-3"),
    ({"subscribe": "t", "startingTimestamp": "1700000000"}, "looks like seconds since 1970"),
    ({"subscribe": "t", "view": "x"}, "accepts one of records, batches"),
    ({"subscribe": "t", "includeHeaders": "ja"}, "accepts true or false"),
    ({"subscribe": "t", "kafka.auto.offset.reset": "earliest"}, "use startingOffsets"),
]
WRITING: Final = [
    ("'x' as value", {}, "no topic to write to"),
    ("'x' as val", {"topic": "t"}, "there is no column 'value'"),
    ("1 as value", {"topic": "t"}, "must be string or binary"),
    ("'x' as value, 9 as partition", {"topic": "t"}, "row 0 names partition 9 of topic 't'"),
    ("'x' as value, cast(null as string) as topic", {}, "row 0 has null in column 'topic'"),
    ("repeat('x', 2000000) as value", {"topic": "t"}, "which max.message.bytes"),
    ("'x' as value", {"topic": "a/b"}, "topic name 'a/b'"),
    ("'x' as value", {"topic": "__t"}, "allowInternalTopics=true"),
    ("'x' as value", {"topic": "t", "compression.type": "zip"}, "accepts one of none, gzip"),
    ("'x' as value", {"topic": "n", "numPartitions": "0"}, "from 1 to 100000"),
    ("'x' as value", {"topic": "t", "path": "hdfs://x/y"}, "not on a local file system"),
]


def test_mistakes_of_who_reads_are_told_in_one_sentence(
    spark: SparkSession, tmp_path: Path
) -> None:
    append(spark.range(1).selectExpr("'x' as value").coalesce(1), tmp_path)
    for options, expected in READING:
        reader = spark.read.format("kafkalog").options(**options)
        assert expected in sentence_of(lambda: reader.load(str(tmp_path)).collect()), options  # noqa: B023
    typed = spark.read.format("kafkalog").option("subscribe", "t").schema("value INT")
    said = sentence_of(lambda: typed.load(str(tmp_path)).collect())
    assert said.endswith("it can be read as binary or string")


def test_mistakes_of_who_writes_are_told_in_one_sentence(
    spark: SparkSession, tmp_path: Path
) -> None:
    append(spark.range(1).selectExpr("'x' as value").coalesce(1), tmp_path)
    for columns, options, expected in WRITING:
        rows = spark.sql(f"SELECT {columns}")
        writer = rows.write.format("kafkalog").mode("append")
        given = {"path": str(tmp_path), **options}
        assert expected in sentence_of(lambda: writer.options(**given).save()), columns  # noqa: B023
    assert spark.read.format("kafkalog").option("subscribe", "t").load(str(tmp_path)).count() == 1


def test_a_stream_with_a_pattern_waits_for_its_topics(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.mkdir()
    reader = spark.readStream.format("kafkalog").option("subscribePattern", "^t$")
    rows = reader.option("startingOffsets", "earliest").load(str(log))
    stream(rows, tmp_path)
    append(spark.range(3).selectExpr("'x' as value"), log)
    counts: list[int] = []
    writer = rows.writeStream.foreachBatch(lambda frame, _: counts.append(frame.count()))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert sum(counts) == 3
