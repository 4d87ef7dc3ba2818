"""The log directories near a folder that was named in place of one: a level too high or too low."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kafkalog.checkpoints.broker import META_PROPERTIES
from kafkalog.checkpoints.commit_stamp import STATE_FILE
from kafkalog.errors import LogDirectoryError
from kafkalog.files.remote_path import RemotePath
from kafkalog.model import listed
from kafkalog.streaming.log.files import LOG, parse_base_offset, parse_partition_directory

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["is_log_directory", "log_dirs_near", "refuse_a_level_above"]


def log_dirs_near(path: Path) -> str:
    """Return the end of a sentence that names what was meant instead of ``path``, or nothing.

    That is the nearest folder above it that is a log directory, or those right below it.
    """
    for above in [path.parent] if isinstance(path, RemotePath) else path.parents:
        names = _names(above)
        if _is_log_dir(above, names):
            which = "Its parent is" if above == path.parent else "It lies in"
            return f". {which} a log directory: {above}"
        if names and above != path.parent:
            break
    found = _log_dirs_in(path)
    return f". Log directories in it: {listed(found)}" if found else ""


def refuse_a_level_above(path: Path) -> None:
    """Refuse to begin a log in a folder that holds log directories: one of these was meant.

    Raises:
        LogDirectoryError: it does, and is none itself.
    """
    if not _is_log_dir(path, _names(path)) and (found := _log_dirs_in(path)):
        raise LogDirectoryError(
            f"{path} is no log directory, and holds some: {listed(found)}. Nothing was written; "
            "name one of these, or a folder of its own"
        )


def is_log_directory(path: Path) -> bool:
    """Whether a broker or a sink has written in a folder: its own files, or a partition's."""
    return _is_log_dir(path, _names(path))


def _log_dirs_in(path: Path) -> list[str]:
    below = [path / name for name in sorted(_names(path))]
    return [str(each) for each in below if _is_log_dir(each, _names(each))]


def _is_log_dir(path: Path, names: frozenset[str]) -> bool:
    if STATE_FILE in names or META_PROPERTIES in names:
        return True
    folders = (path / name for name in names if parse_partition_directory(name) is not None)
    return any(map(_has_segment, folders))


def _has_segment(folder: Path) -> bool:
    return any(parse_base_offset(name, LOG) is not None for name in _names(folder))


def _names(path: Path) -> frozenset[str]:
    """List a folder; nothing where that is not possible."""
    try:
        if isinstance(path, RemotePath):
            return frozenset(entry.name for entry in path.entries())
        return frozenset(os.listdir(path))  # noqa: PTH208 - names are enough
    except OSError:
        return frozenset()
