"""How figures are put into words on the pages."""

from __future__ import annotations

__all__ = ["compared"]


def compared(cost: float, peer: float) -> str:
    """Say what somebody spends beside a peer: ``14 times less``, ``4.8 times more``."""
    factor = max(cost, peer) / min(cost, peer)
    shown = f"{factor:.0f}" if factor >= 10 else f"{factor:.2g}"
    return f"{shown} times {'more' if cost > peer else 'less'}"
