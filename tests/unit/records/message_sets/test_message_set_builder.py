"""Message sets of magic 0 and 1 are written as Kafka wrote them; others read the same in them."""

from __future__ import annotations

import dataclasses
import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.support.legacy_clients import CLIENTS, clients_know, read_with, write_with
from tests.support.message_set_encoding import encode_message_set
from tests.support.message_sets import (
    GOLDEN,
    GZIP,
    LOG_APPEND_TIME,
    LZ4,
    Row,
    gzip_stream,
    lz4_stream_of_old,
    message,
    read,
)

from kafkalog.errors import CorruptRecordError, RecordTooLargeError, RowError
from kafkalog.model import TimestampType
from kafkalog.streaming.records.builder import RecordColumns, assign_offsets
from kafkalog.streaming.records.compression import Codec
from kafkalog.streaming.records.message_sets.builder import (
    MessageSetBuilder,
    wrap_messages,
)

OLD_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)


def columns(
    *records: tuple[int, bytes | None, bytes | None], offsets: list[int] | None = None
) -> RecordColumns:
    """Give records (timestamp, key, value) as columns."""
    times, keys, values = zip(*records, strict=True) if records else ((), (), ())
    return RecordColumns.from_arrow(
        timestamps=np.array(times, np.int64),
        key=pa.array(keys, pa.binary()),
        value=pa.array(values, pa.binary()),
        offsets=None if offsets is None else np.array(offsets, np.int64),
    )


def encode(
    magic: int,
    codec: Codec,
    *records: tuple[int, bytes | None, bytes | None],
    first: int = 0,
    **options: object,
) -> bytes:
    """Encode records (timestamp, key, value) one after the other."""
    return encode_message_set(
        columns(*records),
        np.arange(len(records)),
        magic,
        codec,
        first,
        **options,
    )


TWO = ((1000, b"k", b"v"), (998, None, None))


# --- bytes


@pytest.mark.parametrize("name", ["v0 none", "v0 lz4", "v1 none", "v1 lz4"])
def test_the_bytes_are_those_of_kafkas_writer(name: str) -> None:
    magic, codec = int(name[1]), Codec.from_name(name.split()[1])
    assert encode(magic, codec, *TWO, first=5) == GOLDEN[name]


def test_snappy_is_kafkas_but_for_what_the_library_finds_to_repeat() -> None:
    ours, golden = encode(0, Codec.SNAPPY, *TWO, first=5), GOLDEN["v0 snappy"]
    assert read(ours) == read(golden)
    chunk = golden.index(b"SNAPPY") + 15  # behind the xerial header
    assert ours[16:22] == golden[16:22]
    assert ours[26:chunk] == golden[26:chunk]


def test_gzip_is_kafkas_but_for_the_byte_that_names_the_system() -> None:
    golden = GOLDEN["v1 gzip"]
    ours = bytearray(encode(1, Codec.GZIP, *TWO, first=5))
    system = golden.index(b"\x1f\x8b") + 9
    ours[system] = golden[system]
    ours[12:16] = struct.pack(">I", zlib.crc32(ours[16:]))
    assert golden == bytes(ours)


def test_a_wrapper_of_magic_1_holds_relative_offsets_and_the_greatest_timestamp() -> None:
    inner = b"".join(
        message(i, b"k", b"v%d" % i, magic=1, timestamp=t) for i, t in enumerate((5, 9, 7))
    )
    expected = message(42, None, gzip_stream(inner), magic=1, timestamp=9, attributes=GZIP)
    records = ((5, b"k", b"v0"), (9, b"k", b"v1"), (7, b"k", b"v2"))
    assert _without_gzip_system(expected) == _without_gzip_system(
        encode(1, Codec.GZIP, *records, first=40)
    )


def test_a_wrapper_of_magic_0_holds_absolute_offsets_and_the_broken_lz4_header() -> None:
    inner = b"".join(message(40 + i, None, b"v%d" % i, magic=0) for i in range(3))
    ours = encode(0, Codec.LZ4, *((1, None, b"v%d" % i) for i in range(3)), first=40)
    assert ours[26:33] == b"\x04\x22\x4d\x18\x60\x40\x1a"
    assert read(message(42, None, lz4_stream_of_old(inner), magic=0, attributes=LZ4)) == read(ours)
    assert int.from_bytes(ours[:8], "big") == 42


