"""Each codec takes every framing that Kafka's readers take, and no more, within its limit."""

from __future__ import annotations

import gzip
import random
import struct
import zlib
from typing import TYPE_CHECKING, Any

import lz4.block
import lz4.frame
import numpy as np
import pytest
import snappy
import zstandard

from kafkalog.errors import (
    CorruptRecordError,
    DecompressedTooLargeError,
    OptionError,
    UnsupportedCodecError,
)
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.records.builder import batch_compressor
from kafkalog.streaming.records.compression import (
    Codec,
    compress,
    decompress,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
_TEXT = b"".join(b"record %d;" % i for i in range(20_000))
_NOISE = np.random.default_rng(1).bytes(200_000)
_XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
_LZ4 = b"\x04\x22\x4d\x18"
_LZ4_HEADER = _LZ4 + b"\x60\x40\x82"
_END_MARK = bytes(4)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("size", [0, 1, 32_767, 32_768, 32_769, 65_536, 65_537, 190_000])
@pytest.mark.parametrize("content", [_TEXT, _NOISE])
def test_what_was_compressed_comes_back(codec: Codec, size: int, content: bytes) -> None:
    packed = compress(codec, content[:size])
    assert decompress(codec, packed) == content[:size]
    assert decompress(codec, memoryview(packed)) == content[:size]


@pytest.mark.parametrize(
    ("codec", "levels"),
    [
        (Codec.GZIP, [-1, 1, 9]),
        (Codec.LZ4, [1, 2, 3, 9, 12, 17]),
        (Codec.ZSTD, [-5, 1, 3, 19]),
        (Codec.SNAPPY, [None]),
    ],
)
def test_every_level_can_be_read(codec: Codec, levels: list[int | None]) -> None:
    packed = [compress(codec, _TEXT, level) for level in levels]
    assert [decompress(codec, one) for one in packed] == [_TEXT] * len(levels)


def test_level_9_of_lz4_is_its_fast_compressor_and_others_are_not() -> None:
    fast = compress(Codec.LZ4, _TEXT)
    assert compress(Codec.LZ4, _TEXT, 9) == fast
    assert len(compress(Codec.LZ4, _TEXT, 1)) < len(fast)


@pytest.mark.parametrize("codec", _COMPRESSED)
def test_a_stream_that_is_cut_anywhere_is_corrupt_or_visibly_short(codec: Codec) -> None:
    content = _TEXT[:300]
    packed = compress(codec, content)
    for cut in range(len(packed)):
        try:
            found = decompress(codec, packed[:cut])
        except CorruptRecordError:
            continue
        # Snappy's stream has no end mark, Zstandard's may have no frame.
        assert cut == {Codec.SNAPPY: 16, Codec.ZSTD: 0}[codec]
        assert found == b""


@pytest.mark.parametrize("codec", _COMPRESSED)
def test_bytes_of_another_kind_are_corrupt(codec: Codec) -> None:
    for junk in (b"\1", b"\xff" * 40, _NOISE[:100]):
        with pytest.raises(CorruptRecordError, match=codec.name.lower()):
            decompress(codec, junk)


@pytest.mark.parametrize("codec", _COMPRESSED)
@pytest.mark.parametrize("size", [1_000, 3_000_000])
def test_a_bomb_stops_at_the_limit_and_both_sizes_are_named(codec: Codec, size: int) -> None:
    packed = compress(codec, bytes(size))
    assert len(decompress(codec, packed, limit=size)) == size
    with pytest.raises(DecompressedTooLargeError) as caught:
        decompress(codec, packed, limit=size - 1)
    assert f"{len(packed)} bytes of {codec.name.lower()}" in str(caught.value)
    assert f"limit of {size - 1} " in str(caught.value)


def test_names_and_attribute_bits_name_codecs() -> None:
    names = ["none", "gzip", "snappy", "lz4", "zstd"]
    assert [Codec.from_name(name) for name in names] == list(Codec)
    assert Codec.from_name("uncompressed") is Codec.NONE
    assert Codec.from_name("LZ4") is Codec.LZ4
    with pytest.raises(ValueError, match="'lzo' is none of gzip, lz4"):
        Codec.from_name("lzo")
    assert [Codec.from_attributes(bits | 0x78) for bits in range(5)] == list(Codec)
    for bits, magic in [(5, 2), (6, 2), (7, 2), (4, 1), (4, 0)]:
        with pytest.raises(UnsupportedCodecError, match=f"bits {bits} name no codec of magic"):
            Codec.from_attributes(bits, magic)


# gzip


def test_gzip_members_follow_each_other() -> None:
    packed = gzip.compress(b"one ") + gzip.compress(b"") + gzip.compress(b"three")
    assert decompress(Codec.GZIP, packed) == b"one three"


@pytest.mark.parametrize(
    "tail", [bytes(1), bytes(100), b"no member", b"\x1f\x8b", b"\x1f\x8b\x09" * 9]
)
def test_what_follows_a_gzip_member_and_is_none_is_ignored_as_in_java(tail: bytes) -> None:
    assert decompress(Codec.GZIP, gzip.compress(_TEXT) + tail) == _TEXT


def test_gzip_checks_what_it_has_decompressed() -> None:
    packed = bytearray(gzip.compress(_TEXT))
    packed[-8] ^= 1
    with pytest.raises(CorruptRecordError, match="incorrect data check"):
        decompress(Codec.GZIP, bytes(packed))


def test_thousands_of_tiny_gzip_members_are_read() -> None:
    assert decompress(Codec.GZIP, gzip.compress(b"x") * 5_000) == b"x" * 5_000


def test_gzip_output_that_ends_where_a_piece_does_is_complete() -> None:
    content = bytes(2 << 20)
    assert decompress(Codec.GZIP, zlib.compress(content, wbits=31)) == content


# snappy


def _chunk(content: bytes) -> bytes:
    block = snappy.compress(content)
    return struct.pack(">i", len(block)) + block


def test_snappy_is_written_in_chunks_of_32_kib() -> None:
    packed = compress(Codec.SNAPPY, _TEXT[:40_000])
    assert packed == _XERIAL + _chunk(_TEXT[:32_768]) + _chunk(_TEXT[32_768:40_000])
    assert compress(Codec.SNAPPY, b"") == _XERIAL


def test_a_bare_snappy_block_is_read() -> None:
    assert decompress(Codec.SNAPPY, snappy.compress(_TEXT)) == _TEXT
    assert decompress(Codec.SNAPPY, snappy.compress(b"tiny")) == b"tiny"


def test_snappy_chunks_of_any_size_are_read() -> None:
    packed = _XERIAL + _chunk(_TEXT[:100_000]) + _chunk(b"") + _chunk(_TEXT[100_000:])
    assert decompress(Codec.SNAPPY, packed) == _TEXT


def test_snappy_streams_may_start_anew_in_place_of_a_chunk() -> None:
    packed = _XERIAL + _chunk(b"one ") + _XERIAL + _chunk(b"two") + _XERIAL
    assert decompress(Codec.SNAPPY, packed) == b"one two"


@pytest.mark.parametrize("length", [-1, 100, 2**31 - 1])
def test_a_snappy_chunk_beyond_the_data_is_corrupt(length: int) -> None:
    packed = _XERIAL + _chunk(b"one") + struct.pack(">i", length) + b"rest"
    with pytest.raises(CorruptRecordError, match="ends beyond"):
        decompress(Codec.SNAPPY, packed)


def test_a_snappy_block_that_claims_too_much_costs_no_memory() -> None:
    claim = b"\xff\xff\xff\xff\x07" + b"\0" * 20  # 2 GiB
    with pytest.raises(DecompressedTooLargeError, match="2147483647 bytes or more"):
        decompress(Codec.SNAPPY, claim)
    with pytest.raises(CorruptRecordError, match="cannot hold"):
        decompress(Codec.SNAPPY, claim, limit=2**31)
    with pytest.raises(CorruptRecordError, match="does not begin with its size"):
        decompress(Codec.SNAPPY, b"\xff" * 20)


# lz4


def _block(content: bytes) -> bytes:
    packed = lz4.block.compress(content, store_size=False)
    return struct.pack("<I", len(packed)) + packed


def test_lz4_is_written_as_one_frame_of_independent_blocks_of_64_kib() -> None:
    packed = compress(Codec.LZ4, _TEXT)
    assert packed[:7] == _LZ4_HEADER
    position, blocks = 7, []
    while packed[position : position + 4] != _END_MARK:
        (length,) = struct.unpack_from("<I", packed, position)
        block = packed[position + 4 : position + 4 + length]
        blocks.append(lz4.block.decompress(block, uncompressed_size=65_536))
        position += 4 + length
    assert blocks == [_TEXT[i : i + 65_536] for i in range(0, len(_TEXT), 65_536)]
    assert position + 4 == len(packed)
    assert compress(Codec.LZ4, b"") == _LZ4_HEADER + _END_MARK


def half_random(size: int) -> bytes:
    chosen = random.Random(1)
    rows = (chosen.randbytes(50) + b" kafkalog " * 5 for _ in range(size // 100 + 1))
    return b"".join(rows)[:size]


def prose(size: int) -> bytes:
    chosen = random.Random(2)
    words = [chosen.randbytes(chosen.randrange(1, 5)).hex().encode() for _ in range(2000)]
    return b" ".join(chosen.choices(words, k=size // 3))[:size]


@pytest.mark.parametrize(("content", "paces"), [(half_random, {8}), (prose, {1, 2})])
def test_lz4_batches_are_compressed_at_the_pace_that_suits_them(
    content: Callable[[int], bytes], paces: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    library = lz4.block.compress

    def watched(plain: memoryview, *, acceleration: int, **others: Any) -> bytes:
        asked.append(acceleration)
        compressed: bytes = library(plain, acceleration=acceleration, **others)
        return compressed

    monkeypatch.setattr(lz4.block, "compress", watched)
    batch = content(256 << 10)
    compressed = batch_compressor(Codec.LZ4)
    usual = [b"".join(compressed(batch)) for _ in range(3)]
    assert asked == [2] * 12  # who writes only a few tries nothing
    assert usual == [compress(Codec.LZ4, batch)] * 3
    asked.clear()
    suited = [b"".join(compressed(batch)) for _ in range(60)]
    assert sorted(asked[:4]) == [1, 2, 4, 8]
    assert len(set(asked[4:])) == 1
    assert set(asked[4:]) <= paces
    assert {decompress(Codec.LZ4, one) for one in suited} == {batch}
    assert len(suited[-1]) <= 1.03 * len(usual[0])
    asked.clear()
    for _ in range(64):
        compressed(batch)
    assert len(asked) == 4 + 64 * 4


def test_small_lz4_batches_and_those_of_another_level_have_the_librarys_frames() -> None:
    compressed = batch_compressor(Codec.LZ4)
    small = half_random(64 << 10)
    assert {b"".join(compressed(small)) for _ in range(9)} == {compress(Codec.LZ4, small)}
    large = half_random(256 << 10)
    slow = batch_compressor(Codec.LZ4, 12)
    assert {b"".join(slow(large)) for _ in range(9)} == {compress(Codec.LZ4, large, 12)}


def test_lz4_stores_blocks_that_do_not_shrink() -> None:
    packed = compress(Codec.LZ4, _NOISE[:100])
    assert packed == _LZ4_HEADER + struct.pack("<I", 100 | 1 << 31) + _NOISE[:100] + _END_MARK


def test_what_follows_an_lz4_frame_is_ignored() -> None:
    packed = compress(Codec.LZ4, b"first")
    assert decompress(Codec.LZ4, packed + compress(Codec.LZ4, b"second")) == b"first"
    assert decompress(Codec.LZ4, packed + b"junk") == b"first"


@pytest.mark.parametrize("block_size", [4, 5, 6, 7])
@pytest.mark.parametrize("block_checksum", [False, True])
@pytest.mark.parametrize("content_checksum", [False, True])
@pytest.mark.parametrize("store_size", [False, True])
def test_lz4_frames_of_other_writers_are_read(
    block_size: int, *, block_checksum: bool, content_checksum: bool, store_size: bool
) -> None:
    packed = lz4.frame.compress(
        _TEXT,
        block_size=block_size,
        block_linked=False,
        block_checksum=block_checksum,
        content_checksum=content_checksum,
        store_size=store_size,
    )
    assert decompress(Codec.LZ4, packed) == _TEXT
    assert decompress(Codec.LZ4, packed, magic=0) == _TEXT


def test_the_content_checksum_of_lz4_is_not_verified_as_in_java() -> None:
    packed = bytearray(lz4.frame.compress(_TEXT, block_linked=False, content_checksum=True))
    packed[-1] ^= 1
    assert decompress(Codec.LZ4, bytes(packed)) == _TEXT


def test_block_checksums_of_lz4_are_verified() -> None:
    frame = lz4.frame.compress(
        _TEXT[:99], block_linked=False, block_checksum=True, store_size=False
    )
    broken = bytearray(frame)
    broken[-5] ^= 1
    with pytest.raises(CorruptRecordError, match="block at byte 7 does not match its checksum"):
        decompress(Codec.LZ4, bytes(broken))


@pytest.mark.parametrize(
    ("flags", "block", "reason"),
    [
        (0x40, 0x40, "depend on each other"),
        (0x20, 0x40, "version 0"),
        (0xA0, 0x40, "version 2"),
        (0x61, 0x40, "unknown bits"),
        (0x62, 0x40, "unknown bits"),
        (0x60, 0x30, "unknown bits"),
        (0x60, 0xC0, "unknown bits"),
        (0x60, 0x41, "unknown bits"),
        (0x60, 0x50, "checksum is 82"),
    ],
)
def test_an_lz4_header_that_kafka_refuses_is_refused(flags: int, block: int, reason: str) -> None:
    with pytest.raises(CorruptRecordError, match=reason):
        decompress(Codec.LZ4, _LZ4 + bytes([flags, block, 0x82]) + _block(b"x") + _END_MARK)


def test_the_header_checksum_of_magic_0_covers_the_magic_and_is_not_verified() -> None:
    packed = compress(Codec.LZ4, _TEXT, magic=0)
    assert packed[:7] == _LZ4 + b"\x60\x40\x1a"
    assert packed[7:] == compress(Codec.LZ4, _TEXT)[7:]
    for checksum in range(0, 256, 15):
        assert decompress(Codec.LZ4, packed[:6] + bytes([checksum]) + packed[7:], magic=0) == _TEXT
    with pytest.raises(CorruptRecordError, match="checksum is 1a, computed is 82"):
        decompress(Codec.LZ4, packed, magic=1)


def test_an_lz4_block_may_not_exceed_the_size_of_its_frame() -> None:
    stored = struct.pack("<I", 65_537 | 1 << 31) + bytes(65_537)
    with pytest.raises(CorruptRecordError, match="larger than the 65536 allowed"):
        decompress(Codec.LZ4, _LZ4_HEADER + stored + _END_MARK)
    with pytest.raises(CorruptRecordError, match="Decompression failed"):
        decompress(Codec.LZ4, _LZ4_HEADER + _block(bytes(65_537)) + _END_MARK)


def test_an_lz4_frame_without_end_mark_is_corrupt() -> None:
    with pytest.raises(CorruptRecordError, match="without an end mark"):
        decompress(Codec.LZ4, _LZ4_HEADER + _block(b"x"))


# zstd


def test_zstd_is_written_without_the_size_of_its_content() -> None:
    packed = compress(Codec.ZSTD, _TEXT)
    parameters = zstandard.get_frame_parameters(packed)
    assert parameters.content_size == zstandard.CONTENTSIZE_UNKNOWN
    assert not parameters.has_checksum


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("size_known", [False, True])
def test_zstd_frames_of_other_writers_are_read(*, checksum: bool, size_known: bool) -> None:
    writer = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=size_known)
    packed = [writer.compress(one) for one in (_TEXT, b"", b"x" * 300, _NOISE)]
    skippable = b"\x5a\x2a\x4d\x18" + struct.pack("<I", 3) + b"abc"
    together = skippable.join([b"", *packed, b""])
    assert decompress(Codec.ZSTD, together) == _TEXT + b"x" * 300 + _NOISE


def test_what_follows_a_zstd_frame_must_be_another() -> None:
    packed = compress(Codec.ZSTD, _TEXT)
    for junk in (b"\0", b"\x28\xb5\x2f", b"junk junk", b"\x5a\x2a\x4d\x18\xff\xff\xff\xff"):
        with pytest.raises(CorruptRecordError, match="frame"):
            decompress(Codec.ZSTD, packed + junk)


def test_zstd_checks_what_it_has_decompressed() -> None:
    packed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(_TEXT))
    packed[-1] ^= 1
    with pytest.raises(CorruptRecordError, match="checksum"):
        decompress(Codec.ZSTD, bytes(packed))


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("message_format", ["v0", "v1", "v2"])
def test_a_format_takes_the_codecs_that_its_readers_know(codec: Codec, message_format: str) -> None:
    settings = {"compression.type": codec.name.lower(), "message.format": message_format}
    magic = int(message_format[1])
    if codec.is_in(magic):
        assert Codec.from_attributes(codec, magic) is codec
        assert LogConfig.from_mapping(settings).magic == magic
    else:
        with pytest.raises(UnsupportedCodecError):
            Codec.from_attributes(codec, magic)
        with pytest.raises(OptionError, match="came with v2"):
            LogConfig.from_mapping(settings)
