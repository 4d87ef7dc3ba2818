"""Decode bytes as Java does, and show text from outside so that it is inert."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["decode_as_java", "printable"]

_REPLACEMENT: Final = "\ufffd".encode()
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
"""Half of a UTF-16 pair, encoded by itself: one fault to Java, one for each byte to Python."""


def decode_as_java(data: bytes) -> str:
    """Decode UTF-8 with U+FFFD for each malformed sequence, as ``new String(data, UTF_8)``."""
    return _SURROGATE.sub(_REPLACEMENT, data).decode("utf-8", "replace")


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
