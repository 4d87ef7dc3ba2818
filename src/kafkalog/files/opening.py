"""Open a file of a log wherever it lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.files.local_file import LocalFile
from kafkalog.files.regular import open_regular
from kafkalog.files.remote_path import RemotePath

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.files.open_file import OpenFile

__all__ = ["open_file"]


def open_file(path: Path) -> OpenFile:
    """Open a regular file.

    Raises:
        FileNotFoundError: nothing has that name.
        LogDirectoryError: a link, FIFO, device, socket or folder has it, it may not be opened, or
            the store that it lies in fails.
    """
    if isinstance(path, RemotePath):
        from kafkalog.files.remote_file import open_remote  # noqa: PLC0415

        return open_remote(path)
    return LocalFile(open_regular(path))
