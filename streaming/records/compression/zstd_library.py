"""libzstd's own function to decompress a frame, called from kernels: see ``exported``.

The CFFI backend of the zstandard package exports libzstd's functions.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import zstandard

from kafkalog.streaming.records.compression.exported import Context, block_call, export, library_of
from kafkalog.streaming.records.jit.inline import INTERPRETED, compiled_later

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafkalog.streaming.records.arrow_buffers import Bytes

__all__ = ["decompress_frame", "is_exported", "new_context"]

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