def test_append_time_stamps_messages_and_wrapper() -> None:
    options = {"timestamp_type": TimestampType.LOG_APPEND_TIME, "log_append_time_ms": 777}
    plain = encode(1, Codec.NONE, *TWO, **options)
    assert plain == message(
        0, b"k", b"v", magic=1, timestamp=777, attributes=LOG_APPEND_TIME
    ) + message(1, None, None, magic=1, timestamp=777, attributes=LOG_APPEND_TIME)
    wrapped = encode(1, Codec.GZIP, *TWO, **options)
    assert wrapped[17] == GZIP | LOG_APPEND_TIME
    assert int.from_bytes(wrapped[18:26], "big") == 777
    assert {(777, 1)} == {(row.timestamp, row.timestamp_type) for row in read(wrapped)}
    with pytest.raises(ValueError, match="needs the time"):
        MessageSetBuilder(1, Codec.NONE, timestamp_type=TimestampType.LOG_APPEND_TIME)


def _without_gzip_system(entry: bytes) -> bytes:
    """Blank what depends on who compressed: the system's byte, and the checksum over it."""
    system = entry.index(b"\x1f\x8b") + 9
    return entry[:12] + entry[16 : system - 1] + entry[system + 1 :]


# --- the builder


def test_sets_are_cut_at_the_target_and_hold_one_message_at_least() -> None:
    records = columns(*((i, None, bytes(100)) for i in range(5)), (5, None, bytes(1000)))
    builder = MessageSetBuilder(1, Codec.LZ4, target_bytes=2 * 134)
    full = builder.append(records, np.arange(6))
    last = builder.finish()
    assert last is not None
    assert builder.finish() is None
    assert [encoded.count for encoded in [*full, last]] == [2, 2, 1, 1]
    assert [(encoded.base_timestamp, encoded.max_timestamp) for encoded in [*full, last]] == [
        (0, 1),
        (2, 3),
        (4, 4),
        (5, 5),
    ]
    assert [encoded.last_offset_delta for encoded in [*full, last]] == [1, 1, 0, 0]


def test_magic_0_has_no_timestamps_whatever_the_columns_say() -> None:
    builder = MessageSetBuilder(0, Codec.NONE)
    builder.append(columns(*TWO), np.arange(2))
    encoded = builder.finish()
    assert encoded is not None
    assert (encoded.base_timestamp, encoded.max_timestamp) == (-1, -1)


def test_a_wrapper_that_is_too_large_gives_way_to_its_messages() -> None:
    noise = np.random.default_rng(7).bytes
    records = [(i, None, noise(400)) for i in range(4)]
    data = encode(1, Codec.GZIP, *records, max_message_bytes=480)
    assert [data[i * 434 + 17] for i in range(4)] == [0] * 4
    assert [value for _, _, value in records] == [row.value for row in read(data)]


@pytest.mark.parametrize(("magic", "codec"), [(0, Codec.NONE), (0, Codec.LZ4), (1, Codec.GZIP)])
def test_a_record_too_large_by_itself_is_refused(magic: int, codec: Codec) -> None:
    noise = np.random.default_rng(7).bytes(2000)
    with pytest.raises(RecordTooLargeError, match="more than 1000 bytes"):
        encode(magic, codec, (1, None, noise), max_message_bytes=1000)


def test_a_record_that_only_fits_compressed_is_compressed() -> None:
    data = encode(1, Codec.GZIP, (1, None, bytes(2000)), max_message_bytes=1000)
    assert [bytes(2000)] == [row.value for row in read(data)]


