"""What a micro-batch is known by, where Spark calls for its commit."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.compacting import compacted, read, updates, writer
from tests.support.sinking import Writer, rows, values_of

from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import (
    BatchIdentityError,
    CheckpointError,
    CommitError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.system import system
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.topics import create
from kafkalog.streaming.sink.task_writer import TaskWriter
from kafkalog.streaming.spark.writers import LogStreamWriter, StagedMessage
from kafkalog.streaming.store.ends.tracker import LogEndTracker
from kafkalog.streaming.store.identity import BatchIdentity

if TYPE_CHECKING:
    from pathlib import Path


class Query:
    """A query and its checkpoint, which the sink can read from ``known`` on."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.checkpoint = folder / "checkpoint"
        self.known = False

    def plan_batch(self, batch_id: int, offsets: str) -> None:
        """Write what Spark writes before a batch runs."""
        (self.checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": "4711"}))
        (self.checkpoint / "offsets" / str(batch_id)).write_text(offsets)

    def write(self, batch_id: int, *tasks: pa.RecordBatch, digests_rows: bool = True) -> None:
        location = {"checkpointLocation": str(self.checkpoint)} if self.known else {}
        plan = Writer(self.log, topic="t", **location).plan()
        plan = replace(plan, digests_rows=digests_rows)
        identity = BatchIdentity("query:4711", batch_id, "run-1")
        messages = [
            StagedMessage(TaskWriter(plan, identity, number=n, query_id="4711").write([batch]))
            for n, batch in enumerate(tasks)
        ]
        LogStreamWriter(plan).commit([*messages], batch_id)

    def digest(self) -> str | None:
        state = load_state(self.log)
        assert state is not None
        return state.writers["query:4711"].digest


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path)


def test_the_same_rows_from_other_tasks_are_the_same_batch(query: Query) -> None:
    query.write(0, rows(["a", "b"]), rows(["c"]))
    query.write(0, rows(["c", "a"]), rows([]), rows(["b"]))
    assert values_of([query.log], "t") == {0: ["a", "b", "c"]}
    with pytest.raises(BatchIdentityError, match="with other content"):
        query.write(0, rows(["a", "b", "c", "d"]))
    query.write(1, rows(["d"]))
    assert values_of([query.log], "t") == {0: ["a", "b", "c", "d"]}


@pytest.mark.parametrize("known", [False, True])
def test_a_batch_whose_source_was_compacted_since_is_refused_where_its_rows_tell_it(
    query: Query, tmp_path: Path, *, known: bool
) -> None:
    source = tmp_path / "source"
    updates(writer(source, topic="s"), [{"a": "1", "b": "1"}, {"a": "2"}, {"c": "1"}])
    query.known = known
    query.plan_batch(0, "v1\n{}\n3")

    def copy() -> None:
        found = read(source, TopicPartition("s", 0)).values()
        query.write(0, rows([value for _, value in found], keys=[key for key, _ in found]))

    copy()
    copy()
    compacted(source)
    if known:
        copy()
    else:
        with pytest.raises(BatchIdentityError, match="compacted or deleted since"):
            copy()
    assert sum(map(len, values_of([query.log], "t").values())) == 4


def test_a_batch_without_rows_is_told_by_that(query: Query) -> None:
    query.write(0, rows([]))
    query.write(0, rows([]))
    with pytest.raises(BatchIdentityError, match="with other content"):
        query.write(0, rows(["a"]))


def test_where_the_checkpoint_can_be_read_it_tells_whatever_the_rows_are(query: Query) -> None:
    query.known = True
    query.plan_batch(0, "v1\n{}\n7")
    query.write(0, rows(["a"]), digests_rows=False)
    query.write(0, rows(["b"]), digests_rows=False)
    assert values_of([query.log], "t") == {0: ["a"]}
    assert str(query.digest())[:5] != "rows "


