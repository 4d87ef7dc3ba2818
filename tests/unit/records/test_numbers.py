"""Variable-length numbers at each boundary, and the hash of keys, as Kafka has them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.support.record_batches import Row, batch_of, decode, encode, record_of, varint

from kafkalog.errors import CorruptRecordError
from kafkalog.streaming.records.murmur2_kernels import murmur2
from kafkalog.texts import decode_as_java

_INTS = sorted(
    {sign * (1 << bits) + step for bits in range(31) for sign in (1, -1) for step in (-1, 0, 1)}
    | {2**31 - 1, -(2**31)}
)
_LONGS = sorted(
    {sign * (1 << bits) + step for bits in range(63) for sign in (1, -1) for step in (-1, 0, 1)}
    | {2**63 - 1, -(2**63)}
)


@pytest.mark.parametrize(
    ("number", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (-8192, "ff7f"),
        (8192, "808001"),
        (-8193, "818001"),
        (1048575, "feff7f"),
        (-1048576, "ffff7f"),
        (134217727, "feffff7f"),
        (134217728, "8080808001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (2**62, "80808080808080808001"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_the_table_of_kafkas_own_tests_holds(number: int, encoded: str) -> None:
    assert varint(number).hex() == encoded
    (record,) = decode(batch_of(record_of(timestamp_delta=number), 1))
    assert record.timestamp == number


def test_longs_of_every_size_are_read_and_written() -> None:
    for number in _LONGS:
        (record,) = decode(batch_of(record_of(timestamp_delta=number), 1))
        assert record.timestamp == number
    rows = [Row(None, None, 0), *(Row(None, None, number) for number in _LONGS)]
    (batch,) = encode(rows)
    body = b"".join(
        record_of(timestamp_delta=row.timestamp, offset_delta=i) for i, row in enumerate(rows)
    )
    assert batch.data[61:] == body


def test_ints_of_every_size_are_read() -> None:
    base = 2**40
    for number in _INTS:
        data = batch_of(
            record_of(offset_delta=number), 1, base_offset=base, last_offset_delta=2**31 - 1
        )
        assert [one.offset for one in decode(data)] == [base + number]


@pytest.mark.parametrize("length", range(1, 6))
def test_numbers_may_be_longer_than_they_need_to_be(length: int) -> None:
    zero = b"\x80" * (length - 1) + b"\0"
    body = b"\0" + zero + zero + zero + zero + zero
    (record,) = decode(batch_of(varint(len(body)) + body, 1))
    assert (record.key, record.value, record.headers) == (b"", b"", None)


@pytest.mark.parametrize("high_bits", [0x10, 0x70])
def test_bits_that_an_int_has_no_room_for_are_dropped_as_in_java(high_bits: int) -> None:
    delta = b"\xfe\xff\xff\xff" + bytes([0x0F | high_bits])
    body = b"\0\0" + delta + varint(-1) + varint(-1) + varint(0)
    data = batch_of(varint(len(body)) + body, 1, last_offset_delta=2**31 - 1)
    assert [one.offset for one in decode(data)] == [2**31 - 1]


def test_an_int_of_six_bytes_and_a_long_of_eleven_are_corrupt() -> None:
    for body in (
        b"\0\0" + b"\x80" * 5 + b"\0" + varint(-1) + varint(-1) + varint(0),
        b"\0" + b"\x80" * 10 + b"\0\0" + varint(-1) + varint(-1) + varint(0),
    ):
        with pytest.raises(CorruptRecordError, match="number does not end"):
            decode(batch_of(varint(len(body)) + body, 1))


def _murmur2(key: bytes) -> int:
    """Hash by the definition, in unbounded integers."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    hashed = 0x9747B28C ^ len(key)
    for i in range(0, len(key) - 3, 4):
        word = int.from_bytes(key[i : i + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        hashed = hashed * multiplier & mask ^ word
    tail = key[len(key) // 4 * 4 :]
    if tail:
        hashed = (hashed ^ int.from_bytes(tail, "little")) * multiplier & mask
    hashed = (hashed ^ hashed >> 13) * multiplier & mask
    hashed ^= hashed >> 15
    return hashed - (1 << 32) if hashed >> 31 else hashed


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_keys_hash_as_in_java(kind: pa.DataType) -> None:
    keys = pa.array(["21", "foobar", "abc", ""], pa.string()).cast(kind)
    assert murmur2(keys).tolist() == [-973932308, -790332482, 479470107, 275646681]
    assert murmur2(keys[1:3]).tolist() == [-790332482, 479470107]
    assert murmur2(pa.chunked_array([keys[:1], keys[3:]])).tolist() == [-973932308, 275646681]


def test_hashes_of_keys_of_all_lengths_match_the_definition() -> None:
    random = np.random.default_rng(5)
    keys = [random.bytes(length % 40) for length in range(400)]
    assert murmur2(pa.array(keys)).tolist() == [_murmur2(key) for key in keys]


def test_a_null_key_hashes_to_0_and_no_keys_to_nothing() -> None:
    assert murmur2(pa.array([None, b"abc", None], pa.binary())).tolist() == [0, 479470107, 0]
    assert murmur2(pa.nulls(2)).tolist() == [0, 0]
    assert murmur2(pa.array([], pa.binary())).tolist() == []
    with pytest.raises(TypeError, match="holds no bytes"):
        murmur2(pa.array([1]))


def test_text_that_is_no_utf8_is_replaced_only_where_it_is_wrong() -> None:
    assert decode_as_java("ключ".encode() + b"\xff\xed\xa0\x80>") == "ключ\ufffd\ufffd>"
