"""UTF-8 as Java reads it: header keys and ids that are not UTF-8 must look as in Kafka."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["decode_as_java"]

_REPLACEMENT: Final = "\ufffd".encode()
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
"""Half of a UTF-16 pair, encoded by itself: one fault to Java, one for each byte to Python."""


def decode_as_java(data: bytes) -> str:
    """Decode UTF-8 with U+FFFD for each malformed sequence, as ``new String(data, UTF_8)``."""
    return _SURROGATE.sub(_REPLACEMENT, data).decode("utf-8", "replace")
