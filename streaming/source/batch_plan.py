"""Plan a batch query: resolve its bounds now, and cut it into splits. Knows no Spark."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import CLEANER_OFFSET, HIGH_WATERMARK
from kafkalog.errors import DataLossError, OptionError, UnknownTopicOrPartitionError
from kafkalog.files.remote_path import RemotePath
from kafkalog.streaming.log.files import CLEANED, DELETED, LOG, SWAP, parse_base_offset
from kafkalog.streaming.log.log_dir import PartitionDirectory
from kafkalog.streaming.source.end_offsets import CompletenessCheck, EndOffsets
from kafkalog.streaming.source.loss import LossPolicy
from kafkalog.streaming.source.planner import (
    SMALLEST_BYTES,
    LogSplit,
    join_splits,
    plan_splits,
    prune_ranges,
    readable_ranges,
    split_target,
)
from kafkalog.streaming.source.start import (
    batch_bounds,
    resolve_end,
    resolve_start,
    starting_positions,
)
from kafkalog.streaming.source.subscription import Subscription
from kafkalog.streaming.store.log_dirs import LogDirs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kafkalog.model import OffsetRange, TopicPartition
    from kafkalog.streaming.log.partition_log import PartitionLog
    from kafkalog.streaming.options.read_options import ReadOptions
    from kafkalog.streaming.source.offsets import PartitionOffsets
    from kafkalog.streaming.source.planner import Selection
    from kafkalog.streaming.source.start import Bound
    from kafkalog.streaming.store.ends.tiered import LogStart
    from kafkalog.streaming.store.ends.tracker import LogEndTracker


__all__ = [
    "PACKED_BYTES",
    "compacted_beyond",
    "pack_batch",
    "pack_micro_batch",
    "pack_splits",
    "plan_batch",
]


# ----------------------------------------------------------------------------------------------
# Whether a broker's cleaner has looked beyond the end that a view is about to be read to.
#
# A running broker writes down what is committed every few seconds only, in
# ``replication-offset-checkpoint``. Its cleaner knows more: it takes a record away because of a
# newer one of its key, which may lie above that. A view up to that end would then have no row of
# the key. A cleaner never looks into the active segment, so all is well while the end lies in
# that.
#
# A cleaner renames the files of the segments that it replaces, one group after the other, and at
# last notes how far it looked in ``cleaner-offset-checkpoint``. So both are looked at.
#
# Source: Kafka ``LogCleaner``, ``LogCleanerManager.cleanableOffsets``,
# ``ReplicaManager.checkpointHighWatermarks``.


_DECIDED_NS: Final = 1_000_000_000
"""How long before it was written what a checkpoint says may have been true."""


def compacted_beyond(log: PartitionLog, start: int, end: int) -> str:
    """Return what shows that a cleaner may have looked beyond ``end``; nothing if nothing does.

    ``start`` and ``end`` are the bounds of a view, which ends where what is known to be committed
    does. Ask after its segments were listed: what is cleaned later is noticed by who reads them.
    What is returned is for a message, and has no full stop.

    Raises:
        UnknownTopicOrPartitionError: the folder of the partition is gone.
    """
    log.refresh()
    if not log.segments or log.segments[-1].base_offset <= end:
        return ""
    folder, key = log.directory, log.topic_partition
    here = PartitionDirectory(key, folder, folder.parent)
    cleaned = LogDirs.checkpoint(CLEANER_OFFSET, [here]).get(key, 0)
    if cleaned > end:
        return (
            f"{end} is committed by {HIGH_WATERMARK}, and a cleaner has compacted up to {cleaned}"
        )
    written = _changed_at(folder.parent / HIGH_WATERMARK)
    if isinstance(folder, RemotePath) or written is None:  # no broker runs here
        return ""
    for path in folder.iterdir():
        changed = _changed_at(path) if _is_replaced(path.name, start, end) else None
        if changed is not None and changed > written - _DECIDED_NS:
            return (
                f"{end} is committed by {HIGH_WATERMARK}, and a cleaner replaced {path.name} since"
            )
    return ""


def _is_replaced(name: str, start: int, end: int) -> bool:
    """Whether a file is a segment of the range on its way in or out; retention's lie below it."""
    for suffix in (CLEANED, SWAP, DELETED):
        base_offset = parse_base_offset(name.removesuffix(suffix), LOG)
        if name.endswith(suffix) and base_offset is not None:
            return start <= base_offset < end
    return False


def _changed_at(path: Path) -> int | None:
    """Return when a file was written or renamed, in ns; None if it is not there."""
    try:
        return path.lstat().st_ctime_ns
    except FileNotFoundError:
        return None


# ----------------------------------------------------------------------------------------------
# Which splits share a task.
#
# A task costs Spark some 10 to 15 ms of a core, whatever it reads: a batch of a few rows in each
# of many partitions would cost little else. So splits of few bytes are read one after the other.


PACKED_BYTES: Final = 256 << 10
"""Bytes of segment files that are not worth another task: a core reads them in 3 ms."""

_TASKS_PER_CORE: Final = 4
"""As many tasks a core even out what splits differ in; more of them only cost."""


def pack_batch(
    splits: Sequence[LogSplit], split_bytes: int | None = None, *, cores: int | None = None
) -> list[tuple[LogSplit, ...]]:
    """Return what each task of a batch read reads.

    While there are few splits for the ``cores`` (this machine's, as for
    ``byte_splits.split_target``), each has a task: users expect a task for each topic partition
    then, as with Spark's Kafka source. ``split_bytes`` is the user's own limit.
    """
    if len(splits) <= _tasks(cores):
        return [(split,) for split in splits]
    return pack_splits(splits, _share(splits, split_bytes, cores))


