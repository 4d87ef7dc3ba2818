"""Real queries over an object store: options and places travel to Spark's processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql.datasource import CaseInsensitiveDict
from tests.support.corpus import UnpackedCase
from tests.support.logs import write_checkpoint
from tests.support.object_store import ObjectStore, Request, object_store
from tests.support.spark import limited, small_session
from tests.support.tiers import AivenTier, Keys, write_log

import kafkalog
from kafkalog.errors import LogDirectoryError, OptionError, TargetMismatchError
from kafkalog.files.objects import open_objects
from kafkalog.files.system import system
from kafkalog.jobs.mirroring import Mirror
from kafkalog.jobs.pipelines.ingesting import Ingest
from kafkalog.jobs.pipelines.inputs import Input
from kafkalog.jobs.pipelines.replay_checkpoint import ReplayCheckpoint
from kafkalog.jobs.pipelines.replaying import Replay, target_of
from kafkalog.jobs.pipelines.restore_plan import NO_END, Until, check_target
from kafkalog.jobs.pipelines.supervised import attend_pieces
from kafkalog.jobs.replay import begin, work_of
from kafkalog.jobs.restoring import Restore
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin import topics
from kafkalog.streaming.objects import sweeping
from kafkalog.streaming.objects.bucket_store import BucketRoot
from kafkalog.streaming.objects.merging import merge
from kafkalog.streaming.objects.sweeping import sweep_data
from kafkalog.streaming.spark.datasource import KafkaLogDataSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

SECRET = "a-well-kept-secret"


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder in which Spark keeps what happens in this file."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def spark(events: Path) -> Iterator[SparkSession]:
    kept = {"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false"}
    with small_session(**kept, **{"spark.eventLog.dir": events.as_uri()}) as session:
        yield session


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as started:
        yield started


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    in_ms = frame.withColumn("timestamp", frame["timestamp"].cast("decimal(38, 6)") * 1000)
    rows = [row.asDict(recursive=True) for row in in_ms.collect()]
    return [row | {"timestamp": int(row["timestamp"])} for row in rows]


def upload(store: ObjectStore, tmp_path: Path, name: str) -> tuple[UnpackedCase, dict[str, str]]:
    case = UnpackedCase(name, tmp_path / "case")
    store.upload(Path(case.path), name)
    more = {"subscribe": case.topics, "includeHeaders": "true"}
    return case, {"path": store.uri(name), **more, **store.options}


def test_a_batch_and_a_stream_give_the_rows_of_the_corpus(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    case, options = upload(store, tmp_path, "p06-transactions")
    options["kafka.isolation.level"] = "read_committed"
    rows = rows_of(spark.read.format("kafkalog").options(**options).load())
    assert case.differences(rows, isolation="read_committed") == []
    streamed: list[dict[str, Any]] = []
    checkpoint = tmp_path / "checkpoint"
    query = (
        spark.readStream.format("kafkalog")
        .options(**options, startingOffsets="earliest", **limited(300))
        .load()
        .writeStream.foreachBatch(lambda frame, _: streamed.extend(rows_of(frame)))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    assert query.exception() is None
    assert case.differences(streamed, isolation="read_committed") == []
    kept = [path.read_text() for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()]
    assert len(kept) > len(limited(1))  # one where a limit ends the stream
    assert not any(SECRET in text or "s3:" in text for text in kept)


def test_a_store_that_fails_in_a_task_is_reported_without_secrets(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    _, options = upload(store, tmp_path, "p02-nulls-headers")
    frame = spark.read.format("kafkalog").options(**options, **{"storage.tries": "2"}).load()
    plan = frame._jdf.queryExecution().toString()  # planned while the store answers
    assert SECRET not in plan
    store.fault = lambda request: "500" if request.name.endswith(".log") else None
    with pytest.raises(
        PySparkException, match=r"s3://archive/p02-nulls-headers/.*\(tries: 2\)"
    ) as e:
        frame.collect()
    store.reset()
    assert SECRET not in str(e.value)


def test_a_tiered_topic_is_read_with_its_log_and_no_key_is_in_an_event(
    spark: SparkSession, store: ObjectStore, events: Path, tmp_path: Path
) -> None:
    store.reset()
    log, keys = tmp_path / "log", Keys(tmp_path)
    folder = write_log(log, [0, 10, 20], 30)
    write_checkpoint(log, "replication-offset-checkpoint", {"t-0": 30})
    tier = AivenTier(tmp_path / "tier", compression=True, key=keys.public["one"])
    tier.move(folder, [0, 10, 20])
    store.upload(tmp_path / "tier", "tier")
    options = {
        **store.options,
        "subscribe": "t",
        "startingOffsets": "earliest",
        "remote.path": store.uri("tier"),
        "remote.encryption.keys": keys.option,
    }
    batch = spark.read.format("kafkalog").options(**options, splitBytes="200").load(str(log))
    assert sorted(row["offset"] for row in batch.select("offset").collect()) == list(range(30))
    stream = spark.readStream.format("kafkalog").options(**options, **limited(12))
    query = (
        stream.load(str(log))
        .writeStream.format("memory")
        .queryName("tiered")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = spark.sql("select offset from tiered").collect()
    assert sorted(row["offset"] for row in rows) == list(range(30))
    told = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
    assert "PRIVATE KEY" not in told
    pem = (tmp_path / "one.pem").read_text().splitlines()
    assert not [line for line in pem if line in told]
    assert SECRET not in told


def test_nothing_is_written_where_no_log_can_lie(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("t", b"v")], "topic string, value binary")
    writer = rows.write.format("kafkalog").mode("append")
    with pytest.raises(PySparkException, match=r"not on a local file system.*locks") as caught:
        writer.save(f"hdfs://an-id:{SECRET}@archive/new?region=us-east-1")
    assert "archive/new" in str(caught.value)
    assert SECRET not in str(caught.value).split("Traceback")[0]


# A log in a bucket


def values_of(spark: SparkSession, options: dict[str, str], topic: str) -> list[str]:
    frame = spark.read.format("kafkalog").options(**options, subscribe=topic).load()
    rows = frame.selectExpr("CAST(value AS STRING)", "partition", "offset").collect()
    return [value for value, *_ in sorted(rows, key=lambda row: (row[1], row[2]))]


class FailingCommits:
    """Requests for commits that go wrong: each is lost, or its answer and what is asked then."""

    def __init__(self, *faults: str | None) -> None:
        self._faults = iter(faults)
        self.is_blind = False

    def __call__(self, request: Request) -> str | None:
        if "/commits/" not in request.path:
            return None
        if request.method == "PUT":
            fault = next(self._faults, None)
            self.is_blind = fault in {"reset", "late"}
            return fault
        return "lost" if self.is_blind else None


def test_rows_are_written_to_a_bucket_and_read_from_it(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    store.make_bucket()
    options = {"path": store.uri("written"), **store.options}
    frame = spark.range(40, numPartitions=2).selectExpr("CAST(id AS STRING) AS value")
    for _ in range(2):  # a batch write with a version counts once
        named = {"txnAppId": "job", "txnVersion": "1", "topic": "a", "numPartitions": "2"}
        store.requests.clear()
        frame.write.format("kafkalog").options(**options, **named).mode("append").save()
    assert {request.method for request in store.requests} == {"GET"}
    large = spark.range(3, numPartitions=3).selectExpr("repeat('x', 3 * 1048576) AS value")
    named = {"topic": "large", "max.message.bytes": "4m", "compression.type": "none"}
    store.requests.clear()
    large.write.format("kafkalog").options(**options, **named).mode("append").save()
    put = Counter(r.path.split("/")[-2] for r in store.requests if r.method == "PUT")
    assert put == {"data": 3, "commits": 1}
    store.requests.clear()
    assert sorted(values_of(spark, options, "a"), key=int) == [str(n) for n in range(40)]
    with_data = [request for request in store.requests if request.start > 0]
    assert len(with_data) == 2  # a partition each: who plans reads nothing of them
    query = (
        spark.readStream.format("kafkalog")
        .options(**options, subscribe="a", startingOffsets="earliest", **limited(10))
        .load()
        .writeStream.format("kafkalog")
        .options(**options, topic="b", numPartitions="2")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    assert sorted(values_of(spark, options, "b"), key=int) == [str(n) for n in range(40)]
    assert len(query.recentProgress) >= (4 if limited(1) else 1)


def test_a_query_that_fails_at_each_commit_writes_each_row_once(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    store.make_bucket()
    options = {"path": store.uri("failing"), **store.options, "storage.tries": "1"}
    frame = spark.range(9).selectExpr("CAST(id AS STRING) AS value").coalesce(1)
    frame.write.format("kafkalog").options(**options, topic="a").mode("append").save()
    faults = store.fault = FailingCommits("lost", "reset", None, "reset", "lost")
    failed = 0
    while True:
        query = (
            spark.readStream.format("kafkalog")
            .options(**options, subscribe="a", startingOffsets="earliest", **limited(3))
            .load()
            .writeStream.format("kafkalog")
            .options(**options, topic="b", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(300)
            break
        except PySparkException:
            failed += 1
            faults.is_blind = False
    store.reset()
    assert failed >= 2
    assert values_of(spark, options, "b") == [str(n) for n in range(9)]


def test_a_commit_that_arrives_after_its_batch_was_aborted_finds_what_was_staged(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    store.make_bucket()
    options = {"path": store.uri("late"), **store.options, "storage.tries": "1"}
    kafkalog.append(store.uri("late"), "b", pa.table({"value": ["first"]}), options=store.options)
    (tmp_path / "input").mkdir()
    for task in range(2):
        (tmp_path / "input" / f"{task}.csv").write_text(f"{task}\n")
    given = {"topic": "b", "max.message.bytes": "4m", "compression.type": "none"}

    def run() -> None:
        rows = spark.readStream.schema("n STRING").csv(str(tmp_path / "input"))
        writer = rows.selectExpr("repeat(n, 3 * 1048576) AS value").writeStream
        writer = writer.format("kafkalog").options(**options, **given)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination(300)

    store.requests.clear()
    store.fault = FailingCommits("late")
    with pytest.raises(PySparkException, match="Writing job failed"):
        run()
    put = Counter(r.path.split("/")[-2] for r in store.requests if r.method == "PUT")
    assert put == {"data": 2, "commits": 1}
    assert len(store.late) == 1
    store.reset()  # now it arrives, and the query is long over
    for _ in range(2):
        shown = Counter((value[0], len(value)) for value in values_of(spark, options, "b"))
        assert shown == {("f", 5): 1, ("0", 3 << 20): 1, ("1", 3 << 20): 1}
        run()


def test_a_batch_that_is_read_for_longer_than_data_is_kept_gets_each_row_once(
    spark: SparkSession, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.make_bucket()
    options = {"path": store.uri("swept"), **store.options}
    given = {"segment.bytes": "3000000", "compression.type": "none"}
    for number in range(8):
        rows = pa.table({"value": [f"{number} {n} ".ljust(100_000, "x") for n in range(12)]})
        kafkalog.append(store.uri("swept"), "t", rows, options={**store.options, **given})
    reader = spark.read.format("kafkalog").options(**options, subscribe="t", splitBytes="1200000")
    waits, swept = tmp_path / "waits", tmp_path / "swept"

    def wait(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            while not swept.exists():
                waits.touch()
                time.sleep(0.05)
            yield batch

    frame = (
        reader.load()
        .selectExpr("offset", "length(value) AS size")
        .mapInArrow(wait, "offset BIGINT, size INT")
    )
    with ThreadPoolExecutor(1) as pool:
        collecting = pool.submit(frame.collect)
        while not waits.exists():
            assert not collecting.done(), collecting.result()
            time.sleep(0.05)
        root = BucketRoot.of(store.place("swept"))
        assert merge(root).segments
        monkeypatch.setattr(sweeping, "first_young", lambda log, *_: log.state.number + 1)
        with root.writing() as log:
            assert sweep_data(log)[0] >= 6
        swept.touch()
        found = collecting.result(300)
    assert sorted(row["offset"] for row in found) == [*range(96)]
    assert {row["size"] for row in found} == {100_000}


@pytest.mark.parametrize(
    ("count", "fails"),
    [
        *((3, False), (9, True)),
        pytest.param(3, True, marks=pytest.mark.nightly),
        pytest.param(9, False, marks=pytest.mark.nightly),
    ],
)
def test_a_topic_that_is_made_again_under_a_query_is_a_loss_or_is_read_from_its_start(
    spark: SparkSession, store: ObjectStore, tmp_path: Path, count: int, *, fails: bool
) -> None:
    store.make_bucket()
    place = store.uri(f"again-{count}-{fails}")
    append(place, store.options, 0)
    seen, query = follow(spark, store, place, tmp_path, failOnDataLoss=str(fails))
    try:
        query.processAllAvailable()
        assert sorted(seen) == [*range(6)]
        topics.delete([store.place(f"again-{count}-{fails}")], "t")
        append(place, store.options, 100, count)
        if fails:
            with pytest.raises(PySparkException, match="KAFKA_DATA_LOSS"):
                query.awaitTermination(300)
            return
        while len(seen) < 6 + count:
            assert query.isActive
            time.sleep(0.1)
        append(place, store.options, 200, 2)
        while len(seen) < 6 + count + 2:  # a query sees a commit a poll later
            assert query.isActive
            time.sleep(0.1)
        query.processAllAvailable()
        assert sorted(seen[6:]) == [*range(100, 100 + count), 200, 201]
    finally:
        query.stop()


def follow(
    spark: SparkSession, store: ObjectStore, place: str, folder: Path, **options: str
) -> tuple[list[int], StreamingQuery]:
    """Follow a topic; return what is seen of it, and the query."""
    seen: list[int] = []

    def take(rows: DataFrame, batch_id: int) -> None:
        del batch_id
        seen.extend(int(row["value"]) for row in rows.collect())

    reader = spark.readStream.format("kafkalog").schema("value STRING").options(**store.options)
    given = {"storage.pollInterval": "100ms", "stateLocation": str(folder / "state")}
    reader = reader.options(subscribe="t", startingOffsets="earliest", **given, **options)
    writer = reader.load(place).writeStream.foreachBatch(take)
    return seen, writer.option("checkpointLocation", str(folder / "checkpoint")).start()


@pytest.mark.nightly
@pytest.mark.parametrize("fails", [True, False])
def test_a_bucket_that_is_emptied_under_a_query_ends_it_and_its_next_run_says_what_is_lost(
    spark: SparkSession,
    store: ObjectStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    fails: bool,
) -> None:
    store.make_bucket()
    place = store.uri(f"emptied-{fails}")
    append(place, store.options, 0)
    seen, query = follow(spark, store, place, tmp_path, failOnDataLoss=str(fails))
    query.processAllAvailable()
    objects = open_objects(store.place(f"emptied-{fails}"))
    objects.delete([f"_kafkalog/{entry.name}" for entry in objects.list_after("_kafkalog")])
    monkeypatch.setattr(system, "memory", {})  # as another process
    append(place, store.options, 100, 9)
    with pytest.raises(PySparkException, match="somebody has emptied it"):
        query.awaitTermination(300)  # a query looks once a minute
    assert sorted(seen) == [*range(6)]
    seen, query = follow(spark, store, place, tmp_path, failOnDataLoss=str(fails))
    try:
        if fails:
            with pytest.raises(PySparkException, match="deleted and recreated"):
                query.awaitTermination(300)
            return
        query.processAllAvailable()
        append(place, store.options, 200, 2)
        query.processAllAvailable()
        assert sorted(seen) == [*range(100, 109), 200, 201]
    finally:
        query.stop()


@pytest.mark.nightly
def test_a_query_whose_checkpoint_is_older_is_refused(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    store.make_bucket()
    options = {"path": store.uri("older"), **store.options}
    checkpoint, older = tmp_path / "checkpoint", tmp_path / "older"

    def run(name: str) -> None:
        frame = spark.range(3).selectExpr("CAST(id AS STRING) AS value").coalesce(1)
        frame.write.format("kafkalog").options(**options, topic="a").mode("append").save()
        reader = spark.readStream.format("kafkalog").options(**options, subscribe="a")
        writer = reader.option("startingOffsets", "earliest").load().writeStream
        named = {"topic": "b", "checkpointLocation": name, "transactional.id": "q"}
        query = writer.format("kafkalog").options(**options, **named)
        query.trigger(availableNow=True).start().awaitTermination(300)

    run(str(checkpoint))
    shutil.copytree(checkpoint, older)
    run(str(checkpoint))
    with pytest.raises(PySparkException, match="BatchIdentityError"):
        run(str(older))
    assert values_of(spark, options, "b") == ["0", "1", "2"] * 2


DRIVER = """
import json, sys
from tests.support.spark import limited, small_session

