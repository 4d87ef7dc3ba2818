"""A log on an S3 server, as the library reads and writes it."""

from __future__ import annotations

import json
import os
import pickle
import random
import shlex
import subprocess
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest
from tests.support.distributions import ROOT
from tests.support.interrupting import AlarmError, raising
from tests.support.object_store import ObjectStore, Request, object_store
from typer.testing import CliRunner

import kafkalog
from kafkalog.checkpoints.query_checkpoint import QueryCheckpoint, _QueriesInStores
from kafkalog.errors import OptionError
from kafkalog.files import objects, open_file
from kafkalog.files.objects import open_objects
from kafkalog.files.open_file import _KnownFiles
from kafkalog.files.storage import RemoteRoot
from kafkalog.files.system import remembered, system
from kafkalog.jobs.cli.app import app
from kafkalog.streaming.admin.backup import back_up
from kafkalog.streaming.commit.bucket_commit import commit_batch
from kafkalog.streaming.objects import bucket_store
from kafkalog.streaming.objects.bucket_store import BucketRoot, BucketStore
from kafkalog.streaming.objects.merging import merge
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.sink.task_writer import TaskWriter
from kafkalog.streaming.sink.write_options import WriteOptions, WritePlan
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import ReadRows
from kafkalog.streaming.source.stream_control import StreamControl
from kafkalog.streaming.store.identity import BatchIdentity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


LARGE = {"max.message.bytes": str(4 << 20)}


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as store:
        store.make_bucket()
        yield store


def test_the_library_appends_reads_and_tails(server: ObjectStore) -> None:
    server.reset()
    place, options = server.uri("library"), server.options
    first = pa.table({"key": ["a"], "value": ["1"]})
    outcome = kafkalog.append(place, "t", first, options=options)
    assert outcome.appended
    tail = kafkalog.tail(place, "t", options={**options, "startingOffsets": "earliest"})
    assert next(tail)["value"].to_pylist() == [b"1"]
    kafkalog.append(place, "t", pa.table({"key": ["a"], "value": ["2"]}), options=options)
    assert next(tail)["value"].to_pylist() == [b"2"]
    table = kafkalog.read(place, "t", options=options).read_all()
    assert table["value"].to_pylist() == [b"1", b"2"]
    assert table["offset"].to_pylist() == [0, 1]


