"""A log in a bucket is merged into the segments that a local log has, while others use it."""

from __future__ import annotations

import os
import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from tests.support.bucket_model import MemoryObjects, NoThreads, without_rests

import kafkalog
from kafkalog.checkpoints.bucket_state import (
    BucketCommit,
    Extent,
    checkpoint_bytes,
    commit_name,
    data_name,
    object_path,
    parse_checkpoint,
    parse_commit,
    segment_name,
)
from kafkalog.checkpoints.commit_state import PartitionState, TopicState
from kafkalog.files.objects import FolderObjects
from kafkalog.files.open_file import _KnownFiles
from kafkalog.files.storage import RemoteRoot
from kafkalog.files.system import remembered, system
from kafkalog.model import TopicPartition
from kafkalog.streaming import api
from kafkalog.streaming.admin import retention, topics
from kafkalog.streaming.commit.staging import in_objects
from kafkalog.streaming.log.indexes import OFFSET_ENTRY, TIME_ENTRY
from kafkalog.streaming.log.read.timestamps import offset_behind_older
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.objects import bucket_store
from kafkalog.streaming.objects.bucket_log import BucketLog, Proposal
from kafkalog.streaming.objects.bucket_store import BucketRoot
from kafkalog.streaming.objects.merging import ExtentReader, merge, sealed_indexes
from kafkalog.streaming.objects.sweeping import clean_commits, sweep_data
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.schema import ReadRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

FIRST_MS = 1_700_000_000_000
AT_ONCE = {"storage.listInterval": "0"}


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    without_rests(monkeypatch)


def rows(first: int, count: int, *, step_ms: int = 1000, size: int = 100) -> pa.Table:
    chance = random.Random(first)
    return pa.table(
        {
            "key": [f"key {chance.randrange(20)}" for _ in range(count)],
            "value": [chance.randbytes(chance.randrange(size)) for _ in range(count)],
            "partition": pa.array([chance.randrange(2) for _ in range(count)], pa.int32()),
            "timestamp": pa.array(
                [FIRST_MS + (first + n) * step_ms for n in range(count)], pa.int64()
            ),
        }
    )


def fill(place: str | BucketRoot | Path, appends: int, config: dict[str, str], **how: int) -> None:
    for number in range(appends):
        kafkalog.append(
            str(place), "t", rows(number * 30, 30, **how), options={"numPartitions": "2", **config}
        )


def all_rows(place: object) -> pa.Table:
    table = kafkalog.read(str(place), "t", options=AT_ONCE).read_all()
    return table.sort_by([("partition", "ascending"), ("offset", "ascending")])


def extents(root: BucketRoot) -> dict[tuple[str, int], list[Extent]]:
    with root.writing() as log:
        log.follow()
        return {place: list(some) for place, some in log.state.extents.items()}


CONFIGS = [
    {"segment.bytes": "5000"},
    {"segment.bytes": "4000", "index.interval.bytes": "512", "compression.type": "zstd"},
    {"segment.ms": "120000", "segment.jitter.ms": "60000"},
    {"segment.bytes": "6000", "segment.index.bytes": "64", "index.interval.bytes": "300"},
]


@pytest.mark.parametrize("config", CONFIGS)
def test_sealed_segments_are_those_of_a_local_log(
    root: BucketRoot, objects: FolderObjects, tmp_path: Path, config: dict[str, str]
) -> None:
    local = tmp_path / "local"
    fill(local, 20, config)
    fill(root, 20, config)
    done = merge(root)
    assert not done.problems
    assert done.segments
    for (topic_id, number), some in extents(root).items():
        sealed = [extent for extent in some if extent.sealed is not None]
        names = sorted(path.name[:20] for path in (local / f"t-{number}").glob("*.log"))
        assert [f"{extent.base_offset:020}" for extent in sealed] == names[:-1]
        assert sum(extent.sealed is None for extent in some) >= 1
        for extent in sealed:
            for suffix in (".log", ".index", ".timeindex"):
                path = object_path(log_id(root), extent.object, suffix)
                file = local / f"t-{number}" / f"{extent.base_offset:020}{suffix}"
                assert objects.get(path) == file.read_bytes(), (topic_id, file)
    assert all_rows(root) == all_rows(local)


def log_id(root: BucketRoot) -> str:
    with root.writing() as log:
        return log.state.log_id


