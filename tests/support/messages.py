"""Write coordinator records byte by byte, without the code that reads them.

Names follow the encoding: ``string`` and ``array`` have fixed-size lengths, ``compact_*`` are
those of flexible versions.
"""

from __future__ import annotations

import struct
from typing import Final

NO_TAGS: Final = b"\x00"


def i8(value: int) -> bytes:
    """One signed byte."""
    return struct.pack(">b", value)


def i16(value: int) -> bytes:
    """A signed big-endian int16."""
    return struct.pack(">h", value)


def i32(value: int) -> bytes:
    """A signed big-endian int32."""
    return struct.pack(">i", value)


def i64(value: int) -> bytes:
    """A signed big-endian int64."""
    return struct.pack(">q", value)


def uvarint(value: int) -> bytes:
    """Seven bits a byte, least significant first."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def string(text: str | None) -> bytes:
    """An int16 length, -1 for null, and UTF-8."""
    return i16(-1) if text is None else i16(len(text.encode())) + text.encode()


def data(content: bytes | None) -> bytes:
    """An int32 length, -1 for null, and the bytes."""
    return i32(-1) if content is None else i32(len(content)) + content


def array(*elements: bytes) -> bytes:
    """An int32 count and the elements."""
    return i32(len(elements)) + b"".join(elements)


def compact_string(text: str | None) -> bytes:
    """A uvarint length + 1, 0 for null, and UTF-8."""
    return compact_data(None if text is None else text.encode())


def compact_data(content: bytes | None) -> bytes:
    """A uvarint length + 1, 0 for null, and the bytes."""
    return uvarint(0) if content is None else uvarint(len(content) + 1) + content


def compact_array(*elements: bytes) -> bytes:
    """A uvarint count + 1 and the elements."""
    return uvarint(len(elements) + 1) + b"".join(elements)


def tags(**payloads: bytes) -> bytes:
    """Tagged fields, given as ``t0=...``, ``t2=...``."""
    fields = (
        uvarint(int(name[1:])) + uvarint(len(payload)) + payload
        for name, payload in payloads.items()
    )
    return uvarint(len(payloads)) + b"".join(fields)


def offset_commit_key(group: str, topic: str, partition: int, *, version: int = 1) -> bytes:
    """The key of an offset commit."""
    return i16(version) + string(group) + string(topic) + i32(partition)


def offset_commit_value(
    offset: int, *, leader_epoch: int = -1, metadata: str = "", timestamp: int = 0
) -> bytes:
    """The value of an offset commit in version 3."""
    return i16(3) + i64(offset) + i32(leader_epoch) + string(metadata) + i64(timestamp)
