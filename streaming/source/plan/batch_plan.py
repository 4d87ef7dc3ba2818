"""What a batch query reads: its bounds, resolved as of now, cut into splits. Knows no Spark."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kafkalog.errors import DataLossError, OptionError, UnknownTopicOrPartitionError
from kafkalog.files.shield import pause
from kafkalog.streaming.source.bounds.positions import starting_positions
from kafkalog.streaming.source.bounds.start import batch_bounds, resolve_end, resolve_start
from kafkalog.streaming.source.followed_logs import FollowedLogs
from kafkalog.streaming.source.loss import LossPolicy
from kafkalog.streaming.source.plan.byte_splits import split_target
from kafkalog.streaming.source.plan.planner import LogSplit, plan_splits, readable_ranges
from kafkalog.streaming.source.plan.pruning import join_splits, prune_ranges
from kafkalog.streaming.source.subscription import Subscription
from kafkalog.streaming.source.whole_look import WholeLook
from kafkalog.streaming.store.ends.cleaned_beyond import cleaned_beyond

if TYPE_CHECKING:
    from kafkalog.model import OffsetRange
    from kafkalog.streaming.source.bounds.start import Bound
    from kafkalog.streaming.source.offsets import PartitionOffsets
    from kafkalog.streaming.source.plan.selection import Selection
    from kafkalog.streaming.source.read_options import ReadOptions

__all__ = ["plan_batch"]


def plan_batch(options: ReadOptions, selection: Selection | None = None) -> list[LogSplit]:
    """Cut what a batch query reads into splits; of a ``selection``, what may hold rows of it.

    Raises:
        OptionError: bounds that contradict each other or name other partitions than are read.
        UnknownTopicOrPartitionError: a topic of ``subscribe`` does not exist.
        DataLossError: offsets between the bounds are gone, and the query wants to fail then.
    """
    options.refuse_for_batch()
    bounds = batch_bounds(options)
    subscription = Subscription.of(options)
    logs = FollowedLogs.of(options, subscription.selects)
    policy = LossPolicy.of(options)
    look = partial(
        WholeLook(logs, options, policy).look,
        logs.look,
        is_whole=lambda: not logs.ends.lost,
        concerns=lambda key: selection is None or selection.selects(key),
    )
    available = look()
    logs.report()
    subscription.require_topics(logs.existing(), options.paths)
    for _ in range(options.fetch_retries - 1):
        try:
            return _plan(options, bounds, selection, logs, available, LossPolicy(fail=True))
        except (DataLossError, UnknownTopicOrPartitionError):  # perhaps a replica that moves
            pause(options.fetch_retry_interval_ms / 1000)
            logs.ask_stores_again()
            available = look()
    return _plan(options, bounds, selection, logs, available, policy)


def _plan(
    options: ReadOptions,
    bounds: tuple[Bound, Bound],
    selection: Selection | None,
    logs: FollowedLogs,
    available: PartitionOffsets,
    policy: LossPolicy,
) -> list[LogSplit]:
    """Plan what a look has found ``available``."""
    ending = bounds[1]
    start, end = _resolved(options, bounds, logs, available, policy)
    policy.logs_cut(
        {k: gap for k, gap in logs.ends.lost.items() if ending.is_open(k, end[k], gap.start)}
    )
    ranges = readable_ranges(start, end, available, logs, policy)
    if selection is not None:
        disorder_ms = options.max_timestamp_disorder_ms
        ranges = prune_ranges(ranges, selection, logs, disorder_ms=disorder_ms)
    splits = plan_splits(ranges, options, logs, policy)
    if options.view == "latest":
        open_ended = [r for r in ranges if ending.is_open(r[0], r.end, available[r[0]])]
        _refuse_if_cleaned_beyond(open_ended, logs, policy)
    if selection is None or options.cuts_by_offsets:
        return splits
    total = sum(split.size for split in splits)
    return join_splits(splits, split_target(options.split_bytes, total))


def _resolved(
    options: ReadOptions,
    bounds: tuple[Bound, Bound],
    logs: FollowedLogs,
    available: PartitionOffsets,
    policy: LossPolicy,
) -> tuple[PartitionOffsets, PartitionOffsets]:
    """Return the offsets at which each partition starts and ends."""
    starting, ending = bounds
    strategy = options.starting_timestamp_strategy
    positions = starting_positions(options, starting.group, available, logs)
    start = resolve_start(starting, available, logs, when_none=strategy, positions=positions)
    end = resolve_end(ending, available, logs)
    # Since the look, such a log was written on, and all deleted that the look had found.
    outrun = {
        key: offset
        for key, offset in start.items()
        if offset > end[key]
        and key not in positions
        and starting.is_earliest(key)
        and ending.is_open(key, end[key], available[key])
    }
    policy.ends_before_start(outrun, end)
    start = {**start, **{key: end[key] for key in outrun}}
    _check_order(start, end)
    return start, end


def _refuse_if_cleaned_beyond(
    ranges: list[OffsetRange], logs: FollowedLogs, policy: LossPolicy
) -> None:
    """Report ranges that a cleaner may have compacted by records above their open ends."""
    for topic_partition, start, end in ranges:
        try:
            with logs.open(topic_partition) as log:
                seen = cleaned_beyond(log, start, end)
        except UnknownTopicOrPartitionError:  # reading will say it
            continue
        if seen:
            policy.range_not_readable(
                *(topic_partition, start, end),
                f"{seen}, so that keys whose newest records lie above may have no row; read again "
                "when that file was written (replica.high.watermark.checkpoint.interval.ms)",
            )


def _check_order(start: PartitionOffsets, end: PartitionOffsets) -> None:
    for key, offset in start.items():
        if offset > end[key]:
            raise OptionError(
                f"[RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] {key}: the query would start at "
                f"offset {offset}, after its end {end[key]}"
            )
