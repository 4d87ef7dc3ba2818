"""The pipeline `restore`: what was archived comes back as it was, or as it was asked for."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.corpus import UnpackedCase
from tests.support.reading import read_batch
from tests.support.sinking import Writer, rows
from tests.support.spark import delta_session
from typer.testing import CliRunner

import kafkalog
from kafkalog.checkpoints.broker import (
    LOG_START_OFFSET,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import LogDirectoryError
from kafkalog.jobs import restoring
from kafkalog.jobs.archiving import Archive
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.inspection.groups import list_groups
from kafkalog.jobs.pipelines.restore_plan import Until
from kafkalog.jobs.pipelines.topic_facts import FactsOfLogs
from kafkalog.jobs.restoring import Restore
from kafkalog.model import TopicPartition, many
from kafkalog.streaming.admin.topics import Bounds, alter, create, set_bounds
from kafkalog.streaming.groups.administration import GroupWriter
from kafkalog.streaming.store.ends.tracker import LogEndTracker
from kafkalog.streaming.store.log_dirs import LogDirs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

CORPUS = {
    "p02-nulls-headers": ["nulls-rd-none"],
    "p04-timestamps": ["ts-append-zstd", "ts-toggled-none"],
    "p06-transactions": ["txn"],
    "p07-compacted": ["compact-gone"],
    "p08-retention-deleterecords": ["dr-mid"],
}
"""Topics that brokers have written, by case."""

LATE_MS = 1_700_000_005_000


@dataclass(frozen=True)
class Source:
    """Log directories, with commas between them, and topics in them."""

    path: str
    topics: list[str]

    def records(self) -> list[dict[str, Any]]:
        """Read what is committed, timestamps in ms, ordered by topic, partition and offset."""
        options = {"subscribe": ",".join(self.topics), "kafka.isolation.level": "read_committed"}
        found = read_batch(path=self.path, **options)
        for row in found:
            row["headers"] = [(each["key"], each["value"]) for each in row["headers"] or []]
        return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))

    def bounds(self) -> dict[TopicPartition, Bounds]:
        """Look where logs start, and where they end for readers of committed records."""
        chosen = frozenset(self.topics)
        paths = self.path.split(",")
        watch = LogEndTracker(paths, lambda key: key.topic in chosen, committed_only=True)
        ends = watch.look().offsets
        return {key: Bounds(watch.log_start(key), end) for key, end in ends.items()}

    def settings(self) -> dict[str, Mapping[str, str] | None]:
        ends = without_start(self.bounds())
        facts = FactsOfLogs(self.path.split(","), self.topics).look(ends)
        return {topic: known.settings for topic, known in facts.items()}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with delta_session() as session:
        yield session


def ours(folder: Path) -> Source:
    """Write logs with gaps: one starts at 500, one has no record, and two end above the last."""
    settings = {
        "retention.ms": "86400000",
        "cleanup.policy": "compact,delete",
        "segment.bytes": "400",
    }
    others = {name: text for name, text in settings.items() if "retention" not in name}
    create([str(folder)], "t", partitions=4, config=others, starts={1: 500, 3: 7})
    numbers = range(24)
    batch = rows(
        [None if number % 11 == 5 else f"v{number}" for number in numbers],
        keys=["" if number % 7 == 0 else f"k{number % 5}" for number in numbers],
        partitions=[number % 3 for number in numbers],
        timestamps=[LATE_MS - 12_000 + 1000 * number for number in numbers],
    )
    first = [0, 500, 40]
    offsets = [first[number % 3] + 2 * (number // 3) for number in numbers]
    batch = batch.append_column("offset", pa.array(offsets, pa.int64()))
    Writer(folder, topic="t", preserveOffsets="true").write(0, batch)
    bounds = [Bounds(0, 15), Bounds(500, 520), Bounds(0, 99), Bounds(7, 9)]
    set_bounds([str(folder)], {TopicPartition("t", n): each for n, each in enumerate(bounds)})
    alter([str(folder)], "t", config={"retention.ms": settings["retention.ms"]})
    return Source(str(folder), ["t"])


def archived(spark: SparkSession, source: Source, folder: Path, **given: Any) -> str:
    """Archive the source's topics; give the table."""
    table = str(folder / "table")
    options = {"kafka.isolation.level": "read_committed"}
    one = Archive(
        log=source.path,
        table=table,
        topics=tuple(source.topics),
        checkpoint=str(folder / "checkpoint"),
        **{"options": options, **given},
    )
    one.start(spark).awaitTermination()
    one.finish(spark)
    return table


