"""Frames of LZ4, many a call, whose blocks liblz4 decompresses into one array.

``lz4_codec`` says what a frame is. The kernel does each frame that is sound and fits. It stops
before any other, and ``lz4_codec`` says what is wrong with that. Every length is checked before
liblz4 sees it: a block lies in its frame, the room for it in the output.

The kernels of this module may be loaded only where ``lz4_library.is_exported``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.streaming.records.byte_kernels import copy_bytes, read_word
from kafkalog.streaming.records.compression.body_kernels import room_for
from kafkalog.streaming.records.compression.lz4_library import decompress_safe
from kafkalog.streaming.records.compression.xxhash_kernels import hash_of
from kafkalog.streaming.records.jit.inline import inlined
from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

__all__ = ["decompress_frames_by_library"]

_MAGIC: Final = 0x184D2204
_FLAGS_POSITION: Final = 4
_CHECKSUM_POSITION: Final = 6
_CONTENT_SIZE_BYTES: Final = 8
_WORD: Final = 4
_STORED: Final = 0x80000000


@inlined
def _blocks_start(data: Bytes, at: int, end: int) -> int:
    """Check the header of a frame in ``data[at:end]``; return where its blocks start, or -1."""
    if end - at <= _CHECKSUM_POSITION or read_word(data, at) != _MAGIC:
        return np.int64(-1)
    flags, block = np.int64(data[at + _FLAGS_POSITION]), np.int64(data[at + _FLAGS_POSITION + 1])
    if (flags & 0xE3) != 0x60 or (block & 0x8F) != 0 or block < 0x40:
        return np.int64(-1)
    head = at + _CHECKSUM_POSITION
    if (flags & 0x08) != 0:
        head += _CONTENT_SIZE_BYTES
    if head >= end:
        return np.int64(-1)
    checksum = np.int64(0x82)  # of 60 40, Kafka's own
    if flags != 0x60 or block != 0x40:
        checksum = (hash_of(data, at + _FLAGS_POSITION, head) >> 8) & 0xFF
    if np.int64(data[head]) != checksum:
        return np.int64(-1)
    return head + 1


@inlined
def _least_size(data: Bytes, at: int, end: int, most: int, after: int) -> int:
    """Return what the blocks from ``at`` on hold if all but the last are full, as they should be.

    ``after`` bytes follow each block. What is no chain of blocks gives some number.
    """
    size = np.int64(-most)
    while end - at >= _WORD:
        length = read_word(data, at)
        if length == 0:
            break
        at += _WORD + (length & (_STORED - 1)) + after
        size += most
    return size


@inlined
def _decompress_frame(
    data: Bytes, at: int, end: int, out: Bytes, written: int, out_end: int
) -> int:
    """Decompress ``data[at:end]`` to ``out[written:out_end]``; return where it ends, or -1."""
    flags_at = at + _FLAGS_POSITION
    at = _blocks_start(data, at, end)
    if at < 0:
        return np.int64(-1)
    after: int = np.int64(data[flags_at]) >> 2 & _WORD  # 4 where FLG's 0x10 is set
    most: int = np.int64(1) << (8 + 2 * (np.int64(data[flags_at + 1]) >> 4))
    if _least_size(data, at, end, most, after) > out_end - written:
        return np.int64(-1)
    while end - at >= _WORD:
        length = read_word(data, at)
        at += _WORD
        if length == 0:
            return written
        is_stored = length >= _STORED
        length &= _STORED - 1
        if length > most or length + after > end - at:
            return np.int64(-1)
        if after != 0 and hash_of(data, at, at + length) != read_word(data, at + length):
            return np.int64(-1)
        room: int = min(most, out_end - written)
        if not is_stored:
            size = decompress_safe(0, data, at, length, out, written, room)
            if size < 0 or size > room:
                return np.int64(-1)
        elif length <= room:
            copy_bytes(out, written, data, at, length)
            size = length
        else:
            return np.int64(-1)
        written += size
        at += length + after
    return np.int64(-1)


@kernel(
    "int64",
    "const uint8[]",
    "const int64[]",
    "const int64[]",
    "const uint8[]",
    "int64",
    "int64",
    "uint8[]",
    "int64",
    "int64[]",
)
def decompress_frames_by_library(
    data: Bytes,
    starts: Integers,
    sizes: Integers,
    wanted: Bytes,
    limit: int,
    enough: int,
    out: Bytes,
    written: int,
    ends: Integers,
) -> int:
    """Decompress the frames ``data[start : start + size]`` into ``out``, one after the other.

    The first one goes to ``out[written:]``. ``ends[i]`` becomes where one ends in ``out``. Gives
    the number of frames that were done: up to the first that is not ``wanted`` (0), is not sound,
    holds more than ``limit`` bytes or does not fit, and none once ``out`` has ``enough`` bytes.
    """
    frames = min(starts.shape[0], sizes.shape[0], wanted.shape[0], ends.shape[0])
    if written < 0 or limit < 0:
        return 0
    for frame in range(frames):
        start, size, free = starts[frame], sizes[frame], out.shape[0] - written
        room = room_for(data, start, size, wanted[frame], free, limit)
        if room < 0 or written >= enough:
            return frame
        end = _decompress_frame(data, start, start + size, out, written, written + room)
        if end < 0:
            return frame
        written = end
        ends[frame] = written
    return frames
