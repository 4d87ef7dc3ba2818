"""``view=latest`` as Spark sees it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from kafkalog.streaming.border import crosses_border
from kafkalog.streaming.options import warn_ignored
from kafkalog.streaming.source.batch_reader import LogBatchReader, splits_of
from kafkalog.streaming.worker import settle_planner, task_of_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from kafkalog.streaming.schema import RowSchema
    from kafkalog.streaming.source.plan.selection import Selection
    from kafkalog.streaming.source.read_options import ReadOptions

__all__ = ["LatestReader"]

_LOGGER: Final = logging.getLogger("kafkalog.source")


class LatestReader(LogBatchReader):
    """Gives each task whole partitions, or a share of the keys of one."""

    def __init__(self, options: ReadOptions, rows: RowSchema) -> None:
        super().__init__(options, rows)
        self._latest_rows = rows
        self._keys: frozenset[bytes] | None = None

    def _plan(self, selection: Selection | None = None) -> list[InputPartition]:
        from kafkalog.streaming.source.damage import naming_way_out  # noqa: PLC0415
        from kafkalog.streaming.source.latest import plan_latest  # noqa: PLC0415
        from kafkalog.streaming.source.plan.packing import pack_batch  # noqa: PLC0415

        warn_ignored(self._options.ignored)
        with naming_way_out(self._options):
            splits = plan_latest(self._options, selection)
        settle_planner()
        if self._options.min_partitions is not None:
            return [InputPartition((split,)) for split in splits]
        return [InputPartition(pack) for pack in pack_batch(splits)]

    @crosses_border
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the newest rows of the partitions of one task."""
        from kafkalog.files.block_cache import block_cache  # noqa: PLC0415
        from kafkalog.streaming.source.lookup import read_keys  # noqa: PLC0415

        with task_of_spark():
            for split in splits_of(partition):
                yield from read_keys(split, self._options, self._latest_rows, self._keys)
            if self._keys is not None:
                _LOGGER.info("the cache of this process: %s", block_cache().stats())
