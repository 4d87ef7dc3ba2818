"""A row per batch, or per outer message of magic 0 and 1: what their headers say, in Arrow.

For forensics: records are not looked into, and damage is told instead of raised. Only compressed
messages of magic 0 and 1 are decompressed, as nothing else knows their first offset and count.

Source: Kafka ``DumpLogSegments`` without ``--deep-iteration``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from kafkalog.errors import CorruptRecordError
from kafkalog.model import TimestampType
from kafkalog.streaming.records.batch import BatchTable, invalid_checksums
from kafkalog.streaming.records.batch_layout import DELETE_HORIZON_MASK
from kafkalog.streaming.records.compression import DEFAULT_LIMIT, Codec
from kafkalog.streaming.records.message_sets.reader import MessageSetReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

__all__ = ["BATCH_ROW_SCHEMA", "BatchDescriber", "BatchHeaders", "DescribedBatches", "codec_name"]

BATCH_ROW_SCHEMA: Final = pa.schema(
    {
        "file": pa.string(),
        "position": pa.int64(),
        "size": pa.int64(),
        "magic": pa.int32(),
        "codec": pa.string(),
        "crc": pa.int64(),
        "crcValid": pa.bool_(),
        "baseOffset": pa.int64(),
        "lastOffset": pa.int64(),
        "count": pa.int32(),
        "baseTimestamp": pa.int64(),
        "maxTimestamp": pa.int64(),
        "timestampType": pa.int32(),
        "producerId": pa.int64(),
        "producerEpoch": pa.int32(),
        "baseSequence": pa.int32(),
        "lastSequence": pa.int32(),
        "transactional": pa.bool_(),
        "control": pa.bool_(),
        "deleteHorizonMs": pa.int64(),
        "leaderEpoch": pa.int32(),
        "error": pa.string(),
    }
)
"""Timestamps are ms as they are stored; what a magic does not have is -1, as in Kafka.

``baseOffset`` and ``count`` are null for a compressed message that cannot be opened.
``deleteHorizonMs`` is null for a batch that has none; where it has one, it lies in
``baseTimestamp``. ``error`` is null for a batch without fault.
"""

_TYPES: Final = {field.name: field.type for field in BATCH_ROW_SCHEMA}
_ROWS: Final = 8192
_SEQUENCES: Final = 2**31
_UNTIMED, _CREATED, _APPENDED = (
    int(kind)
    for kind in (
        TimestampType.NO_TIMESTAMP_TYPE,
        TimestampType.CREATE_TIME,
        TimestampType.LOG_APPEND_TIME,
    )
)
_UNKNOWN_CODEC: Final = "unknown"
_LAST_CODEC: Final = int(max(Codec))
_CODECS: Final = (*(codec.name.lower() for codec in Codec), *[_UNKNOWN_CODEC] * 3)


class DescribedBatches(NamedTuple):
    """Batches of one file, and what is known of each of them beside its header."""

    path: str
    table: BatchTable
    is_bad: NDArray[np.bool_]
    """Whether its checksum is wrong."""
    base_offset: Integers
    records: Integers
    """How many records it has; 0 where that is not known."""
    is_opened: NDArray[np.bool_]
    """Whether base offset and records are known: not of a compressed message that cannot be opened.
    """
    errors: Sequence[str | None]


class BatchDescriber:
    """Takes batches as ``RecordDecoder.feed`` does and gives a row of ``BATCH_ROW_SCHEMA`` each.

    A batch belongs to the range with its last offset: so a read in several ranges gives it once.
    """

    def __init__(self, *, max_decompressed_bytes: int = DEFAULT_LIMIT) -> None:
        """Prepare; a compressed message that holds more bytes than that has an ``error``."""
        self._message_sets = MessageSetReader(max_decompressed_bytes=max_decompressed_bytes)
        self._kept: list[pa.RecordBatch] = []

    def feed(
        self,
        data: Bytes,
        table: BatchTable,
        *,
        file_position: int = 0,
        path: str = "",
        start_offset: int,
        end_offset: int,
    ) -> Iterator[pa.RecordBatch]:
        """Describe the batches with ``start_offset <= last offset < end_offset``."""
        table = _ending_in(table, start_offset, end_offset)
        if len(table):
            self._kept.append(
                _rows(_described(self._message_sets, data, table, file_position, path))
            )
        if sum(map(len, self._kept)) >= _ROWS:
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that were kept."""
        kept, self._kept = self._kept, []
        if kept:
            yield kept[0] if len(kept) == 1 else pa.concat_batches(kept)


