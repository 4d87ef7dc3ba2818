"""Keep compiled kernels in a folder of the user's own, compiled by one process at a time.

::

    $KAFKALOG_KERNEL_CACHE or $XDG_CACHE_HOME/kafkalog or ~/.cache/kafkalog
        kernels-<hash>/                         of the kernels' sources and of all versions
            lock                                held while one process compiles
            <module>.<function>-<n>.py311.*     numba's index and data files

The files are unpickled and run, so the folder has mode 0700, and one that others can write to is
not used. Where the sources are does not matter: a read-only site-packages or a zip on ``sys.path``
will do, whereas numba's own locators write beside the source and want a file to stat.

This module imports numba; only ``jit`` imports it, when a kernel is first called.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.resources
import logging
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import llvmlite
import numba
from numba.core import caching, types

from kafkalog.streaming.records.jit.inline import COMPILER_OPTIONS, linked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.resources.abc import Traversable

__all__ = ["cache_directory", "compiled"]

_LOGGER: Final = logging.getLogger(__name__)


def compiled(function: Callable[..., Any], result: str, arguments: tuple[str, ...]) -> Any:  # noqa: ANN401
    """Load the machine code of a kernel, or compile and keep it; see ``jit.kernel`` for types."""
    function = linked(function)
    dispatcher: Any = numba.njit(**COMPILER_OPTIONS)(function)
    signature = _numba_type(result)(*(_numba_type(argument) for argument in arguments))
    if _usable_directory() is None:
        dispatcher.compile(signature)
    else:
        cache: _LockedCache = cast("Any", _LockedCache)(function)
        dispatcher._cache = cache  # noqa: SLF001 - what Dispatcher.enable_caching does
        with cache.misses_locked():
            dispatcher.compile(signature)
    dispatcher.disable_compile()
    return dispatcher


def cache_directory() -> Path:
    """Return the folder that compiled kernels are meant to be kept in; it need not exist yet."""
    own = os.environ.get("KAFKALOG_KERNEL_CACHE")
    if own:
        home = Path(own)
    else:
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
        home = Path(caches) / "kafkalog"
    return home / f"kernels-{_source_hash()}"


def _numba_type(name: str) -> Any:  # noqa: ANN401
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
        """Do nothing: ``_usable_directory`` has made the folder."""

    def get_cache_path(self) -> str:
        return str(_usable_directory())

    def get_source_stamp(self) -> str:
        return _source_hash()

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
            self._held.enter_context(_locked())
            found = load(sig, target_context)
        return found


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    path = Path(str(_usable_directory())) / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        # A file system without locks costs a second compilation, not an error.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@functools.cache
def _usable_directory() -> Path | None:
    """Make the folder, or one beside other temporary files; None if neither can be used."""
    wanted = cache_directory()
    reasons = []
    for directory in (
        wanted,
        Path(tempfile.gettempdir()) / f"kafkalog-{os.getuid()}" / wanted.name,
    ):
        try:
            directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.mkdir(mode=0o700, exist_ok=True)
            _check_private(directory.parent)
            _check_private(directory)
            tempfile.TemporaryFile(dir=directory).close()
        except OSError as error:
            reasons.append(str(error))
        else:
            return directory
    _LOGGER.warning(
        "Each process compiles the kernels again, because no folder can keep them: %s. "
        "Set KAFKALOG_KERNEL_CACHE to a folder that only this user can write to.",
        "; ".join(reasons),
    )
    return None


def _check_private(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"{folder} is no folder")
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{folder} can be written to by others")


@functools.cache
def _source_hash() -> str:
    """Hash what the code depends on: all kernels, as they inline each other, and the compiler."""
    versions = f"{sys.version} {numba.__version__} {llvmlite.__version__}"
    digest = hashlib.sha256(versions.encode())
    for file in _kernel_files(importlib.resources.files("kafkalog")):
        digest.update(f"\n{file.name}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _kernel_files(folder: Traversable) -> Iterator[Traversable]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _kernel_files(entry)
        elif entry.name.startswith("jit.") or "_kernels." in entry.name:
            yield entry
