"""Which file a call of the system failed on."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["failed_path"]


def failed_path(error: BaseException | None) -> Path | None:
    """Return the path that an error, or the one that it came of, names; None if none does."""
    while error is not None:
        if isinstance(error, OSError) and isinstance(error.filename, str | bytes):
            return Path(os.fsdecode(error.filename))
        error = error.__cause__
    return None
