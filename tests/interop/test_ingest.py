"""`ingest` from Kafka, from Delta and from other formats of Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
import pytest
from tests.support.foreign import read_partition
from tests.support.kafka import Broker, Topic
from tests.support.spark import end_jvm, small_session

from kafkalog.jobs.pipelines.ingesting import start_ingest, to_records
from kafkalog.jobs.pipelines.inputs import Input
from kafkalog.jobs.process.jars import delta_jars, fetch
from kafkalog.jobs.process.running import sentence_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.support.foreign import ForeignRecord

pytestmark = [pytest.mark.interop, pytest.mark.spark]

COMMAND: Final = "from kafkalog.jobs.cli.app import main; main()"
RECORDS: Final = ((b"k\xff", b"\x00\xff"), (None, b"v"), (b"k", None), (b"", b""), (b"k", b"w"))
DELTA_SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    end_jvm()  # of an earlier session: jars reach the driver's class path when a JVM starts
    jars = ",".join(map(str, fetch(delta_jars())))
    with small_session(**{"spark.jars": jars, **DELTA_SETTINGS}) as session:
        yield session


class Job:
    """An ingest into a topic of ``tmp_path``; it may run again and again."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self._spark = spark
        self._home = home

    def run(
        self, read_from: Input, *, options: dict[str, str] | None = None, **columns: Any
    ) -> None:
        records = to_records(read_from.read(self._spark), **columns)
        start_ingest(
            records,
            str(self._home / "log"),
            topic="t",
            checkpoint=str(self._home / "checkpoint"),
            options=options,
        ).awaitTermination()

    def records(self, partition: int = 0) -> list[ForeignRecord]:
        return read_partition(self._home / "log" / f"t-{partition}")


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path)


def test_records_of_a_broker_keep_all_that_they_have_and_aborted_ones_stay_away(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    with Broker(tmp_path / "broker") as broker:
        broker.create_topics(Topic("t", 2))
        settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": "x"}
        producer = confluent_kafka.Producer(settings)
        producer.init_transactions()
        for end in (producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            for number, (key, value) in enumerate(RECORDS):
                headers: list[tuple[str, Any]] = [("h", b"\xfe"), ("h", None)][: number % 3]
                stamp = 1_700_000_000_123 + number
                producer.produce("t", value, key, number % 2, timestamp=stamp, headers=headers)
            producer.flush()
            end()
        words = ["ingest", broker.bootstrap, str(log), "--topic=t", f"--checkpoint={tmp_path}/c"]
        options = ["--format=kafka", "--partition=partition", "--set=numPartitions=2"]
        ran = subprocess.run(
            [sys.executable, "-c", COMMAND, "run", *words, *options],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
        kept = broker.consume_all("t", isolation="read_committed")
    assert len(kept) == len(RECORDS)
    assert [(p, *each[1:]) for p in range(2) for each in read_partition(log / f"t-{p}")] == [
        (each.partition, each.timestamp, each.key, each.value, each.headers or []) for each in kept
    ]


def test_a_delta_table_becomes_records_by_expressions_and_what_is_appended_follows(
    spark: SparkSession, job: Job, tmp_path: Path
) -> None:
    table = str(tmp_path / "table")
    read_from = Input(table, "delta")
    for first in (0, 2):
        rows = spark.range(first, first + 2, 1, 1).selectExpr(
            "id", "encode(string(id), 'UTF-8') AS body", "timestamp_millis(id) AS at"
        )
        rows.write.format("delta").mode("append").save(table)
        read_from.check()
        job.run(
            read_from,
            key="id % 2",
            value="body",
            headers="map('from', 'delta', 'id', string(id))",
            timestamp="at",
        )
    assert [record[1:] for record in job.records()] == [
        (n, str(n % 2).encode(), str(n).encode(), [("from", b"delta"), ("id", str(n).encode())])
        for n in range(4)
    ]


@pytest.mark.parametrize("name", ["nothing", "jdbc"])
def test_a_format_that_spark_does_not_stream_is_one_line(spark: SparkSession, name: str) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - each has a class of its own
        Input("/nowhere", name).read(spark)
    sentence = sentence_in(raised.value)
    assert sentence is not None
    assert "\n" not in sentence
    assert name in sentence


def test_a_table_by_name_and_another_format_by_name_become_json(
    spark: SparkSession, job: Job, tmp_path: Path
) -> None:
    spark.sql(f"CREATE TABLE words (word STRING) USING delta LOCATION '{tmp_path}/words'")
    spark.sql("INSERT INTO words VALUES ('a'), (NULL)")
    job.run(Input("words", "table"))
    values = Counter(record.value for record in job.records())
    assert values == {b'{"word":"a"}': 1, b'{"word":null}': 1}

    lines = tmp_path / "lines"
    lines.mkdir()
    (lines / "a.txt").write_text("x\ny\n")
    other = Job(spark, tmp_path / "other")
    other.run(Input(str(lines), "text"), key="value")
    assert [(record.key, json.loads(record.value or b"")) for record in other.records()] == [
        (b"x", {"value": "x"}),
        (b"y", {"value": "y"}),
    ]