class BatchHeaders:
    """Takes batches as :class:`BatchDescriber` does, and keeps what it has ``found`` as it is.

    For who counts: to make a row in Arrow takes longer than to read a small partition.
    """

    def __init__(self, *, max_decompressed_bytes: int = DEFAULT_LIMIT) -> None:
        """Prepare; a compressed message that holds more bytes than that has an error."""
        self._message_sets = MessageSetReader(max_decompressed_bytes=max_decompressed_bytes)
        self.found: list[DescribedBatches] = []

    def feed(
        self,
        data: Bytes,
        table: BatchTable,
        *,
        file_position: int = 0,
        path: str = "",
        start_offset: int,
        end_offset: int,
    ) -> Iterator[pa.RecordBatch]:
        """Keep the batches with ``start_offset <= last offset < end_offset``; give no row."""
        table = _ending_in(table, start_offset, end_offset)
        if len(table):
            self.found.append(_described(self._message_sets, data, table, file_position, path))
        return iter(())

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Give no row."""
        return iter(())


def codec_name(codec: int) -> str:
    """Return how rows name the codec that the attributes of a batch have."""
    return _CODECS[codec]


def _ending_in(table: BatchTable, start_offset: int, end_offset: int) -> BatchTable:
    # By a mask, which copies: what is kept must not hold the table of a whole piece of the log.
    return table[(table.last_offset >= start_offset) & (table.last_offset < end_offset)]


def _described(
    message_sets: MessageSetReader, data: Bytes, table: BatchTable, file_position: int, path: str
) -> DescribedBatches:
    """Check the checksums of batches, and open the wrappers among them."""
    bad = invalid_checksums(data, table, file_position=file_position)
    errors = _errors(table, bad)
    base_offset, count = table.base_offset, table.count
    is_wrapper = (table.magic < 2) & (table.codec != Codec.NONE)
    opened = ~is_wrapper
    wrappers = np.flatnonzero(is_wrapper).tolist()
    if wrappers:
        base_offset, count = base_offset.copy(), np.where(opened, count, 0)
    for row in wrappers:
        if errors[row] is not None:
            continue
        try:
            facts = message_sets.wrapper_facts(
                data, table[row : row + 1], file_position=file_position, path=path
            )
        except CorruptRecordError as error:
            errors[row] = str(error)
            continue
        base_offset[row], count[row] = facts.base_offset[0], facts.message_count[0]
        opened[row] = True
    return DescribedBatches(path, table, bad, base_offset, count, opened, errors)


def _rows(batches: DescribedBatches) -> pa.RecordBatch:
    table, unknown = batches.table, ~batches.is_opened
    columns = {
        "file": pa.repeat(batches.path, len(table)),
        "position": table.position,
        "size": table.size,
        "magic": table.magic,
        "codec": [_CODECS[codec] for codec in table.codec.tolist()],
        "crc": table.crc,
        "crcValid": ~batches.is_bad,
        "baseOffset": pa.array(batches.base_offset, pa.int64(), mask=unknown),
        "lastOffset": table.last_offset,
        "count": pa.array(batches.records, pa.int32(), mask=unknown),
        "baseTimestamp": table.base_timestamp,
        "maxTimestamp": table.max_timestamp,
        "timestampType": _timestamp_types(table),
        "producerId": table.producer_id,
        "producerEpoch": table.producer_epoch,
        "baseSequence": table.base_sequence,
        "lastSequence": _last_sequence(table),
        "transactional": table.is_transactional,
        "control": table.is_control,
        "deleteHorizonMs": pa.array(
            table.base_timestamp, pa.int64(), mask=~_has_delete_horizon(table)
        ),
        "leaderEpoch": table.leader_epoch,
        "error": batches.errors,
    }
    # Of their types at once: a cast of Arrow's takes 5 µs, and a small partition has a row.
    arrays = [
        each if isinstance(each, pa.Array) else pa.array(each, _TYPES[name])
        for name, each in columns.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=BATCH_ROW_SCHEMA)


def _errors(table: BatchTable, bad: NDArray[np.bool_]) -> list[str | None]:
    """Say what is wrong with each batch as far as its header and checksum tell."""
    errors: list[str | None] = [None] * len(table)
    for row in np.flatnonzero(table.codec > _LAST_CODEC).tolist():
        errors[row] = f"codec {table.codec[row]} is not known"
    for row in np.flatnonzero(bad).tolist():
        errors[row] = f"its bytes do not match its checksum {int(table.crc[row]):08x}"
    return errors


def _timestamp_types(table: BatchTable) -> Integers:
    create_or_append_time = np.where(table.is_log_append_time, _APPENDED, _CREATED)
    types: Integers = np.where(table.magic == 0, _UNTIMED, create_or_append_time)
    return types


def _last_sequence(table: BatchTable) -> Integers:
    """Sequences continue at 0 after the largest int32 (Kafka ``DefaultRecordBatch``)."""
    last = (table.base_sequence + table.last_offset - table.base_offset) % _SEQUENCES
    sequences: Integers = np.where(table.base_sequence < 0, table.base_sequence, last)
    return sequences


def _has_delete_horizon(table: BatchTable) -> NDArray[np.bool_]:
    has: NDArray[np.bool_] = (table.magic == 2) & ((table.attributes & DELETE_HORIZON_MASK) != 0)
    return has
