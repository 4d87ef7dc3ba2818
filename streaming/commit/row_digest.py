"""Digest of a batch's rows, independent of their order and of tasks.

A batch that is run again is recognised by what its query's checkpoint planned for it. If that
cannot be read, and for a batch write with ``txnAppId``, the rows tell: the same rows are the same
batch, in any order and from any tasks. Each row is hashed by all that a record of it would hold.
The digest is the number of rows and the sum of their hashes. Times that the sink gives to rows
without one do not count, since they differ from run to run.

Values count by their length and Kafka's murmur2 of 32 bits. That is no proof against somebody who
looks for two batches with one digest: whoever may choose rows has better ways to spoil a log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafkalog.streaming.records.murmur2_kernels import murmur2
from kafkalog.streaming.store.identity import DIGEST_OF_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["RowDigest", "RowHashes", "row_hashes", "rows_of"]

RowHashes = NDArray[np.uint64]

_PLACE: Final = ("topic",)
_COLUMNS: Final = ("partition", "key", "value", "headers", "timestamp", "offset")

_MASK: Final = 2**64 - 1
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
"""Of splitmix64."""

_NULL: Final = np.uint64(_MASK)


@dataclass(frozen=True, slots=True)
class RowDigest:
    """How many rows, and the sum of their hashes modulo 2^64."""

    rows: int = 0
    total: int = 0

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Self:
        """Take the rows of one Arrow batch; columns that the sink does not know do not count."""
        return cls.of_hashes(row_hashes(batch, with_topic=True))

    @classmethod
    def of_hashes(cls, hashes: RowHashes) -> Self:
        """Take rows by their hashes."""
        return cls(len(hashes), int(hashes.sum(dtype=np.uint64)))

    @classmethod
    def sum(cls, digests: Iterable[RowDigest]) -> Self:
        """Return the digest of all rows together."""
        rows = total = 0
        for digest in digests:
            rows += digest.rows
            total += digest.total
        return cls(rows, total & _MASK)

    def __str__(self) -> str:
        return f"{DIGEST_OF_ROWS}{self.rows} {self.total:016x}"


def rows_of(digest: str) -> int:
    """Return how many rows a digest is of."""
    return int(digest.removeprefix(DIGEST_OF_ROWS).partition(" ")[0])


def row_hashes(batch: pa.RecordBatch, *, with_topic: bool) -> RowHashes:
    """Hash each row of an Arrow batch, with or without the topic that it names: uint64[rows]."""
    hashes = np.zeros(batch.num_rows, np.uint64)
    for name in (*_PLACE, *_COLUMNS) if with_topic else _COLUMNS:
        if name in batch.schema.names:
            hashes = _mixed(hashes + _hashes_of(batch.column(name)))
        else:
            hashes = _mixed(hashes)
    return hashes


def _mixed(hashes: RowHashes) -> RowHashes:
    hashes = hashes + _STEP
    hashes = (hashes ^ (hashes >> np.uint64(30))) * _FIRST
    hashes = (hashes ^ (hashes >> np.uint64(27))) * _SECOND
    return hashes ^ (hashes >> np.uint64(31))


def _hashes_of(column: pa.Array) -> RowHashes:
    """Hash n values, each by itself: uint64[n]."""
    if pa.types.is_null(column.type):
        return np.full(len(column), _NULL)
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return _hashes_of_headers(column)
    if pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type):
        numbers = pc.fill_null(column.cast(pa.int64()), 0)
        hashes = _mixed(np.asarray(numbers).astype(np.uint64))
    else:
        lengths = np.asarray(pc.fill_null(pc.binary_length(column), 0)).astype(np.uint64)
        hashes = _mixed(lengths << np.uint64(32) | murmur2(column).view(np.uint32))
    return np.where(np.asarray(column.is_null()), _NULL, hashes)


def _hashes_of_headers(column: pa.Array) -> RowHashes:
    """Hash lists of headers, whose order matters; a null list is an empty one."""
    lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0)).astype(np.int64)
    keys, values = column.flatten().flatten()  # leaves out what lies under null lists
    ends = np.cumsum(lengths)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    places = (np.arange(len(owners)) - (ends - lengths)[owners]).astype(np.uint64)
    each = _mixed(_mixed(_hashes_of(keys) + places) + _hashes_of(values))
    hashes = np.zeros(len(lengths), np.uint64)
    np.add.at(hashes, owners, each)
    return _mixed(hashes + lengths.astype(np.uint64))