def test_a_read_sees_what_was_appended_before_it(
    server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.reset()
    place, options = server.uri("fresh"), server.options
    monkeypatch.setattr(system, "monotonic", lambda: 1.0)
    for count in (1, 2):
        kafkalog.append(place, "t", pa.table({"value": ["1"]}), options=options)
        assert kafkalog.read(place, "t", options=options).read_all().num_rows == count


def methods(server: ObjectStore) -> Counter[str]:
    """Count the requests since the last reset, listings apart."""
    return Counter("LIST" if "list-type" in r.path else r.method for r in server.requests)


def test_a_small_append_is_one_put(server: ObjectStore) -> None:
    server.reset()
    place, options = server.uri("counted"), server.options
    rows = pa.table({"value": ["1"]})
    kafkalog.append(place, "t", rows, options=options)
    for _ in range(2):
        server.requests.clear()
        kafkalog.append(place, "t", rows, options=options)
        assert methods(server) == {"PUT": 1}
    server.requests.clear()
    kafkalog.append(place, "t", pa.table({"value": [os.urandom(1 << 21)]}), options=LARGE | options)
    assert methods(server) == {"PUT": 2}


def test_a_batch_of_several_tasks_is_a_put_a_task_and_one_more(server: ObjectStore) -> None:
    server.reset()
    place, options = server.uri("tasks"), server.options | LARGE
    kafkalog.append(place, "t", pa.table({"value": ["1"]}), options={**options, "numPartitions": 4})
    given = {"path": place, "topic": "t", "compression.type": "none", **options}
    plan, identity = WritePlan.of(WriteOptions.parse(given)), BatchIdentity("query:q", 0, "run")
    assert plan.bucket is not None
    server.requests.clear()
    runs = []
    for number, values in enumerate((8, 2, 2)):  # the first one has more than a part of 5 MiB
        partitions = pa.array([each % 4 for each in range(values)], pa.int32())
        rows = pa.table({"value": [os.urandom(1 << 20)] * values, "partition": partitions})
        runs += TaskWriter(plan, identity, number=number).write(rows.to_batches()).runs
    assert len(runs) == 4 + 2 + 2
    assert commit_batch(plan.bucket, plan.commit_plan, identity, runs).appended
    assert methods(server)["PUT"] == 3 + 1
    assert not methods(server)["POST"]
    assert kafkalog.read(place, "t", options=server.options).read_all().num_rows == 13


def test_whoever_interrupts_a_call_to_a_store_that_fails_waits_for_no_further_try(
    server: ObjectStore,
) -> None:
    server.reset()
    place, rows = server.uri("interrupted"), pa.table({"value": ["1"]})
    options = {**server.options, "storage.tries": "4", "storage.pollInterval": "10ms"}
    kafkalog.append(place, "t", rows, options=options)
    reading = {**options, "startingOffsets": "earliest"}
    tail = kafkalog.tail(place, "t", options=reading)
    assert next(tail).num_rows == 1
    failed: list[Request] = []
    with raising() as interrupt:

        def interrupted(call: Callable[[], object], at: str) -> str:
            def fail(request: Request) -> str | None:
                if not failed and not (request.method == at[:3] and at[3:] in request.path):
                    return None
                failed.append(request)
                if len(failed) == 1:
                    interrupt()
                return "500"  # and the store has done it

            failed.clear()
            server.fault = fail
            with pytest.raises(AlarmError) as caught:
                call()
            server.reset()
            return " ".join(getattr(caught.value, "__notes__", ()))

        interrupted(lambda: next(tail), "GET/commits/")
        assert len(failed) == 1
        interrupted(lambda: kafkalog.read(place, "t", options=options).read_all(), "GET/commits/")
        assert len(failed) == 1
        said = interrupted(
            lambda: kafkalog.append(place, "t", rows, options=options), "PUT/commits/"
        )
        assert "is not known whether" in said
        assert len(failed) == 2  # one that was sent is read back
        member = kafkalog.Consumer(place, "g", "t", options=reading)
        assert len(member.poll(60) or ()) == 2
        assert "is not known whether" in interrupted(member.commit, "PUT/commits/")
        member.commit()
        interrupted(member.close, "GETgroups")
        member.close()
    assert next(tail).num_rows == 1
    reading["startingOffsets"] = "group:g"
    assert kafkalog.read(place, "t", options=reading).read_all().num_rows == 0


def test_an_idle_tail_asks_for_the_next_commit_alone(
    server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.reset()
    place, options = server.uri("idle"), server.options
    kafkalog.append(place, "t", pa.table({"value": ["1"]}), options=options)
    now = 1.0
    own = threading.local()  # numbers of threads are used again, and tell nothing
    own.is_own = True
    start = system.start_thread

    def started(function: Callable[..., object], args: tuple[object, ...] = ()) -> int:
        def run(*given: object) -> None:
            own.is_own = True
            function(*given)

        return start(run if hasattr(own, "is_own") else function, args)

    def clock(seconds: float = 1 / 64) -> float:
        """Whoever asks for the time has taken some; threads of other tests keep theirs."""
        nonlocal now
        now += seconds
        return now

    monkeypatch.setattr(system, "start_thread", started)
    for name in ("monotonic", "sleep"):
        real = getattr(system, name)
        monkeypatch.setattr(
            system,
            name,
            lambda *a, real=real: clock(*a) if hasattr(own, "is_own") else real(*a),
        )
    given = {**options, "startingOffsets": "earliest"}
    tail = kafkalog.tail(place, "t", idle_timeout=60, options=given)
    assert next(tail).num_rows == 1
    server.requests.clear()
    assert list(tail) == []
    assert methods(server).keys() == {"GET"}
    assert 20 <= len(server.requests) <= 61  # fewer where more threads ask for the time
    assert len({request.name for request in server.requests}) == 1


@pytest.mark.parametrize("option", [{"message.format": "v1"}, {"flush": "os"}])
def test_what_a_log_in_a_store_has_not_is_refused(
    server: ObjectStore, option: dict[str, str]
) -> None:
    rows = pa.table({"value": ["1"]})
    with pytest.raises(OptionError, match="a log in an object store takes"):
        kafkalog.append(server.uri("refused"), "t", rows, options={**server.options, **option})


def test_a_log_lies_in_one_place(server: ObjectStore) -> None:
    both = f"{server.uri('one')},{server.uri('two')}"
    with pytest.raises(OptionError, match="lies in one: give its URI alone"):
        kafkalog.append(both, "t", pa.table({"value": ["1"]}), options=server.options)


def test_a_key_is_looked_up(server: ObjectStore) -> None:
    server.reset()
    place, options = server.uri("keys"), server.options
    rows = pa.table({"key": ["a", "b", "a"], "value": ["1", "2", "3"]})
    kafkalog.append(place, "t", rows, options={**options, "numPartitions": 3})
    found = kafkalog.get(place, "t", "a", options=options)
    assert found is not None
    assert found["value"] == b"3"
    scanned = pa.Table.from_batches(kafkalog.scan(place, "t", options=options))
    assert scanned["value"].to_pylist() == [b"3", b"2"]


def test_a_planned_read_asks_elsewhere_for_nothing_but_data(server: ObjectStore) -> None:
    server.reset()
    place, options = server.uri("planned"), server.options
    for number in range(5):
        kafkalog.append(place, "t", pa.table({"value": [f"{number}"]}), options=options)
    parsed = ReadOptions.parse({"path": place, "subscribe": "t", **options})
    planned = pickle.dumps((plan_batch(parsed), parsed))
    remembered(bucket_store._OpenStores).by_root.clear()
    remembered(open_file._KnownFiles).clear()
    server.requests.clear()
    splits, parsed = pickle.loads(planned)
    rows = ReadRows.of(parsed, (), ())
    read = [each for split in splits for each in read_split(split, parsed, rows.of_records)]
    assert pa.Table.from_batches(read)["value"].to_pylist() == [b"%d" % n for n in range(5)]
    assert [request.name[-2:] for request in server.requests] == ["01", "02", "03", "04", "05"]
    assert all(request.start > 0 for request in server.requests)


def test_partitions_of_one_object_are_fetched_together(server: ObjectStore) -> None:
    server.reset()
    place, options = server.uri("together"), server.options
    for _ in range(3):
        rows = pa.table({"value": ["1"] * 40, "partition": pa.array([*range(40)], pa.int32())})
        kafkalog.append(place, "t", rows, options={**options, "numPartitions": 40})
    server.requests.clear()
    assert kafkalog.read(place, "t", options=options).read_all().num_rows == 120
    assert len([request for request in server.requests if request.start > 0]) == 3
    server.requests.clear()
    one = {**options, "assign": '{"t":[7]}'}
    assert kafkalog.read(place, options=one).read_all().num_rows == 3
    assert not [request for request in server.requests if request.start > 0]  # kept


def test_a_merged_log_is_read_from_its_segments(
    server: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.reset()
    monkeypatch.setattr(objects, "_ONE_REQUEST_BYTES", 5 << 20)  # what S3 takes for a part at least
    place, options = server.uri("merged"), server.options
    given = {**options, "segment.bytes": str(6 << 20), "compression.type": "none"}
    for number in range(9):
        rows = pa.table({"value": [bytes([number]) * 1000] * 900})
        kafkalog.append(place, "t", rows, options=given)
    root = BucketRoot.of(server.place("merged"))
    expected = kafkalog.read(place, "t", options=options).read_all()
    done = merge(root)
    assert (done.segments, done.problems) == (1, [])
    puts = [request for request in server.requests if request.method == "PUT"]
    assert any("partNumber=2" in request.path for request in puts)
    remembered(_KnownFiles).clear()
    server.requests.clear()
    assert kafkalog.read(place, "t", options=options).read_all() == expected
    assert sum("/logs/" in request.path for request in server.requests) >= 2
    back_up([root], str(tmp_path / "copy"))  # type: ignore[list-item]
    read = kafkalog.read(tmp_path / "copy", "t").read_all()
    assert read["value"] == expected["value"]


def reader_of(server: ObjectStore, place: str) -> tuple[StreamControl, BucketStore]:
    """Return what knows the offsets of a query, and the log, which looks when it is told to."""
    given = {**server.options, "storage.pollInterval": "1h", "startingOffsets": "earliest"}
    parsed = ReadOptions.parse({"path": place, "subscribe": "t", **given})
    (root,) = parsed.paths
    assert isinstance(root, RemoteRoot)
    return StreamControl(parsed), BucketRoot.of(root).open_store()


def test_where_a_thousand_partitions_end_is_asked_by_one_request(server: ObjectStore) -> None:
    server.reset()
    place, options = server.uri("thousand"), {**server.options, "numPartitions": 1000}
    rows = pa.table({"value": ["1"] * 50, "partition": pa.array([*range(50)], pa.int32())})
    kafkalog.append(place, "t", rows, options=options)
    query, store = reader_of(server, place)
    end = query.next_end(query.initial(), take_all=True)
    for is_new in (False, True, False):
        if is_new:
            kafkalog.append(place, "t", rows, options=options)
        server.requests.clear()
        store.forget_listing()
        start, end = end, query.next_end(end, take_all=True)
        assert sum(end.values()) - sum(start.values()) == (50 if is_new else 0)
        # the commit that is new, and the number that is free
        assert methods(server) == {"GET": 2 if is_new else 1}
        assert not [request for request in server.requests if request.start > 0]


def test_an_hour_of_a_year_of_one_partition_fetches_less_than_twice_its_bytes(
    server: ObjectStore,
) -> None:
    server.reset()
    place, chance, hour_ms = server.uri("year"), random.Random(1), 3_600_000
    options = {**server.options, "numPartitions": 2, "max.message.bytes": 16384}
    for number in range(12):  # an hour of each month
        first = 1_700_000_000_000 + number * 730 * hour_ms
        rows = pa.table(
            {
                "value": [chance.randbytes(2000) for _ in range(400)],
                "partition": pa.array([n % 2 for n in range(400)], pa.int32()),
                "timestamp": pa.array([first + n * 9000 for n in range(400)], pa.int64()),
            }
        )
        kafkalog.append(place, "t", rows, options={**options, "compression.type": "none"})
    done = merge(BucketRoot.of(server.place("year")))
    assert done.segments
    for number in (1, 5):
        first = 1_700_000_000_000 + number * 730 * hour_ms
        asked = {
            "assign": '{"t":[0]}',
            "startingTimestamp": first,
            "endingTimestamp": first + hour_ms,
        }
        server.requests.clear()
        found = kafkalog.read(place, options={**server.options, **asked}).read_all()
        assert found.num_rows == 200
        returned = sum(map(len, found["value"].to_pylist()))
        assert server.fetched() < 2 * returned


FORKS = """
import json, os, sys
import pyarrow as pa
import kafkalog

place, options = sys.argv[1], json.loads(sys.argv[2])
rows = pa.table({"value": ["1"]})
kafkalog.append(place, "t", rows, options=options)
tail = kafkalog.tail(place, "t", options={**options, "startingOffsets": "earliest"})
assert next(tail).num_rows == 1
child = os.fork()
if not child:
    kafkalog.append(place, "t", rows, options=options)
    assert next(tail).num_rows == 1
    kafkalog.append(place + "-2", "t", rows, options=options)
    assert kafkalog.read(place + "-2", "t", options=options).read_all().num_rows == 1
    os._exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7
kafkalog.append(place, "t", rows, options=options)
missing = 2
while missing > 0:
    missing -= next(tail).num_rows
assert missing == 0
"""


def test_a_process_that_forks_with_an_open_tail_goes_on_and_its_child_too(
    server: ObjectStore,
) -> None:
    server.reset()
    words = [server.uri("forks"), json.dumps(server.options)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_micro_batch_asks_for_nothing_but_its_data_and_the_number(server: ObjectStore) -> None:
    server.reset()
    place, options = server.uri("micro"), {**server.options, "numPartitions": 8}
    rows = pa.table({"value": ["1"] * 80, "partition": pa.array([*range(8)] * 10, pa.int32())})
    kafkalog.append(place, "t", rows, options=options)
    query, store = reader_of(server, place)
    end = query.initial()
    read = ReadRows.of(query._options, (), ())
    for _ in range(3):
        server.requests.clear()
        store.forget_listing()
        start, end = end, query.next_end(end, take_all=True)
        splits = query.plan(start, end)
        assert {r.path.split("/")[-2] for r in server.requests} <= {"commits"}
        assert not [request for request in server.requests if request.start > 0]
        known = remembered(bucket_store._OpenStores).by_root
        kept = dict(known)
        for split in splits:  # a task each, in a process of its own
            known.clear()
            remembered(open_file._KnownFiles).clear()
            server.requests.clear()
            task, given = pickle.loads(pickle.dumps((split, query._options)))
            assert sum(b.num_rows for b in read_split(task, given, read.of_records)) == 10
            assert [request.start > 0 for request in server.requests] == [True]
        known.clear()
        known.update(kept)
        assert len(splits) == 8
        kafkalog.append(place, "t", rows, options=options)


@pytest.mark.parametrize("named", [True, False])
def test_a_task_that_writes_asks_for_nothing(server: ObjectStore, *, named: bool) -> None:
    server.reset()
    place, options = server.uri(f"tasks-{named}"), {**server.options, "numPartitions": "3"}
    for topic in ("t", "u"):
        kafkalog.append(place, topic, pa.table({"value": ["1"]}), options=options)
    given = {"topic": "t"} if named else {}
    plan = WritePlan.of(WriteOptions.parse({"path": place, **options, **given}))
    sent = pickle.dumps(plan)
    known = remembered(bucket_store._OpenStores).by_root
    kept = dict(known)
    for size, asked in ((10, {}), (700_000, {"PUT": 1})):
        known.clear()  # a task each, in a process of its own
        rows = {"value": [random.Random(n).randbytes(size) for n in range(3)]}
        batch = pa.RecordBatch.from_pydict(rows if named else {**rows, "topic": ["t", "u", "t"]})
        server.requests.clear()
        task = TaskWriter(pickle.loads(sent), BatchIdentity("query:q", 0, "run"), number=0)
        runs = task.write([batch]).runs
        assert methods(server) == asked
        assert {run.partitions for run in runs} == {3}
        assert None not in {run.topic_key for run in runs}
    known.clear()
    known.update(kept)
    assert plan.bucket is not None
    assert commit_batch(plan.bucket, plan.commit_plan, task._identity, runs).appended


FORMULA = "0.43·c + 0.035·r·(1 + 2·c) + 0.035·c + 0.01"
"""Of docs/buckets.md: dollars a day. ``c`` commits a second, ``r`` processes that tail."""


def test_requests_are_as_many_as_the_cost_page_says(server: ObjectStore) -> None:
    assert FORMULA in (ROOT / "docs" / "buckets.md").read_text()
    server.reset()
    place, seconds, readers = server.uri("cost"), 8, 2
    rows = pa.table({"value": ["1"] * 20, "partition": pa.array([*range(4)] * 5, pa.int32())})
    options = {**server.options, "numPartitions": 4}
    kafkalog.append(place, "t", rows, options=options)
    queries = []
    for number in range(readers):  # in processes of their own: they share nothing
        given = {**server.options, "storage.pollInterval": f"{number + 1}h"}
        parsed = ReadOptions.parse({"path": place, "subscribe": "t", **given})
        store = BucketRoot.of(parsed.paths[0]).open_store()  # type: ignore[arg-type]
        query = StreamControl(parsed)
        queries.append([query, store, query.next_end(query.initial(), take_all=True)])
    wanted = ReadRows.of(queries[0][0]._options, (), ()).of_records
    server.requests.clear()
    read = 0
    for second in range(seconds):
        if second % 2:
            kafkalog.append(place, "t", rows, options=options)
        for each in queries:
            query, store, start = each
            store.forget_listing()
            each[2] = query.next_end(start, take_all=True)
            splits = query.plan(start, each[2])
            for split in splits:
                split.announce()
            for split in splits:
                read += sum(b.num_rows for b in read_split(split, query._options, wanted))
    commits = seconds // 2
    assert read == readers * commits * 20
    counted = methods(server)
    assert counted["PUT"] == commits
    assert counted["GET"] == readers * (seconds + 2 * commits)
    assert counted.total() == counted["PUT"] + counted["GET"]
    day = 86_400 / seconds
    cost = day * (counted["PUT"] * 5 + counted["GET"] * 0.4) / 1e6
    c, r = commits / seconds, readers
    assert cost == pytest.approx(0.43 * c + 0.035 * r * (1 + 2 * c), rel=0.02)


COMMANDS: Final = (
    "topic create {log} -t made",
    "topic list {log}",
    "topic describe {log}",
    "topic offsets {log}",
    "topic stats {log} -t t",
    "consume {log} -t t",
    "dump {log} -t t",
    "find {log} --text 1",
    "get {log} -t t --key a",
    "sql {log} 'select count(*) from t'",
    "verify {log}",
    "report {log}",
    "plot {log} -t t --png {folder}/plot.png",
    "group list {log}",
    """lag {log} --offsets '{{"t":{{"0":0}}}}'""",
    "topic alter {log} -t t --config retention.ms=7d",
    "topic trim {log} -t t -p 0 -o 1 --yes",
    "retain {log} --dry-run",
    "compact {log} --dry-run",
    "backup {log} {folder}/backup",
    "topic delete {log} -t made --yes",
)


def test_each_command_reaches_the_store_as_it_was_told(
    server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server.reset()
    place, options = server.uri("commanded"), server.options
    kafkalog.append(place, "t", pa.table({"key": ["a"], "value": ["1"]}), options=options)
    told = [word for pair in options.items() for word in ("--set", "=".join(pair))]
    for command in COMMANDS:
        remembered(bucket_store._OpenStores).by_root.clear()
        words = shlex.split(command.format(log=place, folder=tmp_path))
        done = CliRunner().invoke(app, [*words, *told])
        assert done.exit_code == 0, (command, done.output, done.exception)
    lines = ["produce", place, "-t", "t", "--transactional-id", "a", "--commit-lines", "2", *told]
    for sent, appended in (("1\n2\n3\n", 3), ("1\n2\n3\n4\n", 1)):
        done = CliRunner().invoke(app, [*lines, "--json"], input=sent)
        assert json.loads(done.stdout)["records"] == appended
    refused = CliRunner().invoke(app, ["topic", "list", place, "--set", "readUpTo=logEnd"])
    assert refused.exit_code == 2
    assert "takes storage.… alone" in " ".join(refused.output.split())


def test_a_querys_checkpoint_in_a_store_is_read_by_a_request_a_batch(server: ObjectStore) -> None:
    server.reset()
    location, options = server.uri("checkpoint"), server.options
    storage = WriteOptions.parse({**options, "path": "/logs"}).storage
    objects = open_objects(RemoteRoot.parse(location).with_options(storage))
    assert QueryCheckpoint.at(location, storage) is None
    remembered(_QueriesInStores).clear()
    objects.put("metadata", b'{"id":"4711"}')
    for batch in (0, 1):
        objects.put(f"offsets/{batch}", b'v1\n{}\n{"t":{"0":%d}}' % batch)
        server.requests.clear()
        assert QueryCheckpoint.at(location, storage) is not None
        found = QueryCheckpoint.of_query(location, "4711", storage)
        assert found is not None
        assert found.digest(batch) is not None
        asked = [request.path.rpartition("checkpoint/")[2] for request in server.requests]
        assert asked == [*["metadata"] * (batch == 0), f"offsets/{batch}"]
        assert found.ends(batch) == {("t", 0): batch}
    assert found.digest(2) is None
    assert not found.has_state
    objects.put("state/0/0/1.delta", b"")
    assert found.has_state
    assert QueryCheckpoint.of_query(location, "42", storage) is None
    objects.put("metadata", b'{"id":"42"}')
    assert QueryCheckpoint.of_query(location, "42", storage) is not None
    server.reset()
    elsewhere = server.uri("not-to-be-read")
    server.fault = lambda _: "403"
    assert [QueryCheckpoint.at(elsewhere, storage) for _ in range(3)] == [None] * 3
    assert len(server.requests) == 1


def test_a_querys_checkpoint_that_could_not_be_read_is_looked_for_again(
    server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once with other keys, and after minutes with the same: its store may have been away."""
    server.reset()
    location = server.uri("checkpoint-that-was-away")
    storage = WriteOptions.parse({**server.options, "path": "/logs"}).storage
    objects = open_objects(RemoteRoot.parse(location).with_options(storage))
    objects.put("metadata", b'{"id":"4711"}')
    server.fault = lambda _: "403"
    assert QueryCheckpoint.at(location, storage) is None
    server.reset()
    assert QueryCheckpoint.at(location, storage) is None
    assert QueryCheckpoint.at(location, {**storage, "tries": 4}) is not None
    clock = system.monotonic
    monkeypatch.setattr(system, "monotonic", lambda: clock() + 301)
    assert QueryCheckpoint.at(location, storage) is not None


def test_a_look_for_a_querys_checkpoint_that_is_interrupted_is_made_again(
    server: ObjectStore,
) -> None:
    server.reset()
    location = server.uri("interrupted-checkpoint")
    given = {**server.options, "storage.timeout": "1s", "path": "/logs"}
    storage = WriteOptions.parse(given).storage
    objects = open_objects(RemoteRoot.parse(location).with_options(storage))
    objects.put("metadata", b'{"id":"4711"}')
    with raising() as interrupt:
        server.fault = lambda _: interrupt()
        with pytest.raises(AlarmError):
            QueryCheckpoint.at(location, storage)
    server.reset()
    assert QueryCheckpoint.at(location, storage) is not None
