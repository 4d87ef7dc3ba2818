"""Staged run: what a task reports to the commit about the batches of a partition."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafkalog.model import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TopicPartition
from kafkalog.streaming.records import batch_kernels as fields
from kafkalog.streaming.records.batch import BatchTable
from kafkalog.streaming.records.batch_layout import CODEC_MASK
from kafkalog.streaming.records.murmur2_kernels import murmur2
from kafkalog.streaming.store.identity import DIGEST_OF_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kafkalog.streaming.records.builder import EncodedBatch
    from kafkalog.streaming.store.identity import BatchIdentity

__all__ = ["RowDigest", "RowHashes", "StagedRun", "TaskOutput", "row_hashes", "rows_of"]

_BATCH: Final = np.dtype(
    [
        ("size", "<i4"),
        ("count", "<i4"),
        ("base_offset", "<i8"),  # -1: the commit gives it
        ("last_offset_delta", "<i4"),
        ("max_timestamp", "<i8"),
        ("magic", "u1"),
        ("attributes", "u1"),  # of magic 2: 0, nobody asks
    ]
)
"""One batch, wrapper, or set of plain messages of a run: 30 bytes."""

_MAGIC: Final = 16
_LEGACY_ATTRIBUTES: Final = 17


@dataclass(frozen=True, slots=True)
class StagedRun:
    """Whole batches of one partition, back to back in a staged file.

    ``directory`` counts in the list of log directories; ``position`` and ``size`` are bytes of the
    ``file`` in its root, ``crc32c`` is over them. ``batches`` packs a row of numbers for each.
    ``whole_file`` says that nothing else is in the file, which may then become a segment itself.
    ``partitions`` is how many the topic had, or was to get, when rows were placed among them; 0 in
    runs whose rows others have placed. ``topic_key`` is the key of that topic in the commit state;
    None if it was yet to be made. ``data`` are the bytes themselves where they lie in no file.
    """

    topic_partition: TopicPartition
    directory: int
    file: str
    position: int
    size: int
    crc32c: int
    batches: bytes
    whole_file: bool = False
    partitions: int = 0
    topic_key: str | None = None
    data: bytes = field(default=b"", repr=False)

    @classmethod
    def pack(cls, batches: Sequence[EncodedBatch]) -> bytes:
        """Pack what the commit needs to know of each batch."""
        rows = [
            (
                len(batch.data),
                batch.count,
                batch.first_offset,
                batch.last_offset_delta,
                batch.max_timestamp,
                batch.data[_MAGIC],
                batch.data[_LEGACY_ATTRIBUTES] if batch.data[_MAGIC] < 2 else 0,
            )
            for batch in batches
        ]
        return np.array(rows, _BATCH).tobytes()

    @property
    def magic(self) -> int:
        """The magic of all its batches."""
        return int(self._rows()["magic"][0])

    @property
    def is_plain(self) -> bool:
        """Whether it has sets of plain messages, each of which a log treats as a batch."""
        rows = self._rows()
        return bool(((rows["magic"] < 2) & (rows["attributes"] & CODEC_MASK == 0)).any())

    @property
    def first_offset(self) -> int:
        """The offset of its first record where offsets are final, else -1."""
        return int(self._rows()["base_offset"][0])

    @property
    def records(self) -> int:
        """How many records the run holds."""
        return int(self._rows()["count"].sum())

    @property
    def span(self) -> int:
        """How many offsets the run takes."""
        return int(self._rows()["last_offset_delta"].astype(np.int64).sum()) + len(self._rows())

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of its batches."""
        return int(self._rows()["max_timestamp"].max())

    @property
    def last_offset(self) -> int:
        """The offset of its last record where offsets are final."""
        last = self._rows()[-1]
        return int(last["base_offset"]) + int(last["last_offset_delta"])

    def table(self, first_offset: int, leader_epoch: int) -> BatchTable:
        """Return the headers that the batches have once they start at ``first_offset``.

        Final offsets stay. Positions count in the staged file. What planning an append does not
        look at is 0. A set of plain messages has one row, see ``staged_source`` for its messages.
        """
        rows = self._rows()
        facts = np.zeros((len(rows), fields.FIELDS), np.int64)
        ends = np.cumsum(rows["size"], dtype=np.int64)
        spans = rows["last_offset_delta"].astype(np.int64) + 1
        base_offsets = rows["base_offset"].astype(np.int64)
        if len(rows) and base_offsets[0] < 0:
            base_offsets = first_offset + np.cumsum(spans) - spans
        facts[:, fields.POSITION] = self.position + ends - rows["size"]
        facts[:, fields.SIZE] = rows["size"]
        facts[:, fields.MAGIC] = rows["magic"]
        facts[:, fields.BASE_OFFSET] = base_offsets
        facts[:, fields.LAST_OFFSET] = base_offsets + spans - 1
        facts[:, fields.LEADER_EPOCH] = leader_epoch
        facts[:, fields.ATTRIBUTES] = rows["attributes"]
        facts[:, fields.MAX_TIMESTAMP] = rows["max_timestamp"]
        facts[:, fields.PRODUCER_ID] = NO_PRODUCER_ID
        facts[:, fields.PRODUCER_EPOCH] = NO_EPOCH
        facts[:, fields.BASE_SEQUENCE] = NO_SEQUENCE
        facts[:, fields.COUNT] = rows["count"]
        return BatchTable(facts)

    def _rows(self) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        return np.frombuffer(self.batches, _BATCH)


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """All that one attempt of a task has staged, runs of one partition in their order.

    ``digest`` is that of the rows, if the plan asks for it. ``digests`` are those of each topic's
    rows, for a write with ``txnAppId``. ``nonce`` is that of the plan by which a member of a group
    has read the rows.
    """

    identity: BatchIdentity
    query_id: str
    runs: tuple[StagedRun, ...]
    digest: RowDigest | None = None
    digests: tuple[tuple[str, RowDigest], ...] = ()
    nonce: str | None = None


# ----------------------------------------------------------------------------------------------
# Digest of a batch's rows, independent of their order and of tasks.
#
# A batch that is run again is recognised by what its query's checkpoint planned for it. If that
# cannot be read, and for a batch write with ``txnAppId``, the rows tell: the same rows are the same
# batch, in any order and from any tasks. Each row is hashed by all that a record of it would hold.
# The digest is the number of rows and the sum of their hashes. Times that the sink gives to rows
# without one do not count, since they differ from run to run.
#
# Values count by their length and Kafka's murmur2 of 32 bits. That is no proof against somebody who
# looks for two batches with one digest: whoever may choose rows has better ways to spoil a log.


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