def test_headers_are_refused_by_row() -> None:
    records = RecordColumns.from_arrow(
        timestamps=np.zeros(3, np.int64),
        value=pa.array([b"a", b"b", b"c"]),
        headers=pa.array(
            [None, [], [{"key": "h", "value": b"1"}]],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    )
    builder = MessageSetBuilder(1, Codec.NONE)
    assert builder.append(records, np.array([1, 0])) == []
    with pytest.raises(RowError, match=r"row 2 has headers, which message\.format=v1 cannot hold"):
        builder.append(records, np.array([0, 2]))


def test_codecs_that_do_not_go_with_the_magic_are_refused() -> None:
    with pytest.raises(ValueError, match="zstd needs"):
        MessageSetBuilder(1, Codec.ZSTD)


def test_offsets_to_keep_are_kept_with_their_holes() -> None:
    records = columns(*((i, None, b"%d" % i) for i in range(4)), offsets=[3, 10, 11, 90])
    for magic in (0, 1):
        for codec in OLD_CODECS:
            data = encode_message_set(records, np.arange(4), magic, codec, 0)
            assert [row.offset for row in read(data)] == [3, 10, 11, 90]
    with pytest.raises(RowError, match="row 1 is to keep offset 10"):
        encode_message_set(records, np.array([2, 1]), 1, Codec.NONE, 0)


def test_rows_outside_of_their_columns_are_refused() -> None:
    with pytest.raises(RowError, match="row 2 lies outside"):
        MessageSetBuilder(1, Codec.NONE).append(columns(*TWO), np.array([0, 2]))
    sound = columns(*TWO)
    value = sound.value._replace(offsets=np.array([0, 99, 99]))
    broken = dataclasses.replace(sound, value=value)
    with pytest.raises(RowError, match="row 0 lies outside"):
        MessageSetBuilder(1, Codec.NONE).append(broken, np.array([0]))


# --- offsets


def test_staged_sets_are_numbered_one_behind_the_other() -> None:
    def numbered(codec: Codec, first: int) -> list[int]:
        builder = MessageSetBuilder(1, codec, target_bytes=150)
        records = columns(*((i, None, b"%d" % i) for i in range(10)))
        staged = b"".join(encoded.data for encoded in builder.append(records, np.arange(10)))
        last = builder.finish()
        assert last is not None
        data = np.frombuffer(bytearray(staged + last.data), np.uint8)
        assert first + 10 == assign_offsets(data, first, 0)
        rows = read(data.tobytes())
        assert [b"%d" % i for i in range(10)] == [row.value for row in rows]
        return [row.offset for row in rows]

    for codec in OLD_CODECS:
        assert list(range(2**40, 2**40 + 10)) == numbered(codec, 2**40)


def test_numbering_goes_from_plain_messages_to_wrappers_and_back() -> None:
    parts = [
        encode(1, Codec.NONE, *TWO),
        encode(1, Codec.LZ4, *TWO),
        encode(1, Codec.LZ4, *TWO[:1]),
        encode(1, Codec.NONE, *TWO[:1]),
        encode(1, Codec.NONE, *TWO),
    ]
    data = np.frombuffer(bytearray(b"".join(parts)), np.uint8)
    assert assign_offsets(data, 100, 0) == 108
    assert list(range(100, 108)) == [row.offset for row in read(data.tobytes())]


def test_the_rest_of_a_set_is_numbered_from_its_first_message() -> None:
    one, two = encode(0, Codec.NONE, *TWO, *TWO), encode(0, Codec.NONE, *TWO)
    second_half = one[len(two) :]
    data = np.frombuffer(bytearray(second_half + two), np.uint8)
    assert assign_offsets(data, 2**50, 0) == 2**50 + 4
    assert [2**50 + i for i in range(4)] == [row.offset for row in read(data.tobytes())]


def test_a_set_of_magic_0_stays_plain_until_it_has_its_offsets() -> None:
    builder = MessageSetBuilder(0, Codec.GZIP)
    assert builder.append(columns(*TWO), np.arange(2)) == []
    last = builder.finish()
    assert last is not None
    assert last.data == encode(0, Codec.NONE, *TWO, first=0)


def test_a_record_of_magic_0_may_be_as_large_as_its_wrapper_allows() -> None:
    builder = MessageSetBuilder(0, Codec.GZIP, max_message_bytes=500)
    flat, uneven = bytes(2000), np.random.default_rng(1).bytes(2000)
    full = builder.append(columns((0, None, flat), (0, None, b"x")), np.arange(2))
    assert [encoded.count for encoded in full] == [1]
    with pytest.raises(RecordTooLargeError, match=r"\(gzip\), more than 500 bytes"):
        builder.append(columns((0, b"k", uneven), (0, None, b"x")), np.arange(2))


@pytest.mark.parametrize("magic", [0, 1])
def test_a_set_spans_no_more_offsets_than_an_index_can_hold(magic: int) -> None:
    offsets = [7, 7 + 2**31 - 1, 7 + 2**31, 2**62]
    records = columns(*((i, None, b"%d" % i) for i in range(4)), offsets=offsets)
    builder = MessageSetBuilder(magic, Codec.NONE)
    encoded = builder.append(records, np.arange(4))
    encoded += [last] if (last := builder.finish()) else []
    assert [each.first_offset for each in encoded] == [7, 7 + 2**31, 2**62]
    assert [each.last_offset_delta for each in encoded] == [2**31 - 1, 0, 0]


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(encode(0, Codec.GZIP, *TWO), id="a wrapper of magic 0"),
        pytest.param(encode(1, Codec.NONE, *TWO)[:-1], id="a torn message"),
        pytest.param(encode(1, Codec.NONE, *TWO)[:20], id="less than a message"),
        pytest.param(message(-1, None, None, magic=1), id="a negative offset"),
        pytest.param(message(2**63 - 1, None, None, magic=1), id="an offset that overflows"),
    ],
)
def test_what_cannot_be_numbered_is_refused_by_place(bad: bytes) -> None:
    good = message(0, None, None, magic=1)
    data = np.frombuffer(bytearray(good + bad), np.uint8)
    with pytest.raises(CorruptRecordError) as raised:
        assign_offsets(data, 5, 0)
    assert raised.value.position >= len(good)


