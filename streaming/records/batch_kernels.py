"""Walk over the batches of a buffer, many a call, and check their checksums.

``batch_layout`` says what stands where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.streaming.records.batch_layout import (
    ATTRIBUTES_POSITION,
    BASE_SEQUENCE_POSITION,
    BASE_TIMESTAMP_POSITION,
    COUNT_POSITION,
    CRC_POSITION,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_POSITION,
    LEADER_EPOCH_POSITION,
    MAGIC_POSITION,
    MAX_TIMESTAMP_POSITION,
    OFFSET_POSITION,
    OVERHEAD,
    PREFIX_SIZE,
    PRODUCER_EPOCH_POSITION,
    PRODUCER_ID_POSITION,
    SIZE_POSITION,
)
from kafkalog.streaming.records.byte_kernels import read_int
from kafkalog.streaming.records.crc_kernels import checksum, crc_of
from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers


__all__ = ["check_by_library"]

# The columns of a batch table, int64[n, FIELDS].
POSITION: Final = 0
SIZE: Final = 1
MAGIC: Final = 2
BASE_OFFSET: Final = 3
LAST_OFFSET: Final = 4
LEADER_EPOCH: Final = 5
CRC: Final = 6
ATTRIBUTES: Final = 7
BASE_TIMESTAMP: Final = 8
MAX_TIMESTAMP: Final = 9
PRODUCER_ID: Final = 10
PRODUCER_EPOCH: Final = 11
BASE_SEQUENCE: Final = 12
COUNT: Final = 13
FIELDS: Final = 14

# Why `walk` stopped.
END: Final = 0  # at the end of the data
INCOMPLETE: Final = 1  # before an entry that ends beyond the data
TABLE_FULL: Final = 2
BAD_SIZE: Final = 3
BAD_MAGIC: Final = 4
BAD_COUNT: Final = 5
BAD_OFFSET: Final = 6

_SMALLEST: Final = HEADER_SIZE - OVERHEAD
_MAX_INT32: Final = 2**31 - 1
_MAX_INT64: Final = 2**63 - 1


@kernel("int64", "const uint8[]", "int64", "int64", "int64[,]", "int64[]")
def walk(data: Bytes, start: int, file_position: int, table: Integers, stopped: Integers) -> int:
    """Fill a row of ``table`` for each whole entry from ``start`` on; return the number of rows.

    ``stopped`` becomes (reason, position in ``data`` where it stopped, size of the entry there if
    it is known, a number the reason is about).
    """
    position = start
    rows = 0
    length = data.shape[0]
    reason = END
    size, about = 0, 0
    while position < length:
        size, about = 0, 0
        if rows == table.shape[0]:
            reason = TABLE_FULL
            break
        if length - position < PREFIX_SIZE:
            reason = INCOMPLETE
            break
        offset = read_int(data, position + OFFSET_POSITION, 8)
        rest = read_int(data, position + SIZE_POSITION, 4)
        magic = read_int(data, position + MAGIC_POSITION, 1)
        if rest < 14:
            reason, about = BAD_SIZE, rest
            break
        if magic < 0 or magic > 2:
            reason, about = BAD_MAGIC, magic
            break
        if (magic == 1 and rest < 22) or (magic == 2 and rest < _SMALLEST):
            reason, about = BAD_SIZE, rest
            break
        if offset < 0:
            reason, about = BAD_OFFSET, offset
            break
        size = rest + OVERHEAD
        if length - position < size:
            reason = INCOMPLETE
            break
        table[rows, POSITION] = file_position + position
        table[rows, SIZE] = size
        table[rows, MAGIC] = magic
        if magic == 2:
            delta = read_int(data, position + LAST_OFFSET_DELTA_POSITION, 4)
            count = read_int(data, position + COUNT_POSITION, 4)
            if count < 0:
                reason, about = BAD_COUNT, count
                break
            if delta < 0 or offset > _MAX_INT64 - 1 - delta:
                reason, about = BAD_OFFSET, delta
                break
            table[rows, BASE_OFFSET] = offset
            table[rows, LAST_OFFSET] = offset + delta
            table[rows, LEADER_EPOCH] = read_int(data, position + LEADER_EPOCH_POSITION, 4)
            table[rows, CRC] = read_int(data, position + CRC_POSITION, 4) & 0xFFFFFFFF
            table[rows, ATTRIBUTES] = read_int(data, position + ATTRIBUTES_POSITION, 2)
            table[rows, BASE_TIMESTAMP] = read_int(data, position + BASE_TIMESTAMP_POSITION, 8)
            table[rows, MAX_TIMESTAMP] = read_int(data, position + MAX_TIMESTAMP_POSITION, 8)
            table[rows, PRODUCER_ID] = read_int(data, position + PRODUCER_ID_POSITION, 8)
            table[rows, PRODUCER_EPOCH] = read_int(data, position + PRODUCER_EPOCH_POSITION, 2)
            table[rows, BASE_SEQUENCE] = read_int(data, position + BASE_SEQUENCE_POSITION, 4)
            table[rows, COUNT] = count
        else:
            attributes = read_int(data, position + 17, 1)
            timestamp = read_int(data, position + 18, 8) if magic == 1 else -1
            wrapper = (attributes & 7) != 0
            table[rows, BASE_OFFSET] = -1 if wrapper else offset
            table[rows, LAST_OFFSET] = offset
            table[rows, LEADER_EPOCH] = -1
            table[rows, CRC] = read_int(data, position + 12, 4) & 0xFFFFFFFF
            table[rows, ATTRIBUTES] = attributes
            table[rows, BASE_TIMESTAMP] = timestamp
            table[rows, MAX_TIMESTAMP] = timestamp
            table[rows, PRODUCER_ID] = -1
            table[rows, PRODUCER_EPOCH] = -1
            table[rows, BASE_SEQUENCE] = -1
            table[rows, COUNT] = -1 if wrapper else 1
        rows += 1
        position += size
    stopped[0] = reason
    stopped[1] = position
    stopped[2] = size
    stopped[3] = about
    return rows


@kernel(
    "int64",
    "const uint8[]",
    "int64",
    "const int64[,]",
    "const uint32[,]",
    "const uint32[,]",
    "uint8[]",
)
def check_small(
    data: Bytes,
    file_position: int,
    table: Integers,
    crc32_tables: NDArray[np.uint32],
    crc32c_tables: NDArray[np.uint32],
    bad: Bytes,
) -> int:
    """Check the checksums of batches and messages too small to be worth a call of a library.

    ``bad`` (uint8[n]) becomes 1 where the checksum does not match, or where the batch does not lie
    in ``data``. Gives the number of those.
    """
    found = 0
    for row in range(table.shape[0]):
        bad[row] = 1
        position = table[row, POSITION] - file_position
        size = table[row, SIZE]
        if position >= 0 and size >= 26 and position <= data.shape[0] - size:
            if table[row, MAGIC] == 2:
                crc = checksum(data, position + ATTRIBUTES_POSITION, position + size, crc32c_tables)
            else:
                crc = checksum(data, position + 16, position + size, crc32_tables)
            bad[row] = crc != table[row, CRC]
        found += bad[row]
    return found


# ----------------------------------------------------------------------------------------------
# The loop that checks the checksums of batches by the library's own function.
#
# This kernel may be loaded only where ``crc_kernels.is_exported``.


@kernel("void", "const uint8[]", "int64", "const int64[,]", "uint8[]")
def check_by_library(data: Bytes, file_position: int, table: Integers, bad: Bytes) -> None:
    """Check the checksums of batches of magic 2.

    ``bad`` (uint8[n]) becomes 1 where the checksum does not match, or where the batch does not lie
    in ``data``, and 0 elsewhere.
    """
    for row in range(min(table.shape[0], bad.shape[0])):
        bad[row] = 1
        position = table[row, POSITION] - file_position
        size = table[row, SIZE]
        if position >= 0 and size >= HEADER_SIZE and position <= data.shape[0] - size:
            crc = crc_of(data, position + ATTRIBUTES_POSITION, size - ATTRIBUTES_POSITION)
            bad[row] = crc != table[row, CRC]
