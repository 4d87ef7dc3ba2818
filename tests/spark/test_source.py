"""The source in real queries: batches and streams over logs that grow, shrink and go away."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from tests.support.spark import NEEDS_ADMISSION_CONTROL
from tests.support.streams import Log, Run, finish

import kafkalog
from kafkalog.streaming.source.offsets import from_json_text
from kafkalog.streaming.spark.versions import HAS_ADMISSION_CONTROL, HAS_FILTER_PUSHDOWN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark


def last_progress(query: StreamingQuery) -> Any:
    progress = query.lastProgress
    assert progress is not None
    return progress


# Batches


def test_a_batch_has_the_schema_of_sparks_kafka_source(read: Callable[..., DataFrame]) -> None:
    assert read().schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )
    row = read().where("topic = 't' and partition = 1 and offset = 2").collect()[0].asDict()
    assert (row["key"], row["value"], row["timestampType"]) == (None, b"t-1:2", 0)
    assert row["timestamp"].isoformat() == "2023-11-14T22:13:20"


def test_a_user_schema_selects_columns_and_reads_values_as_text(
    read: Callable[..., DataFrame], log: Log
) -> None:
    broken = b"caf\xc3\xa9 \xff\xfe"
    log.append("t-0", 1, value=broken)
    frame = read("OFFSET BIGINT, value STRING")
    assert frame.columns == ["OFFSET", "value"]
    mine = frame.selectExpr("offset", "cast(value as binary) as value", "value as text")
    theirs = read().selectExpr("offset", "value", "cast(value as string) as text")
    assert sorted(mine.collect()) == sorted(theirs.collect())
    assert (5, broken) in [(row.offset, bytes(row.value)) for row in mine.collect()]


def test_headers_are_read_when_they_are_asked_for(read: Callable[..., DataFrame], log: Log) -> None:
    log.append("t-0", 1, headers=(("a", b"1"), ("a", None)))
    frame = read(includeHeaders="true").where("partition = 0 and offset >= 4")
    first, second = (row.headers for row in frame.orderBy("offset").collect())
    assert first is None
    assert [(header.key, header.value) for header in second] == [("a", b"1"), ("a", None)]


def test_a_frame_keeps_the_bounds_of_its_first_run(
    read: Callable[..., DataFrame], log: Log
) -> None:
    """Spark plans a Python data source once for each load, and pickles the splits.

    Where it tells no filters yet, it plans each use.
    """
    frame = read()
    assert frame.count() == 8
    log.append("t-0", 2)
    assert frame.count() == (8 if HAS_FILTER_PUSHDOWN else 10)
    assert read().count() == 10


def test_a_frame_united_with_itself_gives_its_rows_twice(read: Callable[..., DataFrame]) -> None:
    assert read().union(read()).count() == 16


def test_an_empty_topic_gives_no_rows(read: Callable[..., DataFrame], log: Log) -> None:
    (log.path / "empty-0").mkdir()
    assert read(subscribe="empty").count() == 0


def test_a_batch_reads_between_its_bounds(read: Callable[..., DataFrame]) -> None:
    frame = read(startingOffsets='{"t":{"0":1,"1":-2}}', endingOffsets='{"t":{"0":3,"1":-1}}')
    found = {row.value.decode() for row in frame.collect()}
    assert found == {"t-0:1", "t-0:2", "t-1:0", "t-1:1", "t-1:2"}


def test_minimum_partitions_are_tasks(read: Callable[..., DataFrame]) -> None:
    assert read().rdd.getNumPartitions() == 2
    frame = read(minPartitions="6")
    assert frame.rdd.getNumPartitions() >= 6
    assert frame.count() == 8


def test_sql_reads_through_a_temporary_view(
    spark: SparkSession, read: Callable[..., DataFrame]
) -> None:
    read("value STRING, `partition` INT").createOrReplaceTempView("flights")
    rows = spark.sql("select `partition`, count(*) as n from flights group by 1 order by 1")
    assert [(row["partition"], row["n"]) for row in rows.collect()] == [(0, 5), (1, 3)]


def test_a_list_of_paths_and_a_permanent_table_are_refused_with_what_to_do_instead(
    spark: SparkSession, log: Log
) -> None:
    with pytest.raises(AnalysisException, match="log directories separated by commas"):
        spark.read.format("kafkalog").option("subscribe", "t").load([str(log.path), "/other"])
    with pytest.raises(AnalysisException, match="make a temporary view"):
        spark.sql(f"CREATE TABLE f USING kafkalog OPTIONS (path '{log.path}', subscribe 't')")


def test_a_timestamp_beyond_sparks_fails_by_name_or_shows_null(
    read: Callable[..., DataFrame], log: Log
) -> None:
    log.append("t-1", 1, timestamp=2**62)
    with pytest.raises(PySparkException, match="KAFKA_MALFORMED_RECORD_TIMESTAMP") as caught:
        read().collect()
    message = str(caught.value)
    assert all(part in message for part in ("t-1", "offset 3", str(2**62)))
    rows = read(onTimestampOverflow="null").where("partition = 1").orderBy("offset").collect()
    assert [row.timestamp is None for row in rows] == [False, False, False, True]
    assert read("value STRING").count() == 9  # the column is not asked for


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"maxOffsetPerTrigger": "5"}, "did you mean 'maxOffsetsPerTrigger'"),
        ({"minPartitions": "0"}, "'minPartitions' is '0', but accepts"),
        ({"subscribePattern": "x"}, "exactly one of the options"),
        ({"kafka.auto.offset.reset": "latest"}, "use startingOffsets"),
    ],
)
def test_options_are_checked_when_a_frame_is_loaded(
    read: Callable[..., DataFrame], options: dict[str, str], reason: str
) -> None:
    with pytest.raises(AnalysisException, match=reason):
        read(**options)


def test_bounds_and_topics_are_checked_when_a_batch_is_planned(
    read: Callable[..., DataFrame],
) -> None:
    with pytest.raises(PySparkException, match="'startingOffsets' is latest"):
        read(startingOffsets="latest").collect()
    with pytest.raises(PySparkException, match="no partition of topic nothing is in"):
        read(subscribe="nothing").collect()
    with pytest.raises(PySparkException, match="'value' type bigint"):
        read("value BIGINT").collect()


# Streams


@NEEDS_ADMISSION_CONTROL
def test_available_now_cuts_at_the_limit_and_ends(
    start: Callable[..., tuple[StreamingQuery, Run]], log: Log
) -> None:
    log.append("t-0", 7)
    started = start(startingOffsets="earliest", maxOffsetsPerTrigger="5")
    run = finish(started)
    assert len(run.batches) == 3
    assert run.values == log.values("t-0") | log.values("t-1")


def test_a_restart_goes_on_where_the_checkpoint_is(
    start: Callable[..., tuple[StreamingQuery, Run]], log: Log
) -> None:
    first = finish(start(startingOffsets="earliest"))
    log.append("t-0", 2)
    log.append("t-2", 4)
    second = finish(start(startingOffsets="earliest"))
    assert first.values | second.values == log.values("t-0") | log.values("t-1") | log.values("t-2")
    assert second.values == log.values("t-0", 5) | log.values("t-2")
    assert finish(start()).batches == []


@NEEDS_ADMISSION_CONTROL
def test_a_batch_that_failed_is_read_again_exactly(
    start: Callable[..., tuple[StreamingQuery, Run]], log: Log
) -> None:
    with pytest.raises(StreamingQueryException, match="the batch is to fail"):
        finish(start(startingOffsets="earliest", maxOffsetsPerTrigger="4", fail_in=1))
    log.append("t-0", 50)
    log.append("t-2", 1)
    run = finish(start(startingOffsets="earliest", maxOffsetsPerTrigger="4"))
    assert run.batches[0] == ["t-0:2", "t-0:3", "t-1:1"]
    assert "t-0:54" in run.values


@NEEDS_ADMISSION_CONTROL
def test_rows_that_come_after_latest_are_read_though_the_first_batch_fails(
    start: Callable[..., tuple[StreamingQuery, Run]], log: Log
) -> None:
    with pytest.raises(StreamingQueryException, match="the batch is to fail"):
        finish(start(fail_in=0))
    log.append("t-0", 3)
    assert finish(start()).values == log.values("t-0", 5)


def test_a_start_by_timestamp_is_read_by_one_available_now(
    start: Callable[..., tuple[StreamingQuery, Run]], log: Log
) -> None:
    log.append("t-0", 2, timestamp=1_800_000_000_000)
    log.append("t-1", 1, timestamp=1_800_000_000_000)
    run = finish(start(startingTimestamp="1800000000000"))
    assert run.values == log.values("t-0", 5) | log.values("t-1", 3)


def test_a_running_query_sees_new_rows_and_partitions_and_then_rests(
    start: Callable[..., tuple[StreamingQuery, Run]], log: Log
) -> None:
    query, run = start(startingOffsets="earliest", trigger={"processingTime": "0 seconds"})
    try:
        query.processAllAvailable()
        log.append("t-0", 1)
        log.append("t-10", 2)
        log.append("t-2", 2)
        parts = [log.values(partition) for partition in ("t-0", "t-1", "t-2", "t-10")]
        expected = set().union(*parts)
        deadline = time.monotonic() + 60
        while run.values != expected and time.monotonic() < deadline:
            query.processAllAvailable()  # a new folder may be seen a few looks late
        assert run.values == expected
        batch = last_progress(query)["batchId"]
        for _ in range(3):
            query.processAllAvailable()
        assert last_progress(query)["batchId"] == batch  # nothing new: no further batch
        progress = last_progress(query)["sources"][0]
        ends = {"t-0": 6, "t-1": 3, "t-2": 2, "t-10": 2}
        assert {str(key): at for key, at in from_json_text(progress["endOffset"]).items()} == ends
        if HAS_ADMISSION_CONTROL:
            assert progress["latestOffset"] == progress["endOffset"]
    finally:
        query.stop()


@NEEDS_ADMISSION_CONTROL
def test_trigger_once_reads_all_there_is_whatever_the_limit(
    start: Callable[..., tuple[StreamingQuery, Run]], log: Log
) -> None:
    limits = {"maxOffsetsPerTrigger": "1", "startingOffsets": "earliest"}
    run = finish(start(trigger={"once": True}, **limits))
    assert len(run.batches) == 1
    assert run.values == log.values("t-0") | log.values("t-1")


@NEEDS_ADMISSION_CONTROL
def test_two_streams_united_are_each_limited_and_both_read_to_the_end(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.append("u-0", 40)
    log.append("v-0", 10)

    def stream(topic: str) -> DataFrame:
        reader = spark.readStream.format("kafkalog").schema("value STRING")
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "5"}
        return reader.options(**options, subscribe=topic).load(str(log.path))

    run = Run()
    writer = stream("u").union(stream("v")).writeStream.foreachBatch(run.take)
    writer = writer.trigger(availableNow=True)
    finish((writer.option("checkpointLocation", str(tmp_path / "c")).start(), run))
    assert run.values == log.values("u-0") | log.values("v-0")
    assert [len(batch) for batch in run.batches] == [10, 10, 5, 5, 5, 5, 5, 5]


def test_a_deleted_partition_fails_a_stream_unless_it_may_go_on(
    start: Callable[..., tuple[StreamingQuery, Run]], log: Log
) -> None:
    finish(start(startingOffsets="earliest"))
    log.delete("t-1")
    log.append("t-0", 1)
    with pytest.raises(StreamingQueryException, match="PARTITIONS_DELETED"):
        finish(start())
    assert finish(start(failOnDataLoss="false")).values == {"t-0:5"}


def test_a_directory_that_is_not_mounted_fails_batches_and_new_streams(
    spark: SparkSession, tmp_path: Path
) -> None:
    folders = tmp_path / "a", tmp_path / "b"
    paths = ",".join(map(str, folders))
    kafkalog.append(
        list(folders),
        "t",
        pa.table({"value": ["x", "y"], "partition": pa.array([0, 1], pa.int32())}),
        options={"numPartitions": 2},
    )
    folders[1].rename(tmp_path / "unmounted")
    folders[1].mkdir()
    options = {"subscribe": "t", "startingOffsets": "earliest", "fetchOffset.retryIntervalMs": "0"}
    with pytest.raises(PySparkException, match=r"1 of the 2 log directories .* t-1 up to offset 1"):
        spark.read.format("kafkalog").options(**options).load(paths).collect()
    run = Run()
    frame = spark.readStream.format("kafkalog").options(**options).load(paths)
    writer = frame.writeStream.foreachBatch(run.take).trigger(availableNow=True)
    started = writer.option("checkpointLocation", str(tmp_path / "c")).start()
    with pytest.raises(StreamingQueryException, match="1 of the 2 log directories"):
        finish((started, run))
    lax = spark.read.format("kafkalog").options(**options, failOnDataLoss="false").load(paths)
    assert [row.partition for row in lax.collect()] == [0]


def test_an_option_that_a_stream_cannot_have_is_refused_at_its_start(
    start: Callable[..., tuple[StreamingQuery, Run]],
) -> None:
    refusal = "'endingOffsets' cannot be used in a str"
    with pytest.raises(StreamingQueryException, match=refusal) as caught:
        finish(start(endingOffsets="latest"))
    assert "UnboundLocalError" not in str(caught.value)  # Spark's own, where no reader is made


@NEEDS_ADMISSION_CONTROL
def test_a_limit_of_bytes_cuts_micro_batches_between_record_batches(
    start: Callable[..., tuple[StreamingQuery, Run]], log: Log
) -> None:
    for _ in range(4):
        log.append("t-0", 5)
    size = (log.path / "t-0" / f"{0:020d}.log").stat().st_size // 5
    run = finish(start(startingOffsets="earliest", maxBytesPerTrigger=str(2 * size + 50)))
    assert [len(batch) for batch in run.batches] == [10, 8, 10]
    assert run.values == log.values("t-0") | log.values("t-1")


@NEEDS_ADMISSION_CONTROL
def test_a_start_at_a_group_is_pinned_though_the_first_batch_fails_and_the_group_moves(
    start: Callable[..., tuple[StreamingQuery, Run]], log: Log
) -> None:
    log.commit_position("readers", "t-0", 2)
    log.commit_position("readers", "t-1", 1)
    with pytest.raises(StreamingQueryException, match="the batch is to fail"):
        finish(start(startingOffsets="group:readers", fail_in=0))
    log.commit_position("readers", "t-0", 5)
    run = finish(start(startingOffsets="group:readers"))
    assert run.values == log.values("t-0", 2) | log.values("t-1", 1)


def test_words_for_whole_topics_start_queries(
    start: Callable[..., tuple[StreamingQuery, Run]], read: Callable[..., DataFrame], log: Log
) -> None:
    log.append("u-0", 2)
    words = {"subscribe": "t,u", "startingOffsets": '{"t":{"0":4,"1":-2},"u":"earliest"}'}
    expected = log.values("t-0", 4) | log.values("t-1") | log.values("u-0")
    assert {row.value.decode() for row in read(**words).collect()} == expected
    assert finish(start(**words)).values == expected


def test_a_stream_ends_at_its_ending_timestamp(
    start: Callable[..., tuple[StreamingQuery, Run]], log: Log
) -> None:
    for _ in range(2):
        log.append("t-0", 2, timestamp=1_800_000_000_000)
    bounds = {"startingOffsets": "earliest", "endingTimestamp": "1800000000000"}
    assert finish(start(**bounds)).values == log.values("t-0") - log.values("t-0", 5) | log.values(
        "t-1"
    )
    assert finish(start(**bounds)).batches == []


@NEEDS_ADMISSION_CONTROL
@pytest.mark.parametrize("count", [2, 9])
def test_a_topic_that_was_recreated_between_runs_is_read_from_its_start(
    start: Callable[..., tuple[StreamingQuery, Run]], log: Log, tmp_path: Path, count: int
) -> None:
    for partition in ("t-0", "t-1"):
        log.name_topic(partition)
    given = {"startingOffsets": "earliest", "stateLocation": str(tmp_path / "state")}
    finish(start(**given))
    log.delete("t-0")
    log.delete("t-1")
    log.append("t-0", count)
    log.name_topic("t-0")
    with pytest.raises(StreamingQueryException, match="were deleted and recreated: t-0 from 5 to"):
        finish(start(**given))
    run = finish(start(failOnDataLoss="false", **given))
    assert run.values == log.values("t-0")
    assert finish(start(**given)).batches == []
