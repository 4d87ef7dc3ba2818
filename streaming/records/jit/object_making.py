"""Make the files of ``jit.object_code``, with numba.

What code leaves undefined is read from its object file, of the format ELF, 64 bits, little-endian:
of other systems none is made. Source: System V ABI, chapter 4 (object files).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, cast

import numba
from numba.core import types

from kafkalog.streaming.records.jit.cache import compiled, numba_type

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["compiled_twice", "undefined_names"]

_ELF: Final = b"\x7fELF\x02\x01"
_SECTION_TABLE: Final = struct.Struct("<40xQ10xHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOLS: Final = 2
_SYMBOL: Final = struct.Struct("<IBBHQQ")


def compiled_twice(
    function: Callable[..., Any], result: str, arguments: tuple[str, ...]
) -> tuple[Any, dict[str, Any], bytes]:
    """Return a kernel as numba calls it, facts of its object file, and that; b"" for none."""
    kernel = compiled(function, result, arguments)
    names, words, values = [], [], []
    for number, name in enumerate(arguments):
        kind = numba_type(name)
        names.append(f"p{number}")
        if not isinstance(kind, types.Array):
            words.append(kind)
            values.append(f"p{number}")
            continue
        lengths = [f"p{number}_{each}" for each in range(kind.ndim)]
        names += lengths
        words += [cast("Any", types).CPointer(kind.dtype), *[types.int64] * kind.ndim]
        values.append(f"carray(p{number}, ({', '.join(lengths)},))")
    made: dict[str, Any] = {"kernel": kernel, "carray": cast("Any", numba).carray}
    exec(f"def call({', '.join(names)}):\n    return kernel({', '.join(values)})\n", made)  # noqa: S102
    callback: Any = numba.cfunc(numba_type(result)(*words))(made["call"])
    code = callback._library._get_compiled_object()  # noqa: SLF001 - as numba's cache does
    undefined = undefined_names(code)
    if undefined is None:
        return kernel, {}, b""
    return kernel, {"symbol": callback._wrapper_name, "undefined": undefined}, code  # noqa: SLF001


def undefined_names(code: bytes) -> list[str] | None:
    """Return the names that an object file does not define; None for one that is not understood."""
    if not code.startswith(_ELF):
        return None
    start, size, count = _SECTION_TABLE.unpack_from(code)
    if size != _SECTION.size:
        return None
    sections = [_SECTION.unpack_from(code, start + number * size) for number in range(count)]
    found = set()
    for _, kind, _, _, position, length, link, _, _, _ in sections:
        if kind == _SYMBOLS:
            texts = sections[link][4]
            for at in range(position, position + length, _SYMBOL.size):
                name, _, _, section, _, _ = _SYMBOL.unpack_from(code, at)
                if not section and name:
                    end = code.index(b"\0", texts + name)
                    found.add(code[texts + name : end].decode())
    return sorted(found)
