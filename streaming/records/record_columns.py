"""The columns that records are made of, as the kernels take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafkalog.errors import RowError
from kafkalog.streaming.records.arrow_buffers import (
    ABSENT,
    BinaryColumn,
    Integers,
    binary_column,
)

__all__ = ["RecordColumns"]

_NO_INTEGERS: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """The columns of n records as kernels take them; it keeps the Arrow buffers alive."""

    length: int
    key: BinaryColumn
    value: BinaryColumn
    timestamps: Integers
    header_starts: Integers
    header_keys: BinaryColumn
    header_values: BinaryColumn
    offsets: Integers

    @classmethod
    def from_arrow(
        cls,
        *,
        timestamps: Integers,
        value: pa.Array | pa.ChunkedArray | None = None,
        key: pa.Array | pa.ChunkedArray | None = None,
        headers: pa.Array | pa.ChunkedArray | None = None,
        offsets: Integers | None = None,
    ) -> Self:
        """Take the columns of n records.

        Args:
            timestamps: int64[n], ms; -1 for none.
            value: (large) binary or string, n values; None for all null.
            key: likewise.
            headers: (large) list<struct<key: string, value: binary>>, n lists; a null list is an
                empty one.
            offsets: int64[n] to keep, strictly increasing in the order the rows are appended in;
                None to number them one by one.

        Raises:
            RowError: a header without a key, naming the row.
            TypeError: a column of another type.
            ValueError: columns of different lengths.
        """
        for column in (key, value, headers, offsets):
            if column is not None and len(column) != len(timestamps):
                raise ValueError(f"{len(column)} values for {len(timestamps)} records")
        starts, header_keys, header_values = _headers(headers)
        return cls(
            length=len(timestamps),
            key=ABSENT if key is None else binary_column(key),
            value=ABSENT if value is None else binary_column(value),
            timestamps=np.ascontiguousarray(timestamps, np.int64),
            header_starts=starts,
            header_keys=header_keys,
            header_values=header_values,
            offsets=_NO_INTEGERS if offsets is None else np.ascontiguousarray(offsets, np.int64),
        )


def _headers(
    headers: pa.Array | pa.ChunkedArray | None,
) -> tuple[Integers, BinaryColumn, BinaryColumn]:
    if headers is None or pa.types.is_null(headers.type):
        return _NO_INTEGERS, ABSENT, ABSENT
    if isinstance(headers, pa.ChunkedArray):
        headers = headers.combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
    starts = np.zeros(len(headers) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    entries = headers.flatten()  # leaves out what lies under null lists
    keys, values = entries.flatten()
    if entries.null_count or keys.null_count:
        missing = pc.or_(pc.is_null(entries), pc.is_null(keys)).to_numpy(zero_copy_only=False)
        row = int(np.searchsorted(starts, np.flatnonzero(missing)[0], side="right")) - 1
        raise RowError(f"row {row} has a header whose key is null: Kafka's header keys never are")
    return starts, binary_column(keys), binary_column(values)
