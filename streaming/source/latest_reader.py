"""``view=latest`` as Spark sees it, without and with filters that decide what is read."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import EqualNullSafe, EqualTo, In, InputPartition

from kafkalog.streaming.border import crosses_border
from kafkalog.streaming.options import warn_ignored
from kafkalog.streaming.source.batch_reader import LogBatchReader
from kafkalog.streaming.source.plan.filters import FilteredSelection
from kafkalog.streaming.source.pushdown_reader import warn_of_other_uses
from kafkalog.streaming.worker import settle_planner, task_of_spark

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from kafkalog.streaming.schema import RowSchema
    from kafkalog.streaming.source.plan.selection import Selection
    from kafkalog.streaming.source.read_options import ReadOptions

__all__ = ["LatestPushdownReader", "LatestReader"]

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
            for split in partition.value or ():  # None is Spark's stand-in for an empty list
                yield from read_keys(split, self._options, self._latest_rows, self._keys)
            if self._keys is not None:
                _LOGGER.info("the cache of this process: %s", block_cache().stats())


class LatestPushdownReader(LatestReader):
    """Reads only partitions that filters leave, and looks only for the keys that they name.

    Only filters that hold for all rows of a key, or for none, may be applied before its newest row
    is chosen: those on ``key``, ``topic`` and ``partition``. Spark applies all others.
    """

    def __init__(self, options: ReadOptions, rows: RowSchema) -> None:
        super().__init__(options, rows)
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
        attribute: tuple[str, ...] = getattr(entry, "attribute", ())
        if len(attribute) == 1 and self._names.get(attribute[0]) == "key":
            keys = _keys(entry)
            if keys is not None:
                self._keys = keys if self._keys is None else self._keys & keys
            return False
        return self._selection.add(entry, self._names)

    @crosses_border
    def partitions(self) -> list[InputPartition]:
        """Plan the partitions that the filters leave."""
        warn_of_other_uses()
        return self._plan(self._selection)


def _keys(given: Filter) -> frozenset[bytes] | None:
    """Return the keys for which alone a filter can hold; None if it does not tell."""
    match given:
        case EqualTo(value=value) | EqualNullSafe(value=value) if value is not None:
            values = [value]
        case In(value=listed):
            values = [value for value in listed if value is not None]
        case _:
            return None
    try:
        return frozenset(
            value.encode() if isinstance(value, str) else bytes(memoryview(value))
            for value in values
        )
    except TypeError:
        return None
