"""Bytes as people type them with ``--hex``."""

from __future__ import annotations

__all__ = ["from_hex"]


def from_hex(text: str) -> bytes:
    """Read pairs of hexadecimal digits.

    Raises:
        ValueError: it is something else; the message says so.
    """
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ValueError(
            f"with --hex, {text!r} is read as hexadecimal digits, expected pairs such as 6b31 (k1)"
        ) from None
