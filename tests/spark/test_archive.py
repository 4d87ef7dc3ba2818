"""The pipeline `archive`: every record is in the table once, as it is, whatever comes again."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.reading import read_batch
from tests.support.sinking import Writer, rows
from tests.support.spark import delta_session

import kafkalog
from kafkalog.jobs import delta_tables
from kafkalog.jobs.archiving import Archive
from kafkalog.jobs.delta_tables import DeltaTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DAY_MS = 86_400_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with delta_session() as session:
        yield session


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give two topics: what may be null is null, empty, and there; one has LogAppendTime."""
    log = tmp_path / "log"
    batch = rows(
        [None, b"", b"v", b"w", b"x"],
        keys=[b"a", None, b"", b"a", b"b"],
        partitions=[0, 0, 0, 2, 2],
        timestamps=[1, 86_399_999, DAY_MS, 2 * DAY_MS + 1, 5],
    )
    headers: Any = [None, [], [("h", None)], [("h", b""), ("h", b"1")], None]
    batch = batch.append_column("headers", pa.array(headers, HEADERS))
    Writer(log, topic="t", numPartitions="3", retention__ms="-1").write(0, batch)
    stamped = Writer(log, name="2", topic="u", message__timestamp__type="LogAppendTime")
    stamped.write(0, rows(["1", "2"]))
    return log


def archive(folder: Path, **options: Any) -> Archive:
    given = {"topics": ("t", "u"), "table": str(folder / "table")} | options
    return Archive(log=str(folder / "log"), checkpoint=str(folder / "checkpoint"), **given)


def run(spark: SparkSession, one: Archive) -> None:
    one.start(spark).awaitTermination()
    one.finish(spark)


def records(found: list[Mapping[str, Any]]) -> list[Any]:
    """Give records with timestamps in ms, in the order of their offsets."""
    names = ("topic", "partition", "offset", "key", "value", "timestamp", "timestampType")
    return sorted(
        ([row[name] for name in names] + [[(h["key"], h["value"]) for h in row["headers"] or []]])
        for row in found
    )


def archived(spark: SparkSession, table: str, table_format: str = "delta") -> list[Any]:
    frame = spark.read.format(table_format).load(table)
    in_ms = frame.withColumn("timestamp", frame["timestamp"].cast("double") * 1000)
    return records([row.asDict(recursive=True) for row in in_ms.collect()])


def facts(spark: SparkSession, table: str) -> dict[str, Any]:
    found = DeltaTable(spark, table).properties
    return {name: json.loads(text) for name, text in found.items() if "kafkalog" in name}


def test_a_table_has_each_record_as_it_is_and_what_is_known_of_the_topics(
    spark: SparkSession, log: Path
) -> None:
    one = archive(log.parent, table=str(log.parent / "a `table`"))
    run(spark, one)
    Writer(log, topic="t", name="3").write(0, rows(["y"], partitions=[0], timestamps=[9]))
    run(spark, one)

    there = read_batch(path=str(log), subscribe="t,u")
    assert len(there) == 8
    assert archived(spark, one.table) == records(there)
    assert DeltaTable(spark, one.table).partition_columns == ["topic", "day"]
    days = {row["day"].isoformat() for row in spark.read.load(one.table, "delta").collect()}
    assert {"1970-01-01", "1970-01-02", "1970-01-03"} < days
    of_t = {
        "partitionCount": 3,
        "timestampType": "CreateTime",
        "settings": {"retention.ms": "-1"},
        "partitions": {"0": [0, 4], "1": [0, 0], "2": [0, 2]},
    }
    setting = {"message.timestamp.type": "LogAppendTime"}
    of_u = {
        "partitionCount": 1,
        "timestampType": "LogAppendTime",
        "settings": setting,
        "partitions": {"0": [0, 2]},
    }
    assert facts(spark, one.table) == {"kafkalog.topic.t": of_t, "kafkalog.topic.u": of_u}


