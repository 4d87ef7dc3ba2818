"""The batch source as Spark sees it. Bounds are resolved when a query is planned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from kafkalog.errors import OptionError, UnknownTopicOrPartitionError
from kafkalog.streaming.options import warn_ignored

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from kafkalog.streaming.schema import RowSchema
    from kafkalog.streaming.source.offsets import PartitionOffsets
    from kafkalog.streaming.source.planner import LogSplit
    from kafkalog.streaming.source.read_options import ReadOptions

__all__ = ["LogBatchReader", "plan_batch"]


class LogBatchReader(DataSourceReader):
    """Plans in the driver, reads splits in tasks; holds only what both need."""

    def __init__(self, options: ReadOptions, rows: RowSchema) -> None:
        self._options = options
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        """Resolve the bounds as of now and cut what lies between into splits."""
        warn_ignored(self._options.ignored)
        return list(plan_batch(self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one split (in a task)."""
        from kafkalog.streaming.source.planner import LogSplit  # noqa: PLC0415
        from kafkalog.streaming.source.reading import read_split  # noqa: PLC0415

        if not isinstance(partition, LogSplit):  # Spark's stand-in for an empty list of splits
            return iter(())
        return read_split(partition, self._options, self._rows)


def plan_batch(options: ReadOptions) -> list[LogSplit]:
    """Cut what a batch query reads into splits.

    Raises:
        OptionError: bounds that contradict each other or name other partitions than are read.
        UnknownTopicOrPartitionError: a topic of ``subscribe`` does not exist.
        DataLossError: offsets between the bounds are gone, and the query wants to fail then.
    """
    from kafkalog.streaming.source.loss import LossPolicy  # noqa: PLC0415
    from kafkalog.streaming.source.planner import plan_splits, readable_ranges  # noqa: PLC0415
    from kafkalog.streaming.source.start import (  # noqa: PLC0415
        batch_bounds,
        resolve_end,
        resolve_start,
    )
    from kafkalog.streaming.source.subscription import Subscription  # noqa: PLC0415
    from kafkalog.streaming.source.tail import LogTail  # noqa: PLC0415

    starting, ending = batch_bounds(options)
    subscription = Subscription.of(options)
    tail = LogTail(options.paths, subscription.selects, to_log_end=options.read_up_to == "logEnd")
    available = tail.look()
    tail.report()
    missing = subscription.missing_topics(tail.existing())
    if missing:
        raise UnknownTopicOrPartitionError(
            f"no partition of topic {', '.join(missing)} is in {', '.join(options.paths)}"
        )
    strategy = options.starting_timestamp_strategy
    start = resolve_start(starting, available, tail, when_none=strategy)
    end = resolve_end(ending, available, tail)
    _check_order(start, end)
    policy = LossPolicy(fail=options.fail_on_data_loss)
    ranges = readable_ranges(start, end, available, tail, policy)
    return plan_splits(ranges, options, tail, policy)


def _check_order(start: PartitionOffsets, end: PartitionOffsets) -> None:
    for key, offset in start.items():
        if offset > end[key]:
            raise OptionError(
                f"[RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] {key}: the query would start at "
                f"offset {offset}, behind its end {end[key]}"
            )
