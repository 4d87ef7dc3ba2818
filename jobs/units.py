"""Numbers of bytes as people read them."""

from __future__ import annotations

__all__ = ["shown_size"]


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