def test_large_runs_become_segments_as_in_a_local_log(root: BucketRoot, tmp_path: Path) -> None:
    local = tmp_path / "local"
    config = {"segment.bytes": str(4 << 20), "compression.type": "none"}
    for number in range(6):
        count = 3 if number % 2 else 1300
        some = pa.table(
            {
                "value": [bytes([number]) * 1000] * count,
                "timestamp": pa.array([FIRST_MS + number] * count, pa.int64()),
            }
        )
        for place in (str(local), str(root)):
            kafkalog.append(place, "t", some, options=config)
    merge(root)
    (some_extents,) = extents(root).values()
    bases = [extent.base_offset for extent in some_extents if extent.sealed is not None]
    names = [int(path.name[:20]) for path in sorted((local / "t-0").glob("*.log"))]
    assert bases == names[:-1]
    assert len(bases) > 1
    assert all_rows(root) == all_rows(local)


def test_small_extents_of_quiet_partitions_come_together(root: BucketRoot) -> None:
    most = 0
    for first in range(0, 100, 10):
        fill(root, 10, {})
        before = all_rows(root)
        done = merge(root)
        assert not done.problems
        assert all_rows(root) == before, first
        most = max(most, *(len(some) for some in extents(root).values()))
    assert most < 25
    again = merge(root)
    assert (again.objects, again.segments) == (0, 0)
    with root.writing() as log:
        assert parse_checkpoint(checkpoint_bytes(log.state), "name") == log.state


def test_inline_batches_of_yesterday_are_merged_though_they_are_few(
    root: BucketRoot, objects: FolderObjects
) -> None:
    fill(root, 2, {})
    assert merge(root).objects == 0
    age(objects, days=2)
    assert merge(root).objects == 1
    assert {extent.object[:5] for some in extents(root).values() for extent in some} == {"data/"}


def age(objects: FolderObjects, days: float) -> None:
    """Let all objects be older."""
    for path in Path(objects.root).rglob("*"):
        if path.is_file():
            past = path.stat().st_mtime_ns - int(days * 86_400e9)
            os.utime(path, ns=(past, past))


class Killed(BaseException):
    """The process was killed here."""


class Counted(FolderObjects):
    """Kills its process before or after a request that changes something."""

    def __init__(self, objects: FolderObjects, kill_at: int, *, after: bool) -> None:
        super().__init__(objects._folder)
        self.left, self.after = kill_at, after

    def create(self, name: str, data: bytes) -> object:  # type: ignore[override]
        return self._counting(lambda: super(Counted, self).create(name, data))

    def put(self, name: str, data: bytes) -> None:
        self._counting(lambda: super(Counted, self).put(name, data))

    def put_pieces(self, name: str, pieces: Callable[[], Iterable[bytes]]) -> None:
        self.put(name, b"".join(pieces()))

    def delete(self, names: list[str]) -> None:
        self._counting(lambda: super(Counted, self).delete(names))

    def _counting(self, action: object) -> object:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Killed
        answer = action()  # type: ignore[operator]
        if self.left == 0:
            raise Killed
        return answer


def killed_at_each_request(
    objects: FolderObjects, monkeypatch: pytest.MonkeyPatch, action: object
) -> Iterator[BucketRoot]:
    """Run an action again and again, killed at one request after the other, until it is through."""
    for after in (False, True):
        for number in range(1, 200):
            counted = Counted(objects, number, after=after)
            monkeypatch.setattr(bucket_store, "open_objects", lambda _, counted=counted: counted)
            place = BucketRoot.of(
                RemoteRoot.parse(f"s3a://bucket/{after}{number}{system.random_id().hex}")
            )
            try:
                action(place)  # type: ignore[operator]
            except Killed:
                yield place
                continue
            assert counted.left > 0
            break
        else:
            raise AssertionError("it never came to its end")


