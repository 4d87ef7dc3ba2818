"""Damage to record batches and message sets, and what reading them must come to.

Everything follows from a seed, so that the same damage can be read by compiled kernels and by the
same kernels run as Python over arrays that refuse a wrong index.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import numpy as np
from tests.support.record_batches import (
    STORED_COLUMNS,
    Record,
    Row,
    array,
    batch_of,
    encode,
    joined,
    records_of,
)

from kafkalog.errors import CorruptRecordError
from kafkalog.streaming.records.batch import invalid_checksums, scan_batches
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.records.compression import Codec, compress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.streaming.records.arrow_buffers import Bytes
    from kafkalog.streaming.records.batch import BatchTable

LIMIT: Final = 1 << 20
"""What a batch may decompress to; nothing here takes more by itself."""

_MANY: Final = 10_000
_INTERESTING: Final = [
    number.to_bytes(size, "big")
    for size in (1, 2, 4, 8)
    for number in (0, 1, 2 ** (8 * size - 1) - 1, 2 ** (8 * size - 1), 2 ** (8 * size) - 1)
]
_OLD: Final = [
    bytes.fromhex(text)
    for text in (
        # plain messages of magic 0
        (
            "0000000000000005000000101fecd70a0000000000016b000000017600000000000000060000000e"
            "a7ec68030000ffffffffffffffff"
        ),
        # a wrapper of magic 0, lz4
        (
            "00000000000000060000004ebc809c0d0003ffffffff0000004004224d1860401a31000000120001"
            "009105000000101fecd70a0f0071016b00000001760c00f0060000060000000ea7ec68030000ffff"
            "ffffffffffff00000000"
        ),
        # plain messages of magic 1
        (
            "000000000000000500000018e4e321bc010000000000000003e8000000016b000000017600000000"
            "00000006000000166e343abb010000000000000003e6ffffffffffffffff"
        ),
        # a wrapper of magic 1, gzip
        (
            "00000000000000060000004c7de50707010100000000000003e8ffffffff000000361f8b08000000"
            "000000ff6360800389278f15f7304239cc2f800463368828830a81a4c4f24cac76c3d53cfb0f0500"
            "4222b7b946000000"
        ),
    )
]
_ROWS: Final = [
    Row(b"key", b"value" * 30, 1_700_000_000_000, (("h", b"1"), ("h", None))),
    Row(None, None, -1),
    Row(b"", b"", 5, (("", b""),)),
    Row(b"k" * 70, b"v" * 200, 2**62),
]


def seeds() -> list[bytes]:
    """Return what is damaged: sound batches of each codec, and message sets."""
    new = [joined(encode(_ROWS, codec)).tobytes() for codec in Codec]
    return [*new, *_OLD, b"".join([*_OLD, *new])]


def damaged(seed: int, count: int) -> Iterator[bytes]:
    """Return so many damaged inputs, the same for the same seed."""
    random = np.random.default_rng(seed)
    sound = seeds()
    body = sound[0][61:]
    for _ in range(count):
        if random.random() < 0.4:
            # Damage records before they are compressed, to come past codec and checksum.
            codec = Codec(int(random.integers(0, len(Codec))))
            broken = compress(codec, _damage(random, body))
            count_field = int(random.choice([0, 1, 4, 5, 2**31 - 1]))
            yield batch_of(broken, count_field, attributes=int(codec))
        else:
            yield _damage(random, sound[int(random.integers(0, len(sound)))])


def _damage(random: np.random.Generator, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(int(random.integers(1, 4))):
        at = int(random.integers(0, len(out) + 1))
        kind = int(random.integers(0, 7))
        if kind == 0:
            del out[at:]
        elif kind == 1:
            out[at:at] = random.bytes(int(random.integers(1, 20)))
        elif kind == 2:
            del out[at : at + int(random.integers(1, 20))]
        elif kind == 3:
            piece = _INTERESTING[int(random.integers(0, len(_INTERESTING)))]
            out[at : at + len(piece)] = piece
        elif kind == 4:
            out += data[int(random.integers(0, len(data))) :]
        else:
            for position in random.integers(0, max(len(out), 1), int(random.integers(1, 8))):
                if position < len(out):
                    out[position] ^= 1 << int(random.integers(0, 8))
    return bytes(out)


def outcome(data: bytes) -> str:
    """Read damaged bytes in every way there is; anything but our own errors is a bug."""
    source = array(data)
    scan = scan_batches(source, path="fuzzed")
    assert 0 <= scan.consumed <= len(data)
    assert len(scan.table) == 0 or int(scan.table.end_position[-1]) == scan.consumed
    told = [f"{len(scan.table)} {scan.consumed} {scan.needed} {scan.invalid}"]
    told.append(str(invalid_checksums(source, scan.table).tolist()))
    for check_crcs in (True, False):
        for most in (3, _MANY):
            found = []
            for columns in (STORED_COLUMNS, STORED_COLUMNS ^ Columns.HEADERS):
                decoded = list(_decoded(columns, source, scan.table, most, check_crcs=check_crcs))
                told += map(repr, decoded)
                found.append([one for some in decoded for one in some])
            # of a batch that is damaged, and larger than the output's, some rows may come
            assert most == 3 or found[1] == [_without_headers(one) for one in found[0]]
    return "\n".join(told)


def _without_headers(found: Record | str) -> Record | str:
    return found if isinstance(found, str) else found._replace(headers=None)


def _decoded(
    columns: Columns, source: Bytes, table: BatchTable, max_rows: int, *, check_crcs: bool
) -> Iterator[list[Record] | tuple[str]]:
    """Yield the rows of each output batch, and at last what is said of damage."""
    decoder = RecordDecoder(
        columns,
        max_decompressed_bytes=LIMIT,
        check_crcs=check_crcs,
        max_rows=max_rows,
        max_batch_bytes=200,
    )
    try:
        for batch in decoder.decode(source, table, path="fuzzed"):
            yield records_of([batch])
    except CorruptRecordError as error:
        located = error.path == "fuzzed" and 0 <= error.position < len(source)
        yield (f"{type(error).__name__} {error.position} {error.offset} {error}",)
        if not located:
            raise


def digest(seed: int, count: int) -> str:
    """Return a hash of all outcomes of a seed."""
    hashed = hashlib.sha256()
    for data in damaged(seed, count):
        hashed.update(outcome(data).encode("utf-8", "surrogatepass"))
    return hashed.hexdigest()
