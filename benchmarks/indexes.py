"""What finding a place costs: ends of many partitions, and seeks in a large segment."""

from __future__ import annotations

import random
import statistics
import time
from typing import TYPE_CHECKING, Final

from benchmarks.measure import Contender, Goal, Workload
from benchmarks.page_counts import counted_pages
from benchmarks.segments import (
    FIRST_TIMESTAMP,
    RUN_INTERVAL_MS,
    commit_ends,
    encoded_rows,
    write_partition,
)
from tests.support.counted_reads import counted_reads

from kafkalog.model import TopicPartition
from kafkalog.streaming.log.indexes import OffsetIndex
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.records.batch import scan_batches
from kafkalog.streaming.source.schema import RowSchema, source_schema
from kafkalog.streaming.spark.readers import LogStreamReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from benchmarks.environment import Environment

__all__ = ["WORKLOADS"]

_OURS: Final = "kafkalog"
_TOPIC: Final = "indexed"
_PLACE: Final = TopicPartition(_TOPIC, 0)
_ROWS: Final = 20_000
"""Of a run, all with one timestamp, that the large segment is filled with."""

_INDEX_INTERVAL_BYTES: Final = 4096
_LOOKS: Final = 7
_PAUSE_SECONDS: Final = 0.4
"""Looks that follow each other sooner are slowed down by the reader, which rests while idle."""

_LOOKUPS: Final = 1000
_TAIL_SHARE: Final = 0.001
"""The part of the offsets that a tailing reader asks for: the newest ones."""


def _unchanged_partitions(env: Environment) -> Workload:
    partitions = 50 if env.quick else 1000
    directory = env.fresh("partitions")
    directory.mkdir()
    run = encoded_rows(10)
    places = [TopicPartition(_TOPIC, number) for number in range(partitions)]
    commit_ends(directory, [(place, write_partition(directory, place, run, 1)) for place in places])
    reader = _stream_reader(directory)
    start = reader.initialOffset()
    reader.latestOffset(start, reader.getDefaultReadLimit())
    return Workload(
        title=f"latestOffset, {partitions:,} unchanged partitions",
        contenders=(Contender(_OURS, lambda: _latest_offset_ms(reader)),),
        goals=(Goal(_OURS, limit=20),),
        unit="ms",
        notes=(
            "what a query with nothing new does each time it looks, after the first; the library's"
            f" reader as Spark's control process calls it, median of {_LOOKS} looks."
        ),
    )


def _stream_reader(directory: Path) -> LogStreamReader:
    given = {"path": str(directory), "subscribe": _TOPIC, "startingOffsets": "earliest"}
    rows = RowSchema.of(source_schema(include_headers=False))
    return LogStreamReader(ReadOptions.parse(given), rows)


def _latest_offset_ms(reader: LogStreamReader) -> float:
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    taken = []
    for _ in range(_LOOKS):
        time.sleep(_PAUSE_SECONDS)
        reader.control.batch_ran()  # of an idle query the answer would wait for another look
        begin = time.perf_counter()
        reader.latestOffset(end, reader.getDefaultReadLimit())
        taken.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(taken)


def _tail_pages(env: Environment) -> Workload:
    return _pages(env, "near the tail", _TAIL_SHARE, (Goal(_OURS, limit=3),))


def _cold_pages(env: Environment) -> Workload:
    return _pages(env, "anywhere", 1.0, ())


def _pages(env: Environment, where: str, share: float, goals: tuple[Goal, ...]) -> Workload:
    segment, end = _big_segment(env)
    return Workload(
        title=f"index pages for one seek {where}, {segment.size >> 20:,} MiB segment",
        contenders=(
            Contender("plain binary search", lambda: _most_pages(segment, end, share, _plain)),
            Contender(_OURS, lambda: _most_pages(segment, end, share, OffsetIndex.lookup)),
        ),
        goals=goals,
        unit="pages",
        warm_ups=0,
        notes=(
            "distinct pages of 4 KiB of the offset index that one lookup touches, the most of"
            f" {_LOOKUPS:,} lookups of random offsets; counted, not timed."
        ),
    )


