"""The pipeline `archive`: every record is in the table once, as it is, whatever comes again."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from tests.support.reading import read_batch
from tests.support.sinking import Writer, rows
from tests.support.spark import delta_session
from tests.support.states import last_batch

import kafkalog
from kafkalog.errors import CommitError, OptionError, TargetMismatchError
from kafkalog.jobs.archiving import Archive
from kafkalog.jobs.pipelines import delta_tables
from kafkalog.jobs.pipelines.continuation import HeldTopic, TargetState
from kafkalog.jobs.pipelines.delta_tables import DeltaTable, HeldByTable
from kafkalog.jobs.pipelines.supervised import attend, ends_to_reach
from kafkalog.jobs.pipelines.topic_facts import TopicFacts, to_properties
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.topics import Bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

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
    """Run it to its end as the job does: some Sparks end a query after one micro-batch."""
    ends = ends_to_reach(one.reading())
    again = functools.partial(one.start, spark)
    attend(again(), grace_ms=0, start_again=again, targets=ends)
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
    kept = {name: json.loads(text) for name, text in found.items() if "kafkalog.topic" in name}
    assert all(len(each.pop("topicId")) == 22 for each in kept.values())
    for each in kept.values():
        ends = {number: end for number, (_, end) in each["partitions"].items() if end}
        batches = each.pop("lastBatches")
        assert batches.keys() == ends.keys()
        assert all(int(batches[n].partition(":")[0]) < end for n, end in ends.items())
    return kept


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
        assert len({bytes(row["key"]) for row in rest}) == len(rest)
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


@pytest.mark.nightly
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


# What was set back


@pytest.fixture
def grow(tmp_path: Path) -> Callable[[int], None]:
    """Append records to ``t`` of the directory ``log``, one each second and a key for each ten."""
    count = 0

    def append(number: int) -> None:
        nonlocal count
        these = range(count, count + number)
        count += number
        columns = {
            "key": [f"k{each % 10}" for each in these],
            "value": [f"v{each}" for each in these],
            "timestamp": pa.array([each * 1000 for each in these], pa.timestamp("ms", "UTC")),
        }
        kafkalog.append(str(tmp_path / "log"), "t", pa.table(columns))

    return append


def offsets(spark: SparkSession, table: str | Path) -> list[int]:
    return sorted(row["offset"] for row in spark.read.load(str(table), "delta").collect())


def newest(spark: SparkSession, table: str | Path) -> dict[bytes, bytes]:
    found = spark.read.load(str(table), "delta").collect()
    assert len(found) == len({bytes(row["key"]) for row in found})
    return {bytes(row["key"]): bytes(row["value"]) for row in found}


@pytest.mark.nightly  # by day: two runs at once with such checkpoints, in test_archive_histories
def test_an_older_checkpoint_and_a_new_one_continue_where_the_tables_end(
    spark: SparkSession, tmp_path: Path, grow: Callable[[int], None]
) -> None:
    checkpoint, older, latest = (tmp_path / name for name in ("checkpoint", "older", "latest"))
    one = archive(tmp_path, topics=("t",), latest=str(latest))
    grow(20)
    run(spark, one)
    shutil.copytree(checkpoint, older)
    grow(20)
    run(spark, one)
    grow(20)
    shutil.rmtree(checkpoint)
    shutil.copytree(older, checkpoint)
    run(spark, one)
    assert offsets(spark, one.table) == [*range(60)]
    shutil.rmtree(checkpoint)
    grow(5)
    run(spark, one)
    assert offsets(spark, one.table) == [*range(65)]
    assert newest(spark, latest)[b"k4"] == b"v64"
    assert facts(spark, one.table)["kafkalog.topic.t"]["partitions"] == {"0": [0, 65]}
    # A table that is new beside one that is there takes all, and the other one nothing twice.
    again = archive(tmp_path, topics=("t",), latest=str(tmp_path / "again"))
    with pytest.raises(TargetMismatchError, match=r"again: t-0 from 65, and nothing of it is"):
        run(spark, again)
    run(spark, replace(again, from_target=True))
    assert newest(spark, tmp_path / "again") == newest(spark, latest)
    assert offsets(spark, one.table) == [*range(65)]


def test_a_table_that_was_rolled_back_or_removed_is_refused_and_each_way_on_is_right(
    spark: SparkSession, tmp_path: Path, grow: Callable[[int], None]
) -> None:
    one = archive(tmp_path, topics=("t",))
    grow(10)
    run(spark, one)
    table = DeltaTable(spark, one.table)
    version = table.version
    grow(10)
    run(spark, one)
    spark.sql(f"RESTORE TABLE {table.name} TO VERSION AS OF {version}")
    refused = rf"RESTORE to {version} in its .*: t-0 from 20, and up to 10 .*--from-target .*--rebu"
    with pytest.raises(TargetMismatchError, match=refused):
        run(spark, one)
    assert offsets(spark, one.table) == [*range(10)]
    run(spark, replace(one, from_target=True))
    assert offsets(spark, one.table) == [*range(20)]
    assert len([*tmp_path.glob("checkpoint.before-*/offsets")]) == 1
    grow(1)
    run(spark, one)
    assert offsets(spark, one.table) == [*range(21)]
    shutil.rmtree(one.table)
    with pytest.raises(TargetMismatchError, match="t-0 from 21, and nothing of it is there"):
        run(spark, one)
    assert not Path(one.table).exists()
    other = replace(one, table=str(tmp_path / "other"), checkpoint=str(tmp_path / "c2"))
    run(spark, other)
    assert offsets(spark, other.table) == [*range(21)]
    run(spark, replace(one, rebuild=True))
    assert offsets(spark, one.table) == [*range(21)]
    assert len([*tmp_path.glob("checkpoint.before-*/offsets")]) == 2


def test_a_topic_that_was_recreated_is_refused_with_a_new_checkpoint_too_and_rebuilt(
    spark: SparkSession, tmp_path: Path, grow: Callable[[int], None]
) -> None:
    latest = tmp_path / "latest"
    one = archive(tmp_path, topics=("t",), latest=str(latest))
    grow(20)
    run(spark, one)
    assert command("delete", str(tmp_path / "log"), "--topic", "t") == 0
    grow(25)
    for each in (
        one,
        replace(one, checkpoint=str(tmp_path / "c2")),
        replace(one, from_target=True),
    ):
        with pytest.raises(TargetMismatchError, match="another topic of the same name: t with the"):
            run(spark, each)
    rebuilt = replace(one, rebuild=True)
    run(spark, rebuilt)
    run(spark, rebuilt)
    assert offsets(spark, one.table) == [*range(25)]
    assert len([*tmp_path.glob("checkpoint.before-*")]) == 1
    assert newest(spark, latest)[b"k4"] == b"v44"
    assert newest(spark, latest)[b"k5"] == b"v35"


@pytest.mark.nightly
def test_a_log_that_is_an_older_copy_is_refused(
    spark: SparkSession, tmp_path: Path, grow: Callable[[int], None]
) -> None:
    log, copy, checkpoint = (tmp_path / name for name in ("log", "copy", "checkpoint"))
    one = archive(tmp_path, topics=("t",))
    grow(10)
    run(spark, one)
    shutil.copytree(log, copy)
    shutil.copytree(checkpoint, tmp_path / "older")
    grow(10)
    run(spark, one)
    shutil.copytree(log, tmp_path / "newer")
    for there, of in ((log, copy), (checkpoint, tmp_path / "older")):
        put_back(there, of)
    with pytest.raises(TargetMismatchError, match=r"t-0 ends at 10 in .*log, and 20 is held") as no:
        run(spark, one)
    assert "Restore the log, if a newer copy is there" in str(no.value)
    assert "--rebuild" in str(no.value)
    put_back(log, tmp_path / "newer")
    grow(1)
    run(spark, one)
    assert offsets(spark, one.table) == [*range(21)]
    put_back(log, copy)
    grow(2)
    run(spark, replace(one, rebuild=True))
    assert offsets(spark, one.table) == [*range(12)]


def put_back(folder: Path, kept: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(kept, folder)


@pytest.mark.nightly
def test_rows_of_somebody_else_are_refused_and_each_way_on_is_right(
    spark: SparkSession, tmp_path: Path, grow: Callable[[int], None]
) -> None:
    one = archive(tmp_path, topics=("t",))
    grow(5)
    run(spark, one)
    table = DeltaTable(spark, one.table)
    before = table.version
    foreign = f"INSERT INTO {table.name} (topic, partition, offset) VALUES ('t', 0, 70)"
    spark.sql(foreign)
    grow(5)
    refused = "somebody else has written .*: RESTORE TABLE to the version before that; --rebuild"
    with pytest.raises(TargetMismatchError, match=refused):
        run(spark, one)
    spark.sql(f"RESTORE TABLE {table.name} TO VERSION AS OF {before}")
    run(spark, one)
    assert offsets(spark, one.table) == [*range(10)]
    spark.sql(foreign)
    grow(1)
    with pytest.raises(TargetMismatchError, match=refused):
        run(spark, one)
    run(spark, replace(one, rebuild=True))
    assert offsets(spark, one.table) == [*range(11)]


@pytest.mark.parametrize("most", [pytest.param("1000", marks=pytest.mark.nightly), "4"])
@pytest.mark.nightly
def test_a_key_that_was_deleted_later_does_not_come_back_from_another_partition(
    spark: SparkSession, tmp_path: Path, most: str
) -> None:
    log = tmp_path / "log"
    puts = rows(["a"] * 12, keys=[*map(str, range(10)), "K", "L"], timestamps=[*range(12)])
    Writer(log, topic="t", numPartitions="2").write(
        0, puts.append_column("partition", pa.array([0] * 12, pa.int32()))
    )
    late = rows([None, "b", None], keys=["K", "L", "M"], partitions=[1] * 3, timestamps=[100] * 3)
    Writer(log, name="2", topic="t").write(0, late)
    one = archive(tmp_path, latest=str(tmp_path / "table"), topics=("t",))
    one = replace(one, options={"maxOffsetsPerTrigger": most})
    run(spark, one)
    expected = {str(key).encode(): b"a" for key in range(10)} | {b"L": b"b"}
    assert newest(spark, one.table) == expected
    again = rows(["old", "new"], keys=["K", "M"], partitions=[0, 0], timestamps=[50, 200])
    Writer(log, name="3", topic="t").write(0, again)
    run(spark, one)
    assert newest(spark, one.table) == expected | {b"M": b"new"}


@pytest.mark.nightly
def test_of_two_runs_from_one_version_one_writes_and_the_other_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = DeltaTable(spark, str(tmp_path / "table"))
    table.create("topic STRING, partition INT, offset BIGINT", ())
    one, two = HeldByTable(table), HeldByTable(table)
    held = TargetState("", None, {"t": HeldTopic("A", {0: 5})})

    def append(run: HeldByTable) -> None:
        records = spark.range(5).selectExpr("'t' AS topic", "0 AS partition", "id AS offset")
        with run.committing(held, spark) as options:
            records.write.format("delta").mode("append").options(**options).save(table.path)

    assert one.look() == two.look() == TargetState()
    append(one)
    with pytest.raises(CommitError, match="another run has written to the table"):
        append(two)
    assert offsets(spark, table.path) == [*range(5)]
    assert two.look().ends == one.look().ends == {TopicPartition("t", 0): 5}
    # What somebody else appends, or sets back unseen, is noticed.
    restored = table.version
    spark.sql(f"INSERT INTO {table.name} VALUES ('t', 0, 9)")
    one.look()
    assert one.others == "t-0 up to 10, and 5 by this"
    spark.sql(f"RESTORE TABLE {table.name} TO VERSION AS OF {restored}")
    assert one.look().ends == {TopicPartition("t", 0): 5}
    spark.sql(f"RESTORE TABLE {table.name} TO VERSION AS OF 0")
    with pytest.raises(CommitError, match="was changed while a batch was written: RESTORE to 0"):
        append(one)
    assert one.look().ends == {TopicPartition("t", 0): 5}
    assert one.is_mixed
    one.delete("topic = 't'", TargetState())  # --rebuild
    assert (one.look(), one.is_mixed) == (TargetState(table.id), False)


@pytest.mark.nightly
def test_clones_and_tables_whose_log_was_cleaned_up_hold_what_their_rows_show(
    spark: SparkSession, tmp_path: Path
) -> None:
    every = "spark.databricks.delta.properties.defaults.checkpointInterval"
    spark.conf.set(every, "1")
    try:
        table = DeltaTable(spark, str(tmp_path / "table"))
        table.create("topic STRING, partition INT, offset BIGINT", ())
    finally:
        spark.conf.unset(every)
    last = {0: last_batch(7, 12), 1: last_batch(2, 34)}
    facts = TopicFacts({0: Bounds(0, 8), 1: Bounds(0, 3)}, None, "A", last)
    table.set_properties(to_properties({"t": facts}))
    held = HeldByTable(table)
    held.look()
    records = spark.range(5).selectExpr("'t' AS topic", "0 AS partition", "id AS offset")
    with held.committing(TargetState(topics={"t": HeldTopic("A", {0: 9})}), spark) as options:
        records.write.format("delta").mode("append").options(**options).save(table.path)
    spark.sql(f"OPTIMIZE {table.name}")
    spark.sql(f"ALTER TABLE {table.name} SET TBLPROPERTIES ('some' = 'thing')")
    assert HeldByTable(table).look().ends == {TopicPartition("t", 0): 9}
    by_rows = {"t": HeldTopic("A", {0: 8}, {0: last[0]})}
    clone = DeltaTable(spark, str(tmp_path / "clone"))
    spark.sql(f"CREATE TABLE {clone.name} SHALLOW CLONE {table.name}")
    assert HeldByTable(clone).look().topics == by_rows
    cleaned = tmp_path / "cleaned"
    shutil.copytree(table.path.removeprefix("file:"), cleaned)
    for file in sorted(cleaned.glob("_delta_log/*.json"))[:-1]:
        file.unlink()
        (file.parent / f".{file.name}.crc").unlink()
    assert HeldByTable(DeltaTable(spark, str(cleaned))).look().topics == by_rows


def test_files_without_transactions_need_the_checkpoint_of_their_time(
    spark: SparkSession, tmp_path: Path, grow: Callable[[int], None]
) -> None:
    checkpoint, older = tmp_path / "checkpoint", tmp_path / "older"
    one = archive(tmp_path, topics=("t",), table_format="parquet")
    grow(10)
    run(spark, one)
    shutil.copytree(checkpoint, older)
    grow(10)
    run(spark, one)
    grow(10)
    for other in (str(older), str(tmp_path / "new")):
        with pytest.raises(TargetMismatchError, match="are not of the same time: the table ends"):
            run(spark, replace(one, checkpoint=other))
    Path(one.table).rename(tmp_path / "away")
    with pytest.raises(TargetMismatchError, match="the table knows no micro-batch"):
        run(spark, one)
    (tmp_path / "away").rename(one.table)
    run(spark, one)
    assert {row["offset"] for row in spark.read.parquet(one.table).collect()} == {*range(30)}
    assert command("delete", str(tmp_path / "log"), "--topic", "t") == 0
    grow(40)
    with pytest.raises(StreamingQueryException, match="deleted and recreated"):
        run(spark, one)
    for folder in (one.table, checkpoint):  # "remove both, which archives all that the log has"
        shutil.rmtree(folder)
    run(spark, one)
    run(spark, one)
    assert sorted(row["offset"] for row in spark.read.parquet(one.table).collect()) == [*range(40)]
    with pytest.raises(OptionError, match="remove TABLE and the checkpoint's folder"):
        run(spark, replace(one, rebuild=True))
    (checkpoint / "metadata").write_text('{"id": "another"}')
    (checkpoint / ".metadata.crc").unlink()
    with pytest.raises(TargetMismatchError, match="is of the query another, so records would be"):
        run(spark, one)


# Keys that were deleted


DAY_MS = 86_400_000


def put(folder: Path, *records: tuple[str, str | None, int, int]) -> None:
    """Append keys and values, each to a partition and with a timestamp in ms."""
    keys, values, partitions, stamps = zip(*records, strict=True)
    columns = {
        "key": keys,
        "value": pa.array(values),
        "partition": pa.array(partitions, pa.int32()),
    }
    columns["timestamp"] = pa.array(stamps, pa.timestamp("ms", "UTC"))
    options = {"numPartitions": 2}
    kafkalog.append(str(folder / "log"), "t", pa.table(columns), options=options)


def only_newest(folder: Path, name: str) -> Archive:
    path = str(folder / name)
    return archive(folder, topics=("t",), table=path, latest=path)


def clone_of(spark: SparkSession, one: Archive, name: str) -> Archive:
    other = replace(one, **dict.fromkeys(("table", "latest"), str(Path(one.table).with_name(name))))
    table, clone = (DeltaTable(spark, each.table).name for each in (one, other))
    spark.sql(f"CREATE TABLE {clone} SHALLOW CLONE {table}")
    return replace(other, checkpoint=f"{one.checkpoint}-{name}")


@pytest.mark.nightly
def test_a_key_that_was_deleted_does_not_come_back_in_a_clone(
    spark: SparkSession, tmp_path: Path
) -> None:
    one = only_newest(tmp_path, "table")
    put(tmp_path, ("k", "a", 0, 10), ("k", None, 0, 20), ("w", "w", 0, 20), ("x", "b", 1, 10))
    run(spark, one)
    clone, late = clone_of(spark, one, "clone"), clone_of(spark, one, "late")
    put(tmp_path, ("k", "older", 1, 15), ("y", "c", 1, 16))
    run(spark, clone)
    assert newest(spark, clone.table) == {b"w": b"w", b"x": b"b", b"y": b"c"}
    shutil.rmtree(Path(one.table, "_kafkalog_deleted"))
    with pytest.raises(
        TargetMismatchError, match=r"_kafkalog_deleted, which is not there: .*--reb"
    ):
        run(spark, late)
    assert newest(spark, late.table) == {b"w": b"w", b"x": b"b"}
    run(spark, replace(late, rebuild=True))
    assert newest(spark, late.table) == {b"w": b"w", b"x": b"b", b"y": b"c"}


@pytest.mark.nightly
def test_deleted_keys_are_forgotten_when_nothing_as_old_comes_and_known_where_they_are_restored(
    spark: SparkSession, tmp_path: Path
) -> None:
    one = only_newest(tmp_path, "table")
    gone = [(f"k{number}", None, 0, 20) for number in range(5)]
    put(tmp_path, ("k1", "a", 0, 10), *gone, ("x", "b", 1, 10))
    run(spark, one)
    table = DeltaTable(spark, one.table)
    version = table.version
    put(tmp_path, ("k1", "older", 1, 15), ("y", "c", 0, DAY_MS + 20), ("y", "d", 1, DAY_MS + 20))
    run(spark, one)

    def known() -> int:
        found = DeltaTable(spark, one.table).properties["kafkalog.deletedKeys"]
        return spark.read.load(found, "delta").count()

    assert known() == 5  # one ms too few
    put(
        tmp_path,
        ("y", "e", 0, DAY_MS + 22),
        ("y", "f", 1, DAY_MS + 21),
        ("z", None, 1, DAY_MS + 21),
    )
    run(spark, one)
    assert known() == 1
    assert newest(spark, one.table) == {b"x": b"b", b"y": b"e"}
    spark.sql(f"RESTORE TABLE {table.name} TO VERSION AS OF {version}")
    run(spark, replace(one, from_target=True))
    assert newest(spark, one.table) == {b"x": b"b", b"y": b"e"}
    assert known() == 1


# The recipe of docs/latest.md


@pytest.mark.nightly
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
            rows = spark.read.load(str(table), "delta").collect()
            found = {(bytes(row["key"]), bytes(row["value"])) for row in rows}
            reader = kafkalog.read(log, "flights", options={"view": "latest"})
            rows_now = reader.read_all().select(["key", "value"]).to_pylist()
            assert found == {(row["key"], row["value"]) for row in rows_now}
        assert found == {(b"a", b"6"), (b"b", b"4"), (b"c", b"5")}
    finally:
        spark.sql("DROP TABLE flights_now")
