"""Batches that lose records, or get a delete horizon, encoded again as Kafka's cleaner does it.

Of magic 2 stay base offset, last offset, producer fields, leader epoch, codec and flags. The base
timestamp becomes the delete horizon, or that of the first record that stays; the greatest timestamp
is that of the records that stay. With LogAppendTime it stays as it is.

Of magic 0 and 1 the messages that stay make a new wrapper, with the offset of the last of them.

Source: Kafka ``MemoryRecords.buildRetainedRecordsInto``, ``DefaultRecordBatch.writeEmptyHeader``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from kafkalog.model import NO_EPOCH, NO_TIMESTAMP, TimestampType
from kafkalog.streaming.clean import rewrite_kernels as kernels
from kafkalog.streaming.records.batch_layout import (
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    HEADER_SIZE,
    HEADERS,
    LOG_APPEND_TIME_MASK,
    MAGIC,
    OVERHEAD,
    TRANSACTIONAL_MASK,
    with_checksum,
)
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.records.compression import Codec, compress_pieces
from kafkalog.streaming.records.decode_kernels import END, START
from kafkalog.streaming.records.message_sets.builder import MessageSetBuilder, wrap_messages
from kafkalog.streaming.records.message_sets.layout import CRC_START
from kafkalog.streaming.records.offsets import assign_offsets
from kafkalog.streaming.records.record_columns import RecordColumns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kafkalog.streaming.clean.records import Records
    from kafkalog.streaming.log.segment import Chunk
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers
    from kafkalog.streaming.records.batch import BatchTable
    from kafkalog.streaming.records.compression.codec import Data

    Mask = NDArray[np.bool_]

__all__ = ["Rebuilt", "emptied", "rebuild"]

_STAYING: Final = LOG_APPEND_TIME_MASK | TRANSACTIONAL_MASK | CONTROL_MASK
_INT_MAX: Final = 2**31 - 1
_MAX_INT64: Final = 2**63 - 1
_LEGACY_COLUMNS: Final = Columns.KEY | Columns.VALUE | Columns.OFFSET | Columns.TIMESTAMP_MS


class Rebuilt(NamedTuple):
    """What became of m batches."""

    unchanged: Mask
    """Which stay byte for byte."""
    kept: Integers
    """Records that stay of each."""
    batches: dict[int, bytes]
    """Those that were encoded again, by their row."""


def emptied(table: BatchTable, row: int) -> bytes:
    """Return the header that stays of a batch of magic 2 without its records."""
    one = table[row : row + 1]
    none = np.zeros(1, np.int64)
    stamp = np.full(1, NO_TIMESTAMP, np.int64)
    (sealed,) = _sealed(one, [()], none, stamp, one.max_timestamp, none)
    return sealed


def rebuild(chunk: Chunk, records: Records, keep: Mask, markers: Mask, horizon_ms: int) -> Rebuilt:
    """Leave records out of batches.

    Args:
        chunk: what the batches lie in.
        records: those of m batches of one kind.
        keep: bool[n], which records stay.
        markers: bool[m], which batches are markers of which nothing else is left.
        horizon_ms: the delete horizon for batches with such a marker or a tombstone that have none.
    """
    table, firsts = records.table, records.firsts
    counts = np.diff(firsts, append=len(records.offsets))
    kept = np.add.reduceat(keep, firsts, dtype=np.int64)
    unchanged: Mask = kept == counts
    if int(table.magic[0]) < 2:
        unchanged &= ~_has_foreign_magic(records)
        rows = np.flatnonzero(~unchanged & (kept > 0))
        batches = {row: _legacy(chunk, records, keep, row) for row in rows.tolist()}
        return Rebuilt(unchanged, kept, batches)
    tombstones = np.logical_or.reduceat(keep & (records.value_lengths < 0), firsts)
    has_horizon = (table.attributes & DELETE_HORIZON_MASK) != 0
    needs_horizon = (tombstones | markers) & ~has_horizon
    unchanged &= ~needs_horizon
    rows = np.flatnonzero(~unchanged & (kept > 0))
    stamps = np.where(has_horizon, table.base_timestamp, horizon_ms)
    rebuilder = _Rebuilder(records, keep, kept, rows)
    return Rebuilt(unchanged, kept, rebuilder.batches(has_horizon | needs_horizon, stamps))


class _Rebuilder:
    """Encodes some batches of magic 2 again."""

    def __init__(self, records: Records, keep: Mask, kept: Integers, rows: Integers) -> None:
        self._records = records
        self._keep = keep
        self._kept = kept
        self._rows = rows

    def batches(self, has_horizon: Mask, horizons: Integers) -> dict[int, bytes]:
        """Encode them; ``horizons`` (ms) count where there is one."""
        rows, records = self._rows, self._records
        if not len(rows):
            return {}
        numbers = np.where(self._keep, np.arange(len(self._keep)), len(self._keep))
        first_kept = np.minimum.reduceat(numbers, records.firsts)[rows]
        base = np.where(has_horizon[rows], horizons[rows], records.timestamps[first_kept])
        times = np.where(self._keep, records.timestamps, NO_TIMESTAMP)
        latest = np.maximum.reduceat(times, records.firsts)[rows]
        latest = np.maximum(latest, NO_TIMESTAMP)
        table = records.table
        latest = np.where(table.is_log_append_time[rows], table.max_timestamp[rows], latest)
        out, ends = self._encoded(base)
        starts = [0, *ends[:-1].tolist()]
        codecs = [Codec.from_attributes(one) for one in table.codec[rows].tolist()]
        bodies = [
            compress_pieces(codec, out.data[start:end])
            for codec, start, end in zip(codecs, starts, ends.tolist(), strict=True)
        ]
        flags = np.where(has_horizon[rows], DELETE_HORIZON_MASK, 0) | table.codec[rows]
        sealed = _sealed(table[rows], bodies, flags, base, latest, self._kept[rows])
        return dict(zip(rows.tolist(), sealed, strict=True))

    def _encoded(self, base_timestamps: Integers) -> tuple[Bytes, Integers]:
        rows, records = self._rows, self._records
        sections = np.ascontiguousarray(records.sections[rows])
        room = int((sections[:, END] - sections[:, START]).sum())
        room += kernels.MOST_ADDED * int(self._kept[rows].sum())
        out, ends = np.empty(room, np.uint8), np.empty(len(rows), np.int64)
        written = kernels.rewrite_records(
            records.source,
            sections,
            np.ascontiguousarray(records.firsts[rows]),
            np.ascontiguousarray(records.timestamps),
            self._keep.view(np.uint8),
            base_timestamps,
            out,
            ends,
        )
        if written == kernels.BROKEN:
            raise AssertionError("a record was found outside of its bytes")
        return out, ends


def _sealed(
    table: BatchTable,
    bodies: Sequence[Sequence[Data]],
    flags: Integers,
    base_timestamps: Integers,
    max_timestamps: Integers,
    counts: Integers,
) -> list[bytes]:
    """Make batches of magic 2 that stay what they were, but for their records and times.

    Args:
        table: the m batches that they replace.
        bodies: the bytes of each one's records, in pieces.
        flags: attributes for codec and delete horizon, int64[m]; the others stay.
        base_timestamps: ms, int64[m].
        max_timestamps: likewise.
        counts: records, int64[m].
    """
    heads = np.zeros(len(table), HEADERS)
    heads["size"] = [HEADER_SIZE - OVERHEAD + sum(map(len, body)) for body in bodies]
    heads["magic"] = MAGIC
    heads["attributes"] = table.attributes & _STAYING | flags
    heads["last_offset_delta"] = table.last_offset - table.base_offset
    heads["base_timestamp"] = base_timestamps
    heads["max_timestamp"] = max_timestamps
    heads["count"] = counts
    for name in ("base_offset", "leader_epoch", "producer_id", "producer_epoch", "base_sequence"):
        heads[name] = getattr(table, name)
    packed = heads.tobytes()
    starts = range(0, len(packed), HEADER_SIZE)
    return [
        with_checksum(packed[at : at + HEADER_SIZE], body)
        for at, body in zip(starts, bodies, strict=True)
    ]


def _has_foreign_magic(records: Records) -> Mask:
    """Return which wrappers hold messages of another magic than theirs (KAFKA-4298)."""
    starts = np.empty(len(records.offsets), np.int64)
    starts[1:] = (records.value_starts + np.maximum(records.value_lengths, 0))[:-1]
    starts[records.firsts] = records.sections[:, START]
    inner = records.source[starts + CRC_START]
    counts = np.diff(records.firsts, append=len(starts))
    other: Mask = np.logical_or.reduceat(
        inner != np.repeat(records.table.magic, counts), records.firsts
    )
    return other


def _legacy(chunk: Chunk, records: Records, keep: Mask, row: int) -> bytes:
    """Put the messages that stay of a wrapper into a new one."""
    wrapper = records.table[row : row + 1]
    first = int(records.firsts[row])
    decoder = RecordDecoder(_LEGACY_COLUMNS, check_crcs=False)
    batches = decoder.decode(chunk.data, wrapper, file_position=chunk.file_position)
    found = pa.Table.from_batches(batches)
    stays = keep[first : first + found.num_rows]
    found = found.filter(pa.array(stays)).combine_chunks()
    columns = RecordColumns.from_arrow(
        timestamps=found["timestampMs"].to_numpy(),
        key=found["key"],
        value=found["value"],
        offsets=found["offset"].to_numpy(),
    )
    codec, magic = Codec.from_attributes(int(wrapper.codec[0])), int(wrapper.magic[0])
    stamped = bool(wrapper.is_log_append_time[0])
    builder = MessageSetBuilder(
        magic,
        codec,
        timestamp_type=TimestampType.LOG_APPEND_TIME if stamped else TimestampType.CREATE_TIME,
        log_append_time_ms=int(wrapper.max_timestamp[0]) if stamped else None,
        target_bytes=_INT_MAX,
        max_message_bytes=_INT_MAX,
    )
    builder.append(columns, np.arange(columns.length))
    encoded = builder.finish()
    assert encoded is not None  # noqa: S101 - something stays
    data = np.frombuffer(bytearray(encoded.data), np.uint8)
    assign_offsets(data, encoded.first_offset, NO_EPOCH)
    if magic == 0 and codec is not Codec.NONE:
        return wrap_messages(data, codec, target_bytes=_INT_MAX, max_message_bytes=_INT_MAX)
    return data.tobytes()
