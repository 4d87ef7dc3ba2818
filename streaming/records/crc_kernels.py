"""CRC-32 and CRC-32C as kernels compute them, eight bytes at a time ("slicing by 8").

A library is faster (15 GB/s against 1.8), but a call of it costs as much as 1000 bytes here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.streaming.records.byte_kernels import read_word
from kafkalog.streaming.records.jit.inline import inlined

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes

__all__ = ["CRC32C_TABLES", "CRC32_TABLES", "checksum"]


def _tables(polynomial: int) -> NDArray[np.uint32]:
    """Compute uint32[8, 256] from a polynomial, bits reversed."""
    tables = np.zeros((8, 256), np.uint32)
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, (crc >> 1) ^ np.uint32(polynomial), crc >> 1).astype(np.uint32)
    tables[0] = crc
    for i in range(1, 8):
        tables[i] = (tables[i - 1] >> 8) ^ crc[tables[i - 1] & 0xFF]
    tables.flags.writeable = False
    return tables


CRC32_TABLES: Final = _tables(0xEDB88320)
"""zlib's, of magic 0 and 1."""
CRC32C_TABLES: Final = _tables(0x82F63B78)
"""Castagnoli's, of magic 2."""


@inlined
def checksum(data: Bytes, start: int, end: int, tables: NDArray[np.uint32]) -> int:
    """Compute the CRC of ``data[start:end]``, which the caller has checked to lie inside."""
    crc = 0xFFFFFFFF
    at = start
    while end - at >= 8:
        low = crc ^ read_word(data, at)
        crc = (
            np.int64(tables[7, low & 0xFF])
            ^ np.int64(tables[6, (low >> 8) & 0xFF])
            ^ np.int64(tables[5, (low >> 16) & 0xFF])
            ^ np.int64(tables[4, (low >> 24) & 0xFF])
            ^ np.int64(tables[3, np.int64(data[at + 4])])
            ^ np.int64(tables[2, np.int64(data[at + 5])])
            ^ np.int64(tables[1, np.int64(data[at + 6])])
            ^ np.int64(tables[0, np.int64(data[at + 7])])
        )
        at += 8
    while at < end:
        crc = (crc >> 8) ^ np.int64(tables[0, (crc ^ np.int64(data[at])) & 0xFF])
        at += 1
    return crc ^ 0xFFFFFFFF
