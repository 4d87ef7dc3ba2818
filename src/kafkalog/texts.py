"""Texts that came from outside, as people are shown them."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    r"""Return a text from outside as errors, logs and tables show it: on one line, inert.

    Names, keys and paths may hold line breaks, escape sequences of terminals, letters that change
    the direction of those around them, and halves of surrogate pairs (bytes that are not UTF-8).
    Each is shown as Python writes it: ``\n``, ``\x1b``, ``\u202e``, ``\udcff``.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