def restored(
    spark: SparkSession, table: str, source: Source, folder: Path, **given: Any
) -> tuple[Source, list[str]]:
    """Restore a table; give the copy, and what was said."""
    copy = Source(str(folder), source.topics)
    asked = {"table": table, "log": copy.path, "topics": tuple(source.topics), "config": {}}
    return copy, Restore(**(asked | given)).run(spark)


def without_start(bounds: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, int]:
    return {key: each.end for key, each in bounds.items()}


def of_brokers(folder: Path) -> Source:
    """Copy topics of several cases into one directory: a run over all costs as much as over one."""
    folder.mkdir()
    starts = {}
    for case, topics in CORPUS.items():
        found = Path(UnpackedCase(case, folder.parent / case).path)
        kept = read_offset_checkpoint(found, LOG_START_OFFSET)
        for key, where in LogDirs([found]).partitions().items():
            if key.topic in topics:
                shutil.copytree(where.path, folder / where.path.name)
                starts[key] = kept.get(key, 0)
    write_offset_checkpoint(folder, LOG_START_OFFSET, starts)
    return Source(str(folder), sorted(topic for topics in CORPUS.values() for topic in topics))


@pytest.mark.parametrize("logs", [ours, pytest.param(of_brokers, marks=pytest.mark.nightly)])
def test_what_comes_back_is_what_was_archived_or_what_was_asked_for(
    logs: Callable[[Path], Source], spark: SparkSession, tmp_path: Path
) -> None:
    source = logs(tmp_path / "log")
    table = archived(spark, source, tmp_path)
    wanted, bounds = source.records(), source.bounds()

    copy, said = restored(spark, table, source, tmp_path / "whole")
    assert copy.records() == wanted
    assert copy.bounds() == bounds
    assert copy.settings() == {topic: found or {} for topic, found in source.settings().items()}
    count = f"{many(len(wanted), 'record')} in {many(len(source.topics), 'topic')}"
    assert said[-1] == f"restore {','.join(source.topics)}: {count}"

    middle = {key: (start + end) // 2 for key, (start, end) in bounds.items()}
    gone = suppressed(wanted)
    copy, _ = restored(
        *(spark, table, source, tmp_path / "until offsets"),
        until=Until(middle),
        suppressed=frozenset(gone),
        as_tombstones=True,
    )
    assert copy.records() == [
        row | ({"value": None, "headers": []} if row["key"] in gone else {})
        for row in wanted
        if row["offset"] < middle[row["topic"], row["partition"]]
    ]
    assert without_start(copy.bounds()) == middle

    late = sorted(row["timestamp"] for row in wanted)[len(wanted) // 2] if wanted else 0
    ends = without_start(bounds)
    for row in reversed(wanted):
        if row["timestamp"] >= late:
            ends[row["topic"], row["partition"]] = row["offset"]
    copy, _ = restored(
        *(spark, table, source, tmp_path / "until a time"),
        until=Until({}, late),
        suppressed=frozenset(gone),
    )
    assert copy.records() == [
        row
        for row in wanted
        if row["key"] not in gone and row["offset"] < ends[row["topic"], row["partition"]]
    ]
    assert without_start(copy.bounds()) == ends


def suppressed(wanted: Iterable[dict[str, Any]]) -> set[bytes]:
    """Choose some keys, the empty one if it is there."""
    keys = sorted({row["key"] for row in wanted if row["key"] is not None})
    return set(keys[::5])


def test_the_same_command_ends_what_a_killed_one_has_begun_and_another_one_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ours(tmp_path / "log")
    table = archived(spark, source, tmp_path)

    def die(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    for step in ("_write", "set_bounds", "alter", "restore_groups"):
        with monkeypatch.context() as patch:
            patch.setattr(Restore if step == "_write" else restoring, step, die)
            with pytest.raises(ZeroDivisionError):
                restored(spark, table, source, tmp_path / "copy")
    with pytest.raises(LogDirectoryError, match="that another restore has written") as no:
        restored(spark, table, source, tmp_path / "copy", keys=frozenset({b"k1"}))
    assert "or `kafkalog topic delete PATH --topic t` deletes the topic there" in str(no.value)
    shutil.copytree(tmp_path / "copy", tmp_path / "deleted")
    words = ["delete", str(tmp_path / "deleted"), "--topic", "t"]
    assert CliRunner().invoke(app, words).exit_code == 0
    copy, _ = restored(spark, table, source, tmp_path / "deleted", keys=frozenset({b"k1"}))
    assert copy.records() == [row for row in source.records() if row["key"] == b"k1"]
    for _ in range(2):
        copy, said = restored(spark, table, source, tmp_path / "copy")
        assert "t: its records were restored before" in said
        assert said[-1] == "restore t: 24 records in 1 topic"
    assert copy.records() == source.records()
    assert copy.bounds() == source.bounds()
    assert copy.settings() == source.settings()
    kafkalog.append(str(tmp_path / "copy"), "t", pa.table({"key": ["k"], "value": ["later"]}))
    _, said = restored(spark, table, source, tmp_path / "copy")
    assert any(line.startswith("t: somebody else has appended to it since: t-") for line in said)


def test_only_some_keys_and_what_was_deleted_since_it_was_archived(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = ours(tmp_path / "log")
    before = source.records()
    archived(spark, source, tmp_path)
    later = {TopicPartition("t", 0): Bounds(7, 15)}
    set_bounds([source.path], later)
    table = archived(spark, source, tmp_path)

    copy, _ = restored(spark, table, source, tmp_path / "as it is")
    assert copy.records() == source.records() != before
    assert copy.bounds() == source.bounds()
    given: dict[str, Any] = {"with_deleted": True, "keys": frozenset({b"k1", b""})}
    copy, _ = restored(spark, table, source, tmp_path / "keys", **given)
    assert copy.records() == [row for row in before if row["key"] in {b"k1", b""}]
    assert copy.bounds() == source.bounds() | {TopicPartition("t", 0): Bounds(0, 15)}


def test_groups_continue_where_they_stood_or_where_the_restored_logs_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = ours(tmp_path / "log")
    t0, t1 = TopicPartition("t", 0), TopicPartition("t", 1)
    GroupWriter([source.path], "g").commit({t0: 9, t1: 520})
    GroupWriter([source.path], "h").commit({t0: 3})
    with_groups = Source(source.path, ["t", "__consumer_offsets"])
    table = archived(spark, with_groups, tmp_path)
    copy, said = restored(*(spark, table, source, tmp_path / "copy"), until=Until({t0: 5, t1: 510}))
    moved = ["g in t-0 from 9 to 5", "g in t-1 from 520 to 510"]
    assert said[-3:-1] == [
        "3 positions of groups are restored",
        "positions were moved to offsets that are restored: " + "; ".join(moved),
    ]
    found = {(row["group"], row["partition"]): row["offset"] for row in list_groups([copy.path])}
    assert found == {("g", 0): 5, ("g", 1): 510, ("h", 0): 3}


def test_a_table_that_tells_less_is_restored_by_its_records_and_by_what_is_given(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = ours(tmp_path / "log")
    table = archived(spark, source, tmp_path, table_format="parquet")
    given = {"table_format": "parquet", "partitions": 4, "config": {"segment.bytes": "500"}}
    copy, said = restored(spark, table, source, tmp_path / "copy", **given)
    assert copy.records() == source.records()
    assert copy.settings() == {"t": {"segment.bytes": "500"}}
    assert [line for line in said if "does not tell" in line] == [
        "t: the table does not tell where its logs start and end: they do where their records do",
        "t: the table does not tell its settings (--config)",
    ]
    state = load_state(tmp_path / "copy")
    assert state is not None
    (topic,) = state.topics.values()
    ends = {number: each.log_end for number, each in topic.partitions.items()}
    assert ends == {0: 15, 1: 515, 2: 55, 3: 0}
    assert "positions of groups" in said[-2]


def test_a_bare_table_is_one_topic(spark: SparkSession, tmp_path: Path) -> None:
    made = spark.range(3, 9).selectExpr("0 AS partition", "id AS offset", "string(id) AS value")
    made.write.parquet(str(tmp_path / "table"))
    source = Source("", ["x"])
    copy, _ = restored(
        *(spark, str(tmp_path / "table"), source, tmp_path / "copy"), table_format="parquet"
    )
    found = [(row["offset"], json.loads(row["value"])) for row in copy.records()]
    assert found == [(number, number) for number in range(3, 9)]
