"""How figures are put into words on the pages."""

from __future__ import annotations

__all__ = ["compared"]


def compared(cost: float, peer: float) -> str:
    """Say what somebody spends beside a peer: ``14 times less``, ``4.8 times more``, or as much."""
    least = min(cost, peer)
    factor = max(cost, peer) / least if least else float("inf")
    shown = f"{factor:.0f}" if factor >= 10 else f"{factor:.2g}"
    if cost == peer or shown == "1":
        return "as much"
    return f"{shown} times {'more' if cost > peer else 'less'}"
