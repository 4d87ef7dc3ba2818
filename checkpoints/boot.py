"""Which run of the machine this is: what was left to the system may be lost when it ends."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["boot_id"]

_PATH: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str | None:
    """Give the id that Linux draws when it starts; None where the system has none."""
    return _read()


@cache
def _read() -> str | None:
    try:
        return _PATH.read_text().strip() or None
    except OSError:
        return None
