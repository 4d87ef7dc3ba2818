"""Replace small files, and make folders, so that no crash leaves half of it."""

from __future__ import annotations

import contextlib
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from kafkalog.files.regular import create_exclusive, fsync_directory, sync, try_to_link, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


__all__ = [
    "TEMPORARY_SUFFIX",
    "create_atomically",
    "make_with_parents",
    "prepare",
    "publish",
    "write_atomically",
    "write_new",
]


# ----------------------------------------------------------------------------------------------
# Make folders whose names a loss of power does not take, with all that is in them.


def make_with_parents(folder: Path) -> None:
    """Make a folder and those above it, by the umask; their names are on the disk then.

    Each name is synced before the next folder is made. So of those that are there, only the last
    may not be on the disk: who made it may have been killed. It is synced here, too.

    Raises:
        OSError: a folder cannot be made.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    _sync_name(missing[-1].parent if missing else folder)
    for each in reversed(missing):
        # By the umask: what is around it may be open to everybody, as /tmp is.
        each.mkdir(exist_ok=True)
        fsync_directory(each.parent)


def _sync_name(folder: Path) -> None:
    """Sync the name of a folder that is there; that of a mount point is another's matter."""
    if folder.stat().st_dev == folder.parent.stat().st_dev:
        with contextlib.suppress(
            PermissionError
        ):  # where nobody may list, no program of ours made it
            fsync_directory(folder.parent)


# ----------------------------------------------------------------------------------------------
# Replace a small file so that every reader, and every crash, sees the old bytes or the new ones.
#
# As Kafka does it (``CheckpointFile.write``): write ``<name>.tmp``, fsync it, rename it over the
# name, fsync the folder. Writers of one file must exclude each other: all of them use the same
# temporary name, so that a crash leaves at most one file behind, which the next writer replaces.


TEMPORARY_SUFFIX: Final = ".tmp"


def _close(descriptor: int) -> None:
    os.close(descriptor)


def write_atomically(
    path: Path, data: bytes, *, fsync: bool = True, finish: Callable[[int], None] = _close
) -> None:
    """Replace or create ``path`` with ``data``.

    With ``fsync=False`` a loss of power may leave the old bytes, but no torn ones. ``finish`` is as
    for :func:`write_new`.
    """
    prepare(path, data, finish=finish)
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


def prepare(
    path: Path,
    data: bytes,
    *,
    suffix: str = TEMPORARY_SUFFIX,
    finish: Callable[[int], None] = _close,
) -> None:
    """Write ``data``, durably, beside ``path``; :func:`publish` makes it visible.

    The temporary file, whose name ends with ``suffix``, is created new (``O_EXCL``). What a crash
    left there, or somebody's link, is unlinked and never written through. ``finish`` is as for
    :func:`write_new`.
    """
    temporary = _temporary(path, suffix)
    try:
        write_new(temporary, data, finish=finish)
    except FileExistsError:
        with _naming_folder():
            temporary.unlink(missing_ok=True)
        write_new(temporary, data, finish=finish)


def write_new(path: Path, data: bytes, *, finish: Callable[[int], None] = _close) -> None:
    """Write a file that is not there yet, and sync it; its folder is the caller's to sync.

    ``finish`` takes over its descriptor: while that is open, no other file is this one.

    Raises:
        FileExistsError: something has that name.
    """
    descriptor = create_exclusive(path)
    try:
        write_all(descriptor, data, 0)
        sync(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    finish(descriptor)


def publish(path: Path, *, suffix: str = TEMPORARY_SUFFIX, fsync: bool = True) -> None:
    """Rename what :func:`prepare` wrote over ``path``: the moment at which it becomes visible."""
    with _naming_folder():
        _temporary(path, suffix).replace(path)
    if fsync:
        fsync_directory(path.parent)


@contextlib.contextmanager
def _naming_folder() -> Iterator[None]:
    """Say which folder is in the place of a file, and what to do: a rename names both."""
    try:
        yield
    except IsADirectoryError as error:
        place = error.filename2 or error.filename
        text = "a folder is in the place of this file; remove it"
        raise IsADirectoryError(error.errno, text, str(place)) from error


def _temporary(path: Path, suffix: str = TEMPORARY_SUFFIX) -> Path:
    return path.with_name(path.name + suffix)