options, checkpoint = json.loads(sys.argv[1]), sys.argv[2]
with small_session() as spark:
    reader = spark.readStream.format("kafkalog").options(**options, subscribe="a")
    frame = reader.options(startingOffsets="earliest", **limited(3)).load()
    writer = frame.writeStream.format("kafkalog").options(**options, topic="b")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination(300)
"""


@pytest.mark.nightly
def test_a_driver_that_is_killed_at_its_commits_writes_each_row_once(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    store.make_bucket()
    options = {"path": store.uri("killed"), **store.options}
    frame = spark.range(9).selectExpr("CAST(id AS STRING) AS value").coalesce(1)
    frame.write.format("kafkalog").options(**options, topic="a").mode("append").save()
    faults = iter(["lost", "reset", None, "reset"])
    command = [sys.executable, "-c", DRIVER, json.dumps(options), str(tmp_path / "checkpoint")]
    running: list[subprocess.Popen[bytes]] = []

    def kill(request: Request) -> str | None:
        if request.method != "PUT" or "/commits/" not in request.path:
            return None
        fault = next(faults, None)
        if fault is not None:
            os.killpg(running[-1].pid, signal.SIGKILL)
        return fault

    store.fault = kill
    codes = []
    while not codes or codes[-1]:
        assert len(codes) < 6
        running.append(
            subprocess.Popen(command, cwd=Path(__file__).parents[2], start_new_session=True)
        )
        codes.append(running[-1].wait(300))
    store.reset()
    # a worker may outlive its driver, and commit what the next driver finds committed then
    assert codes[:-1] == [-signal.SIGKILL] * (len(codes) - 1)
    assert len(codes) > (2 if limited(3) else 1)  # without a limit there is one commit
    assert values_of(spark, options, "b") == [str(n) for n in range(9)]


def test_no_secret_stands_in_a_plan_an_event_a_message_or_a_pickle(
    spark: SparkSession, store: ObjectStore, events: Path, tmp_path: Path
) -> None:
    store.make_bucket()
    secrets = {"storage.secretKey": SECRET, "storage.sessionToken": SECRET}
    secrets |= {"storage.accountKey": SECRET}
    options = {"path": store.uri("secret"), **store.options, **secrets}
    frame = spark.range(4).selectExpr("CAST(id AS STRING) AS value")
    writer = frame.write.format("kafkalog").options(**options, topic="a")
    writer.mode("append").save()
    reader = spark.read.format("kafkalog").options(**options, subscribe="a").load()
    shown = [reader._jdf.queryExecution().toString()]
    assert reader.count() == 4
    streamed = spark.readStream.format("kafkalog").options(**options, subscribe="a")
    query = (
        streamed.option("startingOffsets", "earliest")
        .load()
        .writeStream.format("kafkalog")
        .options(**options, topic="b", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    shown += [json.dumps(query.recentProgress, default=str), str(query.status)]
    given = CaseInsensitiveDict({**options, "subscribe": "a"})
    source = KafkaLogDataSource(given)
    batch, stream = source.reader(source.schema()), source.streamReader(source.schema())
    sink = CaseInsensitiveDict({**options, "topic": "c"})
    writing = KafkaLogDataSource(sink).writer(frame.schema, overwrite=False)
    pickles = [source, batch, stream, writing, *batch.partitions()]
    pickled = b"".join(map(cloudpickle.dumps, pickles))
    assert len(pickled) > 1000
    assert SECRET.encode() not in pickled
    store.fault = lambda request: "403" if "/commits/" in request.path else None
    with pytest.raises(PySparkException) as refused:
        writer.save()
    store.reset()
    shown.append(str(refused.value))
    kept = [path for folder in (events, tmp_path) for path in folder.rglob("*") if path.is_file()]
    assert any("SparkListenerJobEnd" in path.read_text(errors="replace") for path in kept)
    shown += [path.read_bytes().decode(errors="replace") for path in kept]
    assert not any(SECRET in text for text in shown)


# Pipelines from a bucket, and into one


def append(place: str, options: dict[str, str], first: int, count: int = 6) -> None:
    numbers = range(first, first + count)
    partitions = pa.array([number % 2 for number in numbers], pa.int32())
    rows = pa.table({"value": [str(number) for number in numbers], "partition": partitions})
    kafkalog.append(place, "t", rows, options={**options, "numPartitions": "2"})


def found(place: str, options: dict[str, str], topic: str = "t") -> list[int]:
    rows = kafkalog.read(place, topic, columns=["value"], options=options).read_all()
    return sorted(int(value) for value in rows["value"].to_pylist())


def test_pipelines_go_on_from_a_bucket_and_into_one(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    store.make_bucket()
    given, source, target = store.options, store.uri("pipes"), store.uri("piped")
    subscribed = {**given, "subscribe": "t", "startingOffsets": "earliest"}

    def ingest(checkpoint: str) -> None:
        one = Ingest(
            source=Input(source, "kafkalog", options=subscribed),
            log=target,
            topic="in",
            checkpoint=str(tmp_path / checkpoint),
            columns={"value": "value"},
            options=given,
        )
        one.check()
        one.start(spark).awaitTermination(300)

    def replay() -> None:
        one = Replay(log=source, topics=("t",), options=given)
        into = target_of(target, one, "again", given)
        one.check()
        reached = ReplayCheckpoint.open(str(tmp_path / "replay"), {"TARGET": target})
        held = begin(one, reached, into)
        attend_pieces(spark, "x", work_of(spark, one, reached, into, held), grace_ms=0)

    for run, count in enumerate((6, 12)):
        append(source, given, 6 * run)
        ingest("ingest")
        replay()
        assert found(target, given, "in") == [*range(count)]
        assert found(target, given, "again") == [*range(count)]
    ingest("another")  # the topic knows what it has
    assert found(target, given, "in") == [*range(12)]


def kept(place: str, options: dict[str, str]) -> list[tuple[int, int, bytes]]:
    """Return what a copy keeps of each row."""
    table = kafkalog.read(place, "t", options=options).read_all()
    return sorted(
        (row["partition"], row["offset"], row["timestamp"], row["value"])
        for row in table.to_pylist()
    )


@pytest.mark.nightly
def test_a_log_is_mirrored_into_a_bucket_and_restored_into_one(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    store.make_bucket()
    given, local, copy = store.options, str(tmp_path / "log"), store.uri("copy")
    topics.create([local], "t", partitions=2, config={"retention.ms": "-1"}, starts={0: 7, 1: 0})
    first = Mirror(
        source=local,
        target=copy,
        topics=("t",),
        checkpoint=str(tmp_path / "first"),
        options=given,
    )
    second = replace(first, source=copy, target=store.uri("again"), checkpoint=f"{tmp_path}/second")
    for run in range(2):
        append(local, {}, 6 * run)
        topics.set_bounds([local], {TopicPartition("t", 0): topics.Bounds(8, 20 + 10 * run)})
        for mirror in (first, second):
            mirror.check()
            mirror.prepare()
            mirror.start(spark).awaitTermination(300)
            mirror.finish()
            assert kept(mirror.target, given) == kept(local, {})
    assert len(kept(local, {})) == 11
    anew = replace(second, checkpoint=f"{tmp_path}/third")  # the copy knows how far it is
    anew.prepare()
    anew.start(spark).awaitTermination(300)
    kafkalog.append(second.target, "t", pa.table({"value": ["a stranger's"]}), options=given)
    with pytest.raises(TargetMismatchError, match="somebody else has written to it"):
        second.prepare()
    rebuilt = replace(second, rebuild=True)
    rebuilt.check()
    rebuilt.begin_again()
    rebuilt.prepare()
    rebuilt.start(spark).awaitTermination(300)
    assert kept(second.target, given) == kept(local, {})
    with pytest.raises(OptionError, match=f"{copy} is in FROM and in TO"):
        replace(first, source=copy).check()

    table, log = str(tmp_path / "table"), store.uri("restored")
    archived = spark.read.format("kafkalog").options(**given, subscribe="t").load(copy)
    archived.write.parquet(table)
    restore = Restore(
        table=table,
        log=log,
        topics=("t",),
        config={"retention.bytes": "1000000"},
        table_format="parquet",
        options=given,
    )
    for run in range(2):
        check_target(log, ("t",), {}, NO_END, given)
        said = restore.run(spark)
        assert any("were restored before" in line for line in said) == bool(run)
        assert kept(log, given) == kept(local, {})
    other = replace(restore, until=Until({TopicPartition("t", 1): 3}))
    with pytest.raises(LogDirectoryError, match="that another restore has written"):
        other.run(spark)


@pytest.mark.nightly
def test_a_bucket_is_mirrored_and_shown_by_its_newest_rows(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    store.make_bucket()
    given, source, copy = store.options, store.uri("mirrored"), str(tmp_path / "copy")
    mirror = Mirror(
        source=source,
        target=copy,
        topics=("t",),
        checkpoint=str(tmp_path / "checkpoint"),
        options=given,
    )
    for run, count in enumerate((6, 12)):
        append(source, given, 6 * run)
        mirror.check()
        mirror.prepare()
        mirror.start(spark).awaitTermination(300)
        mirror.finish()
        assert found(copy, {}) == [*range(count)]
    keyed = spark.range(9).selectExpr(
        "CAST(id % 3 AS STRING) AS key", "CAST(id AS STRING) AS value"
    )
    writer = keyed.coalesce(1).write.format("kafkalog").options(**given, topic="keyed")
    writer.mode("append").save(source)
    latest = spark.read.format("kafkalog").options(**given, subscribe="keyed", view="latest")
    rows = latest.load(source).selectExpr("CAST(value AS STRING)").collect()
    assert sorted(row[0] for row in rows) == ["6", "7", "8"]


def test_a_stream_commits_positions_of_its_group_to_a_bucket(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    store.make_bucket()
    given, source = store.options, store.uri("grouped")
    append(source, given, 0)
    group = {"kafka.group.id": "g", "commitGroupOffsets": "true"}
    for _ in range(2):  # the last batch of a run is confirmed by the next one
        query = (
            spark.readStream.format("kafkalog")
            .options(**given, **group, subscribe="t", startingOffsets="earliest")
            .load(source)
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        append(source, given, 6, 2)
    started = kafkalog.read(source, "t", options={**given, "startingOffsets": "group:g"})
    assert started.read_all().num_rows == 10 - 6
