"""Zstandard: frames back to back (RFC 8878). Kafka writes one, without the size of its content.

The library reads a frame that is cut short without a word, and cannot be asked how far it came. So
the structure is walked first, which costs little: a block's header gives its length.

====  ==========  ============================================================================
0     uint32      magic FD2FB528 (little-endian, as all); 184D2A50 to ..5F: a skippable frame
4     uint8       descriptor: bits 7-6 size of content size, 5 single segment, 2 checksum, 1-0
                  size of dictionary id
5     ..          window descriptor (unless single segment), dictionary id, content size
..    blocks      uint24: bit 0 last, bits 2-1 type, the rest its size; of type 1 (one byte
                  repeated) only 1 byte follows. At most 128 KiB each, decompressed
..    uint32      checksum, if the descriptor says so
====  ==========  ============================================================================

Source: Kafka ``ZstdCompression``.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import zstandard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.streaming.records.compression.codec import Data

__all__ = ["compress", "decompress"]

_DEFAULT_LEVEL: Final = 3
_FRAME: Final = b"\x28\xb5\x2f\xfd"
_SKIPPABLE: Final = b"\x2a\x4d\x18"
_DICTIONARY_ID_SIZES: Final = (0, 1, 2, 4)
_CONTENT_SIZE_SIZES: Final = (0, 2, 4, 8)
_REPEATED: Final = 1
_MAX_BLOCK: Final = 128 * 1024
_PIECE: Final = 1024 * 1024


class _Contexts(threading.local):
    """One (de)compressor a thread: making one takes as long as a small batch."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}

    def compressor(self, level: int) -> zstandard.ZstdCompressor:
        if level not in self.compressors:
            made = zstandard.ZstdCompressor(level=level, write_content_size=False)
            self.compressors[level] = made
        return self.compressors[level]


_contexts: Final = _Contexts()


def compress(data: Data, level: int | None, magic: int) -> list[Data]:  # noqa: ARG001
    """Compress to one frame."""
    return [_contexts.compressor(_DEFAULT_LEVEL if level is None else level).compress(data)]


def decompress(data: memoryview, magic: int, limit: int) -> Iterator[bytes]:  # noqa: ARG001
    """Decompress frame after frame."""
    most = min(_PIECE, limit + 1, _MAX_BLOCK * _count_blocks(data))
    try:
        with _contexts.decompressor.stream_reader(data, read_across_frames=True) as reader:
            while piece := reader.read(most):
                yield piece
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


def _count_blocks(data: memoryview) -> int:
    """Walk all frames to the end of the data; return the number of their blocks."""
    position, blocks = 0, 0
    while position < len(data):
        start = bytes(data[position : position + 4])
        if start == _FRAME:
            position, found = _walk_frame(data, position)
            blocks += found
        elif start[1:] == _SKIPPABLE and start[0] >> 4 == 5:
            position += 8 + int.from_bytes(data[position + 4 : position + 8], "little")
        else:
            raise ValueError(f"no frame starts at byte {position}")
    if position > len(data):
        raise ValueError("it ends in the middle of a frame")
    return blocks


def _walk_frame(data: memoryview, position: int) -> tuple[int, int]:
    """Return where a frame ends and how many blocks it has; an end beyond the data is none."""
    if position + 5 > len(data):
        return len(data) + 1, 0
    descriptor = data[position + 4]
    single_segment = descriptor >> 5 & 1
    size_flag = descriptor >> 6
    position += 5 + (not single_segment) + _DICTIONARY_ID_SIZES[descriptor & 3]
    position += _CONTENT_SIZE_SIZES[size_flag] or single_segment
    blocks, last = 0, 0
    while not last:
        if position + 3 > len(data):
            return len(data) + 1, blocks
        header = int.from_bytes(data[position : position + 3], "little")
        last = header & 1
        position += 3 + (1 if header >> 1 & 3 == _REPEATED else header >> 3)
        blocks += 1
    return position + (4 if descriptor & 0x04 else 0), blocks
