"""liblz4's own function to decompress a block, called from kernels.

The extension modules of the lz4 package export liblz4's functions. The compiler knows the one it
needs by a name of our own, which each process gives an address before it loads a kernel: a number
instead of a name would keep numba from caching the kernel. Where a build exports nothing, kernels
that call it must not be loaded; ``is_exported`` tells.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any, Final

import lz4.block
import numpy as np

from kafkalog.streaming.records.jit.inline import INTERPRETED, compiled_later

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafkalog.streaming.records.arrow_buffers import Bytes

__all__ = ["decompress_safe", "is_exported"]

_FUNCTION: Final = "LZ4_decompress_safe"
_SYMBOL: Final = f"kafkalog_{_FUNCTION}"


@functools.cache
def is_exported() -> bool:
    """Whether kernels can call liblz4; if so, the compiler has its address from then on."""
    if INTERPRETED:
        return True
    try:
        function = ctypes.CDLL(lz4.block._block.__file__)[_FUNCTION]  # noqa: SLF001 - where it is
    except (AttributeError, OSError, TypeError):
        return False
    import llvmlite.binding  # noqa: PLC0415 - 30 ms: only where kernels are called

    llvmlite.binding.add_symbol(_SYMBOL, ctypes.cast(function, ctypes.c_void_p).value)
    return True


def _decompress_safe(
    data: Bytes, start: int, length: int, out: Bytes, position: int, room: int
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


def _compiled_call() -> Any:  # noqa: ANN401
    from numba import types  # noqa: PLC0415
    from numba.extending import intrinsic  # noqa: PLC0415

    @intrinsic
    def decompress_safe(
        _typing: Any,  # noqa: ANN401
        data: Any,  # noqa: ANN401
        start: Any,  # noqa: ANN401, ARG001
        length: Any,  # noqa: ANN401, ARG001
        out: Any,  # noqa: ANN401
        position: Any,  # noqa: ANN401, ARG001
        room: Any,  # noqa: ANN401, ARG001
    ) -> Any:  # noqa: ANN401
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:  # noqa: ANN401
            source, first, count, to, at, most = arguments
            from_bytes = context.make_array(data)(context, builder, source).data
            to_bytes = context.make_array(out)(context, builder, to).data
            block, room = builder.gep(from_bytes, [first]), builder.gep(to_bytes, [at])
            return _call(builder, block, room, count, most)

        int64 = types.int64
        return int64(data, int64, int64, out, int64, int64), generate

    return decompress_safe


def _call(builder: Any, block: Any, room: Any, size: Any, most: Any) -> Any:  # noqa: ANN401
    """Emit a call of ``int LZ4_decompress_safe(char *block, char *room, int size, int most)``."""
    from llvmlite import ir  # noqa: PLC0415
    from numba.core import cgutils  # noqa: PLC0415

    insert: Any = cgutils.get_or_insert_function
    int32, int64 = ir.IntType(32), ir.IntType(64)
    kind = ir.FunctionType(int32, [block.type, room.type, int32, int32])
    function = insert(builder.module, kind, _SYMBOL)
    sizes = builder.trunc(size, int32), builder.trunc(most, int32)
    return builder.sext(builder.call(function, [block, room, *sizes]), int64)


decompress_safe: Callable[[Bytes, int, int, Bytes, int, int], int] = compiled_later(
    _decompress_safe, _compiled_call
)