def test_a_micro_batch_that_comes_again_changes_nothing_neither_records_nor_newest_ones(
    spark: SparkSession, log: Path
) -> None:
    newest = str(log.parent / "newest")
    one = archive(log.parent, topics=("t",), latest=newest)
    run(spark, one)
    changes = rows([b"3", None, None], keys=[b"", b"b", b"new"], partitions=[0, 2, 1])
    Writer(log, topic="t", name="3").write(0, changes)
    run(spark, one)
    last = {(b"", b"3"), (b"a", b"w")}  # b was removed, and a's tombstone is older

    def found() -> tuple[list[Any], set[Any]]:
        rest = spark.read.load(newest, "delta").collect()
        assert len({row["key"] for row in rest}) == len(rest)
        return archived(spark, one.table), {
            (bytes(row["key"]), bytes(row["value"])) for row in rest
        }

    before = found()
    assert before == (records(read_batch(path=str(log), subscribe="t")), last)
    for file in (log.parent / "checkpoint" / "commits").glob("*1*"):
        file.unlink()
    run(spark, one)
    assert (log.parent / "checkpoint" / "commits" / "1").exists()
    assert found() == before


def test_the_newest_records_may_be_all_that_is_kept(spark: SparkSession, log: Path) -> None:
    one = archive(log.parent, latest=str(log.parent / "table"))
    run(spark, one)
    found = spark.read.load(one.table, "delta").collect()
    assert {(row["topic"], bytes(row["key"])) for row in found} == {
        ("t", b"a"), ("t", b"b"), ("t", b"")
    }  # fmt: skip
    assert facts(spark, one.table)["kafkalog.topic.t"]["partitions"]["0"] == [0, 3]


def test_a_run_that_was_killed_while_it_made_the_table_can_be_started_again(
    spark: SparkSession, log: Path
) -> None:
    folder = log.parent
    (folder / "table" / "_delta_log" / "_staged_commits").mkdir(parents=True)
    run(spark, archive(folder))
    assert len(archived(spark, str(folder / "table"))) == 7


def test_many_small_files_are_put_together_and_logs_that_start_later_are_noted(
    spark: SparkSession, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = archive(log.parent, topics=("u",), options={"maxOffsetsPerTrigger": "1"})
    run(spark, one)
    assert len(spark.read.load(one.table, "delta").inputFiles()) == 2
    monkeypatch.setattr(delta_tables, "FEW_FILES", 1)
    run(spark, one)
    assert len(spark.read.load(one.table, "delta").inputFiles()) == 1
    assert len(list((log.parent / "checkpoint" / "commits").glob("[0-9]*"))) == 2
    ran = command("delete-records", str(log), "--offsets", '{"u":{"0":1}}')
    assert ran == 0
    run(spark, one)
    assert facts(spark, one.table)["kafkalog.topic.u"]["partitions"] == {"0": [1, 2]}


def command(*words: str) -> int:
    module = "from kafkalog.jobs.cli.app import main; main()"
    return subprocess.run([sys.executable, "-c", module, *words], check=False).returncode


def test_records_may_go_into_another_format(spark: SparkSession, log: Path) -> None:
    one = archive(log.parent, table_format="parquet", by_day=False)
    run(spark, one)
    assert archived(spark, one.table, "parquet") == records(
        read_batch(path=str(log), subscribe="t,u")
    )


# The recipe of docs/latest.md


def test_the_merge_of_the_docs_keeps_a_table_of_the_newest_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "latest.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"```python\n(def merge.*?)```", page, re.DOTALL)
    log, checkpoint = str(tmp_path / "log"), str(tmp_path / "checkpoint")
    recipe = recipe.replace("/var/kafka-logs", log).replace("/var/checkpoints/now", checkpoint)
    recipe = recipe.replace(".start()", ".trigger(availableNow=True).start().awaitTermination()")
    table = tmp_path / "table"
    spark.sql(f"CREATE TABLE flights_now (key BINARY, value BINARY) USING delta LOCATION '{table}'")
    try:
        for values in (["1", "2", None, "3"], [None, "4", "5", "6"]):
            kafkalog.append(log, "flights", pa.table({"key": list("abca"), "value": values}))
            exec(recipe, {"spark": spark})
            found = {tuple(row) for row in spark.read.load(str(table), "delta").collect()}
            reader = kafkalog.read(log, "flights", options={"view": "latest"})
            rows_now = reader.read_all().select(["key", "value"]).to_pylist()
            assert found == {(row["key"], row["value"]) for row in rows_now}
        assert found == {(b"a", b"6"), (b"b", b"4"), (b"c", b"5")}
    finally:
        spark.sql("DROP TABLE flights_now")
