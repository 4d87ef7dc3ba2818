"""Messages of magic 0 and 1 made byte by byte from the format, and read back as plain tuples.

Nothing here uses the code under test, but for ``read``.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from typing import Any, Final, NamedTuple

import lz4.frame
import numpy as np
import snappy

from kafkalog.streaming.records.batch import scan_batches
from kafkalog.streaming.records.columns import Columns, RecordDecoder

__all__ = [
    "GOLDEN",
    "GZIP",
    "LOG_APPEND_TIME",
    "LZ4",
    "SNAPPY",
    "XERIAL_HEADER",
    "ZSTD",
    "Row",
    "gzip_stream",
    "lz4_stream",
    "lz4_stream_of_old",
    "message",
    "read",
    "xerial_stream",
]

GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4
LOG_APPEND_TIME: Final = 8
"""Bits of ``attributes``."""

XERIAL_HEADER: Final = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)

GOLDEN: Final = {
    name: bytes.fromhex(text)
    for name, text in {
        "v0 none": (
            "0000000000000005000000101fecd70a0000000000016b000000017600000000000000060000000e"
            "a7ec68030000ffffffffffffffff"
        ),
        "v0 snappy": (
            "00000000000000060000005542c91f500002ffffffff0000004782534e4150505900000000010000"
            "00010000003336000009012405000000101fecd70a00010118016b0000000176010b540000000600"
            "00000ea7ec68030000ffffffffffffffff"
        ),
        "v0 lz4": (
            "00000000000000060000004ebc809c0d0003ffffffff0000004004224d1860401a31000000120001"
            "009105000000101fecd70a0f0071016b00000001760c00f0060000060000000ea7ec68030000ffff"
            "ffffffffffff00000000"
        ),
        "v1 none": (
            "000000000000000500000018e4e321bc010000000000000003e8000000016b000000017600000000"
            "00000006000000166e343abb010000000000000003e6ffffffffffffffff"
        ),
        "v1 gzip": (
            "00000000000000060000004c7de50707010100000000000003e8ffffffff000000361f8b08000000"
            "000000ff6360800389278f15f7304239cc2f800463368828830a81a4c4f24cac76c3d53cfb0f0500"
            "4222b7b946000000"
        ),
        "v1 lz4": (
            "0000000000000006000000591729b4cf010300000000000003e8ffffffff0000004304224d186040"
            "8234000000160001006318e4e321bc0110007003e8000000016b050013761300001b0050166e343a"
            "bb0900000200a003e6ffffffffffffffff00000000"
        ),
    }.items()
}
"""What Kafka 4.1's writer made: (1000 ms, "k", "v") and (998 ms, null, null) from offset 5 on."""

_ROW: Final = (
    Columns.KEY
    | Columns.VALUE
    | Columns.OFFSET
    | Columns.TIMESTAMP_TYPE
    | Columns.HEADERS
    | Columns.TIMESTAMP_MS
)


class Row(NamedTuple):
    """A record as a reader sees it; ``timestamp`` in ms."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None


def message(
    offset: int,
    key: bytes | None,
    value: bytes | None,
    *,
    magic: int,
    timestamp: int = -1,
    attributes: int = 0,
    trailing: bytes = b"",
    crc_error: int = 0,
) -> bytes:
    """Make a message; one whose attributes have codec bits is a wrapper around its value."""
    body = struct.pack(">bb", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", timestamp)
    for field in (key, value):
        body += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    body += trailing
    crc = zlib.crc32(body) ^ crc_error
    return struct.pack(">qiI", offset, len(body) + 4, crc) + body


def gzip_stream(data: bytes) -> bytes:
    """Compress as Java's client does."""
    return gzip.compress(data, mtime=0)


def xerial_stream(data: bytes, chunk: int = 32 * 1024) -> bytes:
    """Compress as snappy-java's stream does."""
    stream = XERIAL_HEADER
    for start in range(0, len(data), chunk):
        block = snappy.compress(data[start : start + chunk])
        stream += struct.pack(">i", len(block)) + block
    return stream


def lz4_stream(data: bytes) -> bytes:
    """Compress to a frame whose header checksum is right."""
    return bytes(lz4.frame.compress(data, block_linked=False, store_size=False))


def lz4_stream_of_old(data: bytes) -> bytes:
    """Compress to a frame as clients of magic 0 did: checksum over the frame's magic too."""
    stream = bytearray(lz4_stream(data))
    assert stream[4:7] == b"\x60\x40\x82"
    stream[6] = 0x1A
    return bytes(stream)


def read(data: bytes, **options: Any) -> list[Row]:
    """Read all rows; options are those of ``RecordDecoder`` and of its ``decode``."""
    array = np.frombuffer(data, np.uint8)
    scan = scan_batches(array, file_position=options.get("file_position", 0))
    assert scan.invalid is None
    assert scan.consumed == len(data)
    for_decoder = {"max_decompressed_bytes", "check_crcs", "max_rows", "max_batch_bytes"}
    decoder = RecordDecoder(_ROW, **{k: options[k] for k in options if k in for_decoder})
    where = {k: options[k] for k in options if k not in for_decoder}
    rows = []
    for batch in decoder.decode(array, scan.table, **where):
        for row in batch.to_pylist():
            assert row["headers"] is None
            rows.append(
                Row(
                    row["offset"],
                    row["timestampMs"],
                    row["timestampType"],
                    row["key"],
                    row["value"],
                )
            )
    return rows
