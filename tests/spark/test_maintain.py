"""The job `maintain` on Spark, beside a writer and queries that read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest
from tests.support.compacting import latest, read, updates, writer
from tests.support.sinking import Writer, rows
from tests.support.streams import Run

import kafkalog
from kafkalog.jobs.maintain import Maintenance, Scope
from kafkalog.jobs.pipelines.spark_cleaning import Cleaned, clean, clean_on_spark
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.segments import list_base_offsets

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from kafkalog.streaming.admin.cleaning import CleaningTask

pytestmark = pytest.mark.spark


def test_partitions_are_compacted_beside_a_writer_and_a_tailing_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    into = writer(log, numPartitions="3", min__cleanable__dirty__ratio="0.1")
    keys = [TopicPartition("t", number) for number in range(3)]
    said: list[str] = []
    maintenance = Maintenance(Scope(log=str(log)), partial(clean_on_spark, spark), say=said.append)
    written = threading.Event()

    def write(first: int, end: int) -> None:
        for batch in range(first, end):
            values = {"a": f"{batch}", f"b{batch % 7}": f"{batch} too"}
            updates(into, [values], first=batch, partition=batch % 3)

    def write_the_rest() -> None:
        try:
            write(3, 30)
        finally:
            written.set()

    write(0, 3)
    run = Run()
    records = spark.readStream.format("kafkalog").schema("value STRING")
    query = (
        records.options(subscribe="t", startingOffsets="earliest")
        .load(str(log))
        .writeStream.foreachBatch(run.take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    writing = threading.Thread(target=write_the_rest)
    try:
        query.processAllAvailable()
        writing.start()
        while not written.is_set():
            assert maintenance.round() == []
        writing.join()
        assert maintenance.round() == []
        query.processAllAvailable()
    finally:
        query.stop()
    last = {key: latest(read(log, key)) for key in keys}
    for number, key in enumerate(keys):
        batches = range(number, 30, 3)
        wanted = {f"b{batch % 7}": f"{batch} too" for batch in batches}
        assert last[key] == {**wanted, "a": str(batches[-1])}
    assert run.values >= {value for each in last.values() for value in each.values() if value}
    assert any("t-2 is clean up to offset" in line for line in said)


def test_a_task_whose_process_is_killed_stops_no_other_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    into = writer(log, numPartitions="3", min__cleanable__dirty__ratio="0.1")
    for batch in range(12):
        updates(into, [{"a": str(batch)}], first=batch, partition=batch % 3)

    def clean_or_die(task: CleaningTask) -> Cleaned:
        if task.topic_partition.partition == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return clean(task)

    monkeypatch.setattr("kafkalog.jobs.pipelines.spark_cleaning._clean_in_task", clean_or_die)
    said: list[str] = []
    maintenance = Maintenance(Scope(log=str(log)), partial(clean_on_spark, spark), say=said.append)
    (problem,) = maintenance.round()
    assert problem.startswith("t-1 was not compacted: Job aborted due to stage failure")
    assert any("3 partitions to compact, " in each for each in said)
    assert [len(read(log, TopicPartition("t", number))) for number in range(3)] == [2, 4, 2]


def test_it_deletes_every_so_often_beside_a_writer_until_it_is_ended(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t", segment__bytes="80", retention__bytes="100")
    writer.write(0, rows(["0"]))
    command = [sys.executable, "-m", "kafkalog.jobs.maintain", str(tmp_path), "--every=1s"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    ) as job:
        assert job.stdout is not None
        said = [job.stdout.readline()]
        for batch in range(1, 6):
            writer.write(batch, rows([str(batch)]))
        while "bytes expired" not in "".join(said[1:]):
            said.append(job.stdout.readline())
            assert said[-1], said
        writer.write(6, rows(["6"]))
        job.send_signal(signal.SIGTERM)
        assert job.wait() == 128 + signal.SIGTERM
    assert "1 partition looked at, 0 shortened" in said[0]
    assert list_base_offsets(tmp_path / "t-0")[0] > 0
    values = kafkalog.read(tmp_path, "t").read_all().column("value").to_pylist()
    assert values[-2:] == [b"5", b"6"]
