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

from typing import Final

__all__ = [
    "MAGIC_V0",
    "MAGIC_V1",
    "MESSAGE_OVERHEAD_V0",
    "MESSAGE_OVERHEAD_V1",
]

MAGIC_V0: Final = 0
MAGIC_V1: Final = 1

MESSAGE_OVERHEAD_V0: Final = 26
"""Bytes of a magic 0 message beside key and value."""

MESSAGE_OVERHEAD_V1: Final = 34
"""Bytes of a magic 1 message beside key and value."""
