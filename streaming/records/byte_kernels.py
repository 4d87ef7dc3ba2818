"""Numbers and byte strings as kernels read and write them; compiled into the kernels that call.

Fixed integers are big-endian. Words are little-endian, as LZ4, xxHash, MD5 and the CRCs take them.
A varint is a zig-zag number in groups of 7 bits, the least significant first, a set high bit
announcing another byte: at most 5 bytes for an int, 10 for a long (Kafka ``ByteUtils``; the scheme
of Protocol Buffers).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kafkalog.streaming.records.jit.inline import compiled_later, inlined

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafkalog.streaming.records.arrow_buffers import Bytes

__all__ = [
    "copy_bytes",
    "prefetch",
    "put_varint",
    "read_int",
    "read_varint",
    "read_varlong",
    "read_word",
    "room_for",
    "varint_size",
]

_INT_BITS: Final = 35
_LONG_BITS: Final = 70


@inlined
def read_int(data: Bytes, position: int, size: int) -> int:
    """Read a signed integer of ``size`` bytes; the caller has checked that it lies inside."""
    value = np.int64(data[position])
    value -= (value >> 7) << 8
    for i in range(1, size):
        value = (value << 8) | np.int64(data[position + i])
    return value


@inlined
def read_varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Read an int in ``data[position:end]``; return it and where it ends, or -1 if it does not.

    As in Java, bits of the fifth byte that an int32 has no room for are dropped.
    """
    bits, after = _read_short(data, position, end)
    if after >= 0:
        return (bits >> 1) ^ -(bits & 1), after
    bits, after = _read_groups(data, position, end, _INT_BITS)
    bits &= 0xFFFFFFFF
    return (bits >> 1) ^ -(bits & 1), after


@inlined
def read_varlong(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Read a long in ``data[position:end]``; return it and where it ends, or -1 if it does not."""
    bits, after = _read_short(data, position, end)
    if after >= 0:
        return (bits >> 1) ^ -(bits & 1), after
    bits, after = _read_groups(data, position, end, _LONG_BITS)
    return ((bits >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(bits & 1), after


@inlined
def read_word(data: Bytes, position: int) -> int:
    """Read a word of 4 bytes, unsigned; the caller has checked that it lies inside."""
    low = np.int64(data[position]) | np.int64(data[position + 1]) << 8
    return low | np.int64(data[position + 2]) << 16 | np.int64(data[position + 3]) << 24


@inlined
def _read_short(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Read the bits of one or two groups, as most numbers have; -1 for the end of others."""
    if position < end:
        byte = np.int64(data[position])
        if byte < 0x80:
            return byte, position + 1
        if position + 1 < end:
            high = np.int64(data[position + 1])
            if high < 0x80:
                return (byte & 0x7F) | (high << 7), position + 2
    return np.int64(0), -1


@inlined
def _read_groups(data: Bytes, position: int, end: int, most_bits: int) -> tuple[int, int]:
    bits, shift = np.int64(0), 0
    while position < end and shift < most_bits:
        byte = np.int64(data[position])
        position += 1
        bits |= (byte & 0x7F) << shift
        if byte < 0x80:
            return bits, position
        shift += 7
    return np.int64(0), -1


@inlined
def varint_size(value: int) -> int:
    """Return the bytes that a number takes as a varint."""
    bits = (value << 1) ^ (value >> 63)
    size = 1
    while (bits & ~0x7F) != 0:
        size += 1
        bits = (bits >> 7) & 0x01FFFFFFFFFFFFFF
    return size


@inlined
def put_varint(out: Bytes, position: int, value: int) -> int:
    """Write a number and return where it ends; the caller has checked that there is room."""
    bits = (value << 1) ^ (value >> 63)
    while (bits & ~0x7F) != 0:
        out[position] = (bits & 0x7F) | 0x80
        position += 1
        bits = (bits >> 7) & 0x01FFFFFFFFFFFFFF
    out[position] = bits
    return position + 1


def _copy_bytes(out: Bytes, position: int, data: Bytes, start: int, length: int) -> None:
    """Copy ``data[start : start + length]`` to ``out`` at ``position``.

    The caller has checked that both lie inside. Compiled, this is C's ``memcpy``: a loop over
    bytes of arrays that might overlap took three times as long to decode records of 100 bytes.
    """
    out[position : position + length] = data[start : start + length]


def _compiled_copy() -> Any:  # noqa: ANN401
    from numba import types  # noqa: PLC0415
    from numba.core import cgutils  # noqa: PLC0415
    from numba.extending import intrinsic  # noqa: PLC0415

    raw_memcpy: Any = cgutils.raw_memcpy

    @intrinsic
    def copy_bytes(
        _typing: Any,  # noqa: ANN401
        out: Any,  # noqa: ANN401
        position: Any,  # noqa: ANN401, ARG001
        data: Any,  # noqa: ANN401
        start: Any,  # noqa: ANN401, ARG001
        length: Any,  # noqa: ANN401, ARG001
    ) -> Any:  # noqa: ANN401
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:  # noqa: ANN401
            to, at, source, first, count = arguments
            to_bytes = context.make_array(out)(context, builder, to).data
            from_bytes = context.make_array(data)(context, builder, source).data
            target, origin = builder.gep(to_bytes, [at]), builder.gep(from_bytes, [first])
            raw_memcpy(builder, target, origin, count, itemsize=1, align=1)
            return context.get_dummy_value()

        int64 = types.int64
        return types.void(out, int64, data, int64, int64), generate

    return copy_bytes


copy_bytes: Callable[[Bytes, int, Bytes, int, int], None] = compiled_later(
    _copy_bytes, _compiled_copy
)


def _prefetch(data: Bytes, position: int) -> None:
    """Let the processor fetch the cache line of a byte that will soon be read.

    It changes nothing, and no position can make it fail.
    """


def _compiled_prefetch() -> Any:  # noqa: ANN401
    from llvmlite import ir  # noqa: PLC0415
    from numba import types  # noqa: PLC0415
    from numba.extending import intrinsic  # noqa: PLC0415

    byte_pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    to_be_read, in_all_caches, data_not_code = flag(0), flag(3), flag(1)

    @intrinsic
    def prefetch(_typing: Any, data: Any, position: Any) -> Any:  # noqa: ANN401, ARG001
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:  # noqa: ANN401
            array, at = arguments
            first = context.make_array(data)(context, builder, array).data
            kind = ir.FunctionType(ir.VoidType(), [byte_pointer, flag, flag, flag])
            called = builder.module.declare_intrinsic("llvm.prefetch", [byte_pointer], kind)
            where = builder.gep(first, [at])
            builder.call(called, [where, to_be_read, in_all_caches, data_not_code])
            return context.get_dummy_value()

        return types.void(data, types.int64), generate

    return prefetch


prefetch: Callable[[Bytes, int], None] = compiled_later(_prefetch, _compiled_prefetch)


# ----------------------------------------------------------------------------------------------
# Bounds of what is decompressed, asked by each kernel before a library sees a length.
#
# Compiled into the kernels that call.


@inlined
def room_for(data: Bytes, start: int, size: int, wanted: int, free: int, limit: int) -> int:
    """Return how many bytes ``data[start : start + size]`` may hold, decompressed.

    That is ``limit``, or what is ``free`` in the output if that is less; -1 if it is not ``wanted``
    (0), does not lie inside, or nothing is left of the output.
    """
    if wanted == 0 or start < 0 or size < 0 or start > data.shape[0] - size or free < 0:
        return np.int64(-1)
    return min(free, limit)
