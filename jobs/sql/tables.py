"""Topics and views as datasets of Arrow, which read what a query asks for and no more.

A record batch reader can be read once only. A dataset is asked anew for each scan, with the columns
and the filter of the query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from kafkalog.errors import KafkaLogError
from kafkalog.jobs.inspection.records import read_in_threads
from kafkalog.model import EVERYTHING, NOTHING, Intervals
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.source.loss import with_remedy
from kafkalog.streaming.source.planner import Selection, thin_split
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import RowSchema, view_arrow_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from kafkalog.streaming.options.read_options import ReadOptions
    from kafkalog.streaming.source.planner import LogSplit


__all__ = [
    "LogTable",
    "Scans",
    "can_pass",
    "hull_of",
    "is_named",
    "offset_value",
    "timestamp_value",
]


# ----------------------------------------------------------------------------------------------
# What a filter leaves of partitions, offsets and timestamps, asked of Arrow itself.
#
# An expression of Arrow tells nobody what it is made of. But Arrow says of a guarantee, such as
# ``offset < 100``, whether rows with it can pass the filter. So bounds are searched for: the
# largest b for which nothing below b passes is a lower bound. What Arrow cannot tell passes, so
# that too much may be read and never too little.


_FORMAT: Final = ds.ParquetFileFormat()
_AT_ONCE: Final = 32
_END: Final = 2**63 - 1
_LAST_MS: Final = _END // 1000


def is_named(name: str, expression: pc.Expression) -> bool:
    """Return whether an expression may be about a column."""
    return name in str(expression)


def can_pass(
    expression: pc.Expression, guarantees: Sequence[pc.Expression], schema: pa.Schema
) -> list[bool]:
    """Return for each guarantee whether rows of which it holds can pass the filter."""
    system = LocalFileSystem()
    fragments = [
        _FORMAT.make_fragment(str(number), filesystem=system, partition_expression=each)
        for number, each in enumerate(guarantees)
    ]
    dataset = ds.FileSystemDataset(fragments, schema, _FORMAT, system)
    left = {fragment.path for fragment in dataset.get_fragments(filter=expression)}
    return [str(number) in left for number in range(len(guarantees))]


def offset_value(number: int) -> Any:  # noqa: ANN401 - a scalar of Arrow
    """Return an offset for an expression."""
    return pa.scalar(number, pa.int64())


def timestamp_value(milliseconds: int) -> Any:  # noqa: ANN401 - a scalar of Arrow
    """Return a timestamp for an expression."""
    return pa.scalar(max(-_LAST_MS, min(milliseconds, _LAST_MS)) * 1000, pa.timestamp("us", "UTC"))


def hull_of(
    expression: pc.Expression,
    name: str,
    value: Callable[[int], Any],
    end: int,
    schema: pa.Schema,
) -> Intervals:
    """Return a range of numbers from 0 to ``end`` outside of which no row passes.

    ``value`` makes a scalar of the column's type of a number. Below 0 and from ``end`` on, rows
    pass if they do at the ends of the range.
    """
    if not is_named(name, expression):
        return EVERYTHING
    field = pc.field(name)
    beyond, null = can_pass(expression, [field > value(end), field.is_null()], schema)
    if null:
        return EVERYTHING
    # the first number for which something below it, or itself, passes; and the same from above
    low = _first(expression, lambda number: field <= value(number), end, schema)
    if low is None:
        return EVERYTHING if beyond else NOTHING
    high = _first(expression, lambda number: field >= value(end - number), end, schema)
    last = end if high is None else end - high
    return Intervals.between(low or None, None if last >= end else last + 1)


def _first(
    expression: pc.Expression,
    guarantee: Callable[[int], pc.Expression],
    end: int,
    schema: pa.Schema,
) -> int | None:
    """Find the smallest number up to ``end`` whose guarantee lets rows pass, as all after it do."""
    low, high = 0, end + 1
    while low < high:
        step = max(1, (high - low) // _AT_ONCE)
        numbers = [*range(low, high, step)][: _AT_ONCE + 1]
        passes = can_pass(expression, [guarantee(number) for number in numbers], schema)
        if True in passes:
            place = passes.index(True)
            high = numbers[place]
            low = numbers[place - 1] + 1 if place else low
        else:
            low = numbers[-1] + 1
    return low if low <= end else None


# ----------------------------------------------------------------------------------------------

_LAST_RECORD_MS: Final = 2**53
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
            with with_remedy(self._options):
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
            selection.timestamps = hull_of(
                filter_, "timestamp", timestamp_value, _LAST_RECORD_MS, schema
            )
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
