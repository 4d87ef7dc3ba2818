"""Decoding gives the rows that are there, and an error that says where for everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from tests.support.counted_work import traced_peak
from tests.support.record_batches import (
    STORED_COLUMNS,
    Row,
    array,
    batch_of,
    decode,
    encode,
    joined,
    patched,
    record_of,
    records_of,
    table_of,
    varint,
)

from kafkalog.errors import (
    ChecksumMismatchError,
    CorruptRecordError,
    DecompressedTooLargeError,
    TimestampOutOfRangeError,
    UnsupportedCodecError,
)
from kafkalog.model import TimestampType
from kafkalog.streaming.records.builder import assign_offsets
from kafkalog.streaming.records.columns import ALL_COLUMNS, Columns, RecordDecoder
from kafkalog.streaming.records.compression import Codec

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


def _log(*sizes: int, codec: Codec = Codec.NONE) -> NDArray[np.uint8]:
    """Batches of so many records, whose values are their offsets, from offset 0 on."""
    parts = []
    offset = 0
    for size in sizes:
        rows = [Row(None, b"%d" % (offset + i), offset + i) for i in range(size)]
        (batch,) = encode(rows, codec)
        data = joined([batch])
        offset = assign_offsets(data, offset, 0)
        parts.append(data)
    return np.concatenate(parts)


def test_batches_of_few_rows_do_not_keep_the_room_for_many() -> None:
    data = _log(2)
    batches: list[pa.RecordBatch] = []

    def decode_each() -> None:
        for _ in range(50):
            decoder = RecordDecoder(ALL_COLUMNS)
            batches.extend(decoder.decode(data, table_of(data)))

    decode_each()
    batches.clear()
    assert traced_peak(decode_each) / 50 < 40_000
    assert {batch.num_rows for batch in batches} == {2}


def _values(data: NDArray[np.uint8], start: int = 0, end: int = 2**63 - 1) -> list[int]:
    return [int(one.value or b"") for one in decode(data, start_offset=start, end_offset=end)]


# What comes out


def test_the_schema_has_the_wanted_columns_in_one_order() -> None:
    data = _log(3)
    (batch,) = RecordDecoder().decode(data, table_of(data))
    assert batch.schema == pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("timestampType", pa.int32()),
            ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ]
    )


@pytest.mark.parametrize(
    "columns",
    [*Columns, Columns.VALUE | Columns.OFFSET, Columns.HEADERS | Columns.KEY, STORED_COLUMNS],
)
def test_columns_that_are_not_wanted_change_nothing_in_those_that_are(columns: Columns) -> None:
    rows = [Row(b"k%d" % i, None if i % 3 else b"v", i, (("h", b"%d" % i),)) for i in range(20)]
    data = joined(encode(rows))
    table = table_of(data)
    everything = ALL_COLUMNS | Columns.TIMESTAMP_MS
    (all_of_it,) = RecordDecoder(everything).decode(data, table)
    (some_of_it,) = RecordDecoder(columns).decode(data, table)
    assert some_of_it.num_columns == columns.bit_count()
    assert some_of_it == all_of_it.select(some_of_it.schema.names)


def test_without_a_column_there_are_still_rows() -> None:
    data = _log(7)
    assert [b.num_rows for b in RecordDecoder(Columns(0)).decode(data, table_of(data))] == [7]


def test_null_and_empty_are_kept_apart_in_keys_values_and_headers() -> None:
    rows = [
        Row(None, b"", 0, (("", None), ("", b""))),
        Row(b"", None, 0, ()),
        Row(b"", b"", 0, (("k", b"\0"), ("k", b"\0"))),
    ]
    found = decode(joined(encode(rows)))
    assert [(one.key, one.value, one.headers or ()) for one in found] == [
        (row.key, row.value, row.headers) for row in rows
    ]
    assert found[1].headers is None


def test_any_negative_length_is_null_as_in_java() -> None:
    fields = varint(-5) + varint(-(2**31)) + varint(1) + varint(1) + b"h" + varint(-77)
    (record,) = decode(batch_of(record_of(fields), 1))
    assert (record.key, record.value, record.headers) == (None, None, (("h", None),))


def test_records_that_were_compacted_away_leave_holes_in_the_offsets() -> None:
    body = record_of(offset_delta=2) + record_of(offset_delta=7)
    data = batch_of(body, 2, base_offset=100, last_offset_delta=9)
    assert [one.offset for one in decode(data)] == [102, 107]
    assert [one.offset for one in decode(data, start_offset=103)] == [107]
    assert [one.offset for one in decode(data, start_offset=108)] == []


def test_an_emptied_batch_has_no_rows() -> None:
    empty = batch_of(b"", 0, base_offset=5, last_offset_delta=4, base_timestamp=-1)
    after = batch_of(record_of(), 1, base_offset=10)
    assert [one.offset for one in decode(empty + after)] == [10]
    assert decode(batch_of(b"", 0, attributes=4)) == []


def test_timestamps_are_relative_to_a_delete_horizon_too() -> None:
    body = record_of(timestamp_delta=-500) + record_of(timestamp_delta=20, offset_delta=1)
    data = batch_of(body, 2, attributes=0x40, base_timestamp=10_000, max_timestamp=10_020)
    assert [(one.timestamp, one.timestamp_type) for one in decode(data)] == [(9500, 0), (10_020, 0)]


def test_log_append_time_is_every_records_timestamp() -> None:
    rows = [Row(None, None, 5), Row(None, None, -1)]
    data = joined(
        encode(rows, timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time_ms=777)
    )
    assert [(one.timestamp, one.timestamp_type) for one in decode(data)] == [(777, 1)] * 2


def test_timestamps_come_in_microseconds() -> None:
    largest, smallest = (2**63 - 1) // 1000, -(2**63 // 1000)
    stored = [0, 1, -1, 1_700_000_000_123, largest, smallest]
    data = joined(encode([Row(None, None, one) for one in stored]))
    (batch,) = RecordDecoder(Columns.TIMESTAMP).decode(data, table_of(data))
    found = batch.column("timestamp").cast(pa.int64()).to_pylist()
    assert found == [1000 * one for one in stored]


@pytest.mark.parametrize("stored", [(2**63 - 1) // 1000 + 1, -(2**63 // 1000) - 1, 2**63 - 1])
def test_a_timestamp_that_microseconds_cannot_hold_is_refused_or_null(stored: int) -> None:
    data = joined(encode([Row(None, None, 5), Row(None, None, stored)]))
    assign_offsets(data, 70, 0)
    table = table_of(data)
    with pytest.raises(TimestampOutOfRangeError, match=f"offset 71 has the timestamp {stored} ms"):
        list(RecordDecoder().decode(data, table))
    nulling = RecordDecoder(Columns.TIMESTAMP, null_bad_timestamps=True)
    (batch,) = nulling.decode(data, table)
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [5000, None]
    assert [one.timestamp for one in decode(data)] == [5, stored]
    assert [b.num_rows for b in RecordDecoder(Columns.VALUE).decode(data, table)] == [2]


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("ключ".encode(), "ключ"),
        (b"\xff", "\ufffd"),
        (b"a\x80b", "a\ufffdb"),
        (b"\xc0\xaf", "\ufffd\ufffd"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"\xf4\x90\x80\x80", "\ufffd" * 4),
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xed\xa0\x80\xed\xb0\x80x", "\ufffd\ufffdx"),
        (b"\xed\xa0x", "\ufffdx"),
        (b"\xed\xa0", "\ufffd"),
        (b"\xed\x9f\xbf", "\ud7ff"),
    ],
)
def test_header_keys_that_are_no_utf8_look_as_java_shows_them(raw: bytes, shown: str) -> None:
    header = varint(len(raw)) + raw + varint(1) + b"v"
    plain = varint(1) + b"h" + varint(-1)
    fields = varint(-1) + varint(-1) + varint(2) + header + plain
    data = batch_of(record_of(fields) + record_of(offset_delta=1), 2)
    first, second = decode(data)
    assert first.headers == ((shown, b"v"), ("h", None))
    assert second.headers is None


# Which rows come out, and in what pieces


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_rows_outside_of_the_offsets_are_left_out(codec: Codec) -> None:
    data = _log(10, 1, 30, codec=codec)
    for start, end in [(0, 41), (0, 1), (9, 11), (10, 11), (11, 12), (40, 41), (41, 50), (20, 20)]:
        assert _values(data, start, end) == list(range(start, min(end, 41)))


def test_batches_may_be_chosen_from_a_table() -> None:
    data = _log(3, 3, 3, 3)
    table = table_of(data)[np.array([True, False, False, True])]
    decoder = RecordDecoder(STORED_COLUMNS)
    offsets = [one.offset for one in records_of(decoder.decode(data, table))]
    assert offsets == [0, 1, 2, 9, 10, 11]


def test_control_batches_give_no_rows() -> None:
    marker = batch_of(record_of(), 1, attributes=0x30, base_offset=3)
    assert [one.offset for one in decode(_log(3).tobytes() + marker)] == [0, 1, 2]


def test_codecs_may_change_from_batch_to_batch() -> None:
    parts = []
    offset = 0
    for codec in [*Codec, *Codec, Codec.NONE, Codec.LZ4, Codec.LZ4]:
        data = joined(encode([Row(None, b"%d" % (offset + i)) for i in range(5)], codec))
        offset = assign_offsets(data, offset, 0)
        parts.append(data)
    assert _values(np.concatenate(parts)) == list(range(offset))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_output_is_cut_by_rows(codec: Codec) -> None:
    data = _log(5, 30, 5, codec=codec)
    batches = list(RecordDecoder(STORED_COLUMNS, max_rows=8).decode(data, table_of(data)))
    assert [batch.num_rows for batch in batches] == [8] * 5
    assert [one.offset for one in records_of(batches)] == list(range(40))


def test_output_is_cut_by_bytes_of_what_is_wanted() -> None:
    rows = [Row(bytes(60), bytes(40), 0, (("h", bytes(97)),)) for _ in range(12)]
    data = joined(encode(rows))
    table = table_of(data)

    def sizes(columns: Columns) -> list[int]:
        decoder = RecordDecoder(columns, max_batch_bytes=400)
        return [batch.num_rows for batch in decoder.decode(data, table)]

    assert sizes(Columns.VALUE) == [10, 2]
    assert sizes(Columns.KEY | Columns.VALUE) == [4, 4, 4]
    assert sizes(Columns.HEADERS) == [3, 3, 3, 3]
    assert sizes(Columns.OFFSET) == [12]


def test_a_record_beyond_the_bounds_comes_alone() -> None:
    rows = [Row(None, bytes(size)) for size in (10, 3_000_000, 10, 10)]
    data = joined(encode(rows, max_message_bytes=1 << 23))
    batches = list(RecordDecoder(max_batch_bytes=1 << 20).decode(data, table_of(data)))
    assert [batch.num_rows for batch in batches] == [1, 1, 2]
    values = pa.concat_arrays([batch.column("value") for batch in batches])
    assert pa.compute.binary_length(values).to_pylist() == [10, 3_000_000, 10, 10]


def test_rows_of_several_feeds_share_an_output_batch() -> None:
    decoder = RecordDecoder(STORED_COLUMNS, max_rows=10)
    batches = []
    offset = 0
    for codec in (Codec.NONE, Codec.GZIP, Codec.NONE):
        data = joined(encode([Row(b"k", b"v")] * 7, codec))
        offset = assign_offsets(data, offset, 0)
        batches += decoder.feed(data, table_of(data))
    assert [batch.num_rows for batch in batches] == [10, 10]
    batches += decoder.flush()
    assert [one.offset for one in records_of(batches)] == list(range(21))
    assert list(decoder.flush()) == []


def test_output_outlives_its_input() -> None:
    data = _log(3)
    (batch,) = RecordDecoder(STORED_COLUMNS).decode(data, table_of(data))
    before = records_of([batch])
    data[:] = 0
    assert records_of([batch]) == before


# What is wrong


def _error(data: NDArray[np.uint8], **settings: bool) -> CorruptRecordError:
    """Decode as if at byte 1000 of a file; give the error, which must say where it is."""
    decoder = RecordDecoder(**settings)
    table = table_of(data)
    table.facts[:, 0] += 1000
    with pytest.raises(CorruptRecordError) as caught:
        list(decoder.decode(data, table, file_position=1000, path="t-0/0.log"))
    assert caught.value.path == "t-0/0.log"
    assert "t-0/0.log: the batch at byte 1" in str(caught.value)
    return caught.value


def test_a_wrong_checksum_names_the_batch() -> None:
    data = _log(2, 2, 2)
    size = len(data) // 3
    data[size + 70] ^= 1
    error = _error(data)
    assert isinstance(error, ChecksumMismatchError)
    assert (error.position, error.offset) == (1000 + size, 2)
    assert f"{int.from_bytes(data[size + 17 : size + 21].tobytes(), 'big'):08x}" in str(error)


def test_checksums_may_go_unchecked() -> None:
    data = _log(2)
    data[17] ^= 1
    table = table_of(data)
    decoder = RecordDecoder(STORED_COLUMNS, check_crcs=False)
    assert len(records_of(decoder.decode(data, table))) == 2


_KEY = varint(1) + b"k"
_VALUE = varint(1) + b"v"


@pytest.mark.parametrize(
    ("body", "count", "reason"),
    [
        (b"", 1, "number does not end"),
        (b"\x80", 1, "number does not end"),
        (b"\x80" * 5 + b"\x01" + record_of(), 1, "number does not end"),
        (varint(0), 1, "record's length"),
        (varint(-3), 1, "record's length"),
        (varint(50) + bytes(10), 1, "record's length"),
        (record_of(), 2, "number does not end"),
        (record_of() + record_of(), 1, "after its last field"),
        (record_of() + b"\0", 1, "after its last field"),
        (record_of(_KEY + _VALUE + varint(0) + b"\0"), 1, "after its last field"),
        (record_of(varint(100) + b"k" + _VALUE + varint(0)), 1, "key's length"),
        (record_of(varint(2**31 - 1) + b"k"), 1, "key's length"),
        (record_of(_KEY + varint(100) + b"v" + varint(0)), 1, "value's length"),
        (record_of(_KEY + _VALUE), 1, "number does not end"),
        (record_of(_KEY + _VALUE + varint(-1)), 1, "header's length or count"),
        (record_of(_KEY + _VALUE + varint(2) + _KEY + _VALUE), 1, "header's length or count"),
        (record_of(_KEY + _VALUE + varint(2**30)), 1, "header's length or count"),
        (record_of(_KEY + _VALUE + varint(1) + varint(-1) + _VALUE), 1, "header's length"),
        (record_of(_KEY + _VALUE + varint(1) + varint(9) + b"h"), 1, "header's length"),
        (record_of(_KEY + _VALUE + varint(1) + _KEY + varint(9) + b"v"), 1, "header's length"),
        (varint(13) + b"\0" + b"\x80" * 10 + b"\0\0", 1, "number does not end"),
    ],
)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_broken_record_names_the_batch_and_what_is_wrong(
    body: bytes, count: int, reason: str, codec: Codec
) -> None:
    from kafkalog.streaming.records.compression import compress

    before = _log(3)
    broken = batch_of(compress(codec, body), count, attributes=int(codec), base_offset=3)
    error = _error(np.concatenate([before, array(broken)]))
    assert type(error) is CorruptRecordError
    assert (error.position, error.offset) == (1000 + len(before), 3)
    assert reason in str(error)


def test_a_count_far_beyond_the_records_costs_nothing() -> None:
    error = _error(array(batch_of(record_of(), 2**31 - 1)))
    assert "record 1 of it" in str(error)


def test_an_unknown_codec_names_the_batch() -> None:
    error = _error(array(batch_of(b"x", 1, attributes=5)))
    assert isinstance(error, UnsupportedCodecError)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_bomb_names_the_batch_and_both_sizes(codec: Codec) -> None:
    (bomb,) = encode([Row(None, bytes(900_000))], codec)
    data = joined([bomb])
    decoder = RecordDecoder(max_decompressed_bytes=100_000)
    with pytest.raises(DecompressedTooLargeError, match="the batch at byte 0") as caught:
        list(decoder.decode(data, table_of(data)))
    assert f"{len(data) - 61} bytes of {codec.name.lower()}" in str(caught.value)
    assert "limit of 100000 " in str(caught.value)


def _rows_until_error(
    decoder: RecordDecoder, data: NDArray[np.uint8]
) -> tuple[list[int], CorruptRecordError]:
    offsets: list[int] = []

    def consume() -> None:
        for batch in decoder.decode(data, table_of(data)):
            offsets.extend(one.offset for one in records_of([batch]))

    with pytest.raises(CorruptRecordError) as caught:
        consume()
    return offsets, caught.value


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize(
    "damage",
    [
        lambda batch: patched(batch, 61, b"\xff\xff\xff\xff\xff"),
        lambda batch: batch[:-1] + bytes([batch[-1] ^ 1]),
    ],
)
def test_the_rows_before_a_damaged_batch_come_first_and_one_can_skip_to_known_it(
    codec: Codec, damage: Callable[[bytes], bytes]
) -> None:
    parts = [joined(encode([Row(None, b"%d" % i)], codec)) for i in range(20)]
    for offset, part in enumerate(parts):
        assign_offsets(part, offset, 0)
    parts[15] = array(damage(parts[15].tobytes()))
    data = np.concatenate(parts)
    decoder = RecordDecoder(STORED_COLUMNS, max_rows=4)
    offsets, error = _rows_until_error(decoder, data)
    assert offsets == list(range(15))
    assert error.offset == 15
    table = table_of(data)
    behind = records_of(decoder.decode(data, table[table.position > error.position]))
    assert [one.offset for one in behind] == [16, 17, 18, 19]


@pytest.mark.parametrize(
    ("columns", "max_rows"),
    [
        (STORED_COLUMNS, 8192),
        (STORED_COLUMNS ^ Columns.HEADERS, 8192),
        (STORED_COLUMNS ^ Columns.HEADERS, 3),
    ],
)
def test_a_batch_that_is_broken_in_the_middle_gives_no_rows_if_it_fits_an_output_batch(
    columns: Columns, max_rows: int
) -> None:
    body = record_of() + record_of(offset_delta=1) + b"\xff"
    data = np.concatenate([_log(2), array(batch_of(body, 3, base_offset=2))])
    offsets, error = _rows_until_error(RecordDecoder(columns, max_rows=max_rows), data)
    assert offsets == [0, 1]
    assert "record 2 of it" in str(error)


def _value(size: int) -> bytes:
    """Return the fields of a record after its deltas: no key, a value, no headers."""
    return varint(-1) + varint(size) + size * b"x" + varint(0)


def test_a_broken_batch_gives_no_rows_though_columns_grew_amid_it() -> None:
    body = record_of(_value(1)) + record_of(_value(10_000), offset_delta=1) + b"\xff"
    data = np.concatenate([_log(2), array(batch_of(body, 3, base_offset=2))])
    offsets, error = _rows_until_error(RecordDecoder(STORED_COLUMNS ^ Columns.HEADERS), data)
    assert offsets == [0, 1]
    assert "record 2 of it" in str(error)


def test_a_broken_batch_that_is_cut_where_columns_grew_gives_no_rows() -> None:
    body = record_of(_value(1)) + record_of(_value(10_000), offset_delta=1) + b"\xff"
    data = array(batch_of(body, 3))
    decoder = RecordDecoder(Columns.VALUE | Columns.OFFSET, max_rows=8, max_batch_bytes=9_000)
    assert _rows_until_error(decoder, data)[0] == []


def test_timestamps_of_rows_that_are_rolled_back_leave_no_trace() -> None:
    broken = batch_of(record_of() + b"\xff", 2, base_offset=2, base_timestamp=2**62)
    data = np.concatenate([_log(2), array(broken)])
    columns = (STORED_COLUMNS ^ Columns.HEADERS) | Columns.TIMESTAMP
    offsets, error = _rows_until_error(RecordDecoder(columns), data)
    assert offsets == [0, 1]
    assert "record 1 of it" in str(error)


def test_nulls_of_rows_that_are_rolled_back_leave_no_trace() -> None:
    broken = record_of() + b"\xff"
    data = array(batch_of(broken, 2))
    decoder = RecordDecoder(STORED_COLUMNS ^ Columns.HEADERS)
    with pytest.raises(CorruptRecordError):
        list(decoder.feed(data, table_of(data)))
    sound = joined(encode([Row(b"k", b"v"), Row(None, None)]))
    found = records_of([*decoder.feed(sound, table_of(sound)), *decoder.flush()])
    assert [(one.key, one.value) for one in found] == [(b"k", b"v"), (None, None)]


@pytest.mark.parametrize("size", [0, 15, 16, 17, 70_000, 200_000])
def test_columns_grow_with_keys_and_values_of_any_size(size: int) -> None:
    rows = [Row(bytes([65 + n]) * size, bytes([97 + n]) * (size + n)) for n in range(7)]
    found = decode(joined(encode(rows)))
    assert [(one.key, one.value) for one in found] == [(row.key, row.value) for row in rows]
