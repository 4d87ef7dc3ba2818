"""The batch source for ``filterPushdown``: filters of the query decide what is read.

Spark refuses a reader with a method ``pushFilters`` while its setting
``spark.sql.python.filterPushdown.enabled`` is off, as it is by default. So this is a class of its
own.

Spark keeps the plan of the last filters with the loaded table, for all of its uses
(``PythonDataSourceV2.setReadInfo``), and asks nothing for a scan without filters. So the plan of
one query is taken for another's. Nothing here shows it: all that can be done is to warn beforehand.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyspark.sql.datasource import EqualNullSafe, EqualTo, In, InputPartition

from kafkalog.files.system import once_per_process
from kafkalog.streaming.border import crosses_border
from kafkalog.streaming.log.intervals import EVERYTHING
from kafkalog.streaming.source.batch_reader import LogBatchReader, splits_of
from kafkalog.streaming.source.latest_reader import LatestReader
from kafkalog.streaming.source.plan.filters import FilteredSelection
from kafkalog.streaming.source.plan.pruning import thin_split

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from kafkalog.streaming.schema import RowSchema
    from kafkalog.streaming.source.read_options import ReadOptions

__all__ = ["LatestPushdownReader", "PushdownReader"]

_LOGGER = logging.getLogger("kafkalog.source")


class PushdownReader(LogBatchReader):
    """Plans what the filters leave; tasks leave out batches that cannot hold a wanted timestamp."""

    def __init__(self, options: ReadOptions, rows: RowSchema) -> None:
        super().__init__(options, rows)
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
        _warn_of_other_uses()
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


@once_per_process
def _warn_of_other_uses() -> None:
    """Say once per process what Spark makes of filters."""
    _LOGGER.warning(
        "filterPushdown: Spark keeps what the filters of this query leave with the loaded "
        "DataFrame or view; another use of it, or a second one in the same query, may get that "
        "instead of its own rows. Load again for each query, and name the load once in it."
    )
