"""Compile helpers into the kernels that call them; compile options of all kernels."""

from __future__ import annotations

import functools
import os
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["COMPILER_OPTIONS", "INTERPRETED", "compiled_later", "inlined", "linked"]

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
