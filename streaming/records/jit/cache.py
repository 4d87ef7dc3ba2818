"""Compiled kernels as numba calls them, kept in ``jit.folder``, compiled by one process at a time.

This module imports numba; only ``jit`` imports it, when a kernel is first called.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, cast

import numba
from numba.core import caching, types

from kafkalog.streaming.records.jit.folder import locked, source_hash, usable_directory
from kafkalog.streaming.records.jit.inline import COMPILER_OPTIONS, linked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["compiled", "numba_type"]


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
