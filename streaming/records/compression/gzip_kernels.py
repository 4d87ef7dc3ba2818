"""Decompress gzip in kernels: zlib's own function, called for many members at once."""

from __future__ import annotations

import ctypes
import functools
import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kafkalog.streaming.records.byte_kernels import room_for
from kafkalog.streaming.records.jit.inline import (
    INTERPRETED,
    Context,
    block_call,
    compiled_later,
    export,
    library_of,
)
from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers


__all__ = ["decompress_gzip_by_library", "inflate_member", "is_exported", "new_context"]


# ----------------------------------------------------------------------------------------------
# zlib's own function to inflate, called from kernels: see ``jit.inline``.
#
# Python's module ``zlib`` is linked to the library, unless it is built in. What zlib works with
# is a ``z_stream``, of which a kernel sets and reads four fields; the places are those where a
# long has 8 bytes:
#
# ====  ==========  ==================================
# 0     pointer     next_in
# 8     uint32      avail_in
# 24    pointer     next_out
# 32    uint32      avail_out
# ====  ==========  ==================================


_INFLATE: Final = "kafkalog_inflate"
_RESET: Final = "kafkalog_inflateReset"
_FUNCTIONS: Final = {_INFLATE: "inflate", _RESET: "inflateReset"}
_WINDOW: Final = 31  # 15 bits, with gzip's header and trailer
_STREAM_BYTES: Final = 112
_LONG_BYTES: Final = 8
_NEXT_IN, _AVAIL_IN, _NEXT_OUT, _AVAIL_OUT = 0, 8, 24, 32
_FINISH: Final = 4
_STREAM_END: Final = 1


@functools.cache
def _library() -> ctypes.CDLL | None:
    return library_of(zlib) if ctypes.sizeof(ctypes.c_long) == _LONG_BYTES else None


@functools.cache
def is_exported() -> bool:
    """Whether kernels can call zlib; if so, the compiler has its address from then on."""
    return INTERPRETED or export(_library(), _FUNCTIONS)


def new_context() -> Context:
    """Make a ``z_stream`` for members of gzip. REQUIRES: ``is_exported``."""
    library = _library()
    if INTERPRETED or library is None:
        return Context(0, lambda: None)
    begin, end = library["inflateInit2_"], library["inflateEnd"]
    begin.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_int]
    end.argtypes = [ctypes.c_void_p]
    stream = ctypes.create_string_buffer(_STREAM_BYTES)
    address = ctypes.addressof(stream)
    if begin(address, _WINDOW, zlib.ZLIB_VERSION.encode(), _STREAM_BYTES) != 0:
        raise MemoryError("zlib has no memory to inflate")

    def free() -> None:
        end(ctypes.addressof(stream))  # which keeps it alive until then

    return Context(address, free)


def _inflate_member(
    context: int,  # noqa: ARG001
    data: Bytes,
    start: int,
    length: int,
    out: Bytes,
    position: int,
    room: int,
) -> int:
    """Inflate the member ``data[start : start + length]`` to ``out`` at ``position``.

    The caller has checked that both it and ``room`` bytes of ``out`` lie inside, and that none is
    longer than an int32. Gives the bytes written, ``room`` at most, or a negative number: also if
    something follows the member.
    """
    member = zlib.decompressobj(_WINDOW)
    try:
        plain = member.decompress(data[start : start + length].tobytes(), room + 1)
    except zlib.error:
        return np.int64(-1)
    if not member.eof or member.unused_data or len(plain) > room:
        return np.int64(-1)
    out[position : position + len(plain)] = np.frombuffer(plain, np.uint8)
    return np.int64(len(plain))


def _emit(builder: Any, context: Any, block: Any, length: Any, target: Any, room: Any) -> Any:  # noqa: ANN401
    """Emit a call of ``int inflate(z_stream *, Z_FINISH)`` for a whole member."""
    from llvmlite import ir  # noqa: PLC0415
    from numba.core import cgutils  # noqa: PLC0415

    insert: Any = cgutils.get_or_insert_function
    int32, int64 = ir.IntType(32), ir.IntType(64)

    def field(at: int, kind: Any) -> Any:  # noqa: ANN401
        place = builder.gep(context, [ir.Constant(int64, at)])
        return builder.bitcast(place, kind.as_pointer())

    reset = insert(builder.module, ir.FunctionType(int32, [context.type]), _RESET)
    inflate = insert(builder.module, ir.FunctionType(int32, [context.type, int32]), _INFLATE)
    builder.call(reset, [context])
    builder.store(block, field(_NEXT_IN, block.type))
    builder.store(builder.trunc(length, int32), field(_AVAIL_IN, int32))
    builder.store(target, field(_NEXT_OUT, target.type))
    builder.store(builder.trunc(room, int32), field(_AVAIL_OUT, int32))
    result = builder.call(inflate, [context, ir.Constant(int32, _FINISH)])
    unread = builder.load(field(_AVAIL_IN, int32))
    unwritten = builder.zext(builder.load(field(_AVAIL_OUT, int32)), int64)
    is_whole = builder.and_(
        builder.icmp_signed("==", result, ir.Constant(int32, _STREAM_END)),
        builder.icmp_signed("==", unread, ir.Constant(int32, 0)),
    )
    return builder.select(is_whole, builder.sub(room, unwritten), ir.Constant(int64, -1))


inflate_member: Callable[[int, Bytes, int, int, Bytes, int, int], int] = compiled_later(
    _inflate_member, block_call(_emit)
)


# ----------------------------------------------------------------------------------------------
# Members of gzip, many a call, which zlib inflates into one array.
#
# The kernel does what is a single sound member, with nothing after it, and fits. It stops before
# anything else, and ``gzip_codec`` says what that is. Every length is checked before zlib sees
# it.
#
# These kernels may be loaded only where ``is_exported``.


_LARGEST: Final = 0x7FFFFFFF


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
def decompress_gzip_by_library(
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
    """Inflate the members ``data[start : start + size]`` into ``out``, one after the other.

    ``context`` is the address of a ``z_stream`` that was made for gzip. All else is as of
    ``lz4_kernels.decompress_frames_by_library``.
    """
    members = min(starts.shape[0], sizes.shape[0], wanted.shape[0], ends.shape[0])
    if written < 0 or limit < 0:
        return 0
    for member in range(members):
        start, size, free = starts[member], sizes[member], out.shape[0] - written
        room = room_for(data, start, size, wanted[member], free, min(limit, _LARGEST))
        if room < 0 or written >= enough or size > _LARGEST:
            return member
        made = inflate_member(context, data, start, size, out, written, room)
        if made < 0 or made > room:
            return member
        written += made
        ends[member] = written
    return members
