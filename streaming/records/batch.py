"""Batches of all magics, walked over by their headers, and their checksums.

What is *not* checked by the walk: checksums, records, and that offsets increase from entry to
entry. ``batch_layout`` says what stands where.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import crc32c
import numpy as np

from kafkalog.errors import CorruptRecordError, UnsupportedFormatError
from kafkalog.model import NO_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP
from kafkalog.streaming.records import batch_kernels as kernels
from kafkalog.streaming.records import crc_kernels as crc_library
from kafkalog.streaming.records.batch_kernels import check_by_library
from kafkalog.streaming.records.batch_layout import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    HEADER,
    HEADER_SIZE,
    LEADER_EPOCH_POSITION,
    LOG_APPEND_TIME_MASK,
    MAGIC,
    MAGIC_POSITION,
    OFFSET_POSITION,
    OVERHEAD,
    PREFIX,
    PREFIX_SIZE,
    SIZE_POSITION,
    TRANSACTIONAL_MASK,
)
from kafkalog.streaming.records.crc_kernels import CRC32_TABLES, CRC32C_TABLES
from kafkalog.streaming.records.jit.kernel import as_python, count_in_python, kernels_pay
from kafkalog.streaming.records.message_sets.layout import (
    ATTRIBUTES_POSITION as MESSAGE_ATTRIBUTES_POSITION,
)
from kafkalog.streaming.records.message_sets.layout import (
    MESSAGE_OVERHEAD_V0,
    MESSAGE_OVERHEAD_V1,
    TIMESTAMP_POSITION,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers


__all__ = [
    "HEAD_BYTES",
    "BatchHeader",
    "BatchTable",
    "Scan",
    "heads_of",
    "invalid_checksums",
    "parse_header",
    "scan_batches",
    "stamp_heads",
    "unstamp_heads",
]

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

    def moved(self, moves: Integers) -> BatchTable:
        """Return batches of magic 2 with offsets that are higher by int64[n]."""
        facts = self.facts.copy()
        facts[:, kernels.BASE_OFFSET] += moves
        facts[:, kernels.LAST_OFFSET] += moves
        return BatchTable(facts)

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
    def is_emptied(self) -> NDArray[np.bool_]:
        """Whether a cleaner has left nothing but the header.

        A count of 0 with bytes behind the header is a wrong one, which who decodes them finds.
        """
        emptied: NDArray[np.bool_] = (self.count == 0) & (self.size <= HEADER_SIZE)
        return emptied

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


class Scan(NamedTuple):
    """What a walk over a buffer found.

    ``consumed`` bytes are whole entries, those of ``table``. What follows them is the end of the
    buffer, an incomplete entry, or something that cannot be an entry (``invalid``). The caller
    decides whether that is an error or the end of the log. For an incomplete entry, ``needed`` is
    the bytes it takes in all, or the least it takes if even its size is not there yet. An invalid
    entry that is there whole, by its size, takes ``invalid_size`` bytes; 0 if that is not known.
    """

    table: BatchTable
    consumed: int
    needed: int
    invalid: CorruptRecordError | None
    invalid_size: int = 0


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
    by_python = not kernels_pay()
    if by_python:
        rows, walk = _FEW, as_python(kernels.walk)
    while True:
        facts = np.empty((rows, kernels.FIELDS), np.int64)
        found = walk(data, int(stopped[1]), file_position, facts, stopped)
        parts.append(facts[:found])
        reason, consumed, size, about = stopped.tolist()
        if reason != kernels.TABLE_FULL:
            break
        rows, walk = min(2 * rows, 1 << 16), kernels.walk
    if by_python:
        count_in_python(len(parts[0]))
    table = BatchTable(parts[0] if len(parts) == 1 else np.concatenate(parts))
    needed = max(size, PREFIX_SIZE) if reason == kernels.INCOMPLETE else 0
    invalid = None
    if reason > kernels.TABLE_FULL:
        invalid = _invalid(reason, about, data, consumed, file_position, path)
    return Scan(table, consumed, needed, invalid, 0 if invalid is None else size)


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
    if len(table) == 1:  # a partition or segment of few records: a kernel's arrays take longer
        _check_large(data, file_position, table, bad)
        return bad
    few = len(table) <= _FEW and not kernels_pay()
    if not few and (table.magic == MAGIC).all() and crc_library.is_exported():
        facts = np.ascontiguousarray(table.facts)
        check_by_library(data, file_position, facts, bad.view(np.uint8))
        return bad
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
    large = np.flatnonzero(~small)
    bad_large = np.empty(len(large), np.bool_)
    _check_large(data, file_position, table[large], bad_large)
    bad[large] = bad_large
    return bad


def _check_large(
    data: Bytes, file_position: int, table: BatchTable, bad: NDArray[np.bool_]
) -> None:
    """Check batches by a library, and set ``bad`` where it has another result."""
    view = data.data
    for row, facts in enumerate(table.facts.tolist()):
        start, size = facts[kernels.POSITION] - file_position, facts[kernels.SIZE]
        magic, stored = facts[kernels.MAGIC], facts[kernels.CRC]
        if magic == MAGIC:
            computed = crc32c.crc32c(view[start + ATTRIBUTES_POSITION : start + size])
        else:
            computed = zlib.crc32(view[start + _LEGACY_CRC_START : start + size])
        bad[row] = computed != stored


def _invalid(
    reason: int, about: int, data: Bytes, position: int, file_position: int, path: str
) -> CorruptRecordError:
    first = data[position + OFFSET_POSITION : position + SIZE_POSITION]
    offset = int.from_bytes(first.tobytes(), "big", signed=True)
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


# ----------------------------------------------------------------------------------------------
# The header of one batch, for callers that look at a few; see ``batch`` for many.


_SMALLEST: Final = {0: MESSAGE_OVERHEAD_V0, 1: MESSAGE_OVERHEAD_V1, MAGIC: HEADER_SIZE}
"""Bytes of the smallest entry of each magic."""

_V1_TIMESTAMP: Final = struct.Struct(">q")


class BatchHeader(NamedTuple):
    """The first bytes of a batch, or of an outer message of magic 0 or 1."""

    position: int
    size: int
    offset: int
    """The base offset in magic 2, the last offset before."""
    last_offset: int
    max_timestamp: int = NO_TIMESTAMP
    producer_id: int = NO_PRODUCER_ID
    record_count: int = -1
    """Records that are there; -1 below magic 2."""
    is_wrapper: bool = False
    """Whether it is a compressed message of magic 0 or 1."""
    one_timestamp: bool = True
    """Whether it says of every record in it, by ``max_timestamp``, which timestamp that has."""
    first_timestamp: int | None = None
    """Of the record at its first offset; None where the records alone tell, and below magic 2."""

    @property
    def is_emptied(self) -> bool:
        """Whether a cleaner has left nothing but the header, which keeps its timestamp."""
        return self.record_count == 0


def parse_header(data: bytes, position: int, remaining: int) -> BatchHeader | None:
    """Parse the header of the entry at ``position``.

    Args:
        data: the first `HEADER_SIZE` bytes from there, or all that there are.
        position: where in the file it starts.
        remaining: bytes of the file from there on.

    Returns:
        None if no whole entry can be there.
    """
    if len(data) < PREFIX.size:
        return None
    offset, length, magic = PREFIX.unpack_from(data)
    size = OVERHEAD + length
    smallest = _SMALLEST.get(magic, remaining + 1)
    if not smallest <= size <= remaining or len(data) < smallest:
        return None
    if magic == MAGIC:
        return _parse_batch(data, position, size)
    attributes = data[MESSAGE_ATTRIBUTES_POSITION]
    is_wrapper = bool(attributes & CODEC_MASK)
    if magic == 0:
        return BatchHeader(position, size, offset, offset, is_wrapper=is_wrapper)
    (timestamp,) = _V1_TIMESTAMP.unpack_from(data, TIMESTAMP_POSITION)
    one_timestamp = bool(attributes & LOG_APPEND_TIME_MASK) or not is_wrapper
    return BatchHeader(
        *(position, size, offset, offset, timestamp),
        is_wrapper=is_wrapper,
        one_timestamp=one_timestamp,
    )


def _parse_batch(data: bytes, position: int, size: int) -> BatchHeader:
    """Parse a whole batch. One with a negative delta cannot be read, and passed over it can be."""
    offset, _, _, _, _, attributes, delta, base_timestamp, timestamp, producer_id, _, _, count = (
        HEADER.unpack_from(data)
    )
    is_stamped = bool(attributes & LOG_APPEND_TIME_MASK)
    # A cleaner that has taken records away may have taken the first, or its timestamp's place.
    tells_first = not attributes & (CONTROL_MASK | DELETE_HORIZON_MASK) and count == delta + 1 > 0
    return BatchHeader(
        *(position, size, offset, offset + max(delta, 0), timestamp, producer_id, count),
        one_timestamp=is_stamped or count <= 1,
        first_timestamp=(timestamp if is_stamped else base_timestamp) if tells_first else None,
    )


# ----------------------------------------------------------------------------------------------
# The fields of a batch of magic 2 that are given when it is appended: offset and leader epoch.
#
# While a batch is staged, its base offset is 0, or the final one if offsets are kept, its leader
# epoch is -1, and the length between them is final. ``batch_layout`` says where they are.
#
# They lie outside of the batch's CRC. Where it is known which batches there are, they are written
# with arrays, or straight into a file, and nothing has to be walked.


HEAD_BYTES: Final = MAGIC_POSITION

_HEAD: Final = np.dtype([("base_offset", ">i8"), ("length", ">i4"), ("leader_epoch", ">i4")])


def heads_of(table: BatchTable) -> Bytes:
    """Return uint8[n, 16]: the first bytes of the n batches of ``table``, all of magic 2."""
    heads = np.empty(len(table), _HEAD)
    heads["base_offset"] = table.base_offset
    heads["length"] = table.size - OVERHEAD
    heads["leader_epoch"] = table.leader_epoch
    return heads.view(np.uint8).reshape(len(table), HEAD_BYTES)


def stamp_heads(data: Bytes, positions: Integers, heads: Bytes) -> None:
    """Write ``heads`` into the batches at ``positions`` (int64[n]) of a buffer, uint8[m]."""
    data[positions[:, None] + np.arange(HEAD_BYTES)] = heads


def unstamp_heads(data: Bytes, positions: Integers, *, keep_offsets: bool) -> None:
    """Bring batches in a buffer back to how they were staged, whatever was written so far.

    ``keep_offsets`` says that their offsets were final when they were staged.
    """
    if not keep_offsets:
        data[positions[:, None] + np.arange(OFFSET_POSITION, SIZE_POSITION)] = 0
    epoch = np.array([NO_EPOCH], ">i4").view(np.uint8)
    data[positions[:, None] + np.arange(LEADER_EPOCH_POSITION, HEAD_BYTES)] = epoch
