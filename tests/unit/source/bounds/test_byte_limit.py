from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.counted_reads import counted_reads
from tests.support.logs import Row, append_batch, batch_bytes, write_segment

from kafkalog.model import TopicPartition
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.admission import ByteLimit
from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.source.stream_control import StreamControl

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.streaming.source.planner import LogSplit

T0, T1, T2 = (TopicPartition("t", partition) for partition in range(3))
BATCH = len(batch_bytes(0, [Row(b"x" * 100)] * 5))


def put(log: Path, partition: int, batches: int, *, base: int = 0, index: bool = True) -> None:
    """Write a segment of batches of 5 records, BATCH bytes each."""
    data = (batch_bytes(base + 5 * n, [Row(b"x" * 100)] * 5) for n in range(batches))
    write_segment(log / f"t-{partition}", base, b"".join(data), index=index)


def follow(log: Path) -> EndOffsets:
    tail = EndOffsets([str(log)], lambda _: True)
    tail.look()
    return tail


def control(log: Path, **given: str) -> StreamControl:
    return StreamControl(
        ReadOptions.parse(
            {"path": str(log), "subscribe": "t", "startingOffsets": "earliest"} | given
        )
    )


def drain(stream: StreamControl) -> list[dict[TopicPartition, int]]:
    offsets, ends = stream.initial(), []
    while (end := stream.next_end(offsets, take_all=False)) != offsets:
        ends.append(end)
        offsets = end
    return ends


def size(splits: list[LogSplit]) -> int:
    return sum(piece.size for split in splits for piece in split.slices)


def test_a_limit_is_split_in_proportion_to_the_bytes_that_wait(tmp_path: Path) -> None:
    for partition, batches in enumerate((40, 20, 20)):
        put(tmp_path, partition, batches)
    start = {T0: 0, T1: 0, T2: 0}
    end = {T0: 200, T1: 100, T2: 100}
    cut = ByteLimit(20 * BATCH).cut(start, end, follow(tmp_path))
    assert cut == {T0: 50, T1: 25, T2: 25}
    assert ByteLimit(80 * BATCH).cut(start, end, follow(tmp_path)) == end


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("limit", [1, BATCH, 3 * BATCH - 1, 7 * BATCH, 10**9])
def test_every_micro_batch_keeps_the_limit_or_is_one_batch(
    tmp_path: Path, limit: int, index: bool
) -> None:
    put(tmp_path, 0, 20, index=index)
    put(tmp_path, 0, 5, base=100, index=index)
    put(tmp_path, 1, 3, index=index)
    stream = control(tmp_path, maxBytesPerTrigger=str(limit))
    ends = drain(stream)
    assert ends[-1] == {T0: 125, T1: 15}
    start = {T0: 0, T1: 0}
    for end in ends:
        batches = sum(end[key] - start[key] for key in end) / 5
        assert batches == int(batches), "cut inside a batch"
        assert batches == 1 or batches * BATCH <= limit
        start = end
    assert len(ends) <= -(-28 // max(1, limit // BATCH // 2))


def test_what_a_plan_reads_keeps_the_limit_too(tmp_path: Path) -> None:
    put(tmp_path, 0, 50)
    put(tmp_path, 1, 50)
    stream = control(tmp_path, maxBytesPerTrigger=str(10 * BATCH))
    start = stream.initial()
    end = stream.next_end(start, take_all=False)
    # an index bounds the end of a range by one batch more
    assert 0 < size(stream.plan(start, end)) <= 12 * BATCH


def test_none_starves_beside_busier_partitions(tmp_path: Path) -> None:
    put(tmp_path, 0, 1000)
    put(tmp_path, 1, 1)
    put(tmp_path, 2, 1)
    limit, tail = ByteLimit(BATCH), follow(tmp_path)
    start, end = {T0: 0, T1: 0, T2: 0}, {T0: 5000, T1: 5, T2: 5}
    for _ in range(3):  # one batch each, in turn
        start = limit.cut(start, end, tail)
    assert start == {T0: 5, T1: 5, T2: 5}


def test_what_shares_leave_over_goes_to_those_whose_share_is_no_batch(tmp_path: Path) -> None:
    put(tmp_path, 0, 10)
    put(tmp_path, 1, 1)
    cut = ByteLimit(3 * BATCH).cut({T0: 0, T1: 0}, {T0: 50, T1: 5}, follow(tmp_path))
    assert cut == {T0: 10, T1: 5}


def test_offsets_and_bytes_are_both_limited(tmp_path: Path) -> None:
    put(tmp_path, 0, 40)
    put(tmp_path, 1, 40)
    by_offsets = {"maxOffsetsPerTrigger": "20", "maxBytesPerTrigger": "1g"}
    assert drain(control(tmp_path, **by_offsets))[0] == {T0: 10, T1: 10}
    by_bytes = {"maxOffsetsPerTrigger": "100", "maxBytesPerTrigger": str(4 * BATCH)}
    assert drain(control(tmp_path, **by_bytes))[0] == {T0: 10, T1: 10}


def test_a_minimum_of_offsets_decides_when_and_the_bytes_how_much(tmp_path: Path) -> None:
    put(tmp_path, 0, 4)
    given = {"minOffsetsPerTrigger": "10", "maxBytesPerTrigger": str(2 * BATCH)}
    stream = control(tmp_path, **given)
    first = stream.next_end(stream.initial(), take_all=False)
    assert first == {T0: 10}
    append_batch(tmp_path / "t-0" / f"{0:020d}.log", batch_bytes(20, [Row()] * 5))
    second = stream.next_end(first, take_all=False)
    assert second[T0] < 25
    assert stream.next_end({T0: 20}, take_all=False) == {T0: 20}


def test_available_now_reads_up_to_its_targets_and_once_reads_all(tmp_path: Path) -> None:
    put(tmp_path, 0, 9)
    put(tmp_path, 1, 2)
    stream = control(tmp_path, maxBytesPerTrigger=str(BATCH), minOffsetsPerTrigger="1000")
    stream.freeze_targets()
    assert drain(stream)[-1] == {T0: 45, T1: 10}
    stream = control(tmp_path, maxBytesPerTrigger="1")
    assert stream.next_end(stream.initial(), take_all=True) == {T0: 45, T1: 10}


def test_offsets_without_bytes_are_taken_for_nothing(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, b"")  # as a cleaner leaves it
    put(tmp_path, 0, 1, base=50)
    put(tmp_path, 1, 20)
    cut = ByteLimit(BATCH).cut({T0: 0, T1: 0}, {T0: 30, T1: 100}, follow(tmp_path))
    assert cut == {T0: 30, T1: 5}


def test_planning_reads_the_index_and_next_to_nothing_of_the_log(tmp_path: Path) -> None:
    put(tmp_path, 0, 5000)
    tail = follow(tmp_path)
    limit = ByteLimit(1000 * BATCH)
    with counted_reads() as fetched:
        cut = limit.cut({T0: 0}, {T0: 25_000}, tail)
    assert 5000 >= cut[T0] >= 4990
    assert fetched[".log"] == 0
    assert fetched[".index"] <= 1001 * 8 + 5 * 8200
    with counted_reads() as fetched:
        limit.cut({T0: 12_500}, {T0: 25_000}, tail)
    assert fetched[".log"] <= 2 * 61  # headers, to verify what the index says