def test_a_checkpoint_that_vanishes_while_a_batch_runs_fails_it(query: Query) -> None:
    query.known = True
    with pytest.raises(CommitError, match="does not tell now what query 4711 has planned"):
        query.write(0, rows(["a"]), digests_rows=False)
    query.plan_batch(0, "v1\n{}\n7")
    query.write(0, rows(["a"]), digests_rows=False)
    assert values_of([query.log], "t") == {0: ["a"]}


def test_one_query_is_warned_of_once(
    query: Query, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "memory", {})
    with caplog.at_level(logging.WARNING, "kafkalog.sink"):
        query.write(0, rows(["a"]))
        query.write(1, rows(["b"]))
    assert [record.getMessage().count("told by its rows") for record in caplog.records] == [1]


class Copy(Query):
    """A query that copies to a topic of two partitions, at the same offsets and ends."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        create([str(self.log)], "t", partitions=2)

    def copy(self, batch_id: int, offsets: dict[int, int], ends: str, **more: str) -> None:
        """Copy records of partition 0 at ``offsets``, up to ``ends``."""
        self.plan_batch(batch_id, f'v1\n{{"batchWatermarkMs":0}}\n{ends}')
        where = {"checkpointLocation": str(self.checkpoint)} | more
        plan = Writer(self.log, preserveOffsets="true", preserveEnds="true", **where).plan()
        names = [str(value) for value in offsets.values()]
        batch = rows(names, topics=["t"] * len(names), partitions=[0] * len(names))
        batch = batch.append_column("offset", pa.array([*offsets], pa.int64()))
        identity = BatchIdentity("query:4711", batch_id, "run-1")
        output = TaskWriter(plan, identity, query_id="4711").write([batch])
        LogStreamWriter(plan).commit([StagedMessage(output)], batch_id)

    def ends(self) -> dict[str, int]:
        look = LogEndTracker([str(self.log)]).look()
        return {str(key): end for key, end in look.offsets.items()}


def test_a_copy_ends_after_each_micro_batch_where_its_source_did(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    copy.copy(0, {3: 1, 5: 2}, '{"t":{"0":9,"1":7}}')
    assert copy.ends() == {"t-0": 9, "t-1": 7}
    copy.copy(0, {3: 1, 5: 2}, '{"t":{"0":9,"1":7}}')
    copy.copy(1, {}, '{"t":{"0":12,"1":7}}')
    copy.copy(2, {12: 3}, '{"t":{"0":13,"1":7}}')
    assert copy.ends() == {"t-0": 13, "t-1": 7}


def test_what_is_no_copy_any_more_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    copy.copy(0, {3: 1}, '{"t":{"0":4}}')
    Writer(copy.log, topic="t", name="else").write(0, rows(["x"], partitions=[0]))
    with pytest.raises(CommitError, match=r"t-0: the copy ends at offset 5, and .* begins at 4"):
        copy.copy(1, {8: 2}, '{"t":{"0":9}}')
    with pytest.raises(UnknownTopicOrPartitionError, match=r"u-0: .* there is no such topic"):
        copy.copy(1, {}, '{"u":{"0":9}}')
    assert copy.ends() == {"t-0": 5, "t-1": 0}


@pytest.mark.parametrize("ends", ["3", '{"t":3}', '{"t":{"x":3}}', '{"t":{"0":3}}\n{"t":{"0":3}}'])
def test_a_source_that_counts_no_offsets_has_no_ends_to_keep(tmp_path: Path, ends: str) -> None:
    copy = Copy(tmp_path)
    with pytest.raises(CheckpointError, match="does not tell the end offsets of one source"):
        copy.copy(0, {3: 1}, ends)
    assert copy.ends() == {"t-0": 0, "t-1": 0}


def test_ends_are_kept_with_a_checkpoint_that_can_be_read_and_with_offsets(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    with pytest.raises((CommitError, OptionError), match="checkpoint"):
        copy.copy(0, {3: 1}, '{"t":{"0":4}}', checkpointLocation=str(tmp_path / "none"))
    with pytest.raises(OptionError, match="'preserveEnds' goes with preserveOffsets=true"):
        Writer(copy.log, preserveEnds="true")
