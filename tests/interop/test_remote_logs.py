"""Log directories in an object store: what is read, by how many requests, and what failure says."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import tarfile
import time
import zipfile
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import GreaterThanOrEqual, LessThan
from tests.support import sinking
from tests.support.corpus import CAPTURED_LIVE, CASES, UnpackedCase
from tests.support.indexed_logs import write_indexed_segment
from tests.support.logs import Row, write_checkpoint
from tests.support.object_store import ObjectStore, Request, object_store
from tests.support.reading import read_batch, read_stream

from kafkalog.checkpoints.broker import HIGH_WATERMARK, new_topic_id, write_topic_id
from kafkalog.errors import DataLossError, LogDirectoryError, OptionError
from kafkalog.files.open_file import open_remote
from kafkalog.files.paths import as_path
from kafkalog.files.remote_store import open_store
from kafkalog.files.storage import RemoteRoot
from kafkalog.model import TopicPartition
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import RowSchema, source_schema
from kafkalog.streaming.source.stream_control import StreamControl
from kafkalog.streaming.spark.datasource import KafkaLogDataSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hypothesis.strategies import DataObject

pytestmark = pytest.mark.interop

SECRET = "a-well-kept-secret"


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as started:
        yield started


@pytest.fixture
def store(server: ObjectStore) -> ObjectStore:
    server.reset()
    return server


# What is read


@pytest.mark.parametrize("name", CASES)
def test_the_corpus_reads_back_as_real_clients_read_it(
    store: ObjectStore, tmp_path: Path, name: str
) -> None:
    case = UnpackedCase(name, tmp_path)
    uris = []
    for folder in map(Path, case.path.split(",")):
        shorten_preallocated(folder)
        prefix = f"{name}/{folder.name}"
        store.upload(folder, prefix)
        uris.append(store.uri(prefix))
    options = {
        "path": ",".join(uris),
        "subscribe": case.topics,
        "includeHeaders": "true",
        "splitBytes": "128k",
        "readUpTo": "logEnd" if name in CAPTURED_LIVE else "highWatermark",
        **store.options,
    }
    assert case.differences(read_batch(**options)) == []
    committed = {"kafka.isolation.level": "read_committed"}
    rows = read_stream(1000, **options | committed)
    assert case.differences(rows, isolation="read_committed") == []


def shorten_preallocated(folder: Path) -> None:
    """Leave 64 KiB of the 10 MiB that a living broker's index has: the rest is zeros as well."""
    for path in [*folder.rglob("*.index"), *folder.rglob("*.timeindex")]:
        if path.stat().st_size > 1 << 16:
            os.truncate(path, 1 << 16)


def large_log(folder: Path) -> Path:
    """Write one segment of 24 MiB in batches of 16 KiB, and what a broker says of its end."""
    rng = np.random.default_rng(7)
    batches = [([Row(rng.bytes(16_000), timestamp=1000 + n)], 0) for n in range(1536)]
    write_indexed_segment(folder / "big-0", 0, batches)
    write_checkpoint(folder, "replication-offset-checkpoint", {"big-0": 1536})
    return folder


