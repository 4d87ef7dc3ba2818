"""liblz4's own function to decompress a block, called from kernels: see ``exported``.

The extension modules of the lz4 package export liblz4's functions.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import lz4.block
import numpy as np

from kafkalog.streaming.records.compression.exported import block_call, export, library_of
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
