"""Leave out ranges of offsets that cannot hold rows of a selection, before any record is read."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kafkalog.streaming.log.intervals import EVERYTHING, Intervals
from kafkalog.streaming.log.read.timestamps import offset_behind_older, thin_slice

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kafkalog.model import OffsetRange, TopicPartition
    from kafkalog.streaming.log.partition_log import PartitionLog
    from kafkalog.streaming.source.end_offsets import EndOffsets
    from kafkalog.streaming.source.planner import LogSplit


__all__ = ["Selection", "join_splits", "prune_ranges", "thin_split"]


# ----------------------------------------------------------------------------------------------
# Which rows a query wants, as far as a log can tell before it is read. Knows no Spark.


@dataclass(slots=True)
class Selection:
    """Sets of partitions, offsets and timestamps; a row that is wanted is in all of them."""

    partitions: Intervals = EVERYTHING
    offsets: Intervals = EVERYTHING
    timestamps: Intervals = EVERYTHING
    """In ms, as records have them."""

    def selects(self, topic_partition: TopicPartition) -> bool:
        """Return whether rows of a partition may be left."""
        return topic_partition.partition in self.partitions


# ----------------------------------------------------------------------------------------------


def prune_ranges(
    ranges: Iterable[OffsetRange],
    selection: Selection,
    logs: EndOffsets,
    *,
    disorder_ms: int | None,
) -> list[OffsetRange]:
    """Take from ranges what cannot hold a row of the selection, by listings and time indexes.

    ``disorder_ms`` is the most by which a timestamp lies below an earlier one of its partition.
    None if that is unknown: then no offset is known above which all timestamps are too late.
    """
    found: list[OffsetRange] = []
    for entry in ranges:
        wanted = selection.offsets & Intervals.between(entry.start, entry.end)
        if wanted and selection.timestamps and selection.selects(entry.topic_partition):
            wanted &= _of_times(entry, selection.timestamps, logs, disorder_ms)
            found.extend(entry._replace(start=start, end=end) for start, end in wanted.ranges)
    return found


def _of_times(
    entry: OffsetRange, times: Intervals, logs: EndOffsets, disorder_ms: int | None
) -> Intervals:
    if times == EVERYTHING:
        return EVERYTHING
    with suppress(FileNotFoundError), logs.open(entry.topic_partition) as log:
        return _may_hold(log, Intervals.between(entry.start, entry.end), times, disorder_ms)
    return EVERYTHING  # a segment was deleted meanwhile: who plans to read it finds out


def join_splits(splits: list[LogSplit], target: int) -> list[LogSplit]:
    """Put neighbours of one partition together up to about ``target`` bytes: ranges may be tiny."""
    joined: list[LogSplit] = []
    filled = 0
    for split in splits:
        last = joined[-1] if joined else None
        if last and last.topic_partition == split.topic_partition and filled + split.size <= target:
            joined[-1] = replace(last, slices=last.slices + split.slices)
            filled += split.size
        else:
            joined.append(split)
            filled = split.size
    return joined


def thin_split(split: LogSplit, times: Intervals) -> LogSplit:
    """Leave out batches that cannot hold a record with one of the timestamps, in ms."""
    if times == EVERYTHING:
        return split
    slices = [piece for entry in split.slices for piece in thin_slice(entry, times)]
    return replace(split, slices=tuple(slices))


def _may_hold(
    log: PartitionLog, hull: Intervals, times: Intervals, disorder_ms: int | None
) -> Intervals:
    """Find the offsets at which records may have one of the timestamps."""
    ranges: list[tuple[int, int]] = []
    ends = [segment.base_offset for segment in log.segments[1:]]
    for segment, end in zip(log.segments, [*ends, hull.last + 1], strict=True):
        if segment.base_offset <= hull.last and end > hull.first:
            with segment:
                start = offset_behind_older(segment, times.first)
            if ranges and ranges[-1][1] == start:
                start = ranges.pop()[0]
            if start < end:
                ranges.append((start, end))
    wanted = Intervals(tuple(ranges))
    if disorder_ms is not None and not times.is_open:
        latest = times.last + disorder_ms
        later = log.offset_for_timestamp(latest + 1, end_offset=hull.last + 1)
        wanted &= Intervals.between(None, None if later is None else later.offset)
    return wanted
