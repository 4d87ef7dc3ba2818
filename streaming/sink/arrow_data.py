"""Rows as a program has them, as record batches of Arrow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, TypeAlias

import pyarrow as pa

from kafkalog.errors import RowError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ArrowStream", "Rows", "batches_of"]


class ArrowStream(Protocol):
    """What hands its rows out as Arrow: frames of pandas and Polars, answers of DuckDB.

    Source: the Arrow PyCapsule interface.
    """

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return a capsule with a stream of record batches."""
        ...


Rows: TypeAlias = pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch] | ArrowStream


def batches_of(data: Rows) -> Iterator[pa.RecordBatch]:
    """Return rows as record batches, which are made one after the other where they can be.

    Raises:
        RowError: these are no rows of Arrow, or hand none out; as they come.
    """
    if isinstance(data, pa.RecordBatch):
        data = [data]
    elif hasattr(data, "__arrow_c_stream__"):
        data = pa.RecordBatchReader.from_stream(data)
    if not isinstance(data, Iterable) or isinstance(data, dict):
        raise _no_rows(data)
    for batch in data:
        if not isinstance(batch, pa.RecordBatch):
            raise _no_rows(batch)
        yield _plain(batch)


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return views of texts (Polars) and dictionaries (categories of pandas) as plain columns."""
    for number, field in enumerate(batch.schema):
        if (kind := _plain_type(field.type)) != field.type:
            column = batch.column(number).cast(kind)
            batch = batch.set_column(number, field.with_type(kind), column)
    return batch


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    return {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(
        kind, kind
    )


def _no_rows(data: object) -> RowError:
    advice = ""
    if isinstance(data, dict):
        advice = ". pyarrow.Table.from_pylist makes a table of dicts that are rows, pyarrow.table "
        advice += "of a dict of columns"
    return RowError(
        "rows come as a table, a record batch, or an iterable of record batches of Arrow, or as "
        f"a frame of pandas or Polars, and not as {type(data).__name__}{advice}"
    )
