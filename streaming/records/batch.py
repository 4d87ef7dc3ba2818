"""Record batches of magic 2 and the common prefix of all magics: what stands where.

Everything is big-endian. An entry of any magic (Kafka ``Records``)::

    @   size  type    field
    0   8     int64   offset     magic 2: base offset; older: the (last) message's
    8   4     int32   size       bytes after this field: the entry has 12 more
    16  1     int8    magic      0, 1 or 2

A record batch (Kafka ``DefaultRecordBatch``; KIP-98), 61 bytes of header::

    @   size  type    field
    0   8     int64   baseOffset            kept by compaction though its record be gone
    8   4     int32   batchLength           total - 12
    12  4     int32   partitionLeaderEpoch  -1 none; not under the CRC
    16  1     int8    magic                 2
    17  4     uint32  crc                   CRC-32C of all bytes from 21 on
    21  2     int16   attributes            see the masks below
    23  4     int32   lastOffsetDelta       kept by compaction: the next offset is one above it
    27  8     int64   baseTimestamp         ms; the first record's, not the lowest
    35  8     int64   maxTimestamp          ms; with LogAppendTime, every record's
    43  8     int64   producerId            -1 none
    51  2     int16   producerEpoch         -1 none
    53  4     int32   baseSequence          -1 none
    57  4     int32   recordsCount          records that are there; 0 is allowed
    61        bytes   records               raw, or one stream of the codec

    attributes: bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon

Older magics are in ``message_sets.layout``. What is *not* checked here: checksums, records, and
that offsets increase from entry to entry.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import crc32c
import numpy as np

from kafkalog.errors import CorruptRecordError, UnsupportedFormatError
from kafkalog.streaming.records import batch_kernels as kernels
from kafkalog.streaming.records.crc_kernels import CRC32_TABLES, CRC32C_TABLES
from kafkalog.streaming.records.jit.kernel import as_python, compiler_is_loaded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

__all__ = [
    "CODEC_MASK",
    "CONTROL_MASK",
    "DELETE_HORIZON_MASK",
    "HEADER_SIZE",
    "LOG_APPEND_TIME_MASK",
    "MAGIC_POSITION",
    "PREFIX_SIZE",
    "TRANSACTIONAL_MASK",
    "BatchTable",
    "Scan",
    "invalid_checksums",
    "scan_batches",
]

OFFSET_POSITION: Final = 0
SIZE_POSITION: Final = OFFSET_POSITION + 8
OVERHEAD: Final = SIZE_POSITION + 4
LEADER_EPOCH_POSITION: Final = OVERHEAD
MAGIC_POSITION: Final = LEADER_EPOCH_POSITION + 4
PREFIX_SIZE: Final = MAGIC_POSITION + 1
CRC_POSITION: Final = PREFIX_SIZE
ATTRIBUTES_POSITION: Final = CRC_POSITION + 4
LAST_OFFSET_DELTA_POSITION: Final = ATTRIBUTES_POSITION + 2
BASE_TIMESTAMP_POSITION: Final = LAST_OFFSET_DELTA_POSITION + 4
MAX_TIMESTAMP_POSITION: Final = BASE_TIMESTAMP_POSITION + 8
PRODUCER_ID_POSITION: Final = MAX_TIMESTAMP_POSITION + 8
PRODUCER_EPOCH_POSITION: Final = PRODUCER_ID_POSITION + 8
BASE_SEQUENCE_POSITION: Final = PRODUCER_EPOCH_POSITION + 2
COUNT_POSITION: Final = BASE_SEQUENCE_POSITION + 4
HEADER_SIZE: Final = COUNT_POSITION + 4

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_MASK: Final = 0x08
TRANSACTIONAL_MASK: Final = 0x10
CONTROL_MASK: Final = 0x20
DELETE_HORIZON_MASK: Final = 0x40

_LEGACY_CRC_START: Final = 16
_SMALL: Final = 1024
"""Bytes below which a call of the CRC library costs more than the loop of our own kernel."""

_FEW: Final = 32
"""Batches that are looked at without a kernel: processes that only plan see no more."""

_FIRST_TABLE: Final = 512


@dataclass(frozen=True, slots=True)
class BatchTable:
    """The headers of n batches, in file order; ``facts`` is int64[n, 14].

    Each property is int64[n]. ``position`` is the byte position in the file. Of magic 0 and 1,
    ``base_offset`` and ``count`` of a compressed wrapper are -1: only decompression tells them.
    """

    facts: Integers

    def __len__(self) -> int:
        return len(self.facts)

    def __getitem__(self, rows: slice | NDArray[np.bool_] | Integers) -> BatchTable:
        """Return a table of some rows: a slice shares memory, a mask or indexes copy."""
        return BatchTable(np.ascontiguousarray(self.facts[rows]))

    @classmethod
    def empty(cls) -> BatchTable:
        """Return a table of no batches."""
        return cls(np.empty((0, kernels.FIELDS), np.int64))

    @property
    def position(self) -> Integers:
        """Byte position in the file."""
        return self.facts[:, kernels.POSITION]

    @property
    def size(self) -> Integers:
        """Bytes of the whole entry."""
        return self.facts[:, kernels.SIZE]

    @property
    def end_position(self) -> Integers:
        """Byte position after the entry."""
        return self.position + self.size

    @property
    def magic(self) -> Integers:
        """0, 1 or 2."""
        return self.facts[:, kernels.MAGIC]

    @property
    def base_offset(self) -> Integers:
        """Offset of the first record, present or compacted away."""
        return self.facts[:, kernels.BASE_OFFSET]

    @property
    def last_offset(self) -> Integers:
        """Offset of the last record, present or compacted away."""
        return self.facts[:, kernels.LAST_OFFSET]

    @property
    def leader_epoch(self) -> Integers:
        """Epoch of the leader that appended it; -1 none."""
        return self.facts[:, kernels.LEADER_EPOCH]

    @property
    def crc(self) -> Integers:
        """The stored checksum, 0 to 2**32 - 1."""
        return self.facts[:, kernels.CRC]

    @property
    def attributes(self) -> Integers:
        """The attribute bits."""
        return self.facts[:, kernels.ATTRIBUTES]

    @property
    def base_timestamp(self) -> Integers:
        """Timestamp that deltas are relative to, ms."""
        return self.facts[:, kernels.BASE_TIMESTAMP]

    @property
    def max_timestamp(self) -> Integers:
        """Largest timestamp, or the append time, ms; -1 none."""
        return self.facts[:, kernels.MAX_TIMESTAMP]

    @property
    def producer_id(self) -> Integers:
        """Producer id; -1 none."""
        return self.facts[:, kernels.PRODUCER_ID]

    @property
    def producer_epoch(self) -> Integers:
        """Producer epoch; -1 none."""
        return self.facts[:, kernels.PRODUCER_EPOCH]

    @property
    def base_sequence(self) -> Integers:
        """Sequence of the first record; -1 none."""
        return self.facts[:, kernels.BASE_SEQUENCE]

    @property
    def count(self) -> Integers:
        """Records that are there."""
        return self.facts[:, kernels.COUNT]

    @property
    def codec(self) -> Integers:
        """The codec's id, 0 to 7; 5 and above name none."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> NDArray[np.bool_]:
        """Whether ``max_timestamp`` is every record's timestamp; never in magic 0."""
        return self._has(LOG_APPEND_TIME_MASK, 1)

    @property
    def is_transactional(self) -> NDArray[np.bool_]:
        """Whether the batch belongs to a transaction."""
        return self._has(TRANSACTIONAL_MASK, 2)

    @property
    def is_control(self) -> NDArray[np.bool_]:
        """Whether the batch holds a marker and no records for users."""
        return self._has(CONTROL_MASK, 2)

    def _has(self, mask: int, since_magic: int) -> NDArray[np.bool_]:
        has: NDArray[np.bool_] = np.not_equal(self.attributes & mask, 0)
        has &= self.magic >= since_magic
        return has


