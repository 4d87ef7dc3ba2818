"""Replace a small file so that every reader, and every crash, sees the old bytes or the new ones.

As Kafka does it (``CheckpointFile.write``): write ``<name>.tmp``, fsync it, rename it over the
name, fsync the folder. Writers of one file must exclude each other: all of them use the same
temporary name, so that a crash leaves at most one file behind, which the next writer replaces.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from kafkalog.files.copies import try_to_link
from kafkalog.files.regular import create_exclusive, fsync_directory, sync, write_all

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "TEMPORARY_SUFFIX",
    "create_atomically",
    "prepare",
    "publish",
    "write_atomically",
    "write_new",
]

TEMPORARY_SUFFIX: Final = ".tmp"


def write_atomically(path: Path, data: bytes, *, fsync: bool = True) -> None:
    """Replace or create ``path`` with ``data``.

    With ``fsync=False`` a loss of power may leave the old bytes, but no torn ones.
    """
    prepare(path, data)
    publish(path, fsync=fsync)


def create_atomically(path: Path, data: bytes) -> None:
    """Create ``path`` with ``data``, whole or not at all; its name is not yet durable.

    Raises:
        FileExistsError: it is there already, and left as it is.
    """
    temporary = _temporary(path)
    try:
        prepare(path, data)
        is_there = try_to_link(temporary, path)
    except OSError:
        with suppress(OSError):  # on a full disk each try would leave a file of another name
            temporary.unlink(missing_ok=True)
        raise
    if is_there:
        temporary.unlink(missing_ok=True)
    else:
        publish(path, fsync=False)


def prepare(path: Path, data: bytes, *, suffix: str = TEMPORARY_SUFFIX) -> None:
    """Write ``data``, durably, beside ``path``; :func:`publish` makes it visible.

    The temporary file, whose name ends with ``suffix``, is created new (``O_EXCL``). What a crash
    left there, or somebody's link, is unlinked and never written through.
    """
    temporary = _temporary(path, suffix)
    temporary.unlink(missing_ok=True)
    write_new(temporary, data)


def write_new(path: Path, data: bytes) -> None:
    """Write a file that is not there yet, and sync it; its folder is the caller's to sync.

    Raises:
        FileExistsError: something has that name.
    """
    descriptor = create_exclusive(path)
    try:
        write_all(descriptor, data, 0)
        sync(descriptor)
    finally:
        os.close(descriptor)


def publish(path: Path, *, suffix: str = TEMPORARY_SUFFIX, fsync: bool = True) -> None:
    """Rename what :func:`prepare` wrote over ``path``: the moment at which it becomes visible."""
    _temporary(path, suffix).replace(path)
    if fsync:
        fsync_directory(path.parent)


def _temporary(path: Path, suffix: str = TEMPORARY_SUFFIX) -> Path:
    return path.with_name(path.name + suffix)
