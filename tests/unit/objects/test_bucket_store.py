"""Readers find the log in an object store as they find a local log of the same batches."""

from __future__ import annotations

import pickle
import random
import shutil
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.alarms import interrupt_at
from tests.support.bucket_model import without_rests
from tests.support.interrupting import AlarmError
from typer.testing import CliRunner

import kafkalog
from kafkalog.checkpoints.bucket_state import (
    BucketCommit,
    BucketState,
    Extent,
    checkpoint_bytes,
    data_name,
    parse_checkpoint,
)
from kafkalog.checkpoints.commit_state import PartitionState, TopicState
from kafkalog.errors import (
    BatchIdentityError,
    CommitError,
    CorruptRecordError,
    DataLossError,
    InvalidTopicError,
    KafkaLogError,
    LogDirectoryError,
    OffsetOutOfRangeError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files import open_file
from kafkalog.files.objects import FolderObjects
from kafkalog.files.remote_path import RemoteEntry
from kafkalog.files.storage import RemoteRoot
from kafkalog.files.system import remembered, system
from kafkalog.jobs.cli.app import app
from kafkalog.model import TopicPartition
from kafkalog.streaming import api
from kafkalog.streaming.admin import retention, topics
from kafkalog.streaming.commit.bucket_commit import commit_batch
from kafkalog.streaming.objects import bucket_files, bucket_store
from kafkalog.streaming.objects.bucket_log import BucketLog, Proposal
from kafkalog.streaming.objects.bucket_store import BucketRoot, BucketStore
from kafkalog.streaming.objects.numbered_extents import number_batches
from kafkalog.streaming.objects.sweeping import clean_commits
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.sink.task_writer import TaskWriter
from kafkalog.streaming.sink.write_options import WriteOptions, WritePlan
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import ReadRows
from kafkalog.streaming.source.stream_control import StreamControl
from kafkalog.streaming.store.identity import BatchIdentity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
ROWS = pa.table(
    {
        "value": [f"row {number}" for number in range(60)],
        "partition": pa.array([number % 2 for number in range(60)], pa.int32()),
        "timestamp": pa.array([1_700_000_000_000 + number for number in range(60)], pa.int64()),
    }
)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    without_rests(monkeypatch)


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A local log of three appends to two partitions."""
    path = tmp_path / "local"
    for first in (0, 20, 40):
        kafkalog.append(path, "t", ROWS.slice(first, 20), options={"numPartitions": 2})
    return path


@pytest.fixture
def objects(tmp_path: Path, local: Path) -> FolderObjects:
    """A log in a store with the same batches, without offsets: inline and in data objects."""
    objects = FolderObjects(tmp_path / "bucket")
    log = BucketLog.create(objects)
    batches = {number: staged_batches(local / f"t-{number}") for number in range(2)}
    for slot in range(3):
        commit(log, {number: batches[number][slot] for number in batches}, inline=slot == 1)
    return objects


def staged_batches(folder: Path) -> list[bytes]:
    data = bytearray((folder / f"{0:020}.log").read_bytes())
    found, position = [], 0
    while position < len(data):
        size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        data[position : position + 8] = bytes(8)
        found.append(bytes(data[position : position + size]))
        position += size
    return found


def commit(log: BucketLog, batches: dict[int, bytes], *, inline: bool) -> None:
    content = b"".join(batches.values())
    name = "" if inline else data_name(log.state.number, f"{log.state.number:032x}")
    if name:
        log.objects.put(f"{log.folder}/{name}", content)

    def propose(state: BucketState) -> Proposal:
        position, partitions, extents = 0, {}, {}
        for number, data in batches.items():
            known = state.topics.get(TOPIC_ID, TopicState("t")).partitions
            end = known[number].log_end if number in known else 0
            records = int.from_bytes(data[57:61], "big")
            newest = int.from_bytes(data[35:43], "big")
            extent = Extent(name, position, len(data), end, records, newest, 0)
            extents[TOPIC_ID, number] = [extent]
            partitions[number] = PartitionState(0, end + records, end + records, 0)
            position += len(data)
        topics = {TOPIC_ID: TopicState("t", partitions=partitions)}
        change = BucketCommit(
            number=0,
            commit_id="",
            previous="",
            log_id="",
            topics=topics,
            extents=extents,
            inline=content if inline else b"",
        )
        return Proposal(change, is_known_again=False)

    assert log.commit(propose) is not None


def rows_of(place: str | BucketRoot, **options: str) -> list[dict[str, object]]:
    given = ReadOptions.parse({"path": "/log", "subscribe": "t", **options})
    parsed = replace(given, paths=(place,))
    rows = ReadRows.of(parsed, (), ())
    return [r for b in api._read_splits(api._plan(parsed), parsed, rows) for r in b.to_pylist()]


@pytest.fixture
def root(objects: FolderObjects, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> BucketRoot:
    monkeypatch.setattr(bucket_store, "open_objects", lambda _: objects)
    given = RemoteRoot.parse(f"s3://bucket{tmp_path}")
    return BucketRoot(str(given), given.options, given.full_uri)


def test_rows_are_those_of_a_local_log(local: Path, root: BucketRoot) -> None:
    expected = rows_of(str(local))
    assert len(expected) == 60
    assert rows_of(root) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": '{"t":{"0":12,"1":29}}', "endingOffsets": '{"t":{"0":25,"1":30}}'},
        {"startingTimestamp": "1700000000045"},
        {"splitBytes": "1000"},
        {"view": "batches"},
    ],
)
def test_a_part_is_that_of_a_local_log(
    local: Path, root: BucketRoot, options: dict[str, str]
) -> None:
    shown = [
        {key: value for key, value in row.items() if key not in {"path", "file"}}
        for row in rows_of(root, **options)
    ]
    expected = [
        {key: value for key, value in row.items() if key not in {"path", "file"}}
        for row in rows_of(str(local), **options)
    ]
    assert expected
    assert shown == expected


def test_what_is_committed_later_is_seen_by_the_next_look(
    objects: FolderObjects, root: BucketRoot, local: Path
) -> None:
    at_once = root.with_options({"poll_interval_ms": -1})
    assert len(rows_of(at_once)) == 60
    log = BucketLog.open(objects)
    assert log is not None
    log.follow()
    commit(log, {0: staged_batches(local / "t-0")[0]}, inline=True)
    assert len(rows_of(at_once)) == 70


def test_a_look_that_was_cut_off_anywhere_keeps_no_lock(appended: str) -> None:
    """A signal's exception comes at each place in turn where Python looks for signals."""
    kafkalog.append(appended, "t", ROWS, options={"numPartitions": 2})
    store = BucketRoot.of(RemoteRoot.parse(appended)).open_store()
    expected = store.committed()
    place, is_cut_off = 0, True
    while is_cut_off:
        store.forget_listing()
        try:
            interrupt_at(place, store.committed)
            is_cut_off = False
        except AlarmError:
            place += 1
        assert not store._using.locked(), f"after an alarm at place {place - 1}"
    assert place > 5
    assert store.committed() == expected


def test_a_reader_that_slept_for_eight_days_goes_on(
    local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = FolderObjects(tmp_path / "cleaned")
    monkeypatch.setattr(bucket_store, "open_objects", lambda _: objects)
    given = RemoteRoot.parse(f"s3://cleaned{tmp_path}").with_options({"poll_interval_ms": -1})
    root = BucketRoot.of(given)
    batches = staged_batches(local / "t-0")
    log = BucketLog.create(objects)
    commit(log, {0: batches[0]}, inline=False)
    parsed = replace(ReadOptions.parse({"path": "/log", "subscribe": "t"}), paths=(root,))
    planned = api._plan(parsed)
    for data in (*batches, batches[0]):
        commit(log, {0: data}, inline=False)
    log.checkpoint()
    assert clean_commits(log, keep_ms=-60_000, keep_commits=1) == 5
    for name in ("time_ns", "boottime"):
        day = 86_400 * (10**9 if name == "time_ns" else 1)
        clock = getattr(system, name)
        monkeypatch.setattr(system, name, lambda clock=clock, day=day: clock() + 8 * day)
    rows = ReadRows.of(parsed, (), ())
    assert sum(len(b) for b in api._read_splits(planned, parsed, rows)) == 10
    offsets = [row["offset"] for row in rows_of(root, startingOffsets='{"t":{"0":10}}')]
    assert offsets == list(range(10, 50))


def test_a_path_is_pickled_by_the_options_of_its_store(root: BucketRoot) -> None:
    path = root.open_log() / "t-0"
    again = pickle.loads(pickle.dumps(path))
    assert again == path
    assert again.store is path.store  # type: ignore[attr-defined]
    assert isinstance(pickle.loads(pickle.dumps(root)), BucketRoot)


def test_an_object_that_is_gone_is_a_loss_with_its_offsets(
    objects: FolderObjects, root: BucketRoot
) -> None:
    folder = f"_kafkalog/{log_id(objects)}/data"
    objects.delete([f"{folder}/{entry.name}" for entry in objects.list_after(folder)])
    with pytest.raises(DataLossError, match="offsets 0 to 10"):
        rows_of(root)


def log_id(objects: FolderObjects) -> str:
    log = BucketLog.open(objects)
    assert log is not None
    return log.state.log_id


def test_batches_that_do_not_fit_their_extent_are_corrupt(local: Path) -> None:
    data = staged_batches(local / "t-0")[0]
    extent = Extent("data", 0, len(data), 100, 10, 0, 7)
    numbered = number_batches(data, extent, "name")
    assert int.from_bytes(numbered[:8], "big") == 100
    assert int.from_bytes(numbered[12:16], "big") == 7
    with pytest.raises(CorruptRecordError, match="name: the batches from byte 0"):
        number_batches(data, extent._replace(records=11), "name")
    with pytest.raises(CorruptRecordError, match="name: the batches from byte 0"):
        number_batches(data + b"x", extent._replace(size=len(data) + 1), "name")


def test_there_is_nothing_to_open_where_no_log_is(tmp_path: Path) -> None:
    store = BucketStore(RemoteRoot.parse("s3://bucket/empty"), FolderObjects(tmp_path / "empty"))
    with pytest.raises(LogDirectoryError, match="holds no log"):
        store.entries("log")


# Appended


@pytest.fixture
def appended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    objects = FolderObjects(tmp_path / "appended")
    monkeypatch.setattr(bucket_store, "open_objects", lambda _: objects)
    return f"s3a://bucket{tmp_path}"


def values(place: str, **options: str) -> list[bytes]:
    table = kafkalog.read(place, "t", options={"storage.listInterval": "0", **options}).read_all()
    return table["value"].to_pylist()  # type: ignore[no-any-return]


def test_what_is_appended_is_read_as_from_a_local_log(appended: str, local: Path) -> None:
    for first in (0, 20, 40):
        outcome = kafkalog.append(
            appended, "t", ROWS.slice(first, 20), options={"numPartitions": 2}
        )
        assert outcome.appended
    assert kafkalog.read(appended, "t").read_all() == kafkalog.read(local, "t").read_all()
    assert {str(key): end for key, end in outcome.end_offsets.items()} == {"t-0": 30, "t-1": 30}


def test_an_append_with_a_name_is_there_once(appended: str) -> None:
    rows = pa.table({"value": ["a"]})
    named = {"transactional_id": "w", "version": 3}
    assert kafkalog.append(appended, "t", rows, **named).appended
    assert not kafkalog.append(appended, "t", rows, **named).appended
    with pytest.raises(BatchIdentityError, match="with other rows"):
        kafkalog.append(appended, "t", pa.table({"value": ["b"]}), **named)
    assert values(appended) == [b"a"]


@pytest.mark.parametrize(
    ("tasks", "partitions"), [(10, 40), pytest.param(200, 1000, marks=pytest.mark.nightly)]
)
def test_a_fresh_batch_of_many_tasks_is_read_by_a_request_a_task(
    local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: int, partitions: int
) -> None:
    objects = FolderObjects(tmp_path / "appended")
    monkeypatch.setattr(bucket_store, "open_objects", lambda _: objects)
    data = staged_batches(local / "t-0")[0]
    records, size = int.from_bytes(data[57:61], "big"), len(data)
    log = BucketLog.create(objects)
    names = [data_name(0, f"{task:032x}") for task in range(tasks)]
    for name in names:
        objects.put(f"{log.folder}/{name}", data * partitions)
    extents = {
        (TOPIC_ID, number): [
            Extent(name, number * size, size, task * records, records, 1, 0)
            for task, name in enumerate(names)
        ]
        for number in range(partitions)
    }
    end = tasks * records
    ends = dict.fromkeys(range(partitions), PartitionState(0, end, end, 0))
    change = BucketCommit(
        topics={TOPIC_ID: TopicState("t", partitions=ends)}, extents=extents, size=0
    )
    log.commit(lambda _: Proposal(change, is_known_again=False))
    asked: list[str] = []
    get_range = objects.get_range
    monkeypatch.setattr(
        objects, "get_range", lambda name, *at: asked.append(name) or get_range(name, *at)
    )
    rows = sum(len(each) for each in kafkalog.read(f"s3a://bucket{tmp_path}", "t"))
    assert rows == tasks * partitions * records
    assert len(asked) <= tasks + tasks * partitions * size / (8 << 20)


def test_a_worker_reads_what_a_partition_has_by_its_next_task(appended: str) -> None:
    given = {"path": appended, "subscribe": "t", "startingOffsets": "earliest"}
    options = ReadOptions.parse({**given, "storage.pollInterval": "1h"})
    kafkalog.append(appended, "t", pa.table({"value": ["0"]}))
    query = StreamControl(options)
    ends, planned = [query.initial()], []
    for number, since in ((0, 0), (1, 0), (2, 2)):
        if number:
            kafkalog.append(appended, "t", pa.table({"value": [f"{number}"]}))
        BucketRoot.of(options.paths[0]).open_store().forget_listing()  # type: ignore[arg-type]
        ends.append(query.next_end(ends[-1], take_all=True))
        planned.append(pickle.dumps((query.plan(ends[since], ends[-1]), options)))
    remembered(bucket_store._OpenStores).by_root.clear()  # a worker, which knows no other one's
    remembered(open_file._KnownFiles).clear()
    rows, found = ReadRows.of(options, (), ()).of_records, []
    for each in planned:
        splits, task = pickle.loads(each)
        batches = [batch for split in splits for batch in read_split(split, task, rows)]
        found.append(pa.Table.from_batches(batches)["value"].to_pylist())
    assert found == [[b"0"], [b"0", b"1"], [b"2"]]
    stores = remembered(bucket_store._OpenStores).by_root.values()
    (store,) = (each for each in stores if str(each._place) == appended)  # threads may have others
    assert store._log is None  # no task had to open the log to find what it was told


def begin_again(tmp_path: Path) -> None:
    """Empty the bucket, and let another process append to a log there."""
    shutil.rmtree(tmp_path / "appended")
    kafkalog.append("s3a://by/another/process", "t", pa.table({"value": ["new"]}))


def test_another_log_in_the_same_place_is_what_is_read_from_now_on(
    appended: str, tmp_path: Path
) -> None:
    named = {"transactional_id": "w", "version": 1}
    rows = pa.table({"value": ["old"] * 3})
    assert kafkalog.append(appended, "t", rows, **named).appended
    tail = kafkalog.tail(appended, "t", options={"startingOffsets": "earliest"})
    assert next(tail).num_rows == 3
    planned = kafkalog.read(appended, "t")
    begin_again(tmp_path)
    assert values(appended) == [b"new"]
    with pytest.raises(LogDirectoryError, match="somebody has emptied it"):
        next(tail)
    with suppress(DataLossError, LogDirectoryError):
        assert b"new" not in planned.read_all()["value"].to_pylist()
    assert kafkalog.append(appended, "t", rows, **named).appended
    assert values(appended) == [b"new", *[b"old"] * 3]


def test_whoever_goes_on_in_a_log_that_was_begun_again_is_told(
    appended: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"transactional_id": "w", "version": 1}
    rows = pa.table({"value": ["old"]})
    kafkalog.append(appended, "t", rows, **named)
    tail = kafkalog.tail(appended, "t", options={"startingOffsets": "earliest"})
    assert next(tail).num_rows == 1
    member = kafkalog.Consumer(appended, "g", "t", options={"startingOffsets": "earliest"})
    assert member.poll(60) is not None
    begin_again(tmp_path)
    clock = system.boottime
    monkeypatch.setattr(system, "boottime", lambda: clock() + 62)
    # If a heartbeat has looked between its plan and its commit, the commit says so.
    with pytest.raises((LogDirectoryError, CommitError), match="somebody has emptied it"):
        kafkalog.append(appended, "t", rows, **named)
    with pytest.raises(LogDirectoryError, match="somebody has emptied it"):
        next(tail)
    for ask in (lambda: member.poll(60), member.commit, lambda: member.poll(60)):
        with pytest.raises(LogDirectoryError, match="somebody has emptied it"):
            ask()
    with suppress(KafkaLogError):
        member.close()
    assert values(appended) == [b"new"]


@pytest.mark.parametrize("fails", [True, False])
def test_a_stream_mixes_no_rows_of_a_log_that_was_begun_again_and_says_so(
    appended: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    kafkalog.append(appended, "t", pa.table({"value": ["old"] * 3}))
    given = {"path": appended, "subscribe": "t", "startingOffsets": "earliest"}
    given |= {"failOnDataLoss": str(fails), "stateLocation": str(tmp_path / "state")}
    quick = {"fetchOffset.retryIntervalMs": "0", "storage.pollInterval": "1ms"}
    options = ReadOptions.parse(given | quick)
    query = StreamControl(options)
    start = query.initial()
    end = query.next_end(start, take_all=True)
    sent = pickle.dumps(query.plan(start, end))

    def rows(sent: bytes) -> list[bytes]:
        """Read in a task: a process of its own."""
        with monkeypatch.context() as patch:
            patch.setattr(system, "memory", {})
            read = ReadRows.of(options, (), ()).of_records
            batches = [b for s in pickle.loads(sent) for b in read_split(s, options, read)]
        return [value for batch in batches for value in batch.column("value").to_pylist()]

    assert rows(sent) == [b"old"] * 3
    begin_again(tmp_path)
    kafkalog.append("s3a://by/another/process", "t", pa.table({"value": ["new"] * 4}))
    with pytest.raises(DataLossError) if fails else nullcontext():
        assert rows(sent) == []
    clock = system.boottime
    monkeypatch.setattr(system, "boottime", lambda: clock() + 62)
    for _ in range(2):
        with pytest.raises(LogDirectoryError, match="somebody has emptied it"):
            query.next_end(end, take_all=True)
    again = StreamControl(options)  # its next run
    with pytest.raises(DataLossError, match="recreated") if fails else nullcontext():
        begin = again.next_end(end, take_all=True)
        whole = again.next_end(begin, take_all=True)
        found = rows(pickle.dumps(again.plan(end, begin)))
        found += rows(pickle.dumps(again.plan(begin, whole)))
        assert found == [b"new"] * 5


def test_what_was_staged_for_another_log_is_refused(appended: str, tmp_path: Path) -> None:
    kafkalog.append(appended, "t", pa.table({"value": ["old"]}))
    rows = pa.table({"value": [bytes(1000) for _ in range(2000)]})
    options = WriteOptions.parse({"path": appended, "topic": "t", "compression.type": "none"})
    plan = WritePlan.of(options)
    identity = BatchIdentity("w", 0)
    staged = TaskWriter(plan, identity).write(rows.to_batches())
    begin_again(tmp_path)
    assert values(appended) == [b"new"]
    assert plan.bucket is not None
    for error in (LogDirectoryError, CommitError, CommitError):
        with pytest.raises(error, match="somebody has emptied it"):
            commit_batch(plan.bucket, plan.commit_plan, identity, staged.runs)
    late = TaskWriter(plan, identity).write(rows.to_batches())  # a task asks the store for nothing
    with pytest.raises(CommitError, match="somebody has emptied it"):
        commit_batch(plan.bucket, plan.commit_plan, identity, late.runs)
    assert values(appended) == [b"new"]


@pytest.mark.parametrize(
    "words",
    [
        "topic alter PLACE --topic t --partitions 2",
        "topic delete PLACE --topic t --yes",
        "topic trim PLACE --offset t-0=1 --yes",
        "topic create PLACE --topic t --dry-run",
        "retain PLACE",
        "retain PLACE --dry-run",
        "compact PLACE",
        "run maintain PLACE",
        "backup PLACE copy",
        "topic list PLACE",
        "topic describe PLACE --topic t",
        "topic offsets PLACE",
        "topic stats PLACE",
        "verify PLACE",
        "dump PLACE --topic t",
        "get PLACE --topic t --key a",
        "find PLACE --topic t --regex x",
        "consume PLACE --topic t",
        "sql PLACE select(1)",
        "lag PLACE",
        "group list PLACE",
        "group describe PLACE --group g",
        "group reset PLACE --group g --topic t --to earliest --yes",
        "group delete PLACE --group g --yes",
        "report PLACE --output r.html",
        "recover PLACE",
    ],
)
def test_what_only_looks_or_cares_makes_no_log(
    appended: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = call(*words.replace("PLACE", appended).split())
    assert "Traceback" not in output
    assert "No such" not in output
    assert code or "dry-run" in words, output
    assert not (tmp_path / "appended").exists()
    assert not (tmp_path / "copy").exists()


def test_a_large_append_lies_in_an_object_of_its_own(appended: str, tmp_path: Path) -> None:
    rows = pa.table({"value": [bytes(1000) for _ in range(2000)]})
    kafkalog.append(appended, "t", rows, options={"compression.type": "none"})
    objects = FolderObjects(tmp_path / "appended")
    (folder,) = {name.parts[1] for name in _names(tmp_path / "appended") if len(name.parts) > 2}
    assert len(objects.list_after(f"_kafkalog/{folder}/data")) == 1
    assert len(values(appended)) == 2000


def _names(folder: Path) -> list[Path]:
    return [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]


def test_settings_persist_with_the_topic(appended: str) -> None:
    rows = pa.table({"value": [b"a" * 1000 for _ in range(100)]})
    kafkalog.append(appended, "t", rows, options={"compression.type": "zstd"})
    kafkalog.append(appended, "t", rows)
    batches = kafkalog.read(appended, "t", options={"view": "batches"}).read_all()
    assert batches["codec"].to_pylist() == ["zstd", "zstd"]


# Topics


def test_topics_are_made_altered_and_deleted_by_commits(appended: str) -> None:
    made = topics.create([appended], "t", partitions=2, config={"compression.type": "zstd"})
    assert (made.partitions, made.settings) == (2, {"compression.type": "zstd"})
    with pytest.raises(OptionError, match="exists"):
        topics.create([appended], "t")
    topics.create([appended], "a.b")
    with pytest.raises(InvalidTopicError, match=r"beside 'a\.b'"):
        topics.create([appended], "a_b")
    kafkalog.append(appended, "t", pa.table({"value": ["a"], "partition": pa.array([1], "int32")}))
    altered = topics.alter([appended], "t", partitions=3, unset=["compression.type"])
    assert (altered.partitions_before, altered.partitions, altered.settings) == (2, 3, {})
    assert not topics.alter([appended], "t", partitions=3).settings
    with pytest.raises(OptionError, match="has 3 partitions"):
        topics.alter([appended], "t", partitions=2)
    kafkalog.append(appended, "t", pa.table({"value": ["b"], "partition": pa.array([2], "int32")}))
    assert values(appended) == [b"a", b"b"]
    deleted = topics.delete([appended], "t", dry_run=True)
    assert (len(deleted.folders), deleted.bytes > 0) == (3, True)
    topics.delete([appended], "t")
    with pytest.raises(UnknownTopicOrPartitionError, match=r"no topic 't' in .*Topics: a\.b"):
        topics.delete([appended], "t")
    kafkalog.append(appended, "t", pa.table({"value": ["c"]}))
    assert values(appended) == [b"c"]


def test_rows_of_a_topic_that_was_made_again_are_refused(appended: str) -> None:
    topics.create([appended], "t")
    rows = pa.table({"value": ["a"]})

    def slow() -> Iterator[pa.RecordBatch]:
        yield from rows.to_batches()
        topics.delete([appended], "t")
        topics.create([appended], "t")

    with pytest.raises(CommitError, match="was deleted after this batch was planned, and made"):
        kafkalog.append(appended, "t", slow())
    assert values(appended) == []


def test_a_log_that_is_trimmed_starts_there(appended: str) -> None:
    for first in (0, 20, 40):
        kafkalog.append(appended, "t", ROWS.slice(first, 20), options={"numPartitions": 2})
    (trimmed, _) = retention.delete_records(
        [appended], {TopicPartition("t", 0): 15, TopicPartition("t", 1): -1}
    ).partitions
    assert (trimmed.start_before, trimmed.start, trimmed.segments) == (0, 15, (0,))
    expected = [f"row {number}".encode() for number in range(30, 60, 2)]
    assert values(appended, startingOffsets="earliest") == expected
    kafkalog.append(appended, "t", ROWS.slice(1, 1))
    assert values(appended) == [*expected, b"row 1"]
    with pytest.raises(OffsetOutOfRangeError, match="committed up to 30"):
        retention.delete_records([appended], {TopicPartition("t", 0): 31})
    with pytest.raises(UnknownTopicOrPartitionError, match="t-7 is no partition"):
        retention.delete_records([appended], {TopicPartition("t", 7): 1})


def test_what_has_expired_is_dropped(appended: str) -> None:
    for first in (0, 20, 40):
        kafkalog.append(appended, "t", ROWS.slice(first, 20), options={"numPartitions": 2})
    old = retention.retain([appended], config={"retention.bytes": "1"}, dry_run=True)
    assert [len(each.segments) for each in old.partitions] == [2, 2]
    assert len(values(appended)) == 60
    retention.retain([appended], config={"retention.bytes": "1"})
    assert values(appended) == [f"row {n}".encode() for n in (*range(40, 60, 2), *range(41, 60, 2))]
    topics.alter([appended], "t", config={"retention.ms": "1000"})
    retention.retain([appended])
    assert values(appended) == []
    kafkalog.append(appended, "t", pa.table({"value": ["a"]}))
    assert values(appended) == [b"a"]


def test_a_checkpoint_keeps_what_was_deleted_and_dropped(appended: str, tmp_path: Path) -> None:
    kafkalog.append(appended, "t", ROWS.slice(0, 10), options={"numPartitions": 2})
    topics.create([appended], "u", partitions=3)
    topics.delete([appended], "t")
    log = BucketLog.open(FolderObjects(tmp_path / "appended"))
    assert log is not None
    log.follow()
    again = parse_checkpoint(checkpoint_bytes(log.state), "name")
    assert again == log.state
    assert again.dropped == {f"commits/{1:020}": 3}
    assert [topic.name for topic in again.topics.values()] == ["u"]


# The command line, and what does not know such a log


def call(*words: str) -> tuple[int, str]:
    ran = CliRunner().invoke(app, words, input="x\n")
    return ran.exit_code, ran.output


def test_commands_show_and_change_the_log(appended: str) -> None:
    assert call("create", appended, "--topic", "t", "--config", "compression.type=lz4")[0] == 0
    rows = pa.table({"key": ["a", "b", "a"], "value": ["1", "2", "3"]})
    kafkalog.append(appended, "t", rows)
    assert call("append", appended, "--topic", "t")[0] == 0
    assert call("verify", appended) == (0, "1 partition, 1 segment, 2 batches, 187 B, 0 problems\n")
    for words, said in (
        (("topics", appended, "--json"), '"partitions": 1'),
        (("describe", appended, "--topic", "t"), "compression.type=lz4"),
        (("offsets", appended, "--json"), '"end": 4'),
        (("stats", appended, "--json"), '"records": 4'),
        (("dump", appended, "--topic", "t", "--json"), '"codec": "lz4"'),
        (("get", appended, "--topic", "t", "--key", "a", "--json"), '"value": "3"'),
        (("find", appended, "--topic", "t", "--regex", "x"), "x"),
        (("sql", appended, "select count(*) as n from t"), "4"),
        (("retain", appended, "--json"), "no retention.ms"),
        (("compact", appended, "--json"), "cleanup.policy was not given"),
        (("delete", appended, "--topic", "t", "--json"), '"partitions": 1'),
    ):
        code, output = call(*words)
        assert (code, said in output) == (0, True), output


@pytest.mark.parametrize(
    "words",
    [("recover",), ("groups", "--group", "g"), ("takeover",), ("salvage", "t-0")],
)
def test_commands_that_do_not_know_such_a_log_say_so(appended: str, words: tuple[str, ...]) -> None:
    kafkalog.append(appended, "t", pa.table({"value": ["1"]}))
    code, output = call(words[0], appended, *words[1:])
    assert code
    assert "Traceback" not in output


def test_a_batch_that_was_staged_before_a_sweep_is_refused(appended: str, tmp_path: Path) -> None:
    rows = pa.table({"value": ["a"]})
    kafkalog.append(appended, "t", rows, options={"storage.deleteDelay": "48h"})
    large = pa.table({"value": [bytes(1000) for _ in range(2000)]})

    def slow() -> Iterator[pa.RecordBatch]:
        yield from large.to_batches()
        log = BucketLog.open(FolderObjects(tmp_path / "appended"))
        assert log is not None
        change = BucketCommit(number=0, commit_id="", previous="", log_id="", swept=2)
        log.follow()
        log.commit(lambda _: Proposal(change, is_known_again=False))

    with pytest.raises(CommitError, match=r"no commit names: 48 hours \(storage.deleteDelay\)"):
        kafkalog.append(appended, "t", slow(), options={"compression.type": "none"})
    assert values(appended) == [b"a"]
    kafkalog.append(appended, "t", large, options={"compression.type": "none"})
    assert len(values(appended)) == 2001


def test_tasks_that_saw_other_numbers_of_partitions_are_refused_together(
    appended: str,
) -> None:
    place = appended
    kafkalog.append(place, "t", pa.table({"value": ["a"]}), options={"numPartitions": 2})
    identity, runs = BatchIdentity("query:q", 0, "run"), []
    for count, number in ((2, 1), (4, 3)):
        rows = pa.table({"value": ["b"], "partition": pa.array([number], pa.int32())})
        plan = WritePlan.of(WriteOptions.parse({"path": place, "topic": "t"}))
        runs += TaskWriter(plan, identity, number=0).write(rows.to_batches()).runs
        topics.alter([place], "t", partitions=4)
        assert runs[-1].partitions == count
    for some in (runs, runs[::-1]):
        with pytest.raises(CommitError, match="has 4 partitions, and rows were placed among 2"):
            commit_batch(plan.bucket, plan.commit_plan, identity, some)
    assert values(place) == [b"a"]


def test_a_batch_is_planned_for_the_partitions_that_another_process_has_added(
    appended: str,
) -> None:
    kafkalog.append(appended, "t", pa.table({"value": ["a"]}), options={"numPartitions": 2})
    known = remembered(bucket_store._OpenStores).by_root
    kept = dict(known)
    known.clear()  # the other process
    topics.alter([appended], "t", partitions=4)
    known.clear()
    known.update(kept)
    plan = WritePlan.of(WriteOptions.parse({"path": appended, "topic": "t"}), at_once=True)
    assert [topic.partitions for topic in plan.topics] == [4]


def test_attempts_of_a_task_that_were_late_or_twice_leave_each_row_once(
    appended: str,
) -> None:
    place, noise = appended, random.Random(1)
    kafkalog.append(place, "t", pa.table({"value": ["first"]}))
    given = {"path": place, "topic": "t", "compression.type": "none"}
    plan = WritePlan.of(WriteOptions.parse(given))
    identity = BatchIdentity("query:q", 0, "run")
    rows = pa.table({"value": [noise.randbytes(700_000) for _ in range(3)]}).to_batches()
    attempts = [TaskWriter(plan, identity, number=0) for _ in range(3)]
    for attempt in attempts:
        for batch in rows:
            attempt.add(batch)
    staged = [attempt.finish().runs for attempt in attempts[:2]]
    for number in range(12):  # others commit meanwhile, further than one look goes
        kafkalog.append(place, "t", pa.table({"value": [f"{number}"]}))
    done = commit_batch(plan.bucket, plan.commit_plan, identity, staged[1])
    assert done.appended
    staged.append(attempts[2].finish().runs)  # a speculative attempt that ends after the commit
    attempts[2].discard()
    again = commit_batch(plan.bucket, plan.commit_plan, identity, staged[2])
    assert not again.appended
    found = values(place)
    assert found[:13] == [b"first", *(b"%d" % number for number in range(12))]
    assert found[13:] == rows[0]["value"].to_pylist()


def test_writers_that_are_silent_for_long_are_forgotten(
    appended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, now = pa.table({"value": ["a"]}), time.time_ns()
    asked = {"transactional.id.expiration.ms": "20d"}
    kafkalog.append(appended, "t", rows, transactional_id="w", version=5, options=asked)
    for days, is_known in ((19, True), (21, True), (41, True), (42, False)):
        at = now + days * 86_400_000_000_000
        monkeypatch.setattr(system, "time_ns", lambda at=at: at)
        retention.retain([appended])
        with BucketRoot.of(RemoteRoot.parse(appended)).writing() as log:
            (topic,) = log.state.topics.values()
        assert bool(topic.versions) is is_known, days
    assert kafkalog.append(appended, "t", rows, transactional_id="w", version=5).appended


class _Unwalked(list[RemoteEntry]):
    """A folder's entries that nobody may go through one by one."""

    def __iter__(self) -> Iterator[RemoteEntry]:
        raise AssertionError("the folder was gone through")


def test_a_commit_shows_its_own_partitions_anew_and_no_other(
    objects: FolderObjects, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_store, "open_objects", lambda _: objects)
    place = RemoteRoot.parse("s3a://bucket/shown").with_options({"poll_interval_ms": -1})
    store = BucketRoot.of(place).open_store()
    before = {key: (store.root / f"t-{key}").entries() for key in range(2)}
    shown, files_of = [], bucket_files._partition_files
    monkeypatch.setattr(
        bucket_files, "_partition_files", lambda *given: shown.append(given[2]) or files_of(*given)
    )
    log = BucketLog.create(objects)
    log.follow()
    commit(log, {1: staged_batches(local / "t-1")[0]}, inline=False)
    after = {key: (store.root / f"t-{key}").entries() for key in range(2)}
    assert shown == [(TOPIC_ID, 1)]
    assert after[0] == before[0]
    assert after[1] != before[1]
    log_file = store.root / "t-1" / f"{0:020}.log"
    stamp = log_file.stamp()
    for folder, entries in store._shown.folders.items():
        store._shown.folders[folder] = _Unwalked(entries)
    monkeypatch.setattr(store, "_look_if_due", lambda: None)
    assert log_file.stamp() == stamp
    assert stamp is not None


def test_a_topic_of_several_partitions_is_appended_to_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = FolderObjects(tmp_path / "again")
    monkeypatch.setattr(bucket_store, "open_objects", lambda _: objects)
    place = f"s3a://bucket{tmp_path}/again"
    for topic in ("t", "u", "t", "t"):
        kafkalog.append(place, topic, ROWS, options={"numPartitions": 2})
    assert kafkalog.read(place, "t").read_all().num_rows == 3 * ROWS.num_rows


def carried(*extents: tuple[int, int, int]) -> bucket_store._Carried:
    """Return what a task gets: extents by their start, size and base offset."""
    found = [Extent(f"commits/{base}", 0, size, base, 1, 0, 0) for _, size, base in extents]
    starts = [start for start, _, _ in extents]
    size = starts[-1] + found[-1].size
    return bucket_store._Carried(7, size, starts, found, "id", b"", 1.0)


def test_extents_of_a_newer_split_displace_those_that_overlap_them() -> None:
    before = carried((0, 10, 0), (10, 10, 1), (20, 10, 2), (40, 10, 4))
    both = before.with_extents(carried((15, 10, 11), (25, 15, 12)))
    assert both.starts == [0, 15, 25, 40]
    assert [each.base_offset for each in both.extents] == [0, 11, 12, 4]
    again = both.with_extents(carried((0, 10, 20)))
    assert [each.base_offset for each in again.extents] == [20, 11, 12, 4]


def test_a_process_keeps_few_extents_of_all_the_splits_that_it_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_store, "_MOST_CARRIED", 20)
    store = BucketStore(RemoteRoot.parse("s3://bucket/a"), FolderObjects(tmp_path))
    for number in range(100):
        split = carried((number, 1, number), (number + 1, 1, number + 1))
        store.carry(f"log/t-{number % 30}/0.log", split)
        assert sum(len(each.starts) for each in store._carried.values()) <= 22
        assert len(store._carried_metadata) <= 11
        assert store._carried[f"log/t-{number % 30}/0.log"].starts[-2:] == [number, number + 1]
