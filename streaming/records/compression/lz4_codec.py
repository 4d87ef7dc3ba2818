"""The LZ4 frame format, as much of it as Kafka allows; all of it is little-endian.

::

    04 22 4D 18    the frame's magic
    FLG            bits 7-6 version 01, 5 blocks are independent (must be 1), 4 blocks have
                   checksums, 3 the content's size follows, 2 the content has a checksum, 1-0 zero
    BD             bits 6-4 largest block: 4 = 64 KiB, 5 = 256 KiB, 6 = 1 MiB, 7 = 4 MiB; others 0
    size           uint64, if FLG says so; not used
    HC             second byte of XXH32 (seed 0) of FLG to size
    then blocks:
    length         uint32  bytes that follow; with bit 31 set they are stored, not compressed
    block          bytes
    checksum       uint32  XXH32 of the block, if FLG says so
    end mark       uint32  0

One frame; what follows its end mark (a checksum of the content, or anything) is not looked at.
Kafka writes ``04224D18 60 40 82`` and blocks of 64 KiB. In message sets of magic 0 it computes HC
over the magic too, which gives 1A, and does not verify it (KIP-57).

Source: Kafka ``Lz4BlockOutputStream``, ``Lz4BlockInputStream``; the LZ4 frame format 1.6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import lz4.block
import lz4.frame
import numpy as np

from kafkalog.streaming.records.compression.lz4_kernels import xxh32

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.streaming.records.compression.codec import Data

__all__ = ["BatchCompressor", "compress", "decompress", "is_fast"]

_MAGIC: Final = b"\x04\x22\x4d\x18"
_KAFKAS_HEADER: Final = _MAGIC + b"\x60\x40\x82"
_CHECKSUM_POSITION: Final = 6
_BLOCK_CHECKSUM: Final = 0x10
_CONTENT_SIZE: Final = 0x08
_STORED: Final = 0x80000000

_FAST_LEVEL: Final = 9
"""Kafka's default level, which is not the library's 9 but means its fast compressor."""
_MIN_LEVEL: Final = 3
"""Below it the library too would take its fast compressor, instead of its lowest slow one."""

_BLOCK_BYTES: Final = 1 << 16
_ACCELERATION: Final = 2
"""For more than a block the fast compressor gives up sooner on bytes that do not repeat: half the
time for values that are half random, the same and 1 to 5 % more room for text."""
_ACCELERATIONS: Final = (1, 2, 4, 8)
_MORE_ROOM: Final = 1.02
"""How much larger than the smallest a block may become, if it is compressed sooner."""
_TRIED_EVERY: Final = 64
_FIRST_TRIED: Final = 3
"""Batches before the first trial, whose cost a writer of a few has no use of."""
_END_MARK: Final = bytes(4)


def compress(data: Data, level: int | None, magic: int) -> list[Data]:
    """Compress to one frame."""
    fast = is_fast(level)
    if fast and len(data) > _BLOCK_BYTES:
        pieces = _accelerated(memoryview(data), _ACCELERATION)
    else:
        frame = lz4.frame.compress(
            data,
            compression_level=0 if fast or level is None else max(level, _MIN_LEVEL),
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            store_size=False,
        )
        pieces = [frame]
    if magic == 0:
        head = pieces[0]
        checksum = _header_checksum(head[:_CHECKSUM_POSITION])
        pieces[0] = b"".join((head[:_CHECKSUM_POSITION], checksum, head[_CHECKSUM_POSITION + 1 :]))
    return pieces


def is_fast(level: int | None) -> bool:
    """Return whether a level asks for the fast compressor."""
    return level is None or level == _FAST_LEVEL


class BatchCompressor:
    """Compresses batch after batch with the fast compressor, at the pace that suits them.

    What a pace costs in room depends on the bytes: next to nothing where half of them are random, a
    fifth for prose. So a block of a batch now and then is compressed at each pace, and the fastest
    is taken that makes it at most 2 % larger than the slowest do.
    """

    def __init__(self) -> None:
        self._acceleration = _ACCELERATION
        self._batches = 0

    def __call__(self, data: Data) -> list[Data]:
        """Compress a batch to one frame, in pieces."""
        if len(data) <= _BLOCK_BYTES:
            return compress(data, None, 2)
        view = memoryview(data)
        if self._batches % _TRIED_EVERY == _FIRST_TRIED:
            self._acceleration = _suiting(view[:_BLOCK_BYTES])
        self._batches += 1
        return _accelerated(view, self._acceleration)


def _suiting(block: memoryview) -> int:
    """Return the largest acceleration that costs next to no room."""
    sizes = {pace: len(_block(block, pace)) for pace in _ACCELERATIONS}
    most = min(sizes.values()) * _MORE_ROOM
    return max(pace for pace, size in sizes.items() if size <= most)


def _block(plain: memoryview, acceleration: int) -> bytes:
    block: bytes = lz4.block.compress(
        plain, mode="fast", acceleration=acceleration, store_size=False
    )
    return block


def _accelerated(data: memoryview, acceleration: int) -> list[Data]:
    """Put a frame together block by block, which is quicker than the library's own frames."""
    pieces: list[Data] = [_KAFKAS_HEADER]
    for start in range(0, len(data), _BLOCK_BYTES):
        plain = data[start : start + _BLOCK_BYTES]
        block = _block(plain, acceleration)
        if len(block) < len(plain):
            pieces += (len(block).to_bytes(4, "little"), block)
        else:
            pieces += ((len(plain) | _STORED).to_bytes(4, "little"), plain)
    pieces.append(_END_MARK)
    return pieces


