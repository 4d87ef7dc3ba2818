"""Compressed streams as other clients frame them, in each magic that knows the codec.

Each is built byte for byte as that client does; where a client is a library here, it makes them.
"""

from __future__ import annotations

import gzip
import warnings
import zlib
from typing import TYPE_CHECKING, Final

import lz4.frame
import pytest
import snappy
import zstandard
from tests.support.message_sets import GZIP, LZ4, SNAPPY, ZSTD, lz4_stream_of_old, message, read
from tests.support.message_sets import xerial_stream as xerial
from tests.support.record_batches import batch_of, decode, record_of, varint

with warnings.catch_warnings():
    # kafka-python loads its protocol's schemas in a way that Python is giving up.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import codec as kafka_python

if TYPE_CHECKING:
    from collections.abc import Callable

    Framing = Callable[[bytes], bytes]

VALUES: Final = [b"%d" % number * 9000 for number in range(20)]
"""More than two blocks of any codec but the 4 MB ones."""


def go_gzip(data: bytes) -> bytes:
    """Make what Go's compress/gzip writes: no time, no name, an unknown system."""
    packer = zlib.compressobj(wbits=-15)
    body = packer.compress(data) + packer.flush()
    trailer = zlib.crc32(data).to_bytes(4, "little") + len(data).to_bytes(4, "little")
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + body + trailer


def librdkafka_lz4(data: bytes) -> bytes:
    return bytes(lz4.frame.compress(data, block_linked=False, store_size=False))


def pierrec_lz4(data: bytes) -> bytes:
    """Make what Go's pierrec/lz4 writes: large blocks, a checksum of the content."""
    stream = lz4.frame.compress(
        data, block_linked=False, block_size=7, content_checksum=True, store_size=False
    )
    assert stream[4:6] == b"\x64\x60"
    return bytes(stream)


def klauspost_zstd(data: bytes) -> bytes:
    """Make what Go's klauspost/compress writes: a checksum, and the size of the content."""
    return zstandard.ZstdCompressor(write_checksum=True, write_content_size=True).compress(data)


def librdkafka_zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=True).compress(data)


FRAMINGS: Final[dict[str, tuple[int, Framing]]] = {
    "librdkafka gzip": (GZIP, gzip.compress),
    "librdkafka snappy, one bare block": (SNAPPY, snappy.compress),
    "librdkafka lz4": (LZ4, librdkafka_lz4),
    "librdkafka zstd": (ZSTD, librdkafka_zstd),
    "Sarama gzip": (GZIP, go_gzip),
    "Sarama snappy": (SNAPPY, xerial),
    "Sarama snappy before it was framed": (SNAPPY, snappy.compress),
    "Sarama lz4": (LZ4, pierrec_lz4),
    "Sarama zstd": (ZSTD, klauspost_zstd),
    "kafka-python gzip": (GZIP, kafka_python.gzip_encode),
    "kafka-python snappy": (SNAPPY, kafka_python.snappy_encode),
    "kafka-python lz4": (LZ4, kafka_python.lz4_encode),
    "kafka-python zstd": (ZSTD, kafka_python.zstd_encode),
    "old Scala producer snappy": (SNAPPY, xerial),
    "old Java producer lz4": (LZ4, lz4_stream_of_old),
}

IN_MESSAGES: Final = [
    (name, magic)
    for name, (codec, _) in FRAMINGS.items()
    for magic in (0, 1)
    if codec != ZSTD and (magic == 0 or not name.startswith("old Java"))
]
IN_BATCHES: Final = [name for name in FRAMINGS if not name.startswith("old")]


@pytest.mark.parametrize(("name", "magic"), IN_MESSAGES)
def test_wrappers_of_other_clients_are_read(name: str, magic: int) -> None:
    codec, frame = FRAMINGS[name]
    first = 1000 if magic == 0 else 0
    inner = b"".join(
        message(first + slot, None, value, magic=magic, timestamp=slot)
        for slot, value in enumerate(VALUES)
    )
    last = 1000 + len(VALUES) - 1
    data = message(last, None, frame(inner), magic=magic, timestamp=19, attributes=codec)
    rows = read(data)
    assert [row.offset for row in rows] == [*range(1000, last + 1)]
    assert [row.value for row in rows] == VALUES


@pytest.mark.parametrize("name", IN_BATCHES)
def test_batches_of_other_clients_are_read(name: str) -> None:
    codec, frame = FRAMINGS[name]
    body = b"".join(
        record_of(varint(-1) + varint(len(value)) + value + varint(0), offset_delta=slot)
        for slot, value in enumerate(VALUES)
    )
    data = batch_of(frame(body), len(VALUES), attributes=codec, base_offset=1000)
    records = decode(data)
    assert [record.offset for record in records] == [*range(1000, 1000 + len(VALUES))]
    assert [record.value for record in records] == VALUES


def test_wrappers_of_old_librdkafka_count_from_0_where_they_have_offset_0() -> None:
    inner = b"".join(message(slot, None, b"v", magic=1) for slot in range(3))
    data = message(0, None, snappy.compress(inner), magic=1, attributes=SNAPPY)
    assert [row.offset for row in read(data)] == [0, 1, 2]
