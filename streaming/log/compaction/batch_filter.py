"""Filter batches in compaction: copied, emptied, encoded again, or dropped.

A record stays if it is the last one of its key, as far as the map of offsets reaches. A tombstone
stays for a while after that: the batch gets a *delete horizon*, which stands in its base timestamp,
when a cleaner first meets it, and its tombstones go once that has passed. Markers of transactions
of which nothing is left likewise. Before magic 2 a tombstone goes by the age of its segment.

A batch without records goes. Its header stays where it tells the last sequence or epoch of a
producer, or where the round of cleaning ends.

Source: Kafka ``Cleaner.cleanInto``, ``Cleaner.shouldRetainRecord``, ``MemoryRecords.filterTo``.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from kafkalog.errors import CorruptRecordError
from kafkalog.model import NO_EPOCH, NO_TIMESTAMP, TimestampType
from kafkalog.streaming.log.compaction import rewrite_kernels
from kafkalog.streaming.records import decode_kernels
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
from kafkalog.streaming.records.builder import RecordColumns, assign_offsets
from kafkalog.streaming.records.columns import (
    GROUP_BYTES,
    BatchGroups,
    Columns,
    RecordDecoder,
    sections_of,
)
from kafkalog.streaming.records.compression import Codec, compress_pieces
from kafkalog.streaming.records.compression.codec import DEFAULT_LIMIT
from kafkalog.streaming.records.decode_kernels import END, START
from kafkalog.streaming.records.message_sets import layout as message_set
from kafkalog.streaming.records.message_sets.builder import MessageSetBuilder, wrap_messages
from kafkalog.streaming.records.message_sets.decode_kernels import find_messages
from kafkalog.streaming.records.message_sets.layout import CRC_START
from kafkalog.streaming.records.message_sets.reader import MessageSetReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from kafkalog.streaming.log.compaction.offset_map import OffsetMap
    from kafkalog.streaming.log.compaction.transactions import CleanedTransactions, LastRecords
    from kafkalog.streaming.log.segment import Chunk, LogSegment
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers
    from kafkalog.streaming.records.batch import BatchTable
    from kafkalog.streaming.records.compression.codec import Data

    Mask = NDArray[np.bool_]

__all__ = [
    "BatchFilter",
    "FilterRules",
    "Piece",
    "Rebuilt",
    "Records",
    "Scratch",
    "emptied",
    "find_records",
    "rebuild",
]


# ----------------------------------------------------------------------------------------------
# The records of batches, found but not copied: where keys lie, which values are null.
#
# Batches are decompressed side by side, about a mebibyte at a time, as the decoder of columns
# does.


_SMALLEST_RECORD: Final = 7
_SMALLEST_MESSAGE: Final = 26
_MAX_OFFSET: Final = 2**63 - 1
_COLUMNS: Final = 8
_KEPT_ROWS: Final = 1 << 17


class Records(NamedTuple):
    """The records of m batches, n in all.

    ``source`` (uint8) holds them, and ``sections`` (int64[m, ...]) says where in it each batch's
    begin and end. ``firsts``, int64[m], is the first record of each batch. The rest is int64[n]:
    timestamps in ms, negative lengths for null.
    """

    table: BatchTable
    source: Bytes
    sections: Integers
    firsts: Integers
    offsets: Integers
    timestamps: Integers
    key_starts: Integers
    key_lengths: Integers
    value_starts: Integers
    value_lengths: Integers


class Scratch:
    """Memory that is used again for each group of batches: what is new, the system must clear."""

    def __init__(self) -> None:
        self.groups = BatchGroups(DEFAULT_LIMIT, are_kept=False)
        self._columns = np.empty((_COLUMNS, 0), np.int64)

    def columns(self, rows: int) -> Integers:
        """Return int64[columns, rows], of which each column is contiguous, until the next call."""
        if rows > _KEPT_ROWS:
            return np.empty((_COLUMNS, rows), np.int64)
        if rows > self._columns.shape[1]:
            self._columns = np.empty((_COLUMNS, 2 * rows), np.int64)
        return self._columns[:, :rows]


def find_records(
    data: Bytes, table: BatchTable, scratch: Scratch, *, file_position: int, path: str
) -> Iterator[Records]:
    """Find the records of batches that have some, in order; checksums are the caller's.

    What is found lasts until the next is asked for.

    Args:
        data: uint8[n], in which the batches lie.
        table: batches of any magic, none of them empty.
        scratch: memory to work in.
        file_position: where in the file ``data`` starts.
        path: the file, for messages.

    Raises:
        CorruptRecordError: a batch that cannot be decompressed or decoded, with its place.
    """
    kind = 2 * (table.magic == 2) + (table.codec != Codec.NONE)
    cuts = [0, *(np.flatnonzero(np.diff(kind)) + 1).tolist(), len(table)]
    for first, end in itertools.pairwise(cuts):
        run = table[first:end]
        if not len(run):
            continue
        if int(run.magic[0]) < 2:
            reader = MessageSetReader(group_bytes=GROUP_BYTES)
            for group in reader.groups(data, run, file_position=file_position, path=path):
                yield _found(*group, scratch, path)
        elif int(run.codec[0]) == Codec.NONE:
            starts = run.position - file_position + HEADER_SIZE
            sections = sections_of(run, starts, run.end_position - file_position)
            yield _found(run, data, sections, scratch, path)
        else:
            yield from _decompressed(data, run, scratch, file_position, path)


def _decompressed(
    data: Bytes, table: BatchTable, scratch: Scratch, file_position: int, path: str
) -> Iterator[Records]:
    starts = table.position - file_position + HEADER_SIZE
    sizes = table.size - HEADER_SIZE
    groups = scratch.groups.groups(data, starts, sizes, table.codec)
    first = 0
    while first < len(table):
        try:
            source, ends = next(groups)
        except CorruptRecordError as error:
            raise _damaged(table, first, path, str(error)) from error
        group = table[first : first + len(ends)]
        sections = sections_of(group, np.concatenate(([0], ends[:-1])), ends)
        yield _found(group, source, sections, scratch, path)
        first += len(ends)


def _found(
    table: BatchTable, source: Bytes, sections: Integers, scratch: Scratch, path: str
) -> Records:
    is_old = int(table.magic[0]) < 2
    used = int((sections[:, decode_kernels.END] - sections[:, decode_kernels.START]).sum())
    # One more than there can be, so that a batch that claims more is found to be damaged.
    room = used // (_SMALLEST_MESSAGE if is_old else _SMALLEST_RECORD) + 1
    if not is_old:
        room = min(room, int(table.count.sum()) + 1)
    columns = scratch.columns(room)
    types = np.empty(room, np.int32)
    cursor = np.zeros(decode_kernels.CURSOR_SIZE, np.int64)
    arguments = (source, sections, 0, _MAX_OFFSET, cursor, columns[0], columns[1], types)
    if is_old:
        reason = find_messages(*arguments, *columns[2:6])
    else:
        reason = decode_kernels.find_records(*arguments, *columns[2:8])
    if reason != decode_kernels.DONE:
        what = message_set.FAULTS.get(reason, "its records contradict their lengths")
        raise _damaged(table, int(cursor[decode_kernels.SECTION]), path, what)
    rows = int(cursor[decode_kernels.ROWS])
    key_starts = columns[2, :rows]
    firsts = np.searchsorted(key_starts, sections[:, decode_kernels.START])
    return Records(table, source, sections, firsts, *(column[:rows] for column in columns[:6]))


def _damaged(table: BatchTable, row: int, path: str, reason: str) -> CorruptRecordError:
    position, last = int(table.position[row]), int(table.last_offset[row])
    return CorruptRecordError(
        f"{path}: the batch at byte {position} (up to offset {last}, {table.size[row]} bytes) is "
        f"damaged, so that the log cannot be cleaned: {reason}",
        path=path,
        position=position,
        offset=int(table.base_offset[row]),
    )


# ----------------------------------------------------------------------------------------------


# ----------------------------------------------------------------------------------------------
# Batches that lose records, or get a delete horizon, encoded again as Kafka's cleaner does it.
#
# Of magic 2 stay base offset, last offset, producer fields, leader epoch, codec and flags. The
# base timestamp becomes the delete horizon, or that of the first record that stays; the greatest
# timestamp is that of the records that stay. With LogAppendTime it stays as it is.
#
# Of magic 0 and 1 the messages that stay make a new wrapper, with the offset of the last of them.
#
# Source: Kafka ``MemoryRecords.buildRetainedRecordsInto``,
# ``DefaultRecordBatch.writeEmptyHeader``.


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
        room += rewrite_kernels.MOST_ADDED * int(self._kept[rows].sum())
        out, ends = np.empty(room, np.uint8), np.empty(len(rows), np.int64)
        written = rewrite_kernels.rewrite_records(
            records.source,
            sections,
            np.ascontiguousarray(records.firsts[rows]),
            np.ascontiguousarray(records.timestamps),
            self._keep.view(np.uint8),
            base_timestamps,
            out,
            ends,
        )
        if written == rewrite_kernels.BROKEN:
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


# ----------------------------------------------------------------------------------------------

_NO_HORIZON: Final = -1
"""Offsets that a segment may span: pieces that span more must be of one batch each."""


@dataclass(frozen=True, slots=True)
class FilterRules:
    """What holds for a whole round; times in ms.

    ``end_offset`` is where the round may reach: the batch right before it stays as a header at
    least. ``legacy_horizon_ms`` is the time up to which a segment of magic 0 or 1 must have been
    written for its tombstones to go.
    """

    now_ms: int
    delete_retention_ms: int
    end_offset: int
    legacy_horizon_ms: int
    last_records: LastRecords


class Piece(NamedTuple):
    """Bytes to be written: one batch, or several."""

    data: memoryview | bytes
    first_offset: int
    """The base offset of the first batch; -1 for an older wrapper."""
    last_offset: int


class BatchFilter:
    """Filters the batches of a log in order, from its first segment on. Not thread safe."""

    def __init__(
        self, offsets: OffsetMap, rules: FilterRules, transactions: CleanedTransactions
    ) -> None:
        self._offsets = offsets
        self._rules = rules
        self._transactions = transactions
        self._scratch = Scratch()
        self.keyless = 0
        """Records that went because they had no key."""

    def pieces(
        self, segment: LogSegment, chunk: Chunk, *, keep_legacy_tombstones: bool
    ) -> Iterator[Piece]:
        """Filter the next batches and yield what stays of them, in order.

        Raises:
            CorruptRecordError: a batch that cannot be decoded: nobody can know what would be lost.
        """
        table = chunk.table
        discard, markers = self._discard(segment, chunk)
        stays_empty = self._stays_empty(table)
        wanted = np.flatnonzero(~discard & ~table.is_emptied)
        wanted = wanted[~self._have_no_last(table[wanted])]
        rebuilt: dict[int, bytes] = {}
        copied = np.zeros(len(table), np.bool_)
        path = str(segment.path)
        done = 0
        for records in find_records(
            *(chunk.data, table[wanted], self._scratch),
            file_position=chunk.file_position,
            path=path,
        ):
            rows = wanted[done : done + len(records.table)]
            done += len(rows)
            keep = self._keep(records, keep_legacy_tombstones=keep_legacy_tombstones)
            now_ms, retention_ms = self._rules.now_ms, self._rules.delete_retention_ms
            result = rebuild(chunk, records, keep, markers[rows], now_ms + retention_ms)
            copied[rows] = result.unchanged
            rebuilt |= {int(rows[slot]): batch for slot, batch in result.batches.items()}
            stays_empty[rows] &= result.kept == 0
        for row in np.flatnonzero(stays_empty).tolist():
            rebuilt[row] = emptied(table, row)
        yield from _in_order(chunk, copied, rebuilt)

    def _discard(self, segment: LogSegment, chunk: Chunk) -> tuple[Mask, Mask]:
        """Return whose records all go, and which are markers of which nothing else is left."""
        table = chunk.table
        discardable = self._transactions.discardable(segment, chunk)
        markers = discardable & table.is_control
        horizon = _horizons(table)
        waits = table.is_control & ((horizon == _NO_HORIZON) | (horizon > self._rules.now_ms))
        return discardable & ~waits, markers

    def _stays_empty(self, table: BatchTable) -> Mask:
        """Return of which batches the header must stay."""
        stays: Mask = table.last_offset + 1 == self._rules.end_offset
        stays |= self._rules.last_records.stay(table)
        stays &= table.magic == 2
        return stays

    def _have_no_last(self, table: BatchTable) -> Mask:
        """Return of which batches no record stays, as far as their headers tell.

        So they need not be decompressed. That they can be was seen when the map was filled.
        """
        told: Mask = (table.magic == 2) & ~table.is_control & ~table.is_transactional
        rows = np.flatnonzero(told)
        told[rows] = self._offsets.have_no_last(
            table.base_offset[rows], table.last_offset[rows], int(table.count[rows].sum())
        )
        return told

    def _keep(self, records: Records, *, keep_legacy_tombstones: bool) -> Mask:
        """Return which records stay, bool[n]."""
        table = records.table
        horizon = _horizons(table)
        due = (horizon == _NO_HORIZON) | (self._rules.now_ms < horizon)
        due = np.where(table.magic == 2, due, keep_legacy_tombstones)
        counts = np.diff(records.firsts, append=len(records.offsets))
        has_key = records.key_lengths >= 0
        keep: Mask = has_key & self._are_last(records)
        keep &= (records.value_lengths >= 0) | np.repeat(due, counts)
        beyond = records.offsets > self._offsets.latest_offset
        is_control = np.repeat(table.is_control, counts)
        self.keyless += int((~has_key & ~beyond & ~is_control).sum())
        return keep | beyond | is_control

    def _are_last(self, records: Records) -> Mask:
        """Return after which records the map has none of their keys, bool[n]."""
        table = records.table
        # Those of aborted transactions were not put.
        if not table.is_transactional.any() and self._offsets.has_put(records.offsets):
            return self._offsets.are_last(records.offsets)
        found = self._offsets.find(records.source, records.key_starts, records.key_lengths)
        return records.offsets >= found


def _horizons(table: BatchTable) -> Integers:
    """Return the delete horizon of each batch, ms; -1 where it has none."""
    has = ((table.attributes & DELETE_HORIZON_MASK) != 0) & (table.magic == 2)
    return np.where(has, table.base_timestamp, NO_TIMESTAMP)


def _in_order(chunk: Chunk, copied: Mask, rebuilt: Mapping[int, bytes]) -> Iterator[Piece]:
    """Put batches that are copied and others into order, as one piece if offsets allow it."""
    table, view = chunk.table, chunk.data.data
    edges = np.flatnonzero(np.diff(copied, prepend=False, append=False)).tolist()
    ends = dict(zip(edges[::2], edges[1::2], strict=True))
    is_wide = bool(len(table)) and table.last_offset[-1] - table.base_offset[0] > _INT_MAX
    if is_wide:
        ends = {row: row + 1 for row in np.flatnonzero(copied).tolist()}
    starts = (table.position - chunk.file_position).tolist()
    starts.append(len(view))
    rows = sorted(ends.keys() | rebuilt.keys())
    parts = [
        rebuilt[row] if row in rebuilt else view[starts[row] : starts[ends[row]]] for row in rows
    ]
    lasts = [ends.get(row, row + 1) - 1 for row in rows]
    if rows and not is_wide:
        parts, rows, lasts = [b"".join(parts)], rows[:1], lasts[-1:]
    for data, first, last in zip(parts, rows, lasts, strict=True):
        yield Piece(data, int(table.base_offset[first]), int(table.last_offset[last]))
