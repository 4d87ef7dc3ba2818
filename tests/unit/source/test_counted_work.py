"""What looking for new offsets and seeking cost, counted in calls, bytes and pages."""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.support.counted_reads import counted_reads
from tests.support.logs import Row, append_batch, batch_bytes, write_checkpoint, write_segment

from kafkalog.errors import DataLossError
from kafkalog.files.system import system
from kafkalog.model import Intervals, TopicPartition
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.read.salvage import walk_batches
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.source.planner import Selection
from kafkalog.streaming.source.stream_control import StreamControl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kafkalog.streaming.source.offsets import PartitionOffsets

PARTITIONS = 1000

FIRST_MS = 1_700_000_000_000

_CALLS: Counter[str] | None = None
_COUNTS_IN: Final = threading.get_ident()
"""The thread of the tests: a member of a group that another test left open looks in its own."""


def _audit(event: str, _: tuple[Any, ...]) -> None:
    if _CALLS is not None and event in {"open", "os.listdir", "os.scandir"}:
        _CALLS[event] += threading.get_ident() == _COUNTS_IN


sys.addaudithook(_audit)  # it cannot be taken away again; without counting it does nothing


@contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Count stats, opens and listings."""
    global _CALLS  # noqa: PLW0603
    calls = _CALLS = Counter()
    stat = os.stat

    def counting(*args: Any, **kwargs: Any) -> os.stat_result:
        calls["stat"] += threading.get_ident() == _COUNTS_IN
        return stat(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "stat", counting)
        try:
            yield calls
        finally:
            _CALLS = None


def thousand(folder: Path) -> tuple[StreamControl, PartitionOffsets]:
    """Give a stream over as many partitions, and their ends, which a broker's checkpoint tells."""
    for partition in range(PARTITIONS):
        write_segment(folder / f"t-{partition}", 0, batch_bytes(0, [Row()]))
    ends = {f"t-{partition}": 1 for partition in range(PARTITIONS)}
    write_checkpoint(folder, "replication-offset-checkpoint", ends)
    given = {"path": str(folder), "subscribe": "t", "startingOffsets": "earliest"}
    stream = StreamControl(ReadOptions.parse(given))
    end = stream.next_end(stream.initial(), take_all=False)
    assert len(end) == PARTITIONS
    return stream, end


def settle(stream: StreamControl, end: PartitionOffsets) -> None:
    """Look until nothing but stats is done: what has just changed is read again for a moment."""
    for _ in range(100):
        time.sleep(0.06)
        with counted_calls() as calls:
            assert stream.next_end(end, take_all=False) == end
        if set(+calls) == {"stat"}:
            return
    raise AssertionError


def test_a_look_at_a_thousand_unchanged_partitions_costs_few_stats(tmp_path: Path) -> None:
    stream, end = thousand(tmp_path)
    settle(stream, end)
    with counted_calls() as calls, counted_reads() as fetched:
        assert stream.next_end(end, take_all=False) == end
    assert 0 < calls["stat"] <= 60
    assert set(+calls) == {"stat"}
    assert not fetched


@pytest.mark.long
def test_each_of_a_thousand_unchanged_partitions_is_looked_at_in_turn(tmp_path: Path) -> None:
    stream, end = thousand(tmp_path)
    settle(stream, end)
    log = tmp_path / "t-321" / f"{0:020d}.log"
    log.write_bytes(b"")
    looks = PARTITIONS // 50 + 1
    with pytest.raises(DataLossError, match="t-321 from 1 to 0"):
        assert all(stream.next_end(end, take_all=False) == end for _ in range(looks))


def test_of_a_thousand_partitions_only_the_one_that_has_grown_is_read(tmp_path: Path) -> None:
    stream, end = thousand(tmp_path)
    settle(stream, end)
    append_batch(tmp_path / "t-7" / f"{0:020d}.log", batch_bytes(1, [Row()]))
    ends = {f"t-{partition}": 1 + (partition == 7) for partition in range(PARTITIONS)}
    write_checkpoint(tmp_path, "replication-offset-checkpoint", ends)
    with counted_calls() as calls, counted_reads() as fetched:
        new = stream.next_end(end, take_all=False)
        (split,) = stream.plan(end, new)
    assert new == end | {TopicPartition("t", 7): 2}
    assert split.slices[-1].end_offset == 2
    assert calls["stat"] <= 150
    assert calls["open"] <= 20
    assert calls["os.listdir"] + calls["os.scandir"] <= 10
    assert fetched[".log"] < 1000


SEGMENTS = 60


def many_segments(folder: Path) -> Path:
    """Write a partition of segments that each have an old batch and a new one; both are indexed."""
    for number in range(SEGMENTS):
        old = batch_bytes(2 * number, [Row(timestamp=FIRST_MS)])
        new = batch_bytes(2 * number + 1, [Row(timestamp=FIRST_MS + 1000)])
        log = write_segment(folder, 2 * number, old + new)
        log.with_suffix(".index").write_bytes(struct.pack(">ii", 1, len(old)))
        entries = struct.pack(">qiqi", FIRST_MS, 0, FIRST_MS + 1000, 1)
        log.with_suffix(".timeindex").write_bytes(entries)
    os.utime(folder, ns=(FIRST_MS * 1_000_000,) * 2)
    return folder