def _seek_bytes(env: Environment) -> Workload:
    segment, end = _big_segment(env)
    largest = int(scan_batches(next(segment.chunks(0)).data).table.size.max())
    return Workload(
        title=f"log bytes for one seek, {segment.size >> 20:,} MiB segment",
        contenders=(Contender(_OURS, lambda: _most_bytes(segment, end)),),
        goals=(Goal(_OURS, limit=_INDEX_INTERVAL_BYTES + largest),),
        unit="bytes",
        warm_ups=0,
        notes=(
            "from the position that the index gives to the batch that holds the offset, of which"
            f" only headers are read; the most of {_LOOKUPS:,} seeks to random offsets. The limit"
            " is index.interval.bytes and one batch."
        ),
    )


def _seek_time_bytes(env: Environment) -> Workload:
    segment, end = _big_segment(env)
    largest = int(scan_batches(next(segment.chunks(0)).data).table.size.max())
    return Workload(
        title=f"log bytes for one seek by timestamp, {segment.size >> 20:,} MiB segment",
        contenders=(Contender(_OURS, lambda: _most_bytes_by_time(segment, end)),),
        goals=(Goal(_OURS, limit=_INDEX_INTERVAL_BYTES + largest),),
        unit="bytes",
        warm_ups=0,
        notes=(
            "all that is fetched of the log: headers, which tell whether the time index is right,"
            f" and the batch that holds the record; the most of {_LOOKUPS:,} searches for random"
            " timestamps."
        ),
    )


WORKLOADS: Final[Mapping[str, Callable[[Environment], Workload]]] = {
    "latest-offset": _unchanged_partitions,
    "seek-pages-tail": _tail_pages,
    "seek-pages-cold": _cold_pages,
    "seek-bytes": _seek_bytes,
    "seek-time-bytes": _seek_time_bytes,
}


def _big_segment(env: Environment) -> tuple[LogSegment, int]:
    """Return a segment of 1 GiB, made at first use, and its end offset."""
    directory = env.work / "big-segment"
    segment = LogSegment(directory / str(_PLACE), 0)
    if not directory.exists():
        directory.mkdir()
        size = (32 << 20) if env.quick else (1 << 30)
        write_partition(directory, _PLACE, encoded_rows(_ROWS), size)
    index = segment.offset_index()
    assert index is not None
    last = index.last_entry()
    *_, header = segment.headers(last.position)
    return segment, header.last_offset + 1


def _most_pages(
    segment: LogSegment, end: int, share: float, lookup: Callable[[OffsetIndex, int], object]
) -> float:
    """Return the most pages that a lookup touches among the last ``share`` of offsets."""
    index = segment.offset_index()
    assert index is not None
    touched = []
    with counted_pages() as read:
        for offset in _offsets(int(end * (1 - share)), end):
            read.reset()
            lookup(index, offset)
            touched.append(read.pages)
    return max(touched)


def _plain(index: OffsetIndex, offset: int) -> None:
    """Search as textbooks do, an entry at a time over the whole index."""
    low, high = 0, len(index)
    while high - low > 1:
        middle = (low + high) // 2
        if index.read(middle, middle + 1)[0]["offset"] <= offset:
            low = middle
        else:
            high = middle


def _most_bytes(segment: LogSegment, end: int) -> float:
    walked = []
    for offset in _offsets(0, end):
        found = segment.translate_offset(offset)
        assert found is not None
        walked.append(found - segment.floor_position(offset))
    return max(walked)


def _most_bytes_by_time(segment: LogSegment, end: int) -> float:
    runs = end // _ROWS
    fetched = []
    for run in _offsets(0, runs):
        with counted_reads() as reads, PartitionLog(segment.path.parent, _PLACE) as log:
            found = log.offset_for_timestamp(FIRST_TIMESTAMP + run * RUN_INTERVAL_MS)
        assert found is not None
        assert found.offset == run * _ROWS
        fetched.append(reads[".log"])
    return max(fetched)


def _offsets(first: int, end: int) -> list[int]:
    chosen = random.Random(11)
    return [chosen.randrange(first, end) for _ in range(_LOOKUPS)]
