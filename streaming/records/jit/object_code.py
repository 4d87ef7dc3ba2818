"""Machine code of kernels that is called without numba, by tasks and processes that end soon.

numba needs half a second to be imported and to make itself ready to load a kernel. So the machine
code of kernels that such processes call is kept beside numba's files (``jit.folder``), with C's way
to call it: an array is an address and its lengths. llvmlite links it, ctypes calls it.

A file has the SHA-256 of the rest, 32 bytes; a JSON object with ``symbol``, the function's name,
``undefined``, those of the functions that it calls, and ``processor``; a line feed; an object file.
A file that is damaged, of another processor, or calls what is not there is not used.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import re
import tempfile
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from kafkalog.streaming.records.jit.folder import usable_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["DIGEST_SIZE", "loaded", "processor"]

DIGEST_SIZE: Final = 32
_FOR_EXCEPTIONS: Final = ("numba_", "NRT_")
"""How numba's functions begin that are called after an exception, and kernels raise none."""

_TYPE: Final = re.compile(r"(const )?(\w+)(?:\[(,*)\])?")


def loaded(function: Callable[..., Any], result: str, arguments: tuple[str, ...]) -> Any:  # noqa: ANN401
    """Load a kernel's machine code; make it with numba, which is called then, if there is none."""
    folder = usable_directory()
    if folder is None:  # nobody could load what is made
        from kafkalog.streaming.records.jit.cache import compiled  # noqa: PLC0415 - imports numba

        return compiled(function, result, arguments)
    path = folder / _name_of(function)
    found = _load(path, result, arguments)
    if found is not None:
        return found
    from kafkalog.streaming.records.jit import cache as object_making  # noqa: PLC0415 - imports numba

    dispatcher, what, code = object_making.compiled_twice(function, result, arguments)
    if code:
        header = json.dumps({**what, "processor": processor()})
        _write(path, header.encode() + b"\n" + code)
    return dispatcher


def processor() -> str:
    """Return what code of this process is made for."""
    import llvmlite.binding  # noqa: PLC0415 - 30 ms: only where kernels are called

    features = llvmlite.binding.get_host_cpu_features().flatten()
    return f"{llvmlite.binding.get_host_cpu_name()} {features}"


def _name_of(function: Callable[..., Any]) -> str:
    module = function.__module__.rpartition(".")[2]
    return f"{module}.{function.__name__}-{function.__code__.co_firstlineno}.object"


def _write(path: Path, data: bytes) -> None:
    with contextlib.suppress(OSError):  # then the next process makes it again
        descriptor, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(hashlib.sha256(data).digest() + data)
        os.replace(name, path)  # noqa: PTH105


def _load(path: Path, result: str, arguments: tuple[str, ...]) -> Callable[..., Any] | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, rest = data[:DIGEST_SIZE], data[DIGEST_SIZE:]
    if hashlib.sha256(rest).digest() != digest:
        return None
    header, _, code = rest.partition(b"\n")
    what = json.loads(header)
    from llvmlite import binding  # noqa: PLC0415 - 30 ms: only where kernels are called

    if what["processor"] != processor():
        return None
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    # LLVM ends the process if it cannot find a name
    for name in what["undefined"]:
        if not binding.address_of_symbol(name):
            if not name.startswith(_FOR_EXCEPTIONS):
                return None
            binding.add_symbol(name, ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value)
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return _Call(engine, engine.get_function_address(what["symbol"]), result, arguments)


class _Call:
    """Calls the code at an address, which ``engine`` holds."""

    def __init__(
        self, engine: object, address: int, result: str, arguments: tuple[str, ...]
    ) -> None:
        self._engine = engine
        self._arguments = [_Argument(each) for each in arguments]
        words: list[Any] = [word for each in self._arguments for word in each.words]
        self._function = ctypes.CFUNCTYPE(_c_type(result), *words)(address)

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401
        words: list[int] = []
        for kind, value in zip(self._arguments, arguments, strict=True):
            kind.add_to(words, value)
        return self._function(*words)


class _Argument:
    """One of a kernel's arguments, as numbers."""

    def __init__(self, name: str) -> None:
        found = _TYPE.fullmatch(name)
        if found is None:
            raise AssertionError(f"{name} is no type of a kernel's arguments")
        self._name = name
        constant, scalar, dimensions = found.groups()
        self._is_array = dimensions is not None
        self._dimensions = 1 + len(dimensions or "")
        self._dtype = np.dtype(scalar)
        self._is_written = constant is None
        lengths = [ctypes.c_int64] * self._dimensions
        self.words: list[Any] = [ctypes.c_void_p, *lengths] if self._is_array else [_c_type(scalar)]

    def add_to(self, words: list[int], value: Any) -> None:  # noqa: ANN401
        """Append the numbers that stand for a value.

        Raises:
            TypeError: an array of another type.
        """
        if not self._is_array:
            words.append(int(value))
            return
        shape, flags = value.shape, value.flags
        if (
            value.dtype != self._dtype
            or len(shape) != self._dimensions
            or not flags.c_contiguous
            or (self._is_written and not flags.writeable)
        ):
            raise TypeError(f"No matching definition for an array of {value.dtype}: {self._name}")
        words.append(pa.py_buffer(value).address)  # numpy itself takes 2 µs to say it
        words.extend(shape)


def _c_type(name: str) -> Any:  # noqa: ANN401
    return None if name == "void" else np.ctypeslib.as_ctypes_type(np.dtype(name))