@pytest.fixture(scope="module")
def big(server: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> str:
    server.upload(large_log(tmp_path_factory.mktemp("big")), "big")
    return server.uri("big")


_AN_HOUR = itertools.count(3_600_000)


def of_big(big: str, store: ObjectStore, **more: str) -> dict[str, str]:
    """Give options that no test before had, so that nothing is known of the store yet."""
    kept = {"storage.listInterval": str(next(_AN_HOUR))}
    return {"path": big, "subscribe": "big", **store.options, **kept, **more}


# By how many requests


def test_a_seek_fetches_the_index_and_then_what_lies_around_the_offset(
    store: ObjectStore, big: str
) -> None:
    given = {"startingOffsets": '{"big":{"0":700}}', "endingOffsets": '{"big":{"0":703}}'}
    rows = read_batch(**of_big(big, store, **given))
    assert [row["offset"] for row in rows] == [700, 701, 702]
    names = [r.name.rpartition(".")[2] for r in store.requests if r.start >= 0]
    assert names.index("index") < names.index("log")
    # the end of the log is looked at as well, which the last index entry leads to
    assert store.fetched(".log") < 400_000
    assert store.fetched(".timeindex") == 0
    assert len([r for r in store.requests if r.name.endswith(".log")]) <= 12


def test_a_timestamp_is_found_by_the_indexes(store: ObjectStore, big: str) -> None:
    given = {"startingTimestamp": "1700", "endingTimestamp": "1703"}
    rows = read_batch(**of_big(big, store, **given))
    assert [row["timestamp"] for row in rows] == [1700, 1701, 1702]
    assert store.fetched(".log") < 800_000


def test_filters_leave_out_what_the_time_index_rules_out(store: ObjectStore, big: str) -> None:
    options = of_big(big, store, filterPushdown="true", maxTimestampDisorder="0")
    reader = KafkaLogDataSource(options).reader(source_schema(include_headers=False))
    since = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    wanted = [since + timedelta(milliseconds=n) for n in (700, 702)]
    filters = [GreaterThanOrEqual(("timestamp",), wanted[0]), LessThan(("timestamp",), wanted[1])]
    assert list(reader.pushFilters(list(filters))) == filters
    rows = [
        row["offset"]
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]
    assert {700, 701} <= set(rows) <= set(range(690, 710))
    assert store.fetched(".log") < 600_000


def test_one_partition_s_folder_is_read_alone(store: ObjectStore, big: str) -> None:
    given = {"startingOffsets": '{"big":{"0":1530}}'}
    rows = read_batch(**of_big(f"{big}/big-0", store, **given))
    assert [row["offset"] for row in rows] == list(range(1530, 1536))
    # what the folder around it says of its end was asked for
    assert any(r.name == "replication-offset-checkpoint" for r in store.requests)


def test_a_scan_makes_few_requests_and_fetches_nothing_twice(store: ObjectStore, big: str) -> None:
    assert len(read_batch(**of_big(big, store))) == 1536
    gets = [r for r in store.requests if r.start >= 0 and r.name.endswith(".log")]
    assert store.fetched(".log") < 1.05 * 1536 * 16_100
    assert len(gets) < 20
    assert max(r.body_bytes for r in gets) <= 4 << 20


def test_the_next_piece_is_asked_for_before_the_reader_needs_it(
    store: ObjectStore, big: str
) -> None:
    root = ReadOptions.parse(of_big(big, store)).paths[0]
    with_size = open_remote(as_path(root) / "big-0" / f"{0:020d}.log")
    with_size.will_read(0, with_size.size)
    first = with_size.read(0, 1 << 20)
    # nothing more is read, and the request for what follows arrives all the same
    wait_for(lambda: len([r for r in store.requests if r.start >= 1 << 20]) == 1)
    assert len(first) == 1 << 20
    with_size.close()


def wait_for(happened: Callable[[], bool]) -> None:
    for _ in range(3000):
        if happened():
            return
        time.sleep(0.01)
    raise AssertionError


def test_an_idle_query_lists_as_often_as_it_is_told_to(store: ObjectStore, big: str) -> None:
    often = ReadOptions.parse(of_big(big, store) | {"storage.listInterval": "0"})
    seldom = ReadOptions.parse(of_big(big, store) | {"storage.listInterval": "1h"})
    for options, expected in ((seldom, 0), (often, 1)):
        tail = EndOffsets(options.paths, lambda _: True)
        ends = tail.look().offsets
        assert ends == {TopicPartition("big", 0): 1536}
        store.requests.clear()
        assert tail.look().offsets == ends
        listings = [r for r in store.requests if "list-type" in r.path]
        assert (len(listings) > 0) == (expected > 0)
        assert len(listings) == len(store.requests)


def test_what_is_uploaded_later_is_found(store: ObjectStore, tmp_path: Path) -> None:
    end = write_indexed_segment(tmp_path / "t-0", 0, [([Row(b"1")], 0)] * 3)
    store.upload(tmp_path, "grows")
    options = ReadOptions.parse(
        {"path": store.uri("grows"), "subscribe": "t", "storage.listInterval": "0"} | store.options
    )
    tail = EndOffsets(options.paths, lambda _: True)
    assert tail.look().offsets == {TopicPartition("t", 0): 3}
    # the active segment as a later copy of it has it, and one more
    write_indexed_segment(tmp_path / "t-0", 0, [([Row(b"1")], 0)] * 5)
    write_indexed_segment(tmp_path / "t-0", end + 2, [([Row(b"2")], 0)] * 2)
    store.upload(tmp_path, "grows")
    assert tail.look().offsets == {TopicPartition("t", 0): 7}
    rows = read_batch(path=store.uri("grows"), subscribe="t", **store.options)
    assert [row["value"] for row in rows] == [b"1"] * 5 + [b"2"] * 2


def test_a_segment_that_comes_after_its_commit_is_found(store: ObjectStore, tmp_path: Path) -> None:
    end = write_indexed_segment(tmp_path / "t-0", 0, [([Row(b"1")], 0)] * 3)
    write_checkpoint(tmp_path, HIGH_WATERMARK, {"t-0": end + 2})
    store.upload(tmp_path, "behind")
    options = ReadOptions.parse(
        {"path": store.uri("behind"), "subscribe": "t", "storage.listInterval": "0"} | store.options
    )
    tail = EndOffsets(options.paths, lambda _: True)
    assert tail.look().offsets == tail.look().offsets == {TopicPartition("t", 0): end}
    write_indexed_segment(tmp_path / "later", end, [([Row(b"2")], 0)] * 2)
    store.upload(tmp_path / "later", "behind/t-0")
    tail._logs._next_listing = 0
    assert tail.look().offsets == {TopicPartition("t", 0): end + 2}


def test_what_seems_lost_is_looked_for_in_a_new_listing(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = sinking.Writer(tmp_path / "all", topic="t", numPartitions="2")
    writer.write(0, sinking.rows(["a", "b"], partitions=[0, 1]))
    some = shutil.copytree(tmp_path / "all", tmp_path / "some")
    shutil.rmtree(some / "t-1")
    store.upload(some, "late")
    given = {"path": store.uri("late"), "subscribe": "t", "storage.listInterval": "1h"}
    options = given | store.options | {"fetchOffset.retryIntervalMs": "0"}
    with pytest.raises(DataLossError, match="t-1 up to offset 1"):
        read_batch(**options)
    monkeypatch.setattr(
        "kafkalog.files.system.system.sleep",
        lambda _: store.upload(tmp_path / "all", "late"),
    )
    assert [row["value"] for row in read_batch(**options)] == [b"a", b"b"]


def test_a_file_that_the_next_listing_knows_otherwise_is_opened_anew(
    store: ObjectStore, tmp_path: Path
) -> None:
    write_indexed_segment(tmp_path / "t-0", 0, [([Row(b"1")], 0)] * 3)
    store.upload(tmp_path, "changes")
    options = ReadOptions.parse(of_big(store.uri("changes"), store))
    tail = EndOffsets(options.paths, lambda _: True)
    assert tail.look().offsets == {TopicPartition("t", 0): 3}
    write_indexed_segment(tmp_path / "t-0", 0, [([Row(b"1")], 0)] * 5)
    store.upload(tmp_path, "changes")
    assert tail.look().offsets == {TopicPartition("t", 0): 3}
    root = options.paths[0]
    assert isinstance(root, RemoteRoot)
    open_store(root).forget_listing()
    assert tail.look().offsets == {TopicPartition("t", 0): 5}


# What failure says


@pytest.mark.parametrize("fault", ["500", "reset", "short", "silence"])
def test_requests_that_fail_now_and_then_are_made_again(
    store: ObjectStore, big: str, fault: str
) -> None:
    seen: Counter[tuple[str, str, int]] = Counter()

    def fail_once(request: Request) -> str | None:
        key = (request.method, request.path, request.start)
        seen[key] += 1
        wanted = fault != "silence" or request.name.endswith(".index")
        return fault if wanted and seen[key] == 1 and request.method == "GET" else None

    store.fault = fail_once
    given = {"startingOffsets": '{"big":{"0":700}}', "storage.timeout": "3s"}
    rows = read_batch(**of_big(big, store, **given, **{"storage.tries": "5"}))
    assert [row["offset"] for row in rows] == list(range(700, 1536))
    assert max(seen.values()) >= 2


@pytest.mark.parametrize("fault", ["500", "reset", "short"])
def test_a_range_that_cannot_be_had_is_reported_with_all_that_helps(
    store: ObjectStore, big: str, fault: str
) -> None:
    store.fault = lambda r: fault if r.name.endswith(".log") and r.start >= 1_000_000 else None
    with pytest.raises(LogDirectoryError) as caught:
        read_batch(**of_big(big, store, **{"storage.tries": "2"}))
    said = str(caught.value)
    assert f"s3://archive/big/big-0/{0:020d}.log: bytes " in said
    assert "(tries: 2)" in said
    assert "storage.tries" in said
    assert SECRET not in said


def test_a_refusal_is_final(store: ObjectStore, big: str) -> None:
    store.fault = lambda _: "403"
    # a store of its own: what others have listed already is not asked for again
    options = of_big(big, store, **{"storage.tries": "7"})
    with pytest.raises(LogDirectoryError, match=r"s3://archive/big cannot be listed \(tries: 1\)"):
        read_batch(**options)
    # whether a log lies there that is kept as objects, and the listing
    assert [request.method for request in store.requests] == ["HEAD", "GET"]


def test_a_prefix_or_bucket_that_is_not_there_is_named(store: ObjectStore, big: str) -> None:
    with pytest.raises(LogDirectoryError, match=r"nothing is stored below s3://archive/none"):
        read_batch(path=store.uri("none"), subscribe="t", **store.options)
    with pytest.raises(LogDirectoryError, match="nothing is stored below s3://nowhere/x"):
        read_batch(path="s3://nowhere/x", subscribe="t", **store.options)


# Options


def test_secrets_are_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        options = ReadOptions.parse(
            {
                "path": f"s3://an-id:{SECRET}@bucket/logs/?region=eu-west-1&session_token={SECRET}",
                "subscribe": "t",
                "storage.secretKey": SECRET,
            }
        )
    (root,) = options.paths
    assert isinstance(root, RemoteRoot)
    assert root == "s3://bucket/logs"
    assert root.options.secret_key == SECRET
    path = as_path(root) / "t-0"
    for shown in (repr(options), repr(root.options), str(path), repr(path), caplog.text):
        assert SECRET not in shown
    with pytest.raises(OptionError, match="parameter 'typo'") as caught:
        ReadOptions.parse({"path": f"s3://a:{SECRET}@b/c?typo={SECRET}", "subscribe": "t"})
    assert SECRET not in str(caught.value)


def test_what_the_uri_says_counts_more_than_the_options() -> None:
    given = {"storage.region": "us-east-1", "storage.endpoint": "http://other:1"}
    options = ReadOptions.parse({"path": "s3://b/p?region=eu-west-1", "subscribe": "t"} | given)
    assert isinstance(options.paths[0], RemoteRoot)
    assert options.paths[0].options.region == "eu-west-1"
    assert options.paths[0].options.endpoint == "http://other:1"


def test_a_key_may_have_a_hash_sign() -> None:
    root = RemoteRoot.parse("s3://bucket/logs#2?region=eu-west-1")
    assert (root, root.options.region) == ("s3://bucket/logs#2", "eu-west-1")


# Other file systems


@pytest.mark.parametrize("name", ["p02-nulls-headers", "p06-transactions"])
def test_what_fsspec_opens_is_read_too(tmp_path: Path, name: str) -> None:
    case = UnpackedCase(name, tmp_path)
    memory = fsspec.filesystem("memory")
    memory.put(f"{case.path}/", f"/{name}/", recursive=True)
    rows = read_batch(path=f"memory://{name}", subscribe=case.topics, includeHeaders="true")
    assert case.differences(rows) == []


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_of_a_log_directory_is_read_from_its_root(tmp_path: Path, kind: str) -> None:
    case = UnpackedCase("p02-nulls-headers", tmp_path / "logs")
    archive = tmp_path / f"logs.{kind}"
    files = [path for path in sorted(Path(case.path).rglob("*")) if path.is_file()]
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as packed:
            for path in files:
                packed.write(path, path.relative_to(case.path))
    else:
        with tarfile.open(archive, "w") as bundle:
            for path in files:
                bundle.add(path, path.relative_to(case.path))
    rows = read_batch(path=f"{kind}://::{archive}", subscribe=case.topics, includeHeaders="true")
    assert case.differences(rows) == []
    missing = f"{kind}://::{tmp_path}/missing"
    with pytest.raises(LogDirectoryError, match=r"cannot be opened by fsspec: .*No such file"):
        read_batch(path=missing, subscribe="t")


def test_fewer_bytes_than_a_file_is_said_to_have_are_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 500_000)
    root = RemoteRoot.parse(f"local://{tmp_path}").with_options({"tries": 2})
    opened = open_remote(as_path(root) / "file")
    os.truncate(path, 300_000)
    assert len(opened.read(0, 100)) == 100
    with pytest.raises(
        LogDirectoryError, match=r"file: bytes 299990 to \d+ .*\(tries: 2\): 10 bytes"
    ):
        opened.read(299_990, 100)


def test_a_scheme_that_nobody_knows_is_said_to_be_one() -> None:
    with pytest.raises(LogDirectoryError, match="nothing://x/y cannot be opened"):
        read_batch(path="nothing://x/y", subscribe="t")


@given(data=st.data(), size=st.sampled_from([0, 1, 1000, 300_000, 9_000_000]))
@settings(max_examples=40, deadline=None)
def test_reads_at_any_place_give_the_bytes_of_that_place(data: DataObject, size: int) -> None:
    content = np.random.default_rng(size).bytes(size)
    fsspec.filesystem("memory").pipe_file(f"/any/{size}", content)
    opened = open_remote(as_path(RemoteRoot.parse("memory://any")) / str(size))
    assert opened.size == size
    places = st.integers(0, size + 10)
    for _ in range(data.draw(st.integers(1, 12))):
        position = data.draw(places)
        if data.draw(st.booleans()):
            opened.will_read(position, data.draw(places))
        for _ in range(data.draw(st.integers(1, 3))):
            length = data.draw(st.sampled_from([0, 1, 61, 5_000, 1 << 20, 6_000_000]))
            expected = content[position : position + length]
            assert opened.read(position, length).tobytes() == expected
            assert opened.peek(position, 61) == content[position : position + 61]
            position += length
    opened.close()
    opened.close()


def test_of_a_partition_that_a_mirrored_checkpoint_does_not_name_nothing_is_read_until_it_does(
    store: ObjectStore, tmp_path: Path
) -> None:
    end = write_indexed_segment(tmp_path / "t-0", 0, [([Row(b"1")], 0)] * 3)
    (tmp_path / HIGH_WATERMARK).write_bytes(b"")
    store.upload(tmp_path, "live")
    given = {"path": store.uri("live"), "subscribe": "t", "storage.listInterval": "0"}
    stream = StreamControl(ReadOptions.parse(given | store.options))
    t0 = TopicPartition("t", 0)
    assert stream.initial() == {t0: 0}
    assert stream.next_end({t0: end}, take_all=False) == {t0: end}  # read above it: waits there
    write_checkpoint(tmp_path, HIGH_WATERMARK, {"t-0": end + 2})
    write_indexed_segment(tmp_path / "t-0", end, [([Row(b"2")], 0)] * 2)
    store.upload(tmp_path, "live")
    assert stream.next_end({t0: end}, take_all=False) == {t0: end + 2}


def test_a_topic_made_again_in_a_store_is_not_read_for_the_one_that_was_planned(
    store: ObjectStore, tmp_path: Path
) -> None:
    def upload() -> None:
        write_indexed_segment(tmp_path / "t-0", 0, [([Row(b"1")], 0)] * 3)
        write_topic_id(tmp_path / "t-0", new_topic_id())
        store.upload(tmp_path, "again")

    upload()
    given = {"path": store.uri("again"), "subscribe": "t", "startingOffsets": "earliest"}
    options = ReadOptions.parse(given | store.options)
    stream = StreamControl(options)
    start = stream.initial()
    splits = stream.plan(start, stream.next_end(start, take_all=False))
    upload()
    with pytest.raises(DataLossError, match="another topic"):
        list(read_split(splits[0], options, RowSchema.of(source_schema(include_headers=False))))
