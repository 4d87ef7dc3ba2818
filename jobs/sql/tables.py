"""Topics and views as datasets of Arrow, which read what a query asks for and no more.

A record batch reader can be read once only. A dataset is asked anew for each scan, with the columns
and the filter of the query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from kafkalog.errors import KafkaLogError
from kafkalog.jobs.records.reading import read_in_threads
from kafkalog.jobs.sql.filters import can_pass, hull_of, is_named, offset_value, timestamp_value
from kafkalog.streaming.log.intervals import Intervals
from kafkalog.streaming.schema import RowSchema
from kafkalog.streaming.source.damage import naming_way_out
from kafkalog.streaming.source.plan.batch_plan import plan_batch
from kafkalog.streaming.source.plan.pruning import thin_split
from kafkalog.streaming.source.plan.selection import Selection
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.views import view_arrow_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from kafkalog.streaming.source.plan.planner import LogSplit
    from kafkalog.streaming.source.read_options import ReadOptions

__all__ = ["LogTable", "Scans"]

_LAST_MS: Final = 2**53
"""Some 285,000 years: later timestamps are read whatever a query says of times."""
_LAST_OFFSET: Final = 2**62

_SOURCES: Final = {"record_offset": "offset", "key_text": "key", "value_text": "value"}
"""Columns that are made of others."""


@dataclass(slots=True)
class Scans:
    """What the scans of a session have done."""

    rows: int = 0
    """That were read, before the filters of queries."""
    error: KafkaLogError | None = None
    """That ended the last one: an engine shows it as one of its own, in many lines."""


class LogTable(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """The records of a topic, or the rows of a view of one or several topics."""

    def __init__(self, options: ReadOptions, partitions: Collection[int], scans: Scans) -> None:
        """Take the options of a batch read, and the numbers of the partitions that there are."""
        self._options = options
        self._partitions = sorted(set(partitions))
        self._scans = scans
        self._schema = view_arrow_schema(options) if options.has_view else _record_schema()

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - Arrow's word
        **_: object,
    ) -> ds.Scanner:
        """Return what reads these columns, and of the rows those that pass the filter."""
        names = self._schema.names
        wanted = [
            name
            for name in names
            if columns is None or name in columns or (filter is not None and is_named(name, filter))
        ]
        wanted = wanted or ["partition"]
        schema = pa.schema([self._schema.field(name) for name in wanted])
        reader = pa.RecordBatchReader.from_batches(schema, self._read(schema, filter))
        chosen = names if columns is None else [*columns]
        return ds.Scanner.from_batches(reader, columns=chosen, filter=filter)

    def _read(self, schema: pa.Schema, filter_: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        selection = self._selection(filter_)
        rows, made = None, _chosen(schema)
        if not self._options.has_view:
            sources = dict.fromkeys(_SOURCES.get(name, name) for name in schema.names)
            rows, made = RowSchema.named([*sources], include_headers=True), _completed(schema)

        def read(split: LogSplit) -> Iterator[pa.RecordBatch]:
            return read_split(thin_split(split, selection.timestamps), self._options, rows)

        try:
            with naming_way_out(self._options):
                splits = plan_batch(self._options, selection)
            for batch in read_in_threads(splits, read):
                self._scans.rows += batch.num_rows
                yield made(batch)
        except KafkaLogError as error:
            self._scans.error = error
            raise

    def _selection(self, filter_: pc.Expression | None) -> Selection:
        """Return what a filter leaves; of a view, partitions alone: rows speak of other things."""
        if filter_ is None:
            return Selection()
        selection, schema = Selection(), self._schema
        if self._options.view in {"records", "batches"}:
            numbers = [pa.scalar(each, pa.int32()) for each in self._partitions]
            passing = can_pass(filter_, [pc.field("partition") == each for each in numbers], schema)
            kept = zip(self._partitions, passing, strict=True)
            selection.partitions = Intervals.of(each for each, passes in kept if passes)
        if self._options.view == "records":
            for name in ("offset", "record_offset"):
                selection.offsets &= hull_of(filter_, name, offset_value, _LAST_OFFSET, schema)
            selection.timestamps = hull_of(filter_, "timestamp", timestamp_value, _LAST_MS, schema)
        return selection


def _record_schema() -> pa.Schema:
    source = RowSchema.named(include_headers=True).to_arrow()
    fields = []
    for field in source:
        fields.append(field)
        for name, origin in _SOURCES.items():
            if origin == field.name:
                kind = field.type if origin == "offset" else pa.string()
                fields.append(pa.field(name, kind))
    return pa.schema(fields)


def _chosen(schema: pa.Schema) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    return lambda batch: batch.select(schema.names)


def _completed(schema: pa.Schema) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    def complete(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [_column(name, batch) for name in schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    return complete


def _column(name: str, batch: pa.RecordBatch) -> pa.Array:
    column = batch.column(_SOURCES.get(name, name))
    return _text_of(column) if name in {"key_text", "value_text"} else column


def _text_of(data: pa.Array) -> pa.Array:
    """Return text where bytes are UTF-8, and null elsewhere."""
    try:
        return data.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_utf8(value) for value in data.to_pylist()], pa.string())


def _utf8(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
