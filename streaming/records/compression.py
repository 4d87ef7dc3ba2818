"""The codecs of record batches and message sets, with Kafka's framings, both ways.

======  ====================================================================================
codec   framing
======  ====================================================================================
gzip    members back to back; zero bytes after the last are ignored, as Java does
snappy  xerial stream: magic ``82 53 4E 41 50 50 59 00``, version int32, lowest compatible
        version int32, then chunks of int32 length + raw block of at most 32 KiB; a stream may
        start anew in place of a chunk. Without that magic: one raw block (other clients)
lz4     one frame of independent blocks of 64 KiB: ``04224D18 60 40 82`` blocks ``00000000``.
        What follows the end mark is ignored. In magic 0 the descriptor's checksum covers the
        frame's magic too (a bug that was kept): it is written so, and not verified
zstd    frames back to back, without content size or checksum
======  ====================================================================================

Decompression streams and stops at a limit, whatever sizes the data claims. Source: Kafka
``GzipCompression``, ``SnappyCompression``, ``Lz4BlockOutputStream``, ``Lz4BlockInputStream``,
``ZstdCompression``; snappy-java ``SnappyInputStream``; KIP-390 (levels), KIP-57 (LZ4 framing).
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from kafkalog.errors import CorruptRecordError, DecompressedTooLargeError, UnsupportedCodecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

__all__ = ["DEFAULT_LIMIT", "Codec", "compress", "decompress"]

DEFAULT_LIMIT: Final = 256 * 1024 * 1024
"""Bytes that one batch may decompress to; Kafka's own bound is the client's memory."""


class Codec(IntEnum):
    """How records are compressed; the values are the low bits of ``attributes`` on disk."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def from_name(cls, name: str) -> Self:
        """Give the codec that ``compression.type`` calls so; ``uncompressed`` is ``none``.

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
        """Give the codec that a batch's attributes name.

        Raises:
            UnsupportedCodecError: they name none, or one that ``magic`` does not have.
        """
        bits = attributes & 0x07
        if bits > cls.ZSTD or (bits == cls.ZSTD and magic < 2):
            raise UnsupportedCodecError(f"compression bits {bits} name no codec of magic {magic}")
        return cls(bits)


def compress(
    codec: Codec, data: bytes | memoryview, level: int | None = None, *, magic: int = 2
) -> bytes:
    """Compress what stands in one batch.

    Args:
        codec: none to zstd.
        data: the records, uncompressed.
        level: gzip 1-9, lz4 1-17 (9, the default, is the fast compressor as in Kafka's client),
            zstd -131072-22; None for the codec's default.
        magic: 0 writes lz4 with the broken header checksum of old.
    """
    return _COMPRESSORS[codec](data, level, magic)


def decompress(
    codec: Codec, data: bytes | memoryview, *, magic: int = 2, limit: int = DEFAULT_LIMIT
) -> bytes:
    """Decompress what stands in one batch.

    Raises:
        CorruptRecordError: the data is not what the codec writes; without position, which the
            caller knows.
        DecompressedTooLargeError: it grows beyond ``limit`` bytes.
    """
    view = memoryview(data).cast("B")
    pieces = []
    total = 0
    try:
        for piece in _DECOMPRESSORS[codec](view, magic, limit):
            total += len(piece)
            if total > limit:
                raise DecompressedTooLargeError(
                    f"{len(view)} bytes of {codec.name.lower()} decompress to more than {total} "
                    f"bytes, beyond the limit of {limit} (option maxDecompressedBytes)"
                )
            pieces.append(piece)
    except (zlib.error, RuntimeError, ValueError, OverflowError, MemoryError) as error:
        raise CorruptRecordError(f"no valid {codec.name.lower()} data: {error}") from error
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


# --- none


def _store(data: bytes | memoryview, _level: int | None, _magic: int) -> bytes:
    return bytes(data)


def _stored(data: memoryview, _magic: int, _limit: int) -> Iterator[bytes]:
    yield bytes(data)


# --- gzip

_GZIP_WINDOW: Final = 31  # 15 bits, with gzip's header
_GZIP_PIECE: Final = 1 << 20


def _gzip(data: bytes | memoryview, level: int | None, _magic: int) -> bytes:
    stream = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WINDOW)
    return stream.compress(data) + stream.flush()


def _gunzip(data: memoryview, _magic: int, limit: int) -> Iterator[bytes]:
    rest: bytes | memoryview = data
    while True:
        member = zlib.decompressobj(_GZIP_WINDOW)
        while not member.eof:
            piece = member.decompress(rest, min(_GZIP_PIECE, limit + 1))
            rest = member.unconsumed_tail
            if piece:
                yield piece
            elif not member.eof and not rest:
                raise ValueError("the data ends in the middle")
        rest = member.unused_data
        if not rest.strip(b"\0"):
            return


# --- snappy

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
_XERIAL_CHUNK: Final = 32 * 1024


def _snappy(data: bytes | memoryview, _level: int | None, _magic: int) -> bytes:
    import snappy  # noqa: PLC0415

    out = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_CHUNK):
        block = snappy.compress(bytes(data[start : start + _XERIAL_CHUNK]))
        out += (len(block).to_bytes(4, "big"), block)
    return b"".join(out)


def _unsnappy(data: memoryview, _magic: int, limit: int) -> Iterator[bytes]:
    if len(data) < len(_XERIAL_HEADER) or bytes(data[:8]) != _XERIAL_MAGIC:
        yield _unsnappy_block(data, limit)
        return
    position = len(_XERIAL_HEADER)
    while position < len(data):
        if bytes(data[position : position + 8]) == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)
            continue
        size = int.from_bytes(data[position : position + 4], "big")
        block = data[position + 4 : position + 4 + size]
        if len(data) < position + 4 or len(block) < size:
            raise ValueError(f"chunk of {size} bytes at {position} exceeds the {len(data)} there")
        yield _unsnappy_block(block, limit)
        position += 4 + size


def _unsnappy_block(block: memoryview, limit: int) -> bytes:
    import snappy  # noqa: PLC0415

    claimed = _uvarint(block)
    if claimed > limit:
        raise DecompressedTooLargeError(
            f"a snappy block of {len(block)} bytes claims to hold {claimed}, beyond the limit of "
            f"{limit} bytes (option maxDecompressedBytes)"
        )
    # A copy of snappy makes at most 64 bytes of two, so a claim beyond that is a lie.
    if claimed > 32 * len(block) + 64:
        raise ValueError(f"a block of {len(block)} bytes cannot hold the {claimed} it claims")
    return bytes(snappy.uncompress(bytes(block)))


def _uvarint(data: memoryview) -> int:
    value = 0
    for i, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value
    raise ValueError("no length in front of the block")


# --- lz4

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_FAST_LEVEL: Final = 9
_LZ4_HC_LEVEL_MIN: Final = 3
_LZ4_PIECE: Final = 1 << 22


def _lz4(data: bytes | memoryview, level: int | None, magic: int) -> bytes:
    import lz4.frame  # noqa: PLC0415

    fast = level is None or level == _LZ4_FAST_LEVEL
    frame = lz4.frame.compress(
        data,
        compression_level=0 if fast or level is None else max(level, _LZ4_HC_LEVEL_MIN),
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    if magic == 0:
        frame = frame[:6] + _lz4_checksum(frame[:6]) + frame[7:]
    return bytes(frame)


def _unlz4(data: memoryview, magic: int, limit: int) -> Iterator[bytes]:
    import lz4.frame  # noqa: PLC0415

    descriptor = _lz4_descriptor(data)
    stream = lz4.frame.LZ4FrameDecompressor()
    checksum = _lz4_checksum(descriptor)
    found = bytes(data[4 + len(descriptor) : 5 + len(descriptor)])
    if magic > 0 and found != checksum:
        raise ValueError(f"header checksum {found.hex()}, computed {checksum.hex()}")
    rest: bytes | memoryview = data
    if magic == 0 and found != checksum:
        rest = b"".join((data[: 4 + len(descriptor)], checksum, data[5 + len(descriptor) :]))
    while not stream.eof:
        piece = stream.decompress(rest, max_length=min(_LZ4_PIECE, limit + 1))
        rest = b""
        if piece:
            yield piece
        elif stream.needs_input:
            raise ValueError("the frame has no end mark")


def _lz4_descriptor(data: memoryview) -> bytes:
    """Give FLG, BD and content size of the frame, checked as Kafka checks them."""
    if len(data) < 7 or bytes(data[:4]) != _LZ4_MAGIC:
        raise ValueError("no LZ4 frame")
    flags, block = data[4], data[5]
    if flags >> 6 != 1:
        raise ValueError(f"LZ4 frame version {flags >> 6}, only 1 is known")
    if not flags & 0x20:
        raise ValueError("dependent LZ4 blocks, which Kafka does not allow")
    if flags & 0x03 or block & 0x8F or not 4 <= (block >> 4) & 7 <= 7:
        raise ValueError(f"LZ4 frame descriptor {flags:02x} {block:02x} has unknown bits")
    end = 14 if flags & 0x08 else 6
    if len(data) <= end:
        raise ValueError("the LZ4 frame ends in its header")
    return bytes(data[4:end])


def _lz4_checksum(data: bytes) -> bytes:
    """Give the second byte of XXH32 (seed 0) of fewer than 16 bytes."""
    mask = 0xFFFFFFFF
    prime_1, prime_2, prime_3, prime_4, prime_5 = (
        2654435761,
        2246822519,
        3266489917,
        668265263,
        374761393,
    )
    hashed = (prime_5 + len(data)) & mask
    words = len(data) // 4 * 4
    for i in range(0, words, 4):
        hashed = (hashed + int.from_bytes(data[i : i + 4], "little") * prime_3) & mask
        hashed = (((hashed << 17) | (hashed >> 15)) * prime_4) & mask
    for byte in data[words:]:
        hashed = (hashed + byte * prime_5) & mask
        hashed = (((hashed << 11) | (hashed >> 21)) * prime_1) & mask
    hashed = ((hashed ^ (hashed >> 15)) * prime_2) & mask
    hashed = ((hashed ^ (hashed >> 13)) * prime_3) & mask
    hashed ^= hashed >> 16
    return bytes([(hashed >> 8) & 0xFF])


# --- zstd

_ZSTD_DEFAULT_LEVEL: Final = 3
_ZSTD_PIECE_MIN: Final = 64 * 1024


def _zstd(data: bytes | memoryview, level: int | None, _magic: int) -> bytes:
    import zstandard  # noqa: PLC0415

    chosen = _ZSTD_DEFAULT_LEVEL if level is None else level
    return zstandard.ZstdCompressor(level=chosen, write_content_size=False).compress(data)


def _unzstd(data: memoryview, _magic: int, limit: int) -> Iterator[bytes]:
    """Read frame after frame.

    The library does not tell a frame that is cut from one that ends; whoever counts the records
    in it will.
    """
    import zstandard  # noqa: PLC0415

    guess = min(limit + 1, max(_ZSTD_PIECE_MIN, 8 * len(data)))
    try:
        with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
            while piece := reader.read(guess):
                yield piece
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


_COMPRESSORS: Final[dict[Codec, Callable[[bytes | memoryview, int | None, int], bytes]]] = {
    Codec.NONE: _store,
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}

_DECOMPRESSORS: Final[dict[Codec, Callable[[memoryview, int, int], Iterator[bytes]]]] = {
    Codec.NONE: _stored,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
