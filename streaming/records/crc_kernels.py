"""CRC-32 and CRC-32C as kernels compute them, eight bytes at a time ("slicing by 8").

A library is faster (15 GB/s against 1.8), but a call of it costs as much as 1000 bytes here.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any, Final

import crc32c
import numpy as np

from kafkalog.streaming.records.byte_kernels import read_word
from kafkalog.streaming.records.jit.inline import (
    INTERPRETED,
    compiled_later,
    export,
    inlined,
    library_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes


__all__ = ["CRC32C_TABLES", "CRC32_TABLES", "checksum", "crc_of", "is_exported"]


def _tables(polynomial: int) -> NDArray[np.uint32]:
    """Compute uint32[8, 256] from a polynomial, bits reversed."""
    tables = np.zeros((8, 256), np.uint32)
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, (crc >> 1) ^ np.uint32(polynomial), crc >> 1).astype(np.uint32)
    tables[0] = crc
    for i in range(1, 8):
        tables[i] = (tables[i - 1] >> 8) ^ crc[tables[i - 1] & 0xFF]
    tables.flags.writeable = False
    return tables


CRC32_TABLES: Final = _tables(0xEDB88320)
"""zlib's, of magic 0 and 1."""
CRC32C_TABLES: Final = _tables(0x82F63B78)
"""Castagnoli's, of magic 2."""


@inlined
def checksum(data: Bytes, start: int, end: int, tables: NDArray[np.uint32]) -> int:
    """Compute the CRC of ``data[start:end]``, which the caller has checked to lie inside."""
    crc = 0xFFFFFFFF
    at = start
    while end - at >= 8:
        low = crc ^ read_word(data, at)
        crc = (
            np.int64(tables[7, low & 0xFF])
            ^ np.int64(tables[6, (low >> 8) & 0xFF])
            ^ np.int64(tables[5, (low >> 16) & 0xFF])
            ^ np.int64(tables[4, (low >> 24) & 0xFF])
            ^ np.int64(tables[3, np.int64(data[at + 4])])
            ^ np.int64(tables[2, np.int64(data[at + 5])])
            ^ np.int64(tables[1, np.int64(data[at + 6])])
            ^ np.int64(tables[0, np.int64(data[at + 7])])
        )
        at += 8
    while at < end:
        crc = (crc >> 8) ^ np.int64(tables[0, (crc ^ np.int64(data[at])) & 0xFF])
        at += 1
    return crc ^ 0xFFFFFFFF


# ----------------------------------------------------------------------------------------------
# The CRC-32C of the crc32c package, called from kernels: see ``jit.inline``.
#
# Its extension module exports the loop that uses the processor's own instruction. The name begins
# with an underscore, so a build may have another function there: its answer is looked at first.


_FUNCTION: Final = "_crc32c_hw_adler"
_SYMBOL: Final = "kafkalog_crc32c"
_ONES: Final = 0xFFFFFFFF
_TESTED: Final = b"123456789"
_ANSWER: Final = 0xE3069283
"""The CRC-32C of these digits, which catalogues of CRCs call the check."""


@functools.cache
def is_exported() -> bool:
    """Whether kernels can call the library; if so, the compiler has its address from then on."""
    if INTERPRETED:
        return True
    library = library_of(getattr(crc32c, "_crc32c", None))
    return _is_right(library) and export(library, {_SYMBOL: _FUNCTION})


def _is_right(library: ctypes.CDLL | None) -> bool:
    """Whether the function is there, this processor can run it, and it does what is asked."""
    if library is None or not getattr(crc32c, "hardware_based", False):
        return False
    try:
        function = library[_FUNCTION]
    except AttributeError:
        return False
    function.restype = ctypes.c_uint32
    function.argtypes = [ctypes.c_uint32, ctypes.c_char_p, ctypes.c_ulong]
    found: int = function(_ONES, _TESTED, len(_TESTED)) ^ _ONES
    return found == _ANSWER


def _crc_of(data: Bytes, start: int, length: int) -> int:
    """Compute the CRC-32C of ``data[start : start + length]``; the caller has checked both."""
    return int(crc32c.crc32c(np.ascontiguousarray(data[start : start + length]).tobytes()))


def _compiled() -> Any:  # noqa: ANN401
    """Make a call of ``uint32_t f(uint32_t crc, unsigned char *data, unsigned long length)``."""
    from llvmlite import ir  # noqa: PLC0415
    from numba import types  # noqa: PLC0415
    from numba.core import cgutils  # noqa: PLC0415
    from numba.extending import intrinsic  # noqa: PLC0415

    insert: Any = cgutils.get_or_insert_function

    @intrinsic
    def crc_of(
        _typing: Any,  # noqa: ANN401
        data: Any,  # noqa: ANN401
        start: Any,  # noqa: ANN401, ARG001
        length: Any,  # noqa: ANN401, ARG001
    ) -> Any:  # noqa: ANN401
        def generate(target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:  # noqa: ANN401
            source, first, count = arguments
            every = target.make_array(data)(target, builder, source).data
            at = builder.gep(every, [first])
            int32, int64 = ir.IntType(32), ir.IntType(64)
            kind = ir.FunctionType(int32, [int32, at.type, int64])
            ones = ir.Constant(int32, _ONES)
            crc = builder.call(insert(builder.module, kind, _SYMBOL), [ones, at, count])
            return builder.zext(builder.xor(crc, ones), int64)

        int64 = types.int64
        return int64(data, int64, int64), generate

    return crc_of


crc_of: Callable[[Bytes, int, int], int] = compiled_later(_crc_of, _compiled)
