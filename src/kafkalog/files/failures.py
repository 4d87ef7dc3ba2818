"""Why a call of the system failed, and on which file."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

__all__ = ["FULL", "failed_path", "said_of_file"]

FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""There is no room on a disk, or none that is left to this user."""

_STATE_FILE: Final = "kafkalog.commit"
"""What a log directory has that somebody of ours has written to."""


def failed_path(error: BaseException | None) -> Path | None:
    """Return the path that an error, or the one that it came of, names; None if none does."""
    while error is not None:
        if isinstance(error, OSError) and isinstance(error.filename, str | bytes):
            return Path(os.fsdecode(error.filename))
        error = error.__cause__
    return None


def said_of_file(error: BaseException) -> str:
    """Return what an error says; of a file of a log on a full disk, also what makes room."""
    if not isinstance(error, OSError) or error.filename is None or error.strerror is None:
        return str(error)
    path = Path(os.fsdecode(error.filename))
    said = f"{path}: {error.strerror}"
    folders = (path.parent, path.parent.parent)
    if error.errno not in FULL or not any((each / _STATE_FILE).exists() for each in folders):
        return said
    return (
        f"{said}. What makes room on a full disk, as it needs next to none: `kafkalog delete` of a "
        "topic, `kafkalog retain --config retention.bytes=…` or `kafkalog delete-records` of old "
        "records. Or give the disk a few blocks, and run this again"
    )
