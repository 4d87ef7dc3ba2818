"""Decompress LZ4 in kernels: frames, their XXH32, and liblz4's own function for blocks."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import lz4.block
import numpy as np

from kafkalog.streaming.records.byte_kernels import copy_bytes, read_word, room_for
from kafkalog.streaming.records.jit.inline import (
    INTERPRETED,
    block_call,
    compiled_later,
    export,
    inlined,
    library_of,
)
from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers


__all__ = ["decompress_frames_by_library", "decompress_safe", "hash_of", "is_exported", "xxh32"]


# ----------------------------------------------------------------------------------------------
# XXH32, the hash in the frames of LZ4; of its 32-bit words the first byte is the lowest.
#
# Source: the xxHash specification, with seed 0.


_PRIME_1: Final = 2654435761
_PRIME_2: Final = 2246822519
_PRIME_3: Final = 3266489917
_PRIME_4: Final = 668265263
_PRIME_5: Final = 374761393
_MASK: Final = 0xFFFFFFFF


@inlined
def _rotated(value: int, bits: int) -> int:
    value &= _MASK
    return ((value << bits) | (value >> (32 - bits))) & _MASK


@inlined
def _round(lane: int, word: int) -> int:
    return (_rotated(lane + ((word * _PRIME_2) & _MASK), 13) * _PRIME_1) & _MASK


@inlined
def hash_of(data: Bytes, at: int, end: int) -> int:
    """Hash ``data[at:end]``, which the caller has checked to lie inside, to 0 .. 2**32 - 1."""
    size = end - at
    if size >= 16:
        a, b = (_PRIME_1 + _PRIME_2) & _MASK, _PRIME_2
        c, d = 0, (-_PRIME_1) & _MASK
        while end - at >= 16:
            a, b = _round(a, read_word(data, at)), _round(b, read_word(data, at + 4))
            c, d = _round(c, read_word(data, at + 8)), _round(d, read_word(data, at + 12))
            at += 16
        hashed = _rotated(a, 1) + _rotated(b, 7) + _rotated(c, 12) + _rotated(d, 18)
    else:
        hashed = _PRIME_5
    hashed = (hashed + size) & _MASK
    while end - at >= 4:
        word = (read_word(data, at) * _PRIME_3) & _MASK
        hashed = (_rotated(hashed + word, 17) * _PRIME_4) & _MASK
        at += 4
    while at < end:
        hashed = (_rotated(hashed + int(data[at]) * _PRIME_5, 11) * _PRIME_1) & _MASK
        at += 1
    hashed = ((hashed ^ (hashed >> 15)) * _PRIME_2) & _MASK
    hashed = ((hashed ^ (hashed >> 13)) * _PRIME_3) & _MASK
    return hashed ^ (hashed >> 16)


@kernel("int64", "const uint8[]")
def xxh32(data: Bytes) -> int:
    """Hash all of ``data``, to 0 .. 2**32 - 1."""
    return hash_of(data, 0, data.shape[0])


# ----------------------------------------------------------------------------------------------
# liblz4's own function to decompress a block, called from kernels: see ``jit.inline``.
#
# The extension modules of the lz4 package export liblz4's functions.


_FUNCTION: Final = "LZ4_decompress_safe"
_SYMBOL: Final = f"kafkalog_{_FUNCTION}"


@functools.cache
def is_exported() -> bool:
    """Whether kernels can call liblz4; if so, the compiler has its address from then on."""
    return INTERPRETED or export(library_of(lz4.block._block), {_SYMBOL: _FUNCTION})  # noqa: SLF001


def _decompress_safe(
    context: int,  # noqa: ARG001 - it needs none
    data: Bytes,
    start: int,
    length: int,
    out: Bytes,
    position: int,
    room: int,
) -> int:
    """Decompress the block ``data[start : start + length]`` to ``out`` at ``position``.

    The caller has checked that both it and ``room`` bytes of ``out`` lie inside, and that none is
    longer than an int32. Gives the bytes written, ``room`` at most, or a negative number.
    """
    block = np.ascontiguousarray(data[start : start + length]).tobytes()
    try:
        plain = lz4.block.decompress(block, uncompressed_size=room)
    except lz4.block.LZ4BlockError:
        return np.int64(-1)
    out[position : position + len(plain)] = np.frombuffer(plain, np.uint8)
    return np.int64(len(plain))


def _emit(builder: Any, _context: Any, block: Any, length: Any, target: Any, room: Any) -> Any:  # noqa: ANN401
    """Emit a call of ``int LZ4_decompress_safe(char *block, char *target, int size, int most)``."""
    from llvmlite import ir  # noqa: PLC0415
    from numba.core import cgutils  # noqa: PLC0415

    insert: Any = cgutils.get_or_insert_function
    int32, int64 = ir.IntType(32), ir.IntType(64)
    kind = ir.FunctionType(int32, [block.type, target.type, int32, int32])
    function = insert(builder.module, kind, _SYMBOL)
    sizes = builder.trunc(length, int32), builder.trunc(room, int32)
    return builder.sext(builder.call(function, [block, target, *sizes]), int64)


decompress_safe: Callable[[int, Bytes, int, int, Bytes, int, int], int] = compiled_later(
    _decompress_safe, block_call(_emit)
)


# ----------------------------------------------------------------------------------------------
# Frames of LZ4, many a call, whose blocks liblz4 decompresses into one array.
#
# ``lz4_codec`` says what a frame is. The kernel does each frame that is sound and fits. It stops
# before any other, and ``lz4_codec`` says what is wrong with that. Every length is checked before
# liblz4 sees it: a block lies in its frame, the room for it in the output.
#
# These kernels may be loaded only where ``is_exported``.


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
