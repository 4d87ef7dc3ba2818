"""Magic 0 and 1: messages, and the wrapper messages that hold compressed ones.

Everything is big-endian and signed, but for the checksum. Before magic 2 there are no batches: a
message set is just messages one after the other, each with its own offset.

====  =====  ================  ==================================================================
at    bytes  field             meaning
====  =====  ================  ==================================================================
0     8      offset            of the message; of a wrapper: of the last message inside it
8     4      size              bytes after this field: at least 14 (magic 0), 22 (magic 1)
12    4      crc               CRC-32 (zlib's polynomial, unsigned) of bytes 16 to the end
16    1      magic             0 or 1
17    1      attributes        bits 0-2 codec; magic 1: bit 3 timestamp type, 1 = LogAppendTime
18    8      timestamp         magic 1 only: ms, -1 = none
+0    4      key length        -1 (any negative) = null; at 18 in magic 0, at 26 in magic 1
+4    ..     key
..    4      value length      -1 (any negative) = null
..    ..     value             of a wrapper: one stream of its codec
====  =====  ================  ==================================================================

A wrapper has codec bits, a null key, and as value the compressed bytes of a message set whose
messages are not compressed again:

* magic 0: the offsets inside are absolute. They lie in the compressed bytes, under the checksum.
* magic 1: they are relative (KIP-31): ``offset = wrapper's offset - last inner offset + inner
  offset``. Compaction leaves holes, so they need not be 0 to n-1. If the wrapper's offset is 0,
  inner offsets count from 0, as certain versions of librdkafka write it.
* Timestamps (KIP-32): a wrapper with LogAppendTime gives all messages its own timestamp, one with
  CreateTime carries the greatest of theirs. The type is always the wrapper's. Messages of magic 0,
  which may lie inside a wrapper of magic 1, have no timestamp.
* A message that ends beyond the decompressed bytes is dropped without a word. Old brokers cut
  message sets at a number of bytes, and old clients passed them on.

Codecs are none, gzip, snappy and lz4; zstd came with magic 2. The lz4 frames of magic 0 carry a
header checksum that is computed over too many bytes (KIP-57).

Source: Kafka ``LegacyRecord``, ``AbstractLegacyRecordBatch``; KIP-31, KIP-32, KIP-57, KAFKA-4298.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkalog.errors import ChecksumMismatchError, CorruptRecordError
from kafkalog.streaming.records.compression import Codec, decompress
from kafkalog.streaming.records.crc_kernels import CRC32_TABLES
from kafkalog.streaming.records.decode_kernels import DONE
from kafkalog.streaming.records.message_sets import decode_kernels as kernels

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes

__all__ = [
    "ATTRIBUTES_POSITION",
    "CRC_POSITION",
    "CRC_START",
    "FAULTS",
    "LOG_APPEND_TIME_MASK",
    "MESSAGE_OVERHEAD_V0",
    "MESSAGE_OVERHEAD_V1",
    "TIMESTAMP_POSITION",
    "Wrapper",
    "open_wrapper",
]

OFFSET_POSITION: Final = 0
SIZE_POSITION: Final = OFFSET_POSITION + 8
CRC_POSITION: Final = SIZE_POSITION + 4
CRC_START: Final = CRC_POSITION + 4
"""Where the bytes under the checksum begin: at the magic."""
ATTRIBUTES_POSITION: Final = CRC_START + 1
TIMESTAMP_POSITION: Final = ATTRIBUTES_POSITION + 1
KEY_LENGTH_POSITION_V0: Final = ATTRIBUTES_POSITION + 1
KEY_LENGTH_POSITION_V1: Final = TIMESTAMP_POSITION + 8

MESSAGE_OVERHEAD_V0: Final = KEY_LENGTH_POSITION_V0 + 8
"""Bytes of a magic 0 message beside key and value: 26."""
MESSAGE_OVERHEAD_V1: Final = KEY_LENGTH_POSITION_V1 + 8
"""Bytes of a magic 1 message beside key and value: 34."""

LOG_APPEND_TIME_MASK: Final = 0x08

_LENGTH: Final = struct.Struct(">i")
_MAX_OFFSET: Final = 2**63 - 1
_UNCHECKED: Final = np.empty((0, 256), np.uint32)

FAULTS: Final = {
    kernels.SIZE_TOO_SMALL: "a message's size is too small for its own fields",
    kernels.NOT_WHOLE: "a message ends beyond the bytes that are there",
    kernels.MAGIC_UNKNOWN: "a message's magic is neither 0 nor 1",
    kernels.KEY_TOO_LONG: "a key ends beyond its message",
    kernels.VALUE_TOO_LONG: "a value ends beyond its message",
    kernels.COMPRESSED: "a compressed message lies inside of another",
    kernels.OFFSET_INVALID: "a message's offset is negative or beyond 2^63-1",
    kernels.CHECKSUM_WRONG: "a message does not match its checksum",
}
"""What the codes of the kernels mean, as the reason in an error."""


class Wrapper(NamedTuple):
    """What a wrapper holds: ``messages`` (uint8[n]) are whole messages and nothing else.

    ``base`` is what makes their offsets absolute, ``first_offset`` is absolute already.
    """

    messages: Bytes
    message_count: int
    base: int
    first_offset: int


def open_wrapper(
    entry: memoryview,
    *,
    max_decompressed_bytes: int,
    check_inner_crcs: bool = False,
) -> Wrapper:
    """Decompress a wrapper and check every message in it.

    Args:
        entry: the whole message, from its offset on, its codec bits set.
        max_decompressed_bytes: bytes it may decompress to.
        check_inner_crcs: whether to check the messages' checksums too.

    Raises:
        CorruptRecordError: it is no valid wrapper; says neither file nor position.
        DecompressedTooLargeError: it holds more than ``max_decompressed_bytes``.
        UnsupportedCodecError: its codec is none of magic 0 and 1.
    """
    magic = entry[CRC_START]
    codec = Codec.from_attributes(entry[ATTRIBUTES_POSITION], magic)
    stream = _value(entry, KEY_LENGTH_POSITION_V1 if magic else KEY_LENGTH_POSITION_V0)
    decompressed = decompress(codec, stream, magic=magic, limit=max_decompressed_bytes)
    messages = np.frombuffer(decompressed, np.uint8)
    survey = np.zeros(kernels.SURVEY_FIELDS, np.int64)
    tables = CRC32_TABLES if check_inner_crcs else _UNCHECKED
    code = kernels.survey_messages(messages, 0, len(messages), tables, survey)
    count, first, last, highest, end = survey.tolist()
    if code != DONE:
        kind = ChecksumMismatchError if code == kernels.CHECKSUM_WRONG else CorruptRecordError
        raise kind(f"{FAULTS[code]}: the one at byte {end} of what is decompressed")
    if count == 0:
        raise CorruptRecordError("a compressed message without messages inside")
    offset = int.from_bytes(entry[OFFSET_POSITION:SIZE_POSITION], "big", signed=True)
    base = 0 if magic == 0 else _base(offset, last, highest)
    return Wrapper(messages[:end], count, base, base + first)


def _value(entry: memoryview, key_length_position: int) -> memoryview:
    """Return the value of a message."""
    position = key_length_position
    lengths = []
    for field in ("key", "value"):
        if position + 4 > len(entry):
            raise CorruptRecordError(f"a compressed message that ends before its {field}")
        (length,) = _LENGTH.unpack_from(entry, position)
        position += 4 + max(length, 0)
        lengths.append(length)
    if position > len(entry):
        raise CorruptRecordError("a compressed message whose value ends beyond it")
    if lengths[1] < 0:
        raise CorruptRecordError("a compressed message whose value is null")
    return entry[position - lengths[1] : position]


def _base(offset: int, last: int, highest: int) -> int:
    """Return what makes the relative offsets of magic 1 absolute."""
    if offset == 0:
        return 0
    if offset < last:
        raise CorruptRecordError(
            f"a compressed message with offset {offset}, yet the last message in it has the "
            f"relative offset {last}"
        )
    if offset - last + highest > _MAX_OFFSET:
        raise CorruptRecordError("a compressed message with relative offsets beyond 2^63-1")
    return offset - last