def pack_micro_batch(
    splits: Sequence[LogSplit], split_bytes: int | None = None, *, cores: int | None = None
) -> list[tuple[LogSplit, ...]]:
    """Return what each task of a micro-batch reads: of a small one a single task reads all."""
    least = min(PACKED_BYTES, split_bytes or PACKED_BYTES)
    return pack_splits(splits, max(least, _share(splits, split_bytes, cores)))


def pack_splits(splits: Sequence[LogSplit], most_bytes: int) -> list[tuple[LogSplit, ...]]:
    """Put splits in a row together as long as they have ``most_bytes``, at least one a task."""
    packs: list[list[LogSplit]] = []
    filled = 0
    for split in splits:
        if packs and filled + split.size <= most_bytes:
            packs[-1].append(split)
            filled += split.size
        else:
            packs.append([split])
            filled = split.size
    return [*map(tuple, packs)]


def _share(splits: Sequence[LogSplit], split_bytes: int | None, cores: int | None) -> int:
    total = sum(split.size for split in splits)
    return min(split_bytes or SMALLEST_BYTES, SMALLEST_BYTES, total // _tasks(cores))


def _tasks(cores: int | None) -> int:
    return _TASKS_PER_CORE * (cores or os.cpu_count() or 1)


# ----------------------------------------------------------------------------------------------


def plan_batch(
    options: ReadOptions, selection: Selection | None = None, *, seen: LogEndTracker | None = None
) -> list[LogSplit]:
    """Cut what a batch query reads into splits; of a ``selection``, what may hold rows of it.

    What a tracker has ``seen`` of the same logs is not read again, and it is not asked any more.

    Raises:
        OptionError: bounds that contradict each other or name other partitions than are read.
        UnknownTopicOrPartitionError: a topic of ``subscribe`` does not exist.
        DataLossError: offsets between the bounds are gone, and the query wants to fail then.
    """
    options.refuse_for_batch()
    bounds = batch_bounds(options)
    subscription = Subscription.of(options)
    logs = EndOffsets.of(options, subscription.selects)
    if seen is not None:
        logs.take_over(seen)
    policy = LossPolicy.of(options)
    check = CompletenessCheck(logs, options, policy)
    look = partial(
        check.look,
        lambda: logs.look().offsets,
        is_whole=lambda: not logs.ends.lost,
        concerns=lambda key: selection is None or selection.selects(key),
    )
    available = look()
    logs.report()
    subscription.require_topics(logs.existing(), options.paths)

    def look_again() -> None:
        nonlocal available
        available = look()

    return check.retries.plan(
        lambda policy: _plan(options, bounds, selection, logs, available, policy),
        policy,
        again=look_again,
        lost=(DataLossError, UnknownTopicOrPartitionError),  # perhaps a replica that moves
    )


def _plan(
    options: ReadOptions,
    bounds: tuple[Bound, Bound],
    selection: Selection | None,
    logs: EndOffsets,
    available: PartitionOffsets,
    policy: LossPolicy,
) -> list[LogSplit]:
    """Plan what a look has found ``available``."""
    ending = bounds[1]
    start, end, log_starts = _resolved(options, bounds, logs, available, policy)
    policy.logs_cut(
        {k: gap for k, gap in logs.ends.lost.items() if ending.is_open(k, end[k], gap.start)}
    )
    ranges = readable_ranges(start, end, available, logs, policy, log_starts=log_starts)
    if selection is not None:
        disorder_ms = options.max_timestamp_disorder_ms
        ranges = prune_ranges(ranges, selection, logs, disorder_ms=disorder_ms)
    splits = plan_splits(ranges, options, logs, policy)
    if options.view == "latest":
        open_ended = [r for r in ranges if ending.is_open(r[0], r.end, available[r[0]])]
        _refuse_if_compacted_beyond(open_ended, logs, policy)
    if selection is None or options.cuts_by_offsets:
        return splits
    total = sum(split.size for split in splits)
    return join_splits(splits, split_target(options.split_bytes, total))


def _resolved(
    options: ReadOptions,
    bounds: tuple[Bound, Bound],
    logs: EndOffsets,
    available: PartitionOffsets,
    policy: LossPolicy,
) -> tuple[PartitionOffsets, PartitionOffsets, dict[TopicPartition, LogStart]]:
    """Return the offsets at which each partition starts and ends, and the log starts of some."""
    starting, ending = bounds
    strategy = options.starting_timestamp_strategy
    positions = starting_positions(options, starting.group, available, logs)
    log_starts = {}
    for key, log_end in available.items():
        if key not in positions and starting.each is None and starting.is_earliest(key):
            # what came since is not of this batch: an empty log need not be opened
            log_starts[key] = logs.seen_empty(key, log_end) or logs.start_of(key)
    known = {**positions, **{key: log_start.offset for key, log_start in log_starts.items()}}
    start = resolve_start(starting, available, logs, when_none=strategy, positions=known)
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
    return start, end, log_starts


def _refuse_if_compacted_beyond(
    ranges: list[OffsetRange], logs: EndOffsets, policy: LossPolicy
) -> None:
    """Report ranges that a cleaner may have compacted by records above their open ends."""
    for topic_partition, start, end in ranges:
        try:
            with logs.open(topic_partition) as log:
                seen = compacted_beyond(log, start, end)
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
