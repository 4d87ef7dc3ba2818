"""Snappy in the framing of xerial's snappy-java, and bare, as other clients write it.

::

    magic        82 53 4E 41 50 50 59 00     a stream may start again with these 16 bytes
    version      int32  1                    in place of a chunk
    compatible   int32  1
    then chunks, of at most 32 KiB uncompressed as Kafka writes them:
    length       int32                       of the block
    block        bytes                       raw Snappy; its first bytes say how much it holds

All integers are big-endian; there is no end mark. Without the magic, all of it is one block.
Source: Kafka ``SnappyCompression``; snappy-java ``SnappyOutputStream``, ``SnappyInputStream``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import snappy

from kafkalog.streaming.records.compression.codec import LimitExceededError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.streaming.records.compression.codec import Data

__all__ = ["compress", "decompress"]

_MAGIC: Final = b"\x82SNAPPY\x00"
_HEADER: Final = _MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
_CHUNK: Final = 32 * 1024
_LENGTH_SIZE: Final = 4
_MAX_RATIO: Final = 22
"""Three bytes of Snappy, a copy, make 64 at most."""


def compress(data: Data, level: int | None, magic: int) -> list[Data]:  # noqa: ARG001
    """Compress to a stream of chunks; there are no levels."""
    view = memoryview(data)
    out: list[Data] = [_HEADER]
    for start in range(0, len(view), _CHUNK):
        block = snappy.compress(view[start : start + _CHUNK])
        out += (len(block).to_bytes(_LENGTH_SIZE, "big"), block)
    return out


def decompress(data: memoryview, magic: int, limit: int) -> Iterator[Data]:  # noqa: ARG001
    """Decompress chunk after chunk, or the one bare block."""
    for block in _blocks(data):
        claimed = _claimed_size(block)
        if claimed > limit:
            raise LimitExceededError(claimed)
        if claimed > _MAX_RATIO * len(block):
            raise ValueError(f"a block of {len(block)} bytes cannot hold the {claimed} it claims")
        try:
            yield snappy.uncompress(block)
        except snappy.UncompressError as error:
            raise ValueError(str(error.__cause__ or error)) from error


def _blocks(data: memoryview) -> Iterator[memoryview]:
    if len(data) < len(_HEADER) or bytes(data[: len(_MAGIC)]) != _MAGIC:
        yield data
        return
    position = len(_HEADER)
    while position < len(data):
        if bytes(data[position : position + len(_MAGIC)]) == _MAGIC:
            position += len(_HEADER)
            continue
        start = position + _LENGTH_SIZE
        end = start + int.from_bytes(data[position:start], "big")
        if end > len(data) or start > len(data):
            raise ValueError(f"the chunk at byte {position} ends beyond the {len(data)} there are")
        yield data[start:end]
        position = end


def _claimed_size(block: memoryview) -> int:
    """Read how much a block holds: a varint, without zig-zag, of at most 5 bytes."""
    size = 0
    for i, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return size
    raise ValueError("a block does not begin with its size")
