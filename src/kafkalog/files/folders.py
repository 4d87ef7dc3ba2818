"""Make folders whose names a loss of power does not take, with all that is in them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from kafkalog.files.regular import fsync_directory

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["make_with_parents"]


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