def test_a_merge_may_be_killed_at_each_request(
    root: BucketRoot, objects: FolderObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(root, 12, {"segment.bytes": "6000"})
    kafkalog.append(str(root), "quiet", pa.table({"value": ["x"]}))
    expected, kills = all_rows(root), 0
    for place in killed_at_each_request(objects, monkeypatch, merge):
        assert all_rows(place) == expected
        kills += 1
    assert kills >= 10
    monkeypatch.setattr(bucket_store, "open_objects", lambda _: objects)
    age(objects, days=3)
    kafkalog.append(str(root), "quiet", pa.table({"value": ["x"]}))
    with root.writing() as log:
        deleted, _ = sweep_data(log)
    assert deleted  # what killed merges have left
    assert all_rows(root) == expected


def test_of_two_merges_of_one_partition_one_counts(
    root: BucketRoot, objects: FolderObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(root, 12, {"segment.bytes": "6000"})
    expected = all_rows(root)
    put, others = FolderObjects.put_pieces, []

    def slow(self: FolderObjects, name: str, pieces: object) -> None:
        put(self, name, pieces)  # type: ignore[arg-type]
        monkeypatch.setattr(FolderObjects, "put_pieces", put)
        others.append(
            merge(BucketRoot.of(RemoteRoot.parse(f"s3a://bucket/{system.random_id().hex}")))
        )

    monkeypatch.setattr(FolderObjects, "put_pieces", slow)
    assert merge(root).segments == 0
    assert others[0].segments > 1
    assert all_rows(root) == expected
    names = {extent.object for some in extents(root).values() for extent in some}
    lost = [e for e in objects.list_after(f"logs/{log_id(root)}") if e.name.endswith(".log")]
    assert len(lost) == others[0].segments + 1
    assert len({name for name in names if name.startswith("logs/")}) == others[0].segments


@pytest.mark.parametrize("what", ["append", "trim", "delete", "again"])
def test_a_merge_beside_what_others_do(
    root: BucketRoot, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    fill(root, 12, {"segment.bytes": "6000"})
    put = FolderObjects.put_pieces
    other = f"s3a://bucket/{system.random_id().hex}"

    def act() -> None:
        if what == "append":
            kafkalog.append(other, "t", rows(1000, 30))
        elif what == "trim":
            retention.delete_records([other], {TopicPartition("t", 0): 40})
        else:
            topics.delete([other], "t")
            if what == "again":
                kafkalog.append(other, "t", rows(0, 30), options={"numPartitions": "2"})

    def slow(self: FolderObjects, name: str, pieces: object) -> None:
        put(self, name, pieces)  # type: ignore[arg-type]
        monkeypatch.setattr(FolderObjects, "put_pieces", put)
        act()

    monkeypatch.setattr(FolderObjects, "put_pieces", slow)
    done = merge(root)
    assert not done.problems
    if what == "delete":
        assert not extents(root)
        return
    after = all_rows(root)
    counts = {"append": 390, "again": 30}
    assert len(after) == counts.get(what, len(after))
    merge(root)
    assert all_rows(root) == after


@pytest.mark.parametrize("carried", [False, True])
def test_what_was_planned_before_a_merge_is_read_after_it_and_after_a_sweep(
    root: BucketRoot, objects: FolderObjects, monkeypatch: pytest.MonkeyPatch, carried: bool
) -> None:
    monkeypatch.setattr(in_objects, "MAX_INLINE_BYTES", 10)
    given = ReadOptions.parse({"path": "/log", "subscribe": "t", "splitBytes": "3000"})
    parsed = replace(given, paths=(root,))
    read_rows = ReadRows.of(parsed, (), ())
    for turn, config in enumerate(({}, {"segment.bytes": "6000"})):
        fill(root, 12, config)
        planned = api._plan(parsed)
        expected = offsets(api._read_splits(planned, parsed, read_rows))
        assert len(expected) == 360 * (turn + 1)
        if carried:
            planned = pickle.loads(pickle.dumps(planned))
        done = merge(root)
        assert (done.objects > 0, done.segments > 0) == (turn == 0, turn == 1)
        root.open_store()._extents._kept.clear()
        assert offsets(api._read_splits(planned, parsed, read_rows)) == expected
        age(objects, days=3)
        kafkalog.append(str(root), "other", pa.table({"value": ["x"]}))
        with root.writing() as log:
            assert sweep_data(log)[0] > 0
        root.open_store()._extents._kept.clear()
        assert sorted(offsets(api._read_splits(planned, parsed, read_rows))) == sorted(expected)


def test_a_task_finds_what_became_of_all_partitions_that_it_was_given(
    root: BucketRoot, objects: FolderObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_objects, "MAX_INLINE_BYTES", 10)
    slow = BucketRoot.of(RemoteRoot.parse(str(root)).with_options({"poll_interval_ms": 3_600_000}))
    parsed = replace(ReadOptions.parse({"path": "/log", "subscribe": "t"}), paths=(slow,))
    read_rows = ReadRows.of(parsed, (), ())
    fill(root, 12, {"segment.bytes": "6000"})
    planned = api._plan(parsed)
    expected = offsets(api._read_splits(planned, parsed, read_rows))
    sent = pickle.dumps(planned)
    assert merge(root).segments
    age(objects, days=3)
    kafkalog.append(str(root), "other", pa.table({"value": ["x"]}))
    with root.writing() as log:
        assert sweep_data(log)[0] > 0
    monkeypatch.setattr(system, "memory", {})  # a process of its own
    assert offsets(api._read_splits(pickle.loads(sent), parsed, read_rows)) == expected


def test_a_task_takes_no_rows_of_a_topic_that_was_made_again_for_those_that_were_planned(
    root: BucketRoot, objects: FolderObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_objects, "MAX_INLINE_BYTES", 10)
    given = {"path": "/log", "subscribe": "t", "failOnDataLoss": "false"}
    parsed = replace(ReadOptions.parse(given), paths=(root,))
    fill(root, 3, {})
    sent = pickle.dumps(api._plan(parsed))
    topics.delete([str(root)], "t")
    age(objects, days=3)
    kafkalog.append(str(root), "other", pa.table({"value": ["x"]}))
    with root.writing() as log:
        assert sweep_data(log)[0] > 0
    fill(root, 6, {})
    monkeypatch.setattr(system, "memory", {})  # a process of its own
    splits = pickle.loads(sent)
    assert offsets(api._read_splits(splits, parsed, ReadRows.of(parsed, (), ()))) == []


def test_a_task_that_slept_takes_no_late_commit_for_the_one_that_it_was_to_read(
    root: BucketRoot, objects: FolderObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = replace(ReadOptions.parse({"path": "/log", "subscribe": "t"}), paths=(root,))
    stamps, sent = rows(0, 3)["timestamp"], []
    for value in ("good", "late"):
        kafkalog.append(str(root), "t", pa.table({"value": [value] * 3, "timestamp": stamps}))
        sent.append(pickle.dumps(api._plan(parsed)))
    names = [f"_kafkalog/{log_id(root)}/{commit_name(number)}" for number in (1, 2)]
    first, second = (objects.get(name) or b"" for name in names)
    age(objects, days=9)
    assert merge(root).objects
    age(objects, days=9)
    kafkalog.append(str(root), "other", pa.table({"value": ["x"]}))
    with root.writing() as log:
        log.checkpoint()
        sweep_data(log)
        assert clean_commits(log, keep_commits=1) > 2
    size = len(parse_commit(first, "first").inline)
    objects.put(names[0], first[:-size] + second[-size:])  # its writer has slept as long
    monkeypatch.setattr(system, "memory", {})  # a process of its own
    now_ns = system.time_ns() + 18 * 86_400 * 10**9
    monkeypatch.setattr(system, "time_ns", lambda: now_ns)
    read = api._read_splits(pickle.loads(sent[0]), parsed, ReadRows.of(parsed, (), ()))
    assert [row["value"] for batch in read for row in batch.to_pylist()] == [b"good"] * 3


def offsets(batches: Iterator[pa.RecordBatch]) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for batch in batches for row in batch.to_pylist()]


def test_a_trimmed_segment_goes_once_all_of_it_has(
    root: BucketRoot, objects: FolderObjects
) -> None:
    fill(root, 20, {"segment.bytes": "6000"})
    merge(root)
    first, second = next(some for (_, number), some in extents(root).items() if number == 0)[:2]
    middle = second.base_offset + 1
    retention.delete_records([str(root)], {TopicPartition("t", 0): middle})
    bases = next(some for (_, number), some in extents(root).items() if number == 0)
    assert bases[0] == second
    assert min(o for p, o in offsets(all_rows(root).to_batches()) if p == 0) == middle
    age(objects, days=3)
    kafkalog.append(str(root), "t", rows(5000, 1))
    with root.writing() as log:
        assert sweep_data(log)[0] >= 3  # its log and its indexes
    left = [entry.name for entry in objects.list_after(f"logs/{log_id(root)}")]
    assert not any(first.object.rpartition("/")[2] in name for name in left)
    assert sum(second.object.rpartition("/")[2] in name for name in left) == 3


def test_a_log_opens_with_its_segments(root: BucketRoot, objects: FolderObjects) -> None:
    fill(root, 12, {"segment.bytes": "6000"})
    merge(root)
    with root.writing() as log:
        log.follow()
        log.checkpoint()
        state = log.state
    opened = BucketLog.open(objects)
    assert opened is not None
    assert opened.follow() == state


def test_a_merge_asks_once_for_each_object(
    root: BucketRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = MemoryObjects()
    monkeypatch.setattr(bucket_store, "open_objects", lambda _: memory)
    fill(root, 20, {})
    extents(root)
    memory.requests.clear()
    assert merge(root).objects == 1
    counts = dict(memory.requests)
    assert counts.pop("get") <= 20 + 3  # the objects, and the end of the log
    # the object, the commit, and how old commits are by the store's clock
    assert counts == {"put": 2, "create": 1, "list": 2, "delete": 1}


class LargeSegment(FolderObjects):
    """Has a segment of 1 GiB with batches of 16 KiB, which are made as they are read."""

    asked: list[tuple[str, int]]

    def get_range(self, name: str, position: int, size: int) -> bytes | None:
        self.asked.append((name.rpartition(".")[2], size))
        if not name.endswith(".log"):
            return super().get_range(name, position, size)
        first, end = position // BATCH, -(-(position + size) // BATCH)
        data = b"".join(map(large_batch, range(first, end)))
        return data[position - first * BATCH :][:size]


BATCH = 16 << 10


@pytest.mark.parametrize("size", [20 << 20, 8 << 20, 1 << 10])
def test_a_merge_asks_for_few_bytes_ahead(
    objects: FolderObjects, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(system, "pool", NoThreads)
    asked = []

    def get_range(name: str, position: int, size: int) -> bytes:
        asked.append(size)
        return bytes(size)

    monkeypatch.setattr(objects, "get_range", get_range)
    some = [Extent(data_name(n, "0" * 32), 0, size, n, 1, 0, 0) for n in range(100)]
    found = ExtentReader(objects, "log")._fetched(some)
    for number in range(1, 101):
        assert [len(part) for part in next(found)[1]] == [size]
        assert sum(asked) - number * size <= 32 << 20
    assert len(asked) == 100


def large_batch(number: int) -> bytes:
    """A batch of ten records, of which one is there, a second after the one before."""
    header = bytearray(BATCH)
    header[0:8] = (10 * number).to_bytes(8, "big")
    header[8:12] = (BATCH - 12).to_bytes(4, "big")
    header[16] = 2
    header[23:27] = (9).to_bytes(4, "big")
    for at in (27, 35):
        header[at : at + 8] = (FIRST_MS + 1000 * number).to_bytes(8, "big")
    header[43:57] = b"\xff" * 14
    header[57:61] = (10).to_bytes(4, "big")
    return bytes(header)


def test_a_seek_in_a_gibibyte_takes_few_requests(
    root: BucketRoot, objects: FolderObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, name = (1 << 30) // BATCH - 1, segment_name("id/t-0", 0, 1, "0" * 32)
    large = LargeSegment(Path(objects.root))
    large.asked = []
    monkeypatch.setattr(bucket_store, "open_objects", lambda _: large)
    numbers = np.arange(1, count)
    offsets = np.zeros(count - 1, OFFSET_ENTRY)
    offsets["offset"], offsets["position"] = numbers * 10 + 9, numbers * BATCH
    times = np.zeros(count - 1, TIME_ENTRY)
    times["timestamp"], times["offset"] = FIRST_MS + 1000 * numbers, numbers * 10 + 9
    indexes = sealed_indexes(offsets.tobytes(), times.tobytes())
    assert len(indexes.offset_entries) + len(indexes.time_entries) < 1000
    sealed = Extent(name, 0, count * BATCH, 0, count * 10, int(times[-1][0]), 0, sealed=indexes)
    topic = TopicState("t", partitions={0: PartitionState(0, count * 10, count * 10, 0)})
    with root.writing(creates=True) as log:
        change = BucketCommit(topics={"id": topic}, extents={("id", 0): [sealed]})
        log.commit(lambda _: Proposal(change, is_known_again=False))
        large.put(object_path(log.state.log_id, name, ".index"), offsets.tobytes())
        large.put(object_path(log.state.log_id, name, ".timeindex"), times.tobytes())
    folder = root.open_log() / "t-0"
    for number in (0, 1, 2047, 2048, 30_000, 47_111, count - 2, count - 1):
        for by_time in (False, True):
            remembered(_KnownFiles).clear()
            large.asked.clear()
            with LogSegment(folder, 0) as segment:
                if by_time:
                    behind = offset_behind_older(segment, FIRST_MS + 1000 * number)
                    assert behind == (10 * number if number > 1 else 0)  # the first has no entry
                else:
                    assert segment.translate_offset(10 * number + 5) == number * BATCH
            assert len(large.asked) <= 6, large.asked
            assert sum(size for _, size in large.asked) <= 128 << 10, large.asked


def test_what_is_sealed_is_the_same_after_a_commit(root: BucketRoot) -> None:
    fill(root, 12, {"segment.bytes": "6000"})
    merge(root)
    shown = []
    for _ in range(2):
        shown.append({each.name: each for each in root.open_store().entries("log/t-0") or ()})
        kafkalog.append(str(root), "t", rows(1000, 5))
    last = max(name for name in shown[0] if name.endswith(".log"))
    for name, entry in shown[0].items():
        is_sealed = name[:20] < last[:20] and name[0] == "0" and entry.size > 0
        assert (shown[1][name] == entry) is is_sealed, name
