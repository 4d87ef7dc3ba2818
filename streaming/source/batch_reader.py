"""The batch source as Spark sees it. Bounds are resolved when a query is planned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from kafkalog.streaming.border import crosses_border
from kafkalog.streaming.options import warn_ignored
from kafkalog.streaming.worker import settle_planner, task_of_spark

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from kafkalog.streaming.schema import RowSchema
    from kafkalog.streaming.source.plan.selection import Selection
    from kafkalog.streaming.source.read_options import ReadOptions

__all__ = ["LogBatchReader", "splits_of"]


def splits_of(partition: InputPartition | None) -> Iterable[Any]:
    """Return what one task is to read.

    Spark has a stand-in for an empty list of partitions: None (4.0), or one that holds None.
    """
    return (partition and partition.value) or ()


class LogBatchReader(DataSourceReader):
    """Plans in the driver, reads splits in tasks; holds only what both need."""

    def __init__(self, options: ReadOptions, rows: RowSchema | None) -> None:
        self._options = options
        self._rows = rows

    @crosses_border
    def partitions(self) -> list[InputPartition]:
        """Resolve the bounds as of now, cut what lies between, and give each task its splits."""
        return self._plan()

    def _plan(self, selection: Selection | None = None) -> list[InputPartition]:
        from kafkalog.streaming.source.damage import naming_way_out  # noqa: PLC0415
        from kafkalog.streaming.source.plan.batch_plan import plan_batch  # noqa: PLC0415
        from kafkalog.streaming.source.plan.packing import pack_batch  # noqa: PLC0415

        warn_ignored(self._options.ignored)
        with naming_way_out(self._options):
            splits = plan_batch(self._options, selection)
        settle_planner()
        if self._options.cuts_by_offsets:
            return [InputPartition((split,)) for split in splits]
        return [InputPartition(pack) for pack in pack_batch(splits, self._options.split_bytes)]

    @crosses_border
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the splits of one task."""
        from kafkalog.streaming.source.reading import read_split  # noqa: PLC0415

        with task_of_spark():
            for split in splits_of(partition):
                yield from read_split(split, self._options, self._rows)
