"""Decompress Zstandard in kernels: libzstd's own function, called for many frames at once."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import zstandard

from kafkalog.streaming.records.byte_kernels import read_word, room_for
from kafkalog.streaming.records.jit.inline import (
    INTERPRETED,
    Context,
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


__all__ = ["decompress_frame", "decompress_zstd_by_library", "is_exported", "new_context"]


# ----------------------------------------------------------------------------------------------
# libzstd's own function to decompress a frame, called from kernels: see ``jit.inline``.
#
# The CFFI backend of the zstandard package exports libzstd's functions.


_SYMBOL: Final = "kafkalog_ZSTD_decompressDCtx"
_FUNCTION: Final = "ZSTD_decompressDCtx"


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        from zstandard import _cffi  # type: ignore[attr-defined]  # noqa: PLC0415 - 10 MB of it
    except ImportError:
        return None
    return library_of(_cffi)


@functools.cache
def is_exported() -> bool:
    """Whether kernels can call libzstd; if so, the compiler has its address from then on."""
    return INTERPRETED or export(_library(), {_SYMBOL: _FUNCTION})


def new_context() -> Context:
    """Make what libzstd needs to decompress. REQUIRES: ``is_exported``."""
    library = _library()
    if INTERPRETED or library is None:
        return Context(0, lambda: None)
    make, free = library["ZSTD_createDCtx"], library["ZSTD_freeDCtx"]
    make.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    address = make()
    if not address:
        raise MemoryError("libzstd has no memory to decompress")
    return Context(address, functools.partial(free, address))


def _decompress_frame(
    context: int,  # noqa: ARG001
    data: Bytes,
    start: int,
    length: int,
    out: Bytes,
    position: int,
    room: int,
) -> int:
    """Decompress the frame ``data[start : start + length]`` to ``out`` at ``position``.

    The caller has checked that both it and ``room`` bytes of ``out`` lie inside. Gives the bytes
    written, ``room`` at most, or a negative number.
    """
    frame = np.ascontiguousarray(data[start : start + length]).tobytes()
    try:
        with zstandard.ZstdDecompressor().stream_reader(frame) as reader:
            plain = reader.read(room + 1)
    except zstandard.ZstdError:
        return np.int64(-1)
    if len(plain) > room:
        return np.int64(-1)
    out[position : position + len(plain)] = np.frombuffer(plain, np.uint8)
    return np.int64(len(plain))


def _emit(builder: Any, context: Any, block: Any, length: Any, target: Any, room: Any) -> Any:  # noqa: ANN401
    """Emit ``size_t ZSTD_decompressDCtx(ctx*, char *target, size_t, char *block, size_t)``."""
    from llvmlite import ir  # noqa: PLC0415
    from numba.core import cgutils  # noqa: PLC0415

    insert: Any = cgutils.get_or_insert_function
    size = ir.IntType(64)
    kind = ir.FunctionType(size, [context.type, target.type, size, block.type, size])
    function = insert(builder.module, kind, _SYMBOL)
    return builder.call(function, [context, target, room, block, length])


decompress_frame: Callable[[int, Bytes, int, int, Bytes, int, int], int] = compiled_later(
    _decompress_frame, block_call(_emit)
)


# ----------------------------------------------------------------------------------------------
# Frames of Zstandard, many a call, which libzstd decompresses into one array.
#
# ``zstd_codec`` says what a frame is. The kernel does what is a single sound frame without a
# dictionary, and fits. It stops before anything else, and ``zstd_codec`` says what is wrong with
# it. Every length is checked before libzstd sees it.
#
# These kernels may be loaded only where ``is_exported``.


_MAGIC: Final = 0xFD2FB528
_DESCRIPTOR: Final = 4
_SHORTEST: Final = 9
_CHECKSUM: Final = 4
_LARGEST_WINDOW: Final = 0x88
"""A window descriptor of 128 MiB: the most that the library, and Kafka's, take from a stream."""
_LARGEST_BLOCK: Final = 128 << 10


@inlined
def _largest_block(window: int) -> int:
    """Return how many bytes a block may have at most, by the window descriptor of its frame.

    The library does not ask where it gets a whole frame; as a stream, as in a broker, it does.
    """
    unit: int = np.int64(1) << (7 + (window >> 3))  # an eighth of a power of two, from 1 KiB on
    return min(unit * (8 + (window & 7)), _LARGEST_BLOCK)


@inlined
def _frame_end(data: Bytes, at: int, end: int) -> int:
    """Walk over the blocks of a frame in ``data[at:end]``; return where it ends, or -1."""
    if end - at < _SHORTEST or read_word(data, at) != _MAGIC:
        return np.int64(-1)
    descriptor = np.int64(data[at + _DESCRIPTOR])
    is_single = (descriptor >> 5) & 1
    if (descriptor & 0x0B) != 0:  # a dictionary, or what is reserved
        return np.int64(-1)
    window: int = _LARGEST_WINDOW if is_single != 0 else np.int64(data[at + _DESCRIPTOR + 1])
    if window > _LARGEST_WINDOW:
        return np.int64(-1)
    largest = _largest_block(window)
    size_flag = descriptor >> 6
    size_bytes: int = is_single if size_flag == 0 else np.int64(1) << size_flag
    checksum: int = _CHECKSUM if (descriptor & 0x04) != 0 else 0
    at += _DESCRIPTOR + 2 - is_single + size_bytes
    while end - at >= 3:
        header = np.int64(data[at]) | np.int64(data[at + 1]) << 8 | np.int64(data[at + 2]) << 16
        length = header >> 3
        if length > largest:
            return np.int64(-1)
        if (header >> 1) & 3 == 1:
            length = np.int64(1)
        at += 3 + length
        if (header & 1) != 0:
            return at + checksum
    return np.int64(-1)


@kernel(
    "int64",
    "const uint8[]",
    "const int64[]",
    "const int64[]",
    "const uint8[]",
    "int64",
    "int64",
    "int64",
    "uint8[]",
    "int64",
    "int64[]",
)
def decompress_zstd_by_library(
    data: Bytes,
    starts: Integers,
    sizes: Integers,
    wanted: Bytes,
    context: int,
    limit: int,
    enough: int,
    out: Bytes,
    written: int,
    ends: Integers,
) -> int:
    """Decompress the frames ``data[start : start + size]`` into ``out``, one after the other.

    ``context`` is the address of a ``ZSTD_DCtx``. All else is as of
    ``lz4_kernels.decompress_frames_by_library``.
    """
    frames = min(starts.shape[0], sizes.shape[0], wanted.shape[0], ends.shape[0])
    if written < 0 or limit < 0:
        return 0
    for frame in range(frames):
        start, size, free = starts[frame], sizes[frame], out.shape[0] - written
        room = room_for(data, start, size, wanted[frame], free, limit)
        if room < 0 or written >= enough:
            return frame
        if _frame_end(data, start, start + size) != start + size:
            return frame
        made = decompress_frame(context, data, start, size, out, written, room)
        if made < 0 or made > room:
            return frame
        written += made
        ends[frame] = written
    return frames