def decompress(data: memoryview, magic: int, limit: int) -> Iterator[Data]:  # noqa: ARG001
    """Decompress block after block up to the end mark."""
    flags, most, position = _read_header(data, magic)
    checksum_size = 4 if flags & _BLOCK_CHECKSUM else 0
    while True:
        start = position + 4
        length = int.from_bytes(data[position:start], "little")
        if start > len(data):
            raise ValueError("it ends without an end mark")
        if length == 0:
            return
        end = start + (length & ~_STORED)
        if end - start > most:
            raise ValueError(f"the block at byte {position} is larger than the {most} allowed")
        position = end + checksum_size
        if position > len(data):
            raise ValueError(f"the block at byte {start - 4} ends beyond the {len(data)} there are")
        block = data[start:end]
        if checksum_size and data[end:position] != _xxh32(block).to_bytes(4, "little"):
            raise ValueError(f"the block at byte {start - 4} does not match its checksum")
        yield block if length & _STORED else _decompress_block(block, most)


def _decompress_block(block: memoryview, most: int) -> bytes:
    try:
        return bytes(lz4.block.decompress(block, uncompressed_size=most))
    except lz4.block.LZ4BlockError as error:
        raise ValueError(str(error)) from error


def _read_header(data: memoryview, magic: int) -> tuple[int, int, int]:
    """Check the frame's header; gives FLG, the largest block's size, and where blocks start."""
    if bytes(data[: len(_KAFKAS_HEADER)]) == _KAFKAS_HEADER:
        return 0x60, 1 << 16, len(_KAFKAS_HEADER)
    if bytes(data[: len(_MAGIC)]) != _MAGIC or len(data) <= _CHECKSUM_POSITION:
        raise ValueError("it is no LZ4 frame")
    flags, block = data[4], data[5]
    if flags >> 6 != 1:
        raise ValueError(f"a frame of version {flags >> 6}, only 1 is known")
    if not flags & 0x20:
        raise ValueError("blocks that depend on each other, which Kafka does not allow")
    if flags & 0x03 or block & 0x8F or block >> 4 < 4:
        raise ValueError(f"the frame descriptor {flags:02x} {block:02x} has unknown bits")
    end = _CHECKSUM_POSITION + (8 if flags & _CONTENT_SIZE else 0)
    if len(data) <= end:
        raise ValueError("it ends in the frame's header")
    if magic > 0:
        expected = _header_checksum(data[len(_MAGIC) : end])
        if data[end : end + 1] != expected:
            raise ValueError(
                f"the header's checksum is {data[end]:02x}, computed is {expected.hex()}"
            )
    return flags, 1 << (8 + 2 * (block >> 4)), end + 1


def _header_checksum(covered: Data) -> bytes:
    return bytes([_xxh32(covered) >> 8 & 0xFF])


def _xxh32(data: Data) -> int:
    return int(xxh32(np.frombuffer(data, np.uint8)))
