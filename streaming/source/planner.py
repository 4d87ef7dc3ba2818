"""Plan splits: from offsets to the tasks of a batch, leaving out what no filter can match."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from kafkalog.errors import KafkaLogError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from kafkalog.files.remote_path import RemotePath
from kafkalog.model import EVERYTHING, MAX_OFFSET, Intervals, OffsetRange, TopicPartition
from kafkalog.streaming.log.read.slice_reader import cut_slice
from kafkalog.streaming.log.read.timestamps import offset_behind_older, thin_slice
from kafkalog.streaming.options.quantities import shown_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kafkalog.streaming.log.history import LastBatch
    from kafkalog.streaming.log.partition_log import PartitionLog
    from kafkalog.streaming.log.read.slice_reader import SegmentSlice
    from kafkalog.streaming.options.read_options import ReadOptions
    from kafkalog.streaming.source.end_offsets import EndOffsets
    from kafkalog.streaming.source.loss import LossPolicy
    from kafkalog.streaming.source.offsets import PartitionOffsets
    from kafkalog.streaming.store.ends.tiered import LogStart


__all__ = [
    "LARGEST_BYTES",
    "SMALLEST_BYTES",
    "LogSplit",
    "Selection",
    "by_bytes",
    "cut_ranges",
    "join_splits",
    "plan_splits",
    "prune_ranges",
    "readable_ranges",
    "split_target",
    "thin_split",
]


# ----------------------------------------------------------------------------------------------
# From offsets to the tasks of a batch.
#
# First, :func:`readable_ranges` finds what of ``[start, end)`` can be read, partition by
# partition, and what is lost. Then :func:`plan_splits` cuts it: by Spark's rules if the user asks
# for them, else by bytes, so that one hot partition keeps all cores busy. Every split is read in
# offset order.


# ----------------------------------------------------------------------------------------------
# Cut offset ranges for ``minPartitions`` and ``maxRecordsPerPartition`` as Spark's source does.
#
# Source: Spark ``KafkaOffsetRangeCalculator``.


def cut_ranges(
    ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Cut ranges so that none has more than ``max_records`` and there are ``min_partitions``.

    Empty ranges are dropped. Ranges whose proportional share of ``min_partitions`` is one stay
    whole, the others share the rest, so the result may have a few ranges more or less than asked.
    """
    cut = [entry for entry in ranges if _size(entry) > 0]
    if max_records is not None:
        cut = [piece for entry in cut for piece in _divide(entry, -(-_size(entry) // max_records))]
    if min_partitions is None or min_partitions <= len(cut):
        return cut
    total = sum(map(_size, cut))
    whole = {entry for entry in cut if _part_count(_size(entry), total, min_partitions) == 1}
    divided_total = total - sum(map(_size, whole))
    divided_count = max(min_partitions - len(whole), 1)
    return [
        piece
        for entry in cut
        for piece in _divide(
            entry,
            1 if entry in whole else _part_count(_size(entry), divided_total, divided_count),
        )
    ]


def _size(entry: OffsetRange) -> int:
    return entry.end - entry.start


def _part_count(size: int, total: int, parts: int) -> int:
    # Java's Math.round: half goes up, where Python's round() goes to the even neighbour
    return max(math.floor(size / total * parts + 0.5), 1)


def _divide(entry: OffsetRange, parts: int) -> Iterator[OffsetRange]:
    """Cut a range into pieces of (nearly) equal counts; the last ones take the rounding."""
    parts = min(parts, _size(entry))
    start = entry.start
    for left in range(parts, 0, -1):
        end = start + (entry.end - start) // left
        yield OffsetRange(entry.topic_partition, start, end)
        start = end


# ----------------------------------------------------------------------------------------------
# Cut what a batch reads into tasks by bytes, at batch boundaries that the offset indexes know.
#
# Offsets say little about work: records differ in size, and compaction leaves few of them. Bytes
# are known from listings and indexes, without a look into a log.


LARGEST_BYTES: Final = 64 << 20
"""What one task reads at most, about: a second of work, so that a failure costs little."""

SMALLEST_BYTES: Final = 8 << 20
"""What is not divided further to keep more cores busy: ten times what a task costs by itself."""


_NOT_WORTH_A_TASK: Final = 0.1
"""A rest of so much of a part goes to the others: else a partition of 65 MiB would be read in two
halves, by two tasks (as with Hadoop's ``FileInputFormat.SPLIT_SLOP``)."""


def split_target(given: int | None, total: int, *, cores: int | None = None) -> int:
    """Return about how many bytes a task is to read, of ``total`` bytes of a batch.

    ``given`` is what the user wants. Otherwise it is each core's share, within bounds; ``cores``
    are those of this machine, as Spark tells a Python source nothing of its cluster's.
    """
    if given is not None:
        return given
    share = -(-total // (cores or os.cpu_count() or 1))
    return min(LARGEST_BYTES, max(SMALLEST_BYTES, share))


def by_bytes(slices: Sequence[SegmentSlice], target: int) -> Iterator[list[SegmentSlice]]:
    """Group slices, cut where need be, into about equal parts of at most about ``target`` bytes."""
    total = sum(entry.size for entry in slices)
    parts = max(1, math.ceil(total / target - _NOT_WORTH_A_TASK))
    ends = [total * part / parts for part in range(1, parts)]
    group: list[SegmentSlice] = []
    begin, number = 0, 0
    for entry in slices:
        inside = [end - begin for end in ends if begin < end < begin + entry.size]
        for piece in cut_slice(entry, inside):
            middle = begin + (piece.start_position - entry.start_position) + piece.size / 2
            while number < len(ends) and middle >= ends[number]:
                number += 1
                if group:
                    yield group
                    group = []
            group.append(piece)
        begin += entry.size
    if group:
        yield group


# ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogSplit:
    """What one task reads: byte ranges of the segments of one partition, in offset order.

    Plain values: it is pickled to the task.
    """

    topic_partition: TopicPartition
    slices: tuple[SegmentSlice, ...]
    topic_id: str | None = None
    """The id of the topic whose offsets these are; None if it has none."""
    history: tuple[int, LastBatch] | None = None
    """The position that its reader continues from, and the last batch below, where it knows it."""

    @property
    def size(self) -> int:
        """Bytes of segment files."""
        return sum(piece.size for piece in self.slices)

    def announce(self) -> None:
        """Let the store know that it is read soon, beside others."""
        for piece in self.slices:
            piece.announce()

    def from_offset(self, offset: int) -> LogSplit:
        """Return what is left of it from an offset on."""
        left = tuple(
            piece._replace(start_offset=max(piece.start_offset, offset))
            for piece in self.slices
            if piece.end_offset > offset
        )
        return replace(self, slices=left)


def readable_ranges(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    available: PartitionOffsets,
    logs: EndOffsets,
    policy: LossPolicy,
    *,
    log_starts: Mapping[TopicPartition, LogStart] = MappingProxyType({}),
) -> list[OffsetRange]:
    """Find what there is to read from ``start`` to ``end``, in order of the partitions.

    ``available`` are the ends as of now. A partition of ``end`` that ``start`` does not name is new
    and read from its log start. What is gone goes to ``policy``; if that does not raise, the rest
    is given. Empty ranges are left out. ``log_starts`` were looked up for ``start``, and are not
    looked up again: what is deleted after that is found by who plans or reads the ranges.

    Raises:
        DataLossError: offsets are gone, and the query wants to fail then.
    """
    policy.partitions_deleted({key: start[key] for key in start if key not in end})
    policy.ends_before_start(start, end)
    begins = dict(start)
    added = [key for key in end if key not in start]
    looked_up = {key: logs.start_if_there(key) for key in added if key in available}
    found = {key: log_start for key, log_start in looked_up.items() if log_start is not None}
    begins |= {key: log_start.offset for key, log_start in found.items()}
    policy.initial_offsets_not_found(key for key in added if key not in begins)
    policy.added_partitions_start_late({key: begins[key] for key in added if key in begins})
    wanted = (OffsetRange(key, begins[key], end[key]) for key in sorted(end) if key in begins)
    found |= log_starts
    clipped = (
        _clip(entry, found.get(entry.topic_partition), available, logs, policy)
        for entry in wanted
        if entry.start < entry.end
    )
    return [entry for entry in clipped if entry.start < entry.end]


def _clip(
    wanted: OffsetRange,
    log_start: LogStart | None,
    available: PartitionOffsets,
    logs: EndOffsets,
    policy: LossPolicy,
) -> OffsetRange:
    """Take off what lies below the log start, which is looked up if need be, or beyond the end."""
    key, start, end = wanted
    if key not in available:
        log_start = None
    elif log_start is None:
        log_start = logs.start_if_there(key)
    if log_start is None:
        policy.partitions_deleted({key: start})
        return OffsetRange(key, end, end)
    if start < log_start.here:
        gone = min(log_start.here, end)
        policy.range_not_readable(
            *(key, start, gone),
            str(log_start)
            if log_start.is_tiered
            else f"the log starts at {log_start.here} now{_first_time(logs, key)}",
        )
        start = gone
    if end > available[key]:
        last = max(start, available[key])
        policy.range_not_readable(key, last, end, f"what is committed ends at {available[key]}")
        end = last
    return OffsetRange(key, start, end)


def _first_time(logs: EndOffsets, key: TopicPartition) -> str:
    """Return since when a log has records, for a message: those that are gone are older."""
    try:
        with logs.open(key) as log:
            first = log.read(log.log_start_offset, MAX_OFFSET, 0)
    except (KafkaLogError, OSError):  # reading will say it
        return ""
    if first is None or first.table.max_timestamp[0] < 0:
        return ""
    time = shown_time(int(first.table.max_timestamp[0]))
    return f", with records of {time}, so that what is gone was written before"


def plan_splits(
    ranges: list[OffsetRange], options: ReadOptions, logs: EndOffsets, policy: LossPolicy
) -> list[LogSplit]:
    """Cut ranges into the splits of a batch, and find the bytes of each.

    Raises:
        DataLossError: offsets have gone since the ranges were found, and the query fails then.
    """
    if options.cuts_by_offsets:
        ranges = cut_ranges(ranges, options.min_partitions, options.max_records_per_partition)
    found: list[tuple[TopicPartition, list[SegmentSlice]]] = []
    for key, wanted in groupby(ranges, lambda entry: entry.topic_partition):
        of_log = list(wanted)
        try:
            found += ((key, slices) for slices in _planned(logs, of_log, policy))
        except UnknownTopicOrPartitionError:
            policy.partitions_deleted({key: of_log[0].start})
    target = split_target(
        options.split_bytes, sum(piece.size for _, part in found for piece in part)
    )
    return [
        LogSplit(key, tuple(group), logs.topic_id(key))
        for key, slices in found
        for group in ([slices] if options.cuts_by_offsets else by_bytes(slices, target))
        if group
    ]


def _planned(
    logs: EndOffsets, wanted: Sequence[OffsetRange], policy: LossPolicy
) -> list[list[SegmentSlice]]:
    """Find the bytes of the ranges of one log, in another replica where one fails.

    The log is opened and listed once, however many ranges of it are wanted.
    """
    key = wanted[0].topic_partition
    found: list[list[SegmentSlice]] = []
    try:
        with logs.open(key) as log:
            for entry in wanted:
                _say_gaps(log, entry, policy)
                found.append(_slices(log, entry, policy))
    except (KafkaLogError, OSError):
        if not logs.elsewhere(key):
            raise
        return found + _planned(logs, wanted[len(found) :], policy)
    return found


def _say_gaps(log: PartitionLog, wanted: OffsetRange, policy: LossPolicy) -> None:
    """Hand over what neither a log directory nor its remote tier has: no reader would miss it."""
    if isinstance(log.directory, RemotePath):
        for start, end in log.directory.gaps():
            gone = OffsetRange(wanted.topic_partition, *_both(wanted, start, end))
            if gone.start < gone.end:
                reason = f"neither {log.directory} nor its remote tier has them"
                policy.range_not_readable(*gone, reason)


def _both(wanted: OffsetRange, start: int, end: int) -> tuple[int, int]:
    return max(wanted.start, start), min(wanted.end, end)


def _slices(log: PartitionLog, wanted: OffsetRange, policy: LossPolicy) -> list[SegmentSlice]:
    start = wanted.start
    while True:
        try:
            return log.slices(start, wanted.end)
        except OffsetOutOfRangeError as error:  # retention got in between
            gone = min(error.log_start_offset, wanted.end)
            policy.range_not_readable(log.topic_partition, start, gone, str(error))
            start = gone


# ----------------------------------------------------------------------------------------------
# Leave out ranges of offsets that cannot hold rows of a selection, before any record is read.


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
    groups: list[list[LogSplit]] = []
    filled = 0
    for split in splits:
        is_next = groups and groups[-1][0].topic_partition == split.topic_partition
        if is_next and filled + split.size <= target:
            groups[-1].append(split)
            filled += split.size
        else:
            groups.append([split])
            filled = split.size
    return [
        group[0]
        if len(group) == 1
        else replace(group[0], slices=tuple(piece for split in group for piece in split.slices))
        for group in groups
    ]


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
