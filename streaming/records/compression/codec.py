"""The codecs by name and number, and the bound on what a batch may decompress to."""

from __future__ import annotations

import functools
import importlib
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, cast

from kafkalog.errors import CorruptRecordError, DecompressedTooLargeError, UnsupportedCodecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

__all__ = [
    "DEFAULT_LIMIT",
    "Codec",
    "CodecModule",
    "Data",
    "LimitExceededError",
    "compress",
    "compress_pieces",
    "decompress",
    "decompress_pieces",
]

Data: TypeAlias = bytes | bytearray | memoryview

DEFAULT_LIMIT: Final = 256 * 1024 * 1024
"""Bytes that one batch may decompress to. Kafka has no such bound but the client's memory; batches
of its default ``max.message.bytes`` reach it with a ratio of 256."""


class Codec(IntEnum):
    """How records are compressed; on disk the low three bits of ``attributes``, never renumber."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def from_name(cls, name: str) -> Self:
        """Return the codec of a ``compression.type``; ``uncompressed`` is ``none``.

        Raises:
            ValueError: no codec is called so.
        """
        known = {codec.name.lower(): codec for codec in cls} | {"uncompressed": cls.NONE}
        try:
            return known[name.lower()]
        except KeyError:
            raise ValueError(f"{name!r} is none of {', '.join(sorted(known))}") from None

    @classmethod
    def from_attributes(cls, attributes: int, magic: int = 2) -> Self:
        """Return the codec that a batch's attributes name.

        Raises:
            UnsupportedCodecError: they name none, or one that ``magic`` does not have (KIP-110).
        """
        bits = attributes & 0x07
        codec = _BY_BITS.get(bits)
        if codec is None or not codec.is_in(magic):
            raise UnsupportedCodecError(f"compression bits {bits} name no codec of magic {magic}")
        return codec

    def is_in(self, magic: int) -> bool:
        """Whether batches of a magic may have it: zstd, and what comes after it, need v2."""
        return magic >= 2 or self < Codec.ZSTD


_BY_BITS: Final = {int(codec): codec for codec in Codec}


class LimitExceededError(Exception):
    """A codec's own word that its data is too large; ``size`` is what it says."""

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes")
        self.size = size


class CodecModule(Protocol):
    """What the module of a codec has."""

    def compress(self, data: Data, level: int | None, magic: int) -> Sequence[Data]:
        """Compress all of ``data``, to pieces; a level of None is the codec's default."""

    def decompress(self, data: memoryview, magic: int, limit: int) -> Iterator[Data]:
        """Return the decompressed data in pieces, so that a caller that counts can stop in time.

        No piece is longer than ``limit + 1`` bytes by much.

        Raises:
            LimitExceededError: the data itself says that it holds more than ``limit`` bytes.
            ValueError: the data is not what this codec writes, or ends too early.
        """


_MODULES: Final = {
    Codec.GZIP: "gzip_codec",
    Codec.SNAPPY: "snappy_codec",
    Codec.LZ4: "lz4_codec",
    Codec.ZSTD: "zstd_codec",
}


@functools.cache
def _module(codec: Codec) -> CodecModule:
    return cast("CodecModule", importlib.import_module(f"{__package__}.{_MODULES[codec]}"))


def compress(codec: Codec, data: Data, level: int | None = None, *, magic: int = 2) -> bytes:
    """Compress the records of one batch.

    Args:
        codec: none to zstd.
        data: the records, uncompressed.
        level: gzip 1-9, lz4 1-17 (9, the default, is the fast compressor as in Kafka's client),
            zstd -131072-22; None for the codec's default (KIP-390).
        magic: 0 writes lz4 with the header checksum of old.
    """
    return b"".join(compress_pieces(codec, data, level, magic=magic))


def compress_pieces(
    codec: Codec, data: Data, level: int | None = None, *, magic: int = 2
) -> Sequence[Data]:
    """Compress like ``compress``, giving the bytes in pieces to be joined."""
    return [data] if codec is Codec.NONE else _module(codec).compress(data, level, magic)


def decompress(codec: Codec, data: Data, *, magic: int = 2, limit: int = DEFAULT_LIMIT) -> bytes:
    """Decompress the records of one batch.

    Raises:
        CorruptRecordError: the data is not what the codec writes. It says no position, which only
            the caller knows.
        DecompressedTooLargeError: it grows beyond ``limit`` bytes.
    """
    return b"".join(decompress_pieces(codec, data, magic=magic, limit=limit))


def decompress_pieces(
    codec: Codec, data: Data, *, magic: int = 2, limit: int = DEFAULT_LIMIT
) -> list[Data]:
    """Decompress like ``decompress``, giving the bytes in pieces to be joined."""
    view = memoryview(data)
    if codec is Codec.NONE:
        return [view]
    pieces: list[Data] = []
    total = 0
    try:
        for piece in _module(codec).decompress(view, magic, limit):
            total += len(piece)
            if total > limit:
                raise LimitExceededError(total)  # noqa: TRY301 - as a codec would
            pieces.append(piece)
    except ValueError as error:
        raise CorruptRecordError(f"no valid {codec.name.lower()} data: {error}") from error
    except LimitExceededError as error:
        raise DecompressedTooLargeError(
            f"{len(view)} bytes of {codec.name.lower()} hold {error.size} bytes or more, beyond "
            f"the limit of {limit} for a batch (option maxDecompressedBytes)"
        ) from error
    return pieces
