"""Compile into kernels what they call: helpers, and C functions of libraries; compile options."""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "COMPILER_OPTIONS",
    "INTERPRETED",
    "Context",
    "block_call",
    "compiled_later",
    "export",
    "inlined",
    "library_of",
    "linked",
]

_F = TypeVar("_F", bound="Callable[..., Any]")

INTERPRETED: Final = (
    os.environ.get("KAFKALOG_JIT", "1") == "0" or os.environ.get("NUMBA_DISABLE_JIT", "0") == "1"
)
"""Whether kernels run as Python; decided once, when this module is imported."""

COMPILER_OPTIONS: Final[dict[str, Any]] = {"nogil": True, "boundscheck": False, "_nrt": False}
"""Without numba's runtime nobody counts references, which is right where nothing is allocated:
counting them, at every call that was inlined, took two thirds of the time to encode a record."""


def inlined(function: _F) -> _F:
    """Make a function that kernels call: it is compiled into each of them, never on its own."""

    def make() -> Any:  # noqa: ANN401
        import numba  # noqa: PLC0415 - 400 ms: only where records are coded

        return numba.njit(forceinline=True, **COMPILER_OPTIONS)(linked(function))

    return compiled_later(function, make)


def compiled_later(function: _F, make: Callable[[], Any]) -> _F:
    """Let kernels call what ``make`` gives, which is made with the first one that does.

    Called from Python it is ``function``.
    """
    if INTERPRETED:
        return function
    return cast("_F", functools.update_wrapper(_Inlined(function, make), function))


def linked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a function that calls what is to be compiled in, for the compiler."""
    names = dict(function.__globals__)
    for name in function.__code__.co_names:
        called = names.get(name)
        if isinstance(called, _Inlined):
            names[name] = called.made()
    return functools.update_wrapper(FunctionType(function.__code__, names), function)


class _Inlined:
    def __init__(self, function: Callable[..., Any], make: Callable[[], Any]) -> None:
        self._function = function
        self.made = functools.cache(make)

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401
        return self._function(*arguments)


# ----------------------------------------------------------------------------------------------
# C functions that the extension modules of codecs export, called from kernels.
#
# The compiler knows such a function by a name of our own, which each process gives an address
# before it loads a kernel: a number instead of a name would keep numba from caching the kernel.
# Where a build exports nothing, kernels that call it must not be loaded.


def library_of(module: Any) -> ctypes.CDLL | None:  # noqa: ANN401
    """Load the extension module as a library; None if it is none, such as one that is built in."""
    try:
        return ctypes.CDLL(module.__file__)
    except (AttributeError, OSError, TypeError):
        return None


def export(library: ctypes.CDLL | None, symbols: dict[str, str]) -> bool:
    """Give functions of a library the names by which kernels call them; False if one is missing."""
    if library is None:
        return False
    try:
        found = {name: library[function] for name, function in symbols.items()}
    except AttributeError:
        return False
    import llvmlite.binding  # noqa: PLC0415 - 30 ms: only where kernels are called

    for name, function in found.items():
        llvmlite.binding.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
    return True


class Context:
    """What a library keeps between calls, freed with this object. Not shared between threads."""

    def __init__(self, address: int, free: Callable[[], object]) -> None:
        """Take its address, and what frees it."""
        self.address = address
        weakref.finalize(self, free)


def block_call(emit: Callable[..., Any]) -> Callable[[], Any]:
    """Make a function of kernels that decompresses one block with a context.

    It is called with ``context`` (an address), ``data``, ``start``, ``length``, ``out``,
    ``position`` and ``room``, and gives an int64. ``emit`` writes the call: it gets llvmlite's
    builder, and as its values context (a pointer), block, length, target and room.
    """

    def make() -> Any:  # noqa: ANN401
        from llvmlite import ir  # noqa: PLC0415
        from numba import types  # noqa: PLC0415
        from numba.extending import intrinsic  # noqa: PLC0415

        @intrinsic
        def decompress(
            _typing: Any,  # noqa: ANN401
            context: Any,  # noqa: ANN401, ARG001
            data: Any,  # noqa: ANN401
            start: Any,  # noqa: ANN401, ARG001
            length: Any,  # noqa: ANN401, ARG001
            out: Any,  # noqa: ANN401
            position: Any,  # noqa: ANN401, ARG001
            room: Any,  # noqa: ANN401, ARG001
        ) -> Any:  # noqa: ANN401
            def generate(target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:  # noqa: ANN401
                address, source, first, count, to, at, most = arguments
                from_bytes = target.make_array(data)(target, builder, source).data
                to_bytes = target.make_array(out)(target, builder, to).data
                kept = builder.inttoptr(address, ir.IntType(8).as_pointer())
                block, room = builder.gep(from_bytes, [first]), builder.gep(to_bytes, [at])
                return emit(builder, kept, block, count, room, most)

            int64 = types.int64
            return int64(int64, data, int64, int64, out, int64, int64), generate

        return decompress

    return make