@dataclass(frozen=True, slots=True)
class Scan:
    """What a walk over a buffer found.

    ``consumed`` bytes are whole entries, those of ``table``. What follows them is the end of the
    buffer, an incomplete entry, or something that cannot be an entry (``invalid``). The caller
    decides whether that is an error or the end of the log. For an incomplete entry, ``needed`` is
    the bytes it takes in all, or the least it takes if even its size is not there yet.
    """

    table: BatchTable
    consumed: int
    needed: int
    invalid: CorruptRecordError | None


def scan_batches(data: Bytes, *, file_position: int = 0, path: str = "") -> Scan:
    """Walk over the whole entries at the start of a buffer, of any magic.

    Args:
        data: uint8[n]; an entry starts at its first byte.
        file_position: where in the file ``data`` starts.
        path: the file, for ``invalid``.
    """
    parts = []
    stopped = np.zeros(4, np.int64)
    rows, walk = _FIRST_TABLE, kernels.walk
    if not compiler_is_loaded():
        rows, walk = _FEW, as_python(kernels.walk)
    while True:
        facts = np.empty((rows, kernels.FIELDS), np.int64)
        found = walk(data, int(stopped[1]), file_position, facts, stopped)
        parts.append(facts[:found])
        reason, consumed, size, about = stopped.tolist()
        if reason != kernels.TABLE_FULL:
            break
        rows, walk = min(2 * rows, 1 << 16), kernels.walk
    table = BatchTable(parts[0] if len(parts) == 1 else np.concatenate(parts))
    needed = max(size, PREFIX_SIZE) if reason == kernels.INCOMPLETE else 0
    invalid = None
    if reason > kernels.TABLE_FULL:
        invalid = _invalid(reason, about, data, consumed, file_position, path)
    return Scan(table, consumed, needed, invalid)


