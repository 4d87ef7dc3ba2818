"""Frames of LZ4 as Kafka writes them, many a call, decompressed into one array.

A block of LZ4 is a row of sequences::

    token          bits 7-4 the number of literals, bits 3-0 the length of the match less 4;
                   15 means that bytes follow which are added, up to one that is not 255
    literals       bytes to be copied
    offset         uint16, little-endian: how far back the match begins, in what was written
    match          is copied from there; where it reaches what is being written, it repeats

The last sequence ends after its literals. ``lz4_codec`` says what a frame is.

The kernel does the plain case and leaves all else: it stops before a frame of another form, a
damaged one, and one that does not fit. It asks a little more of a block than the library does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.streaming.records.byte_kernels import copy_bytes, read_word
from kafkalog.streaming.records.compression.copy_kernels import SLACK, copy_literals, copy_match
from kafkalog.streaming.records.jit.inline import inlined
from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

_HEADER: Final = 7
_LENGTH_BYTES: Final = 4
_BLOCK_BYTES: Final = 1 << 16
_STORED: Final = 0x80000000
_SHORTEST_MATCH: Final = 4
_MORE: Final = 15
_BEFORE_END: Final = 8
"""Bytes of a block that follow all literals but the last: offset, token, and five literals."""
_ROOM_AFTER: Final = 12
"""Bytes below the largest block where the library too wants the last sequence."""


@inlined
def _byte(data: Bytes, at: int) -> int:
    return np.int64(data[at])


@inlined
def _half(data: Bytes, at: int) -> int:
    return np.int64(data[at]) | np.int64(data[at + 1]) << 8


@inlined
def _is_kafkas(data: Bytes, at: int) -> bool:
    """Return whether a frame has independent blocks of 64 KiB at most, and no checksums."""
    return (
        read_word(data, at) == 0x184D2204
        and data[at + 4] == 0x60
        and data[at + 5] == 0x40
        and data[at + 6] == 0x82
    )


@inlined
def _read_more(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Read what is added to a length; return it and where it ends, or -1 if it does not."""
    length = np.int64(0)
    while at < end:
        byte = _byte(data, at)
        at += 1
        length += byte
        if byte != 255:
            return length, at
        if length > _BLOCK_BYTES:
            break
    return np.int64(0), np.int64(-1)


@inlined
def _decompress_block(data: Bytes, at: int, end: int, out: Bytes, start: int) -> int:
    """Decompress ``data[at:end]`` to ``out[start:]``; return where it ends there, or -1."""
    written = start
    most = min(start + _BLOCK_BYTES, out.shape[0] - SLACK)
    while at < end:
        token = _byte(data, at)
        at += 1
        length = token >> 4
        if length == _MORE:
            more, at = _read_more(data, at, end)
            if at < 0:
                return np.int64(-1)
            length += more
        if length > end - at or length > most - written:
            return np.int64(-1)
        copy_literals(out, written, data, at, length)
        at += length
        written += length
        if at == end:
            return written
        if end - at < _BEFORE_END or written > start + _BLOCK_BYTES - _ROOM_AFTER:
            return np.int64(-1)
        offset = _half(data, at)
        at += 2
        length = token & _MORE
        if length == _MORE:
            more, at = _read_more(data, at, end)
            if at < 0:
                return np.int64(-1)
            length += more
        length += _SHORTEST_MATCH
        if offset == 0 or offset > written - start or length > most - _SHORTEST_MATCH - 1 - written:
            return np.int64(-1)
        copy_match(out, written, offset, length)
        written += length
    return np.int64(-1)


@kernel(
    "int64",
    "const uint8[]",
    "const int64[]",
    "const int64[]",
    "const uint8[]",
    "uint8[]",
    "int64",
    "int64[]",
)
def decompress_frames(
    data: Bytes,
    starts: Integers,
    sizes: Integers,
    wanted: Bytes,
    out: Bytes,
    written: int,
    ends: Integers,
) -> int:
    """Decompress the frames ``data[start : start + size]`` into ``out``, one after the other.

    The first one goes to ``out[written:]``, of which the last ``SLACK`` bytes are not for content.
    ``ends[i]`` becomes where one ends in ``out``. Gives the number of frames that were done; see
    above for those that are not, and those that are not ``wanted`` (0) are not either.
    """
    frames = min(starts.shape[0], sizes.shape[0], wanted.shape[0], ends.shape[0])
    if written < 0:
        return 0
    for frame in range(frames):
        start, size = starts[frame], sizes[frame]
        if wanted[frame] == 0 or start < 0 or size < _HEADER or start > data.shape[0] - size:
            return frame
        if not _is_kafkas(data, start):
            return frame
        at, end = start + _HEADER, start + size
        while True:
            if end - at < _LENGTH_BYTES:
                return frame
            length = read_word(data, at)
            at += _LENGTH_BYTES
            if length == 0:
                break
            is_stored = length >= _STORED
            length &= _STORED - 1
            if length > end - at or length > _BLOCK_BYTES:
                return frame
            if not is_stored:
                written = _decompress_block(data, at, at + length, out, written)
                if written < 0:
                    return frame
            elif length <= out.shape[0] - SLACK - written:
                copy_bytes(out, written, data, at, length)
                written += length
            else:
                return frame
            at += length
        ends[frame] = written
    return frames
