"""Snappy as Kafka writes it, many a call, decompressed into one array.

A raw block is a varint, how many bytes it holds, and then a row of elements::

    tag            bits 1-0 the kind
      0  literal   bits 7-2 the length less 1; 60 to 63: it is in the next 1 to 4 bytes, less 1
      1  copy      bits 4-2 the length less 4, bits 7-5 and the next byte the offset
      2  copy      bits 7-2 the length less 1, the next 2 bytes the offset
      3  copy      bits 7-2 the length less 1, the next 4 bytes the offset

Numbers of several bytes are little-endian. An offset says how far back a copy begins, in what was
written; where it reaches what is being written, it repeats. ``snappy_codec`` says what is around
blocks.

The kernel does the plain case. It stops before a stream that starts again, a damaged one, and one
that does not fit, and ``snappy_codec`` says what is wrong with that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.streaming.records.byte_kernels import copy_bytes, read_word, room_for
from kafkalog.streaming.records.jit.inline import inlined
from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers


__all__ = ["SLACK", "copy_literals", "copy_match", "decompress_snappy"]


# ----------------------------------------------------------------------------------------------
# Copies of short byte strings into what is being decompressed: literals, and what was written.
#
# Compiled into the kernels that call.


SLACK: Final = 64
"""Bytes of the output that stay free: short copies write more than they need."""

_STEP: Final = 16


@inlined
def copy_literals(out: Bytes, written: int, data: Bytes, at: int, length: int) -> None:
    """Copy bytes for which there is room, and ``SLACK`` after it."""
    if length <= 4 * _STEP and at <= data.shape[0] - 4 * _STEP:
        copy_bytes(out, written, data, at, 2 * _STEP)
        if length > 2 * _STEP:
            copy_bytes(out, written + 2 * _STEP, data, at + 2 * _STEP, 2 * _STEP)
    else:
        copy_bytes(out, written, data, at, length)


@inlined
def copy_match(out: Bytes, written: int, offset: int, length: int) -> None:
    """Copy bytes from ``offset`` before, for which there is room, and ``SLACK`` after it."""
    end = written + length
    distance = offset
    if offset < _STEP:
        # What repeats every few bytes repeats at a multiple of that, too, from there on.
        distance = offset * (_STEP // offset + 1)
        for at in range(written, min(written + distance - offset, end)):
            out[at] = out[at - offset]
        written += distance - offset
    copy_bytes(out, written, out, written - distance, _STEP)
    copy_bytes(out, written + _STEP, out, written + _STEP - distance, _STEP)
    written += 2 * _STEP
    while written < end:
        copy_bytes(out, written, out, written - distance, _STEP)
        written += _STEP


# ----------------------------------------------------------------------------------------------

_HEADER: Final = 16
_LENGTH: Final = 4
_IN_TAG: Final = 60


@inlined
def _begins_stream(data: Bytes, at: int) -> bool:
    """Whether the 8 bytes from ``at`` on are the magic of xerial's framing."""
    return read_word(data, at) == 0x414E5382 and read_word(data, at + 4) == 0x00595050


@inlined
def _little(data: Bytes, at: int, size: int) -> int:
    value = np.int64(0)
    for i in range(size):
        value |= np.int64(data[at + i]) << (8 * i)
    return value


@inlined
def _claimed(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Read how much a block holds; return it and where its elements begin, or -1."""
    size, shift = np.int64(0), 0
    while at < end and shift < 35:
        byte = np.int64(data[at])
        at += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size, at
        shift += 7
    return np.int64(0), np.int64(-1)


@inlined
def _decompress_block(data: Bytes, at: int, end: int, out: Bytes, start: int, out_end: int) -> int:
    """Decompress ``data[at:end]`` to ``out[start:out_end]``; return where it ends, or -1.

    ``SLACK`` bytes after ``out_end`` may be written to.
    """
    size, at = _claimed(data, at, end)
    if at < 0 or size > out_end - start:
        return np.int64(-1)
    written, out_end = start, start + size
    while at < end:
        tag = np.int64(data[at])
        kind = tag & 3
        at += 1
        if kind == 0:
            length: int = (tag >> 2) + 1
            if length > _IN_TAG:
                more: int = length - _IN_TAG
                if more > end - at:
                    return np.int64(-1)
                length = _little(data, at, more) + 1
                at += more
            if length > end - at or length > out_end - written:
                return np.int64(-1)
            copy_literals(out, written, data, at, length)
            at += length
        else:
            length = (tag >> 2) + 1
            if kind == 2:
                if end - at < 2:
                    return np.int64(-1)
                offset: int = np.int64(data[at]) | np.int64(data[at + 1]) << 8
                at += 2
            elif kind == 1:
                if end - at < 1:
                    return np.int64(-1)
                length = ((tag >> 2) & 7) + 4
                offset = np.int64(data[at]) | (tag >> 5) << 8
                at += 1
            else:
                if end - at < 4:
                    return np.int64(-1)
                offset = read_word(data, at)
                at += 4
            if offset == 0 or offset > written - start or length > out_end - written:
                return np.int64(-1)
            copy_match(out, written, offset, length)
        written += length
    if written != out_end:
        return np.int64(-1)
    return written


@inlined
def _decompress_stream(
    data: Bytes, at: int, end: int, out: Bytes, written: int, out_end: int
) -> int:
    """Decompress a stream of chunks, or a bare block; return where it ends, or -1."""
    if end - at < _HEADER or not _begins_stream(data, at):
        return _decompress_block(data, at, end, out, written, out_end)
    at += _HEADER
    while at < end:
        if end - at < _LENGTH:
            return np.int64(-1)
        length: int = (
            np.int64(data[at]) << 24
            | np.int64(data[at + 1]) << 16
            | np.int64(data[at + 2]) << 8
            | np.int64(data[at + 3])
        )
        at += _LENGTH
        if length > end - at:  # also where a stream starts again: its magic is a large number
            return np.int64(-1)
        written = _decompress_block(data, at, at + length, out, written, out_end)
        if written < 0:
            return np.int64(-1)
        at += length
    return written


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
def decompress_snappy(
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
    """Decompress the streams ``data[start : start + size]`` into ``out``, one after the other.

    The last ``SLACK`` bytes of ``out`` are not for content. All else is as of
    ``lz4_kernels.decompress_frames_by_library``.
    """
    streams = min(starts.shape[0], sizes.shape[0], wanted.shape[0], ends.shape[0])
    if written < 0 or limit < 0:
        return 0
    for stream in range(streams):
        start, size, free = starts[stream], sizes[stream], out.shape[0] - SLACK - written
        room = room_for(data, start, size, wanted[stream], free, limit)
        if room < 0 or written >= enough:
            return stream
        end = _decompress_stream(data, start, start + size, out, written, written + room)
        if end < 0:
            return stream
        written = end
        ends[stream] = written
    return streams
