"""The batch source as Spark sees it. Bounds are resolved when a query is planned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from kafkalog.streaming.options import warn_ignored
from kafkalog.streaming.worker import settle_worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from kafkalog.streaming.schema import RowSchema
    from kafkalog.streaming.source.read_options import ReadOptions
    from kafkalog.streaming.source.selection import Selection

__all__ = ["LogBatchReader"]


class LogBatchReader(DataSourceReader):
    """Plans in the driver, reads splits in tasks; holds only what both need."""

    def __init__(self, options: ReadOptions, rows: RowSchema | None) -> None:
        self._options = options
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        """Resolve the bounds as of now and cut what lies between into splits."""
        return self._plan()

    def _plan(self, selection: Selection | None = None) -> list[InputPartition]:
        from kafkalog.streaming.source.batch_plan import plan_batch  # noqa: PLC0415

        warn_ignored(self._options.ignored)
        return [InputPartition(split) for split in plan_batch(self._options, selection)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one split (in a task)."""
        from kafkalog.streaming.source.reading import read_split  # noqa: PLC0415

        if partition.value is not None:  # None is Spark's stand-in for an empty list of splits
            yield from read_split(partition.value, self._options, self._rows)
        settle_worker()
