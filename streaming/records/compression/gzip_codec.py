"""gzip: members back to back (RFC 1952). Kafka writes one.

As in Java, what follows a member and does not start like another one is ignored, such as a tail of
zeros. Source: Kafka ``GzipCompression``; ``java.util.zip.GZIPInputStream``.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.streaming.records.compression.codec import Data

__all__ = ["compress", "decompress"]

_WINDOW: Final = 31  # 15 bits, with gzip's header and trailer
_MEMBER_START: Final = b"\x1f\x8b\x08"
_MIN_MEMBER: Final = 18  # the header and trailer that every member has

_FED: Final = 16 * 1024
"""Compressed bytes fed at a time: zlib copies what it does not use, which must not be all of the
rest after each of a thousand tiny members."""
_PIECE: Final = 1024 * 1024


def compress(data: Data, level: int | None, magic: int) -> list[Data]:  # noqa: ARG001
    """Compress to one member."""
    return [zlib.compress(data, -1 if level is None else level, _WINDOW)]


def decompress(data: memoryview, magic: int, limit: int) -> Iterator[bytes]:  # noqa: ARG001
    """Decompress member after member."""
    most = min(_PIECE, limit + 1)
    position = 0
    while True:
        member = zlib.decompressobj(_WINDOW)
        while not member.eof:
            if position == len(data):
                raise ValueError("it ends in the middle of a member")
            fed = data[position : position + _FED]
            position += len(fed)
            yield from _inflate(member, fed, most)
        position -= len(member.unused_data)
        rest = data[position:]
        if len(rest) <= _MIN_MEMBER or bytes(rest[: len(_MEMBER_START)]) != _MEMBER_START:
            return


def _inflate(member: zlib._Decompress, fed: Data, most: int) -> Iterator[bytes]:
    while True:
        try:
            piece = member.decompress(fed, most)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        if piece:
            yield piece
        fed = member.unconsumed_tail
        if member.eof or (not fed and len(piece) < most):
            return
