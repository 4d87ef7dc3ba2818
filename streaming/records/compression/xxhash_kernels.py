"""XXH32, the hash in the frames of LZ4; of its 32-bit words the first byte is the lowest.

Source: the xxHash specification, with seed 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.streaming.records.byte_kernels import read_word
from kafkalog.streaming.records.jit.inline import inlined
from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes

__all__ = ["hash_of", "xxh32"]

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
