"""The folder of the user's own in which compiled kernels are kept, for one version of everything.

::

    $KAFKALOG_KERNEL_CACHE or $XDG_CACHE_HOME/kafkalog or ~/.cache/kafkalog
        kernels-<hash>/                         of the kernels' sources and of all versions
            lock                                held while one process compiles
            <module>.<function>-<n>.py311.*     numba's index and data files
            <module>.<function>-<n>.object      machine code that is called without numba

The files are unpickled and run, so the folder has mode 0700, and one that others can write to is
not used. Where the sources are does not matter: a read-only site-packages or a zip on ``sys.path``
will do, whereas numba's own locators write beside the source and want a file to stat.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.resources
import importlib.util
import logging
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

__all__ = ["cache_directory", "locked", "source_hash", "usable_directory"]

_LOGGER: Final = logging.getLogger("kafkalog.log")


def cache_directory() -> Path:
    """Return the folder that compiled kernels are meant to be kept in; it need not exist yet."""
    own = os.environ.get("KAFKALOG_KERNEL_CACHE")
    if own:
        home = Path(own)
    else:
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
        home = Path(caches) / "kafkalog"
    return home / f"kernels-{source_hash()}"


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Be the only process that compiles."""
    path = Path(str(usable_directory())) / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        # A file system without locks costs a second compilation, not an error.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@functools.cache
def usable_directory() -> Path | None:
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
def source_hash() -> str:
    """Hash what the code depends on: all kernels, as they inline each other, and the compiler."""
    digest = hashlib.sha256(sys.version.encode())
    for name in ("numba", "llvmlite"):
        digest.update(_version_of(name))
    for file in _kernel_files(importlib.resources.files("kafkalog")):
        digest.update(f"\n{file.name}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _version_of(package: str) -> bytes:
    """Return what a package has in its file for the version, without importing it: that is slow."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"no package {package}, which compiles the kernels")
    return Path(found.origin).with_name("_version.py").read_bytes()


def _kernel_files(folder: Traversable) -> Iterator[Traversable]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _kernel_files(entry)
        elif entry.name.startswith("jit.") or "_kernels." in entry.name:
            yield entry
