"""Compile kernels with numba, keep them, and make object files of them."""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING, Any, Final, cast

import numba
from numba.core import caching, types

from kafkalog.streaming.records.jit.folder import locked, source_hash, usable_directory
from kafkalog.streaming.records.jit.inline import COMPILER_OPTIONS, linked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


__all__ = ["compiled", "compiled_twice", "numba_type", "undefined_names"]


# ----------------------------------------------------------------------------------------------
# Compiled kernels as numba calls them, kept in ``jit.folder``, compiled by one process at a time.
#
# This module imports numba; only ``jit`` imports it, when a kernel is first called.


def compiled(function: Callable[..., Any], result: str, arguments: tuple[str, ...]) -> Any:  # noqa: ANN401
    """Load the machine code of a kernel, or compile and keep it; see ``jit.kernel`` for types."""
    function = linked(function)
    dispatcher: Any = numba.njit(**COMPILER_OPTIONS)(function)
    signature = numba_type(result)(*(numba_type(argument) for argument in arguments))
    if usable_directory() is None:
        dispatcher.compile(signature)
    else:
        cache: _LockedCache = cast("Any", _LockedCache)(function)
        dispatcher._cache = cache  # noqa: SLF001 - what Dispatcher.enable_caching does
        with cache.misses_locked():
            dispatcher.compile(signature)
    dispatcher.disable_compile()
    return dispatcher


def numba_type(name: str) -> Any:  # noqa: ANN401
    """Return numba's type for one of a kernel's."""
    name, constant = name.removeprefix("const "), name.startswith("const ")
    scalar, bracket, dimensions = name.partition("[")
    element = getattr(types, scalar)
    if not bracket:
        return element
    return types.Array(element, 1 + dimensions.count(","), "C", readonly=constant)


class _Locator(caching._CacheLocator):  # noqa: SLF001
    """Tells numba where a function's files are, and what they were compiled from."""

    def __init__(self, line: int) -> None:
        self._line = line

    def ensure_cache_path(self) -> None:
        """Do nothing: ``usable_directory`` has made the folder."""

    def get_cache_path(self) -> str:
        return str(usable_directory())

    def get_source_stamp(self) -> str:
        return source_hash()

    def get_disambiguator(self) -> str:
        return str(self._line)

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Locator:  # noqa: ARG003
        return cls(py_func.__code__.co_firstlineno)


class _Implementation(caching.CompileResultCacheImpl):
    _locator_classes: list[Any] = [_Locator]  # noqa: RUF012 - as numba's class declares it


class _LockedCache(caching.FunctionCache):
    """Takes the lock at a miss, and looks again before numba compiles."""

    _impl_class = _Implementation

    @contextlib.contextmanager
    def misses_locked(self) -> Iterator[None]:
        """Keep the lock that a miss takes until the code has been compiled and saved."""
        with contextlib.ExitStack() as self._held:
            yield

    def load_overload(self, sig: object, target_context: object) -> object:
        load: Any = super().load_overload
        found = load(sig, target_context)
        if found is None:
            self._held.enter_context(locked())
            found = load(sig, target_context)
        return found


# ----------------------------------------------------------------------------------------------
# Make the files of ``jit.object_code``, with numba.
#
# What code leaves undefined is read from its object file, of the format ELF, 64 bits,
# little-endian: of other systems none is made. Source: System V ABI, chapter 4 (object files).


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