def invalid_checksums(
    data: Bytes, table: BatchTable, *, file_position: int = 0
) -> NDArray[np.bool_]:
    """Return which batches do not match the checksum they carry.

    Args:
        data: uint8[n] that holds the batches of ``table``.
        table: m batches.
        file_position: where in the file ``data`` starts.

    Returns:
        bool[m], True where the checksum (CRC-32C, or CRC-32 below magic 2) is wrong.
    """
    bad = np.zeros(len(table), np.bool_)
    if not len(table):
        return bad
    few = len(table) <= _FEW and not compiler_is_loaded()
    small = table.size < (0 if few else _SMALL)
    tables = (CRC32_TABLES, CRC32C_TABLES)
    if small.all():
        facts = np.ascontiguousarray(table.facts)
        kernels.check_small(data, file_position, facts, *tables, bad.view(np.uint8))
        return bad
    if small.any():
        bad_small = np.empty(int(small.sum()), np.uint8)
        kernels.check_small(data, file_position, table.facts[small], *tables, bad_small)
        bad[small] = bad_small
    large = table[~small]
    view = data.data
    starts = (large.position - file_position).tolist()
    for row, start, size, magic, stored in zip(
        np.flatnonzero(~small).tolist(),
        starts,
        large.size.tolist(),
        large.magic.tolist(),
        large.crc.tolist(),
        strict=True,
    ):
        if magic == 2:
            computed = crc32c.crc32c(view[start + ATTRIBUTES_POSITION : start + size])
        else:
            computed = zlib.crc32(view[start + _LEGACY_CRC_START : start + size])
        bad[row] = computed != stored
    return bad


def _invalid(
    reason: int, about: int, data: Bytes, position: int, file_position: int, path: str
) -> CorruptRecordError:
    offset = int.from_bytes(data[position : position + 8].tobytes(), "big", signed=True)
    where = f"{path or 'the buffer'} at byte {file_position + position}"
    text = {
        kernels.BAD_SIZE: f"{where}: a size of {about} is too small for any batch",
        kernels.BAD_MAGIC: f"{where}: magic {about}, known are 0, 1 and 2",
        kernels.BAD_COUNT: f"{where}: a batch at offset {offset} claims to have {about} records",
        kernels.BAD_OFFSET: f"{where}: no batch has base offset {offset} and {about} as "
        "its last offset or last offset delta",
    }[reason]
    kind = UnsupportedFormatError if reason == kernels.BAD_MAGIC else CorruptRecordError
    return kind(text, path=path, position=file_position + position, offset=offset)
