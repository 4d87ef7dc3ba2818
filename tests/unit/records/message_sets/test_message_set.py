"""Message sets of magic 0 and 1 are read as Kafka reads them, whoever wrote them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
import snappy
from tests.support.message_sets import (
    GOLDEN,
    GZIP,
    LOG_APPEND_TIME,
    LZ4,
    SNAPPY,
    ZSTD,
    Row,
    gzip_stream,
    lz4_stream,
    lz4_stream_of_old,
    message,
    read,
    xerial_stream,
)

from kafkalog.errors import (
    ChecksumMismatchError,
    CorruptRecordError,
    DecompressedTooLargeError,
    TimestampOutOfRangeError,
    UnsupportedCodecError,
)
from kafkalog.streaming.records.batch import scan_batches
from kafkalog.streaming.records.columns import RecordDecoder
from kafkalog.streaming.records.message_sets import layout as message_set
from kafkalog.streaming.records.message_sets.reader import MessageSetReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafkalog.streaming.records.arrow_buffers import Bytes
    from kafkalog.streaming.records.batch import BatchTable


@pytest.mark.parametrize("name", GOLDEN)
def test_what_kafka_wrote_is_read(name: str) -> None:
    times = (1000, 998) if name.startswith("v1") else (-1, -1)
    kind = 0 if name.startswith("v1") else -1
    expected = [Row(5, times[0], kind, b"k", b"v"), Row(6, times[1], kind, None, None)]
    assert expected == read(GOLDEN[name])


def test_the_overheads_are_those_of_empty_messages() -> None:
    assert len(message(0, None, None, magic=0)) == message_set.MESSAGE_OVERHEAD_V0 == 26
    assert len(message(0, None, None, magic=1)) == message_set.MESSAGE_OVERHEAD_V1 == 34


def test_null_and_empty_are_kept_apart() -> None:
    pairs = [(None, None), (b"", b""), (None, b""), (b"", None), (b"k", None), (None, b"v")]
    for magic in (0, 1):
        data = b"".join(message(i, *pair, magic=magic) for i, pair in enumerate(pairs))
        assert pairs == [(row.key, row.value) for row in read(data)]


def test_any_negative_length_is_null_and_bytes_behind_the_value_are_ignored_as_in_kafka() -> None:
    plain = message(3, None, b"v", magic=1, timestamp=7, trailing=b"rest")
    assert [Row(3, 7, 0, None, b"v")] == read(plain)
    inner = bytearray(message(0, None, None, magic=0))
    inner[18:22] = struct.pack(">i", -2)
    assert [Row(0, -1, -1, None, None)] == read(bytes(inner), check_crcs=False)


def test_each_plain_message_has_its_own_timestamp_type() -> None:
    data = (
        message(0, None, b"a", magic=0)
        + message(1, None, b"b", magic=1, timestamp=5)
        + message(2, None, b"c", magic=1, timestamp=6, attributes=LOG_APPEND_TIME)
        + message(3, None, b"d", magic=1)
        # bit 3 means nothing in magic 0
        + message(4, None, b"e", magic=0, attributes=LOG_APPEND_TIME)
    )
    assert [(row.timestamp, row.timestamp_type) for row in read(data)] == [
        (-1, -1),
        (5, 0),
        (6, 1),
        (-1, 0),
        (-1, -1),
    ]


# --- wrappers


def _inner(magic: int, *offsets: int) -> bytes:
    return b"".join(
        message(o, b"k%d" % o, b"v%d" % o, magic=magic, timestamp=100 + o) for o in offsets
    )


_STREAMS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip": (GZIP, gzip_stream),
    "gzip in two members": (
        GZIP,
        lambda data: gzip_stream(data[: len(data) // 2]) + gzip_stream(data[len(data) // 2 :]),
    ),
    "gzip with trailing zeros": (GZIP, lambda data: gzip_stream(data) + bytes(9)),
    "snappy, xerial": (SNAPPY, xerial_stream),
    "snappy, xerial, tiny chunks": (SNAPPY, lambda data: xerial_stream(data, 7)),
    "snappy, two xerial streams": (
        SNAPPY,
        lambda data: xerial_stream(data[:50]) + xerial_stream(data[50:]),
    ),
    "snappy, one raw block (librdkafka, Sarama)": (SNAPPY, snappy.compress),
    "lz4": (LZ4, lz4_stream),
    "lz4 with bytes behind its end": (LZ4, lambda data: lz4_stream(data) + b"rest"),
}


@pytest.mark.parametrize("name", _STREAMS)
@pytest.mark.parametrize("magic", [0, 1])
def test_every_framing_of_every_codec_is_opened(name: str, magic: int) -> None:
    codec, stream = _STREAMS[name]
    first = 40 if magic == 0 else 0
    inner = _inner(magic, *range(first, first + 5))
    data = message(44, None, stream(inner), magic=magic, timestamp=999, attributes=codec)
    rows = read(data)
    assert list(range(40, 45)) == [row.offset for row in rows]
    assert [b"v%d" % i for i in range(first, first + 5)] == [row.value for row in rows]
    assert {-1 if magic == 0 else 0} == {row.timestamp_type for row in rows}
    expected = [-1] * 5 if magic == 0 else list(range(100, 105))
    assert expected == [row.timestamp for row in rows]


def test_magic_0_takes_lz4_with_either_header_checksum_and_magic_1_only_the_right_one() -> None:
    old = message(6, None, lz4_stream_of_old(_inner(0, 5, 6)), magic=0, attributes=LZ4)
    right = message(8, None, lz4_stream(_inner(0, 7, 8)), magic=0, attributes=LZ4)
    assert [row.offset for row in read(old + right)] == [5, 6, 7, 8]
    wrong = message(6, None, lz4_stream_of_old(_inner(1, 0, 1)), magic=1, attributes=LZ4)
    with pytest.raises(CorruptRecordError, match="checksum"):
        read(wrong)


@pytest.mark.parametrize(
    ("wrapper", "inner", "expected"),
    [
        pytest.param(23, (0, 1, 2), (21, 22, 23), id="as producers write them"),
        pytest.param(23, (1, 4, 9), (15, 18, 23), id="with holes of compaction"),
        pytest.param(23, (7,), (23,), id="all but one compacted away"),
        pytest.param(0, (0, 1, 2), (0, 1, 2), id="wrapper offset 0: old librdkafka"),
        pytest.param(0, (3, 5), (3, 5), id="wrapper offset 0 with holes"),
        pytest.param(2, (0, 1, 2), (0, 1, 2), id="from offset 0 on"),
        pytest.param(2**63 - 2, (0, 1), (2**63 - 3, 2**63 - 2), id="the highest offsets"),
    ],
)
def test_relative_offsets_of_magic_1_count_from_the_wrapper(
    wrapper: int, inner: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    data = message(wrapper, None, gzip_stream(_inner(1, *inner)), magic=1, attributes=GZIP)
    facts = MessageSetReader().wrapper_facts(*_scanned(data))
    assert ([expected[0]], [len(inner)]) == tuple(fact.tolist() for fact in facts)
    assert list(expected) == [row.offset for row in read(data)]


def test_absolute_offsets_of_magic_0_are_taken_as_they_are() -> None:
    data = message(9, None, gzip_stream(_inner(0, 3, 7, 9)), magic=0, attributes=GZIP)
    assert [row.offset for row in read(data)] == [3, 7, 9]


def test_a_wrapper_with_append_time_stamps_all_it_holds() -> None:
    attributes = GZIP | LOG_APPEND_TIME
    data = message(
        2, None, gzip_stream(_inner(1, 0, 1, 2)), magic=1, timestamp=777, attributes=attributes
    )
    assert [(row.timestamp, row.timestamp_type) for row in read(data)] == [(777, 1)] * 3


def test_magic_0_inside_of_a_wrapper_of_magic_1_has_no_timestamp() -> None:
    inner = _inner(1, 0) + _inner(0, 1)
    create = message(1, None, gzip_stream(inner), magic=1, timestamp=777, attributes=GZIP)
    append = message(
        3, None, gzip_stream(inner), magic=1, timestamp=888, attributes=GZIP | LOG_APPEND_TIME
    )
    assert [(row.offset, row.timestamp, row.timestamp_type) for row in read(create + append)] == [
        (0, 100, 0),
        (1, -1, 0),
        (2, 888, 1),
        (3, -1, 1),
    ]


def test_magic_1_inside_of_a_wrapper_of_magic_0_keeps_offset_and_timestamp() -> None:
    data = message(8, None, gzip_stream(_inner(1, 5, 8)), magic=0, attributes=GZIP)
    assert [(row.offset, row.timestamp, row.timestamp_type) for row in read(data)] == [
        (5, 105, -1),
        (8, 108, -1),
    ]


@pytest.mark.parametrize("torn", [1, 11, 12, 20, 36])
def test_a_torn_message_at_the_end_of_a_wrapper_is_dropped(torn: int) -> None:
    inner = _inner(1, 0, 1) + _inner(1, 2)[:torn]
    data = message(11, None, gzip_stream(inner), magic=1, attributes=GZIP)
    assert [row.offset for row in read(data)] == [10, 11]


def test_a_wrapper_may_have_a_key() -> None:
    data = message(1, b"key", gzip_stream(_inner(1, 0, 1)), magic=1, attributes=GZIP)
    assert [row.offset for row in read(data)] == [0, 1]


# --- wrappers that are none


def _wrapped(inner: bytes, offset: int = 9, magic: int = 1) -> bytes:
    return message(offset, None, gzip_stream(inner), magic=magic, attributes=GZIP)


def _resized(entry: bytes, size: int) -> bytes:
    return entry[:8] + struct.pack(">i", size) + entry[12:]


def _with(entry: bytes, position: int, value: bytes) -> bytes:
    return entry[:position] + value + entry[position + len(value) :]


_BAD_WRAPPERS = {
    "null value": (message(9, None, None, magic=1, attributes=GZIP), "value is null"),
    "no messages": (_wrapped(b""), "without messages"),
    "only a torn message": (_wrapped(_inner(1, 0)[:-1]), "without messages"),
    "compressed twice": (_wrapped(_wrapped(_inner(1, 0), 0)), "inside of another"),
    "magic 2 inside": (_wrapped(_with(_inner(1, 0), 16, b"\2")), "neither 0 nor 1"),
    "negative inner offset": (_wrapped(_inner(1, 0) + _with(_inner(1, 1), 0, b"\xff")), "negative"),
    "wrapper offset below the last inner one": (_wrapped(_inner(1, 0, 12)), "relative offset 12"),
    "inner offsets that overflow": (
        message(2**63 - 1, None, gzip_stream(_inner(1, 5, 0)), magic=1, attributes=GZIP),
        "beyond 2\\^63-1",
    ),
    "inner size below 14": (_wrapped(_resized(_inner(1, 0), 13)), "too small"),
    "negative inner size": (_wrapped(_resized(_inner(1, 0), -1)), "too small"),
    "inner size below that of magic 1": (
        _wrapped(_resized(message(0, None, None, magic=1), 21)),
        "too small",
    ),
    "inner key beyond the message": (_wrapped(_with(_inner(1, 0), 26, b"\0\0\0\7")), "key ends"),
    "inner value beyond the message": (
        _wrapped(_with(_inner(1, 0), 32, b"\x7f\xff\xff\xff")),
        "value ends",
    ),
    "value beyond the wrapper": (
        _with(_wrapped(_inner(1, 0)), 30, b"\x7f\xff\xff\xff"),
        "value ends",
    ),
    "key beyond the wrapper": (_with(_wrapped(_inner(1, 0)), 26, b"\x7f\xff\xff\xff"), "before"),
    "no gzip": (message(9, None, b"nonsense", magic=1, attributes=GZIP), "gzip"),
    "gzip cut short": (
        message(9, None, gzip_stream(_inner(1, 0))[:-9], magic=1, attributes=GZIP),
        "gzip",
    ),
}


@pytest.mark.parametrize("name", _BAD_WRAPPERS)
def test_a_bad_wrapper_is_refused_by_name_and_place(name: str) -> None:
    bad, reason = _BAD_WRAPPERS[name]
    good = message(3, None, b"good", magic=1)
    offset = struct.unpack_from(">q", bad)[0]
    with pytest.raises(CorruptRecordError, match=reason) as raised:
        read(good + bad, path="x.log", file_position=1000, check_crcs=False)
    expected = ("x.log", 1000 + len(good), offset)
    assert expected == (raised.value.path, raised.value.position, raised.value.offset)
    assert f"x.log: the message at byte {1000 + len(good)} (offset {offset}" in str(raised.value)


@pytest.mark.parametrize("codec", [ZSTD, 5, 6, 7])
@pytest.mark.parametrize("magic", [0, 1])
def test_codecs_that_came_later_are_refused(codec: int, magic: int) -> None:
    with pytest.raises(UnsupportedCodecError, match=f"magic {magic}"):
        read(message(9, None, b"...", magic=magic, attributes=codec))


def test_a_wrapper_that_holds_too_much_is_refused_with_both_sizes() -> None:
    inner = message(0, None, bytes(100_000), magic=1)
    data = message(0, None, gzip_stream(inner), magic=1, attributes=GZIP)
    assert len(read(data, max_decompressed_bytes=len(inner))) == 1
    with pytest.raises(DecompressedTooLargeError, match="50000"):
        read(data, max_decompressed_bytes=50_000)


def test_a_raw_snappy_block_that_claims_too_much_is_refused_before_anything_is_allocated() -> None:
    claim = b"\xff\xff\xff\xff\x07" + bytes(20)
    data = message(0, None, claim, magic=1, attributes=SNAPPY)
    with pytest.raises(CorruptRecordError):
        read(data)


def test_rows_in_front_of_what_is_corrupt_come_first_and_none_of_a_bad_wrapper() -> None:
    good = _wrapped(_inner(1, 0, 1), 1) + message(2, None, b"plain", magic=1)
    bad = _wrapped(_inner(1, 0, 1) + _with(_inner(1, 2), 26, b"\0\0\1\0"), 6)
    array, table = _scanned(good + _wrapped(_inner(1, 0), 3) + bad + good)
    rows: list[list[int]] = []
    with pytest.raises(CorruptRecordError) as raised:
        rows.extend(batch["offset"].to_pylist() for batch in RecordDecoder().decode(array, table))
    assert rows == [[0, 1, 2, 3]]
    assert raised.value.offset == 6


# --- checksums


@pytest.mark.parametrize("size", [10, 5000])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrong_checksum_is_named(magic: int, size: int) -> None:
    good = message(0, None, bytes(size), magic=magic)
    bad = message(1, None, bytes(size), magic=magic, crc_error=1)
    with pytest.raises(ChecksumMismatchError) as raised:
        read(good + bad)
    assert (len(good), 1) == (raised.value.position, raised.value.offset)
    assert len(read(good + bad, check_crcs=False)) == 2


def test_inner_checksums_are_checked_only_when_asked_for() -> None:
    inner = _inner(1, 0) + message(1, None, b"v", magic=1, crc_error=4)
    data = message(8, None, gzip_stream(inner), magic=1, attributes=GZIP)
    assert [row.offset for row in read(data)] == [7, 8]
    array, table = _scanned(data)
    with pytest.raises(ChecksumMismatchError, match=f"at byte {len(_inner(1, 0))}"):
        list(MessageSetReader(check_inner_crcs=True).groups(array, table))
    sound = message(8, None, gzip_stream(_inner(1, 0, 1)), magic=1, attributes=GZIP)
    assert len(list(MessageSetReader(check_inner_crcs=True).groups(*_scanned(sound)))) == 1


# --- ranges, sizes, mixtures


def test_only_offsets_in_the_range_come() -> None:
    data = (
        message(3, None, b"a", magic=1)
        + _wrapped(_inner(1, 0, 1, 2, 3), 7)
        + message(8, None, b"b", magic=0)
        + _wrapped(_inner(0, 9, 10, 11), 11, magic=0)
    )
    for start in range(2, 13):
        for end in range(start, 13):
            expected = list(range(max(start, 3), min(end, 12)))
            rows = read(data, start_offset=start, end_offset=end)
            assert expected == [row.offset for row in rows]


def test_output_is_cut_by_rows_and_bytes_wherever_that_falls() -> None:
    values = [bytes([i]) * (i * 37 % 200) for i in range(60)]
    plain = b"".join(message(i, b"k", value, magic=1) for i, value in enumerate(values[:20]))
    inner = b"".join(message(i, b"k", value, magic=1) for i, value in enumerate(values[20:40]))
    later = b"".join(message(40 + i, b"k", v, magic=0) for i, v in enumerate(values[40:]))
    data = plain + _wrapped(inner, 39) + _wrapped(later, 59, magic=0)
    for max_rows, max_batch_bytes in [(1, 10**6), (7, 10**6), (1000, 1), (1000, 500), (3, 300)]:
        rows = read(data, max_rows=max_rows, max_batch_bytes=max_batch_bytes)
        assert list(enumerate(values)) == [(row.offset, row.value) for row in rows]


def test_columns_that_are_not_wanted_are_left_out() -> None:
    from kafkalog.streaming.records.columns import Columns

    array, table = _scanned(_wrapped(_inner(1, 0, 1), 1) + message(2, b"k", b"v", magic=0))
    (batch,) = RecordDecoder(Columns.VALUE).decode(array, table)
    assert batch.to_pydict() == {"value": [b"v0", b"v1", b"v"]}


def test_a_timestamp_beyond_microseconds_is_refused_by_offset_and_value() -> None:
    data = message(7, None, b"", magic=1, timestamp=2**62)
    array, table = _scanned(data)
    with pytest.raises(TimestampOutOfRangeError, match=f"offset 7 .* {2**62}"):
        list(RecordDecoder().decode(array, table))


def test_facts_of_plain_messages_are_their_own() -> None:
    data = message(3, None, b"a", magic=1) + _wrapped(_inner(0, 5, 6), 6, magic=0)
    facts = MessageSetReader().wrapper_facts(*_scanned(data))
    assert (facts.base_offset.tolist(), facts.message_count.tolist()) == ([3, 5], [1, 2])


def _scanned(data: bytes) -> tuple[Bytes, BatchTable]:
    array = np.frombuffer(data, np.uint8)
    return array, scan_batches(array).table
