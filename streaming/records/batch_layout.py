"""Where the fields of a batch lie: the header of magic 2, and what all magics have in common.

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

Older magics are in ``message_sets.layout``.

Source: Kafka ``DefaultRecordBatch``; KIP-98.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np
from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.streaming.records.compression.codec import Data

__all__ = [
    "ATTRIBUTES_POSITION",
    "BASE_SEQUENCE_POSITION",
    "BASE_TIMESTAMP_POSITION",
    "CODEC_MASK",
    "CONTROL_MASK",
    "COUNT_POSITION",
    "CRC_POSITION",
    "DELETE_HORIZON_MASK",
    "HEADER",
    "HEADERS",
    "HEADER_SIZE",
    "LAST_OFFSET_DELTA_POSITION",
    "LEADER_EPOCH_POSITION",
    "LOG_APPEND_TIME_MASK",
    "MAGIC",
    "MAGIC_POSITION",
    "MAX_TIMESTAMP_POSITION",
    "OFFSET_POSITION",
    "OVERHEAD",
    "PREFIX",
    "PREFIX_SIZE",
    "PREFIX_WITH_DELTA",
    "PRODUCER_EPOCH_POSITION",
    "PRODUCER_ID_POSITION",
    "SIZE_POSITION",
    "TRANSACTIONAL_MASK",
    "seal_batch",
    "with_checksum",
]

MAGIC: Final = 2

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

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""All fields of the header, in the order of the table."""

HEADERS: Final = np.dtype(
    [
        ("base_offset", ">i8"),
        ("size", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("count", ">i4"),
    ]
)
"""The same, for many headers at once."""

PREFIX: Final = struct.Struct(">qi4xb")
"""Offset, size and magic of an entry of any magic."""

PREFIX_WITH_DELTA: Final = struct.Struct(">qi4xb6xi")
"""The same, and the last offset delta, which only a batch of magic 2 has there."""

_CRC: Final = struct.Struct(">I")


def seal_batch(
    records: Sequence[Data],
    *,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    count: int,
) -> bytes:
    """Make a batch of magic 2 with its size and checksum; ``records`` are its bytes in pieces."""
    header = HEADER.pack(
        base_offset,
        HEADER_SIZE - OVERHEAD + sum(map(len, records)),
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    return with_checksum(header, records)


def with_checksum(header: bytes, records: Sequence[Data]) -> bytes:
    """Join a header of magic 2 and the bytes of its records, with the checksum that they have."""
    checked = header[ATTRIBUTES_POSITION:]
    crc = crc32c(checked)
    for piece in records:
        crc = crc32c(piece, crc)
    return b"".join((header[:CRC_POSITION], _CRC.pack(crc), checked, *records))