def test_only_plain_messages_of_magic_0_can_be_wrapped_later() -> None:
    for bad in (
        encode(1, Codec.NONE, *TWO),
        encode(0, Codec.GZIP, *TWO),
        encode(0, Codec.NONE, *TWO)[:-1],
    ):
        with pytest.raises(CorruptRecordError, match="plain messages of magic 0"):
            wrap_messages(np.frombuffer(bad, np.uint8), Codec.GZIP)
    assert wrap_messages(np.empty(0, np.uint8), Codec.GZIP) == b""


def test_messages_of_magic_0_are_wrapped_up_to_the_target() -> None:
    plain = encode(0, Codec.NONE, *((0, None, bytes(74)) for _ in range(10)), first=30)
    data = wrap_messages(np.frombuffer(plain, np.uint8), Codec.GZIP, target_bytes=350)
    offsets = []
    while data:
        offsets.append(int.from_bytes(data[:8], "big"))
        assert (data[16], data[17]) == (0, GZIP)
        data = data[12 + int.from_bytes(data[8:12], "big") :]
    assert offsets == [32, 35, 38, 39]


# --- round trips, and other clients

_BYTES = (
    st.none() | st.binary(max_size=40) | st.binary(min_size=1, max_size=3).map(lambda b: b * 99)
)
_RECORDS = st.lists(st.tuples(st.integers(-1, 2**62), _BYTES, _BYTES), min_size=1, max_size=40)


def _expected(
    magic: int, first: int, records: list[tuple[int, bytes | None, bytes | None]]
) -> list[Row]:
    kind = 0 if magic else -1
    return [
        Row(first + i, time if magic else -1, kind, key, value)
        for i, (time, key, value) in enumerate(records)
    ]


@given(
    records=_RECORDS,
    magic=st.sampled_from((0, 1)),
    codec=st.sampled_from(OLD_CODECS),
    first=st.integers(0, 2**62),
    target=st.sampled_from((1, 60, 500, 10**6)),
)
@settings(max_examples=150, deadline=None)
def test_what_is_written_is_read_again(
    records: list[tuple[int, bytes | None, bytes | None]],
    magic: int,
    codec: Codec,
    first: int,
    target: int,
) -> None:
    data = encode(magic, codec, *records, first=first, target_bytes=target)
    assert _expected(magic, first, records) == read(data, max_rows=17)


@pytest.mark.parametrize("client", CLIENTS)
@given(
    records=_RECORDS,
    magic=st.sampled_from((0, 1)),
    codec=st.sampled_from(OLD_CODECS),
    target=st.sampled_from((1, 500)),
)
@settings(max_examples=60, deadline=None)
def test_other_clients_read_what_we_write(
    client: str,
    records: list[tuple[int, bytes | None, bytes | None]],
    magic: int,
    codec: Codec,
    target: int,
) -> None:
    assume(clients_know(magic, codec))
    data = encode(magic, codec, *records, first=70, target_bytes=target)
    assert _expected(magic, 70, records) == read_with(client, data)


@pytest.mark.parametrize("client", CLIENTS)
@given(records=_RECORDS, magic=st.sampled_from((0, 1)), codec=st.sampled_from(OLD_CODECS))
@settings(max_examples=60, deadline=None)
def test_we_read_what_other_clients_write(
    client: str,
    records: list[tuple[int, bytes | None, bytes | None]],
    magic: int,
    codec: Codec,
) -> None:
    assume(clients_know(magic, codec))
    data = write_with(client, magic, codec, records)
    assert _expected(magic, 0, records) == read(data)
