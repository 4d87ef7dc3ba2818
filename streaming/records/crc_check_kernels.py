"""The loop that checks the checksums of batches by the library's own function.

The kernels of this module may be loaded only where ``crc_library.is_exported``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.streaming.records.batch_kernels import CRC, POSITION, SIZE
from kafkalog.streaming.records.batch_layout import ATTRIBUTES_POSITION, HEADER_SIZE
from kafkalog.streaming.records.crc_library import crc_of
from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

__all__ = ["check_by_library"]


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
