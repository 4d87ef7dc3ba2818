"""Readers of batch queries as Spark sees them: plain, with filters, ``view=latest``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from kafkalog.files.system import once_per_process
from kafkalog.streaming.log.intervals import EVERYTHING
from kafkalog.streaming.options.bridge import crosses_border
from kafkalog.streaming.options.declaring import warn_ignored
from kafkalog.streaming.source.pruning import thin_split
from kafkalog.streaming.spark.worker import freeze_planner, task_of_spark

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from kafkalog.streaming.source.pruning import Selection
    from kafkalog.streaming.source.read_options import ReadOptions
    from kafkalog.streaming.source.schema import RowSchema


__all__ = ["LatestPushdownReader", "LatestReader", "LogBatchReader", "PushdownReader", "splits_of"]


# ----------------------------------------------------------------------------------------------
# The batch source as Spark sees it. Bounds are resolved when a query is planned.


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
        from kafkalog.streaming.source.batch_plan import pack_batch, plan_batch  # noqa: PLC0415
        from kafkalog.streaming.source.loss import with_remedy  # noqa: PLC0415

        warn_ignored(self._options.ignored)
        with with_remedy(self._options):
            splits = plan_batch(self._options, selection)
        freeze_planner()
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


# ----------------------------------------------------------------------------------------------
# ``view=latest`` as Spark sees it.


_LOGGER: Final = logging.getLogger("kafkalog.source")


class LatestReader(LogBatchReader):
    """Gives each task whole partitions, or a share of the keys of one."""

    def __init__(self, options: ReadOptions, rows: RowSchema) -> None:
        super().__init__(options, rows)
        self._latest_rows = rows
        self._keys: frozenset[bytes] | None = None

    def _plan(self, selection: Selection | None = None) -> list[InputPartition]:
        from kafkalog.streaming.lookup.latest import plan_latest  # noqa: PLC0415
        from kafkalog.streaming.source.batch_plan import pack_batch  # noqa: PLC0415
        from kafkalog.streaming.source.loss import with_remedy  # noqa: PLC0415

        warn_ignored(self._options.ignored)
        with with_remedy(self._options):
            splits = plan_latest(self._options, selection)
        freeze_planner()
        if self._options.min_partitions is not None:
            return [InputPartition((split,)) for split in splits]
        return [InputPartition(pack) for pack in pack_batch(splits)]

    @crosses_border
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the newest rows of the partitions of one task."""
        from kafkalog.streaming.lookup.block_cache import block_cache  # noqa: PLC0415
        from kafkalog.streaming.lookup.lookup import read_keys  # noqa: PLC0415

        with task_of_spark():
            for split in splits_of(partition):
                yield from read_keys(split, self._options, self._latest_rows, self._keys)
            if self._keys is not None:
                _LOGGER.info("the cache of this process: %s", block_cache().stats())


# ----------------------------------------------------------------------------------------------
# The batch source for ``filterPushdown``: filters of the query decide what is read.
#
# Spark refuses a reader with a method ``pushFilters`` while its setting
# ``spark.sql.python.filterPushdown.enabled`` is off, as it is by default. So this is a class of
# its own. Spark 4.0 has no filters at all: what knows their classes is imported by who gets some.
#
# Spark keeps the plan of the last filters with the loaded table, for all of its uses
# (``PythonDataSourceV2.setReadInfo``), and asks nothing for a scan without filters. So the plan
# of one query is taken for another's. Nothing here shows it: all that can be done is to warn
# beforehand.


class PushdownReader(LogBatchReader):
    """Plans what the filters leave; tasks leave out batches that cannot hold a wanted timestamp."""

    def __init__(self, options: ReadOptions, rows: RowSchema) -> None:
        super().__init__(options, rows)
        from kafkalog.streaming.source.filters import FilteredSelection  # noqa: PLC0415

        self._names = dict(zip(rows.names, rows.columns, strict=True))
        self._selection = FilteredSelection()

    @crosses_border
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take filters into account, and return those that Spark has to apply."""
        return [entry for entry in filters if not self._selection.add(entry, self._names)]

    @crosses_border
    def partitions(self) -> list[InputPartition]:
        """Cut what may hold rows of the selection into splits."""
        _warn_of_other_uses()
        return self._plan(self._selection)

    @crosses_border
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the splits of one task."""
        times = self._selection.timestamps
        if times != EVERYTHING:
            splits = (thin_split(split, times) for split in splits_of(partition))
            partition = InputPartition(splits)
        yield from super().read(partition)


class LatestPushdownReader(LatestReader):
    """Reads only partitions that filters leave, and looks only for the keys that they name.

    Only filters that hold for all rows of a key, or for none, may be applied before its newest row
    is chosen: those on ``key``, ``topic`` and ``partition``. Spark applies all others.
    """

    def __init__(self, options: ReadOptions, rows: RowSchema) -> None:
        super().__init__(options, rows)
        from kafkalog.streaming.source.filters import FilteredSelection  # noqa: PLC0415

        names = zip(rows.names, rows.columns, strict=True)
        self._names = {
            name: column for name, column in names if column in {"key", "topic", "partition"}
        }
        self._selection = FilteredSelection()

    @crosses_border
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take filters into account, and return those that Spark has to apply."""
        return [entry for entry in filters if not self._add(entry)]

    def _add(self, entry: Filter) -> bool:
        from kafkalog.streaming.source.filters import wanted_keys  # noqa: PLC0415

        attribute: tuple[str, ...] = getattr(entry, "attribute", ())
        if len(attribute) == 1 and self._names.get(attribute[0]) == "key":
            keys = wanted_keys(entry)
            if keys is not None:
                self._keys = keys if self._keys is None else self._keys & keys
            return False
        return self._selection.add(entry, self._names)

    @crosses_border
    def partitions(self) -> list[InputPartition]:
        """Plan the partitions that the filters leave."""
        _warn_of_other_uses()
        return self._plan(self._selection)


@once_per_process
def _warn_of_other_uses() -> None:
    """Say once per process what Spark makes of filters."""
    _LOGGER.warning(
        "filterPushdown: Spark keeps what the filters of this query leave with the loaded "
        "DataFrame or view; another use of it, or a second one in the same query, may get that "
        "instead of its own rows. Load again for each query, and name the load once in it."
    )
