"""Numbers of bytes, and lengths of time, as people read them."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

__all__ = ["shown_duration", "shown_size"]

_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1))


def shown_size(size: int) -> str:
    """Return a number of bytes in the unit that suits it: ``812 B``, ``1.2 GiB``."""
    if size < 1024:
        return f"{size} B"
    amount = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        amount /= 1024
        if amount < 1023.95 or unit == "PiB":
            break
    return f"{amount:.1f} {unit}"


def shown_duration(milliseconds: int) -> str:
    """Return a length of time in the largest unit it fills, and in the next: ``3 h 5 min``.

    What is less than that is left out; ``ms`` stand for themselves.
    """
    for (unit, size), (lower, lower_size) in pairwise(_UNITS):
        if milliseconds >= size:
            count, rest = divmod(milliseconds, size)
            below = rest // lower_size if lower != "ms" else 0
            return f"{count} {unit} {below} {lower}" if below else f"{count} {unit}"
    return f"{milliseconds} ms"
