"""Run the loops over records as machine code: ``numba.njit`` with a type and a cache.

A kernel is a module-level function in a file named ``*_kernels.py``. It gets and returns plain
numbers and C-contiguous arrays, allocates nothing, raises nothing, and checks the bounds of every
access itself, because compiled code does not. Its signature is explicit, so that there is exactly
one compilation; ``const`` arrays take read-only and writable arrays alike.

``jit.cache`` keeps compiled code and shares it between processes. The first call of a kernel
imports numba. That, and loading the code, takes a process half a second. Callers with little to do
use ``as_python`` instead, until it has come to much (:func:`kernels_pay`); programs that end soon
and Spark's tasks use :func:`load_without_compiler`.

With ``KAFKALOG_JIT=0`` (or numba's ``NUMBA_DISABLE_JIT=1``) kernels run as Python over arrays that
refuse every index and slice that does not lie inside them, which is what fuzzing needs: neither
coverage nor a wrong index can be seen in compiled code.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numpy as np

from kafkalog.files.system import lock_held_by_forks
from kafkalog.streaming.records.jit.inline import INTERPRETED

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["as_python", "count_in_python", "kernel", "kernels_pay", "load_without_compiler"]

_F = TypeVar("_F", bound="Callable[..., Any]")

_LOADING: Final = lock_held_by_forks()
"""Held while a kernel is loaded or compiled. numba's own lock would stay locked in a child that is
forked meanwhile, and so would the file by which one process compiles at a time."""


def kernel(result: str, *arguments: str) -> Callable[[_F], _F]:
    """Make a kernel of a function; ``result`` and ``arguments`` are its types.

    A type is a numpy scalar's name (``int64``), an array of it (``int64[]``, ``int64[,]``), or a
    read-only one (``const uint8[]``); the result may be ``void``. Nothing is compiled or loaded
    before the first call.
    """

    def decorate(function: _F) -> _F:
        made = _interpreted(function) if INTERPRETED else _Kernel(function, result, arguments)
        return cast("_F", functools.update_wrapper(made, function))

    return decorate


_WORTH_LOADING: Final = 1000
"""Batches, of all calls, that Python looks at in a process before it loads a kernel: 0.1 s."""


def kernels_pay() -> bool:
    """Whether to call a kernel for little work: one is loaded, or little work has become much.

    The first call of the first kernel takes long. What :func:`count_in_python` has counted shows
    whether a process that looks at few batches does so again and again.
    """
    return INTERPRETED or _Kernel.is_any_loaded or _Kernel.counted_in_python > _WORTH_LOADING


def count_in_python(batches: int) -> None:
    """Note that Python has looked at so many batches in place of a kernel."""
    _Kernel.counted_in_python += batches


def load_without_compiler() -> None:
    """Let kernels from now on be loaded without numba, which is half a second of a new process.

    A call of such a kernel takes a µs more for each of its arrays. One that no process has loaded
    so yet is compiled by numba all the same.
    """
    _Kernel.without_compiler = True


def as_python(function: _F) -> _F:
    """Return a kernel's Python function, for so little work that loading the code costs more."""
    return cast("_F", function.as_python) if isinstance(function, _Kernel) else function


class _Kernel:
    """A kernel that loads or compiles itself when it is first called."""

    without_compiler = False
    is_any_loaded = False
    counted_in_python = 0

    def __init__(
        self, function: Callable[..., Any], result: str, arguments: tuple[str, ...]
    ) -> None:
        self._function = function
        self._signature = (result, arguments)
        self._entry: Callable[..., Any] = self._first_call
        self.as_python = _interpreted(function)

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401
        return self._entry(*arguments)

    def _first_call(self, *arguments: Any) -> Any:  # noqa: ANN401
        with _LOADING:
            if self._entry == self._first_call:  # else another thread has loaded it by now
                self._entry = self._load()
                _Kernel.is_any_loaded = True
        return self._entry(*arguments)

    def _load(self) -> Callable[..., Any]:
        if self.without_compiler:
            from kafkalog.streaming.records.jit.object_code import loaded  # noqa: PLC0415

            found: Callable[..., Any] = loaded(self._function, *self._signature)
        else:
            from kafkalog.streaming.records.jit.cache import compiled  # noqa: PLC0415

            found = compiled(self._function, *self._signature)
        return found


def _interpreted(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:  # noqa: ANN401
        # Compiled integers wrap silently; so must these.
        with np.errstate(over="ignore"):
            return function(
                *(a.view(_CheckedArray) if isinstance(a, np.ndarray) else a for a in arguments)
            )

    return call


class _CheckedArray(np.ndarray[Any, Any]):
    """An array that refuses what numpy would bend: negative indexes, slices beyond the end."""

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401
        self._check(index)
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:  # noqa: ANN401
        self._check(index)
        super().__setitem__(index, value)

    def _check(self, index: Any) -> None:  # noqa: ANN401
        indexes = index if isinstance(index, tuple) else (index,)
        for one, length in zip(indexes, self.shape, strict=False):
            if isinstance(one, slice):
                start, stop = one.start or 0, length if one.stop is None else one.stop
                inside = one.step is None and 0 <= start <= stop <= length
            else:
                inside = 0 <= one < length
            if not inside:
                raise IndexError(f"index {one} is not inside an array of {length}")