def test_a_walk_through_many_segments_lists_their_folder_once(tmp_path: Path) -> None:
    folder = many_segments(tmp_path / "t-0")
    with counted_calls() as calls:
        walked = [chunk.table.base_offset.tolist() for _, chunk in walk_batches(folder, 0)]
    assert walked == [[2 * number, 2 * number + 1] for number in range(SEGMENTS)]
    assert calls["os.scandir"] == 1
    assert calls["open"] <= 6 * SEGMENTS


def test_a_walk_sees_segments_that_come_and_go_meanwhile(tmp_path: Path) -> None:
    folder = many_segments(tmp_path / "t-0")
    walk = walk_batches(folder, 0)
    next(walk)
    for kind in (".log", ".index", ".timeindex"):
        (folder / f"{2:020d}{kind}").unlink()
    write_segment(folder, 2 * SEGMENTS, batch_bytes(2 * SEGMENTS, [Row()]))
    found = [int(base) for _, chunk in walk for base in chunk.table.base_offset]
    assert found == [*range(4, 2 * SEGMENTS + 1)]


def test_a_folder_that_changed_just_now_is_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = many_segments(tmp_path / "t-0")
    monkeypatch.setattr(system, "time_ns", lambda: (FIRST_MS + 2000) * 1_000_000)
    with counted_calls() as calls:
        assert sum(1 for _ in walk_batches(folder, 0)) == SEGMENTS
    assert calls["os.scandir"] > SEGMENTS


def test_the_first_batch_of_many_partitions_is_planned_with_one_listing_of_each(
    tmp_path: Path,
) -> None:
    for partition in range(100):
        folder = tmp_path / f"t-{partition}"
        write_segment(folder, 0, batch_bytes(0, [Row()]))
        os.utime(folder, ns=(0, system.time_ns() - 60_000_000_000))
    write_checkpoint(
        tmp_path, "replication-offset-checkpoint", {f"t-{each}": 1 for each in range(100)}
    )
    given = {"path": str(tmp_path), "subscribe": "t", "startingOffsets": "earliest"}
    stream = StreamControl(ReadOptions.parse(given))
    with counted_calls() as calls:
        start = stream.initial()
        splits = stream.plan(start, stream.next_end(start, take_all=False))
    assert len(splits) == 100
    assert calls["os.scandir"] + calls["os.listdir"] <= 110


def test_many_ranges_of_a_log_are_planned_with_one_listing(tmp_path: Path) -> None:
    many_segments(tmp_path / "t-0")
    write_checkpoint(tmp_path, "replication-offset-checkpoint", {"t-0": 2 * SEGMENTS})
    options = ReadOptions.parse({"path": str(tmp_path), "subscribe": "t"})
    wanted = Selection(timestamps=Intervals.between(FIRST_MS + 1000, None))
    with counted_calls() as calls:
        (split,) = plan_batch(options, wanted)
    new = [(2 * number + 1, 2 * number + 2) for number in range(SEGMENTS)]
    assert [(piece.start_offset, piece.end_offset) for piece in split.slices] == new
    assert calls["os.scandir"] + calls["os.listdir"] <= 8


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a partition's folder with 20,000 batches of 10 records, each with its index entries.

    The records of a batch have one timestamp, a ms later than those of the batch before.
    """
    folder = tmp_path_factory.mktemp("log") / "t-0"
    batches = (
        batch_bytes(10 * number, [Row(timestamp=FIRST_MS + number)] * 10)
        for number in range(20_000)
    )
    log = write_segment(folder, 0, b"".join(batches), index=True)
    entries = (struct.pack(">qi", FIRST_MS + n, 10 * n + 9) for n in range(20_000))
    log.with_suffix(".timeindex").write_bytes(b"".join(entries))
    return folder


@pytest.mark.parametrize("offset", [0, 7, 99_999, 150_000, 199_990])
def test_a_seek_reads_no_more_than_the_index_says(long_log: Path, offset: int) -> None:
    batch = batch_bytes(0, [Row()] * 10)
    with PartitionLog(long_log, TopicPartition("t", 0)) as log, counted_reads() as fetched:
        (planned,) = log.slices(offset, offset + 1)
    assert planned.size <= 3 * len(batch)
    assert fetched[".log"] <= 61  # one header, to verify what the index says
    # opening it and two searches: the warm section each time, and single entries before it
    assert fetched[".index"] <= 3 * 8200 + 2 * (4096 + 16 * 8)


@pytest.mark.parametrize("number", [0, 7, 9_999, 15_000, 19_999])
def test_a_seek_by_timestamp_reads_a_batch_and_headers(long_log: Path, number: int) -> None:
    batch = batch_bytes(0, [Row()] * 10)
    with PartitionLog(long_log, TopicPartition("t", 0)) as log, counted_reads() as fetched:
        found = log.offset_for_timestamp(FIRST_MS + number)
    assert found == (FIRST_MS + number, 10 * number)
    # the batch, and the headers that tell whether the indexes are right about it and its neighbours
    assert fetched[".log"] <= len(batch) + 12 * 61
    assert fetched[".timeindex"] <= 2 * (8192 + 4096 + 16 * 12)
