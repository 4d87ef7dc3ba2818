"""From offsets to the tasks of a batch.

First, :func:`readable_ranges` finds what of ``[start, end)`` can be read, partition by partition,
and what is lost. Then :func:`plan_splits` cuts it: by Spark's rules if the user asks for them, else
by bytes, so that one hot partition keeps all cores busy. Every split is read in offset order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kafkalog.errors import KafkaLogError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from kafkalog.model import MAX_OFFSET, OffsetRange, TopicPartition
from kafkalog.streaming.source.plan.byte_splits import by_bytes, split_target
from kafkalog.streaming.source.plan.ranges import cut_ranges
from kafkalog.streaming.times import shown_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkalog.streaming.log.partition_log import PartitionLog
    from kafkalog.streaming.log.read.slices import SegmentSlice
    from kafkalog.streaming.source.followed_logs import FollowedLogs
    from kafkalog.streaming.source.loss import LossPolicy
    from kafkalog.streaming.source.offsets import PartitionOffsets
    from kafkalog.streaming.source.read_options import ReadOptions

__all__ = ["LogSplit", "plan_splits", "readable_ranges"]


@dataclass(frozen=True, slots=True)
class LogSplit:
    """What one task reads: byte ranges of the segments of one partition, in offset order.

    Plain values: it is pickled to the task.
    """

    topic_partition: TopicPartition
    slices: tuple[SegmentSlice, ...]
    topic_id: str | None = None
    """The id of the topic whose offsets these are; None if it has none."""

    @property
    def size(self) -> int:
        """Bytes of segment files."""
        return sum(piece.size for piece in self.slices)

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
    logs: FollowedLogs,
    policy: LossPolicy,
) -> list[OffsetRange]:
    """Find what there is to read from ``start`` to ``end``, in order of the partitions.

    ``available`` are the ends as of now. A partition of ``end`` that ``start`` does not name is new
    and read from its log start. What is gone goes to ``policy``; if that does not raise, the rest
    is given. Empty ranges are left out.

    Raises:
        DataLossError: offsets are gone, and the query wants to fail then.
    """
    policy.partitions_deleted({key: start[key] for key in start if key not in end})
    policy.ends_before_start(start, end)
    begins = dict(start)
    added = [key for key in end if key not in start]
    starts = {key: logs.log_start_if_there(key) for key in added if key in available}
    begins |= {key: start for key, start in starts.items() if start is not None}
    policy.initial_offsets_not_found(key for key in added if key not in begins)
    policy.added_partitions_start_late({key: begins[key] for key in added if key in begins})
    wanted = (OffsetRange(key, begins[key], end[key]) for key in sorted(end) if key in begins)
    clipped = (_clip(entry, available, logs, policy) for entry in wanted if entry.start < entry.end)
    return [entry for entry in clipped if entry.start < entry.end]


def _clip(
    wanted: OffsetRange, available: PartitionOffsets, logs: FollowedLogs, policy: LossPolicy
) -> OffsetRange:
    """Take off what lies below the log start or beyond the end."""
    key, start, end = wanted
    log_start = logs.start_if_there(key) if key in available else None
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


def _first_time(logs: FollowedLogs, key: TopicPartition) -> str:
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
    ranges: list[OffsetRange], options: ReadOptions, logs: FollowedLogs, policy: LossPolicy
) -> list[LogSplit]:
    """Cut ranges into the splits of a batch, and find the bytes of each.

    Raises:
        DataLossError: offsets have gone since the ranges were found, and the query fails then.
    """
    if options.cuts_by_offsets:
        ranges = cut_ranges(ranges, options.min_partitions, options.max_records_per_partition)
    found: list[tuple[TopicPartition, list[SegmentSlice]]] = []
    for entry in ranges:
        try:
            found.append((entry.topic_partition, _planned(logs, entry, policy)))
        except UnknownTopicOrPartitionError:
            policy.partitions_deleted({entry.topic_partition: entry.start})
    target = split_target(
        options.split_bytes, sum(piece.size for _, part in found for piece in part)
    )
    return [
        LogSplit(key, tuple(group), logs.topic_id(key))
        for key, slices in found
        for group in ([slices] if options.cuts_by_offsets else by_bytes(slices, target))
        if group
    ]


def _planned(logs: FollowedLogs, wanted: OffsetRange, policy: LossPolicy) -> list[SegmentSlice]:
    """Find the bytes of a range, in another replica if the one that was looked at fails."""
    try:
        with logs.open(wanted.topic_partition) as log:
            return _slices(log, wanted, policy)
    except (KafkaLogError, OSError):
        if not logs.elsewhere(wanted.topic_partition):
            raise
    return _planned(logs, wanted, policy)


def _slices(log: PartitionLog, wanted: OffsetRange, policy: LossPolicy) -> list[SegmentSlice]:
    start = wanted.start
    while True:
        try:
            return log.slices(start, wanted.end)
        except OffsetOutOfRangeError as error:  # retention got in between
            gone = min(error.log_start_offset, wanted.end)
            policy.range_not_readable(log.topic_partition, start, gone, str(error))
            start = gone
