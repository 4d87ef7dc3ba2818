"""Rows become batches of the sizes asked for, with the header fields that Kafka would write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.record_batches import (
    Row,
    array,
    columns,
    decode,
    encode,
    joined,
    patched,
    table_of,
)

from kafkalog.errors import CorruptRecordError, RecordTooLargeError, RowError
from kafkalog.model import TimestampType
from kafkalog.streaming.records.builder import (
    BatchBuilder,
    EncodedBatch,
    RecordColumns,
    assign_offsets,
)
from kafkalog.streaming.records.compression import Codec
from kafkalog.streaming.records.row_buffers import HEADERS_TYPE

_NOISE = np.random.default_rng(3).bytes(100_000)


def _all(builder: BatchBuilder, records: RecordColumns, rows: Any = None) -> list[EncodedBatch]:
    chosen = np.arange(records.length) if rows is None else np.array(rows, np.int64)
    encoded = builder.append(records, chosen)
    last = builder.finish()
    return encoded if last is None else [*encoded, last]


def _values(encoded: list[EncodedBatch]) -> list[bytes | None]:
    return [one.value for one in decode(joined(encoded))]


# Batches


def test_a_fresh_batch_counts_from_offset_0_and_has_no_producer() -> None:
    (batch,) = encode([Row(b"k", b"v", 30), Row(b"k", b"v", 10), Row(b"k", b"v", 20)])
    table = table_of(array(batch.data))
    assert (batch.count, batch.last_offset_delta) == (3, 2)
    assert (batch.base_timestamp, batch.max_timestamp, batch.first_offset) == (30, 30, -1)
    facts = {
        "base_offset": 0,
        "last_offset": 2,
        "leader_epoch": -1,
        "attributes": 0,
        "base_timestamp": 30,
        "max_timestamp": 30,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "count": 3,
    }
    assert {name: int(getattr(table, name)[0]) for name in facts} == facts


def test_the_maximum_is_the_true_one_and_the_base_is_the_first() -> None:
    (batch,) = encode([Row(None, None, stamp) for stamp in (5, -1, 9, 2)])
    assert (batch.base_timestamp, batch.max_timestamp) == (5, 9)
    (batch,) = encode([Row(None, None, stamp) for stamp in (-1, -1)])
    assert (batch.base_timestamp, batch.max_timestamp) == (-1, -1)


def test_log_append_time_is_stamped_on_the_batch_and_deltas_are_left() -> None:
    stamp = {"timestamp_type": TimestampType.LOG_APPEND_TIME, "log_append_time_ms": 777}
    (batch,) = encode([Row(None, None, 5), Row(None, None, 9)], **stamp)
    plain = encode([Row(None, None, 5), Row(None, None, 9)])[0]
    assert (batch.base_timestamp, batch.max_timestamp) == (5, 777)
    assert table_of(array(batch.data)).is_log_append_time.all()
    assert batch.data[61:] == plain.data[61:]
    with pytest.raises(ValueError, match="needs the time"):
        BatchBuilder(Codec.NONE, timestamp_type=TimestampType.LOG_APPEND_TIME)


def test_a_batch_is_closed_before_it_exceeds_its_target() -> None:
    rows = [Row(None, b"%03d" % i) for i in range(100)]
    encoded = encode(rows, target_bytes=100)
    assert [batch.count for batch in encoded] == [10] * 10  # records of 10 bytes
    assert {len(batch.data) for batch in encoded} == {161}
    assert _values(encoded) == [row.value for row in rows]


def test_the_maximum_bounds_the_target() -> None:
    encoded = encode([Row(None, bytes(20))] * 20, max_message_bytes=161, target_bytes=10_000)
    assert {batch.count for batch in encoded} == {3, 2}
    assert max(len(batch.data) for batch in encoded) <= 161


def test_a_record_beyond_the_target_goes_alone() -> None:
    rows = [Row(None, bytes(size)) for size in (5, 5_000, 5, 5)]
    encoded = encode(rows, target_bytes=100)
    assert [batch.count for batch in encoded] == [1, 1, 2]


@pytest.mark.parametrize("codec", Codec)
def test_no_batch_exceeds_the_maximum_even_if_it_does_not_compress(codec: Codec) -> None:
    rows = [Row(None, _NOISE[i : i + 97]) for i in range(400)]
    encoded = encode(rows, codec, max_message_bytes=1000)
    assert max(len(batch.data) for batch in encoded) <= 1000
    assert _values(encoded) == [row.value for row in rows]


@pytest.mark.parametrize("codec", Codec)
def test_a_record_that_does_not_fit_the_maximum_even_alone_is_refused(codec: Codec) -> None:
    builder = BatchBuilder(codec, max_message_bytes=1000)
    records = columns([Row(None, b"small"), Row(None, _NOISE[:2000])])
    with pytest.raises(RecordTooLargeError, match="more than 1000 bytes"):
        _all(builder, records)


def test_the_maximum_holds_for_what_is_compressed() -> None:
    (batch,) = encode([Row(None, bytes(50_000))], Codec.ZSTD, max_message_bytes=1000)
    assert len(batch.data) < 1000


def test_the_exact_maximum_fits() -> None:
    (batch,) = encode([Row(b"k", bytes(100))])
    assert len(encode([Row(b"k", bytes(100))], max_message_bytes=len(batch.data))) == 1
    with pytest.raises(RecordTooLargeError):
        encode([Row(b"k", bytes(100))], max_message_bytes=len(batch.data) - 1)


def test_an_open_batch_goes_on_over_appends_and_is_new_after_it_was_finished() -> None:
    builder = BatchBuilder(Codec.NONE)
    assert builder.finish() is None
    records = columns([Row(None, b"%d" % i) for i in range(6)])
    assert builder.append(records, np.array([0, 2])) == []
    assert builder.append(records, np.array([], np.int64)) == []
    assert builder.append(records, np.array([4])) == []
    assert builder.count == 3
    first = builder.finish()
    assert first is not None
    assert (builder.count, builder.finish()) == (0, None)
    second = _all(builder, records, [5, 5, 1])
    assert _values([first]) == [b"0", b"2", b"4"]
    assert _values(second) == [b"5", b"5", b"1"]


def test_memory_of_an_open_batch_follows_what_is_in_it() -> None:
    builder = BatchBuilder(Codec.NONE)
    small = builder.open_bytes
    builder.append(columns([Row(None, bytes(1000))] * 100), np.arange(100))
    assert 100_000 < builder.open_bytes < 300_000
    builder.finish()
    assert builder.open_bytes == small


def test_a_large_record_does_not_keep_its_memory() -> None:
    builder = BatchBuilder(Codec.ZSTD)
    encoded = _all(builder, columns([Row(None, bytes(3_000_000)), Row(None, b"")]))
    assert [batch.count for batch in encoded] == [1, 1]
    assert builder.open_bytes < 300_000


# Offsets


def test_given_offsets_are_kept_and_must_increase() -> None:
    records = columns([Row(None, b"")] * 3, [10, 15, 12])
    (batch,) = _all(BatchBuilder(Codec.NONE), records, [0, 1])
    assert (batch.first_offset, batch.last_offset_delta, batch.count) == (10, 5, 2)
    with pytest.raises(RowError, match="row 2 is to keep offset 12"):
        _all(BatchBuilder(Codec.NONE), records)
    builder = BatchBuilder(Codec.NONE, target_bytes=1)
    with pytest.raises(RowError, match="row 0 is to keep offset -4"):
        _all(builder, columns([Row(None, b"")], [-4]))


def test_given_offsets_too_far_apart_begin_another_batch() -> None:
    records = columns([Row(None, b"")] * 3, [0, 2**31 - 1, 2**31])
    encoded = _all(BatchBuilder(Codec.NONE), records)
    assert [(one.first_offset, one.last_offset_delta) for one in encoded] == [
        (0, 2**31 - 1),
        (2**31, 0),
    ]


def test_offsets_and_leader_epoch_are_given_to_every_batch_without_touching_checksums() -> None:
    encoded = encode([Row(None, b"%d" % i) for i in range(30)], target_bytes=50)
    data = joined(encoded)
    before = table_of(data).crc.tolist()
    assert assign_offsets(data, 2**40, 2**31 - 1) == 2**40 + 30
    table = table_of(data)
    assert table.crc.tolist() == before
    assert set(table.leader_epoch.tolist()) == {2**31 - 1}
    assert [one.offset for one in decode(data)] == list(range(2**40, 2**40 + 30))


def test_what_is_no_whole_batch_gets_no_offset() -> None:
    (batch,) = encode([Row(b"k", b"v")])
    size = len(batch.data)
    for broken in (
        batch.data[:-1],
        batch.data[:60],
        patched(batch.data, 8, (48).to_bytes(4, "big")),
        patched(batch.data, 8, b"\xff\xff\xff\xff"),
        patched(batch.data, 16, b"\x03"),
        patched(batch.data, 23, b"\xff\xff\xff\xff"),
    ):
        data = np.frombuffer(bytearray(batch.data + broken), np.uint8)
        with pytest.raises(CorruptRecordError) as caught:
            assign_offsets(data, 0, 0)
        assert caught.value.position == size


# Columns


_TEXTS = ["a", None, "", "ключ", "x" * 50]


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
@pytest.mark.parametrize("window", [(0, 5), (1, 4), (2, 5), (3, 3)])
def test_keys_and_values_come_in_every_binary_type_sliced_or_not(
    kind: pa.DataType, window: tuple[int, int]
) -> None:
    start, end = window
    whole = pa.array([text and text.encode() for text in _TEXTS], pa.binary()).cast(kind)
    sliced = whole[start:end]
    count = len(sliced)
    records = RecordColumns.from_arrow(timestamps=np.zeros(count), key=sliced, value=sliced)
    found = decode(joined(_all(BatchBuilder(Codec.NONE), records)))
    expected = [None if text is None else text.encode() for text in _TEXTS[start:end]]
    assert [one.key for one in found] == expected
    assert [one.value for one in found] == expected


def test_chunked_columns_are_joined() -> None:
    chunks = pa.chunked_array([["a", None], [], ["b"]], pa.string())
    headers = pa.chunked_array([[None, [("h", b"1")]], [[("i", None)]]], HEADERS_TYPE)
    records = RecordColumns.from_arrow(timestamps=np.zeros(3), value=chunks, headers=headers)
    found = decode(joined(_all(BatchBuilder(Codec.NONE), records)))
    assert [(one.value, one.headers) for one in found] == [
        (b"a", None),
        (None, (("h", b"1"),)),
        (b"b", (("i", None),)),
    ]


def test_columns_of_null_and_none_are_null() -> None:
    records = RecordColumns.from_arrow(
        timestamps=np.zeros(2), key=pa.nulls(2), value=None, headers=pa.nulls(2)
    )
    found = decode(joined(_all(BatchBuilder(Codec.NONE), records)))
    assert [(one.key, one.value, one.headers) for one in found] == [(None, None, None)] * 2


def test_a_column_without_bytes_is_refused() -> None:
    with pytest.raises(TypeError, match="a column of int64 holds no bytes"):
        RecordColumns.from_arrow(timestamps=np.zeros(1), value=pa.array([1]))


_LISTS = [
    None,
    [("a", b"1"), ("a", None)],
    [],
    [("", b"")],
    [("ключ", b"\xff" * 70)],
]


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("window", [(0, 5), (1, 4), (3, 5), (2, 2)])
def test_headers_come_in_lists_sliced_or_not(window: tuple[int, int], *, large: bool) -> None:
    start, end = window
    entry = HEADERS_TYPE.value_type
    headers = pa.array(_LISTS, pa.large_list(entry) if large else HEADERS_TYPE)[start:end]
    records = RecordColumns.from_arrow(timestamps=np.zeros(end - start), headers=headers)
    found = decode(joined(_all(BatchBuilder(Codec.NONE), records)))
    assert [one.headers for one in found] == [
        tuple(entries) if entries else None for entries in _LISTS[start:end]
    ]


def test_what_lies_behind_a_null_list_is_not_written() -> None:
    entries = pa.array([("a", b"1"), ("b", b"2"), ("c", b"3")], HEADERS_TYPE.value_type)
    headers = pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()), entries, mask=pa.array([False, True, False])
    )
    records = RecordColumns.from_arrow(timestamps=np.zeros(3), headers=headers)
    found = decode(joined(_all(BatchBuilder(Codec.NONE), records)))
    assert [one.headers for one in found] == [(("a", b"1"),), None, (("c", b"3"),)]


@pytest.mark.parametrize("bad", [None, {"key": None, "value": b"v"}])
def test_a_header_without_a_key_is_refused_naming_the_row(bad: object) -> None:
    good = {"key": "k", "value": b"v"}
    headers = pa.array([None, [good, good], [], [good, bad]], HEADERS_TYPE)
    with pytest.raises(RowError, match="row 3 has a header whose key is null"):
        RecordColumns.from_arrow(timestamps=np.zeros(4), headers=headers)


@pytest.mark.parametrize("rows", [[3], [-1], [0, 1, 2, 99]])
def test_rows_outside_of_the_columns_are_refused(rows: list[int]) -> None:
    records = columns([Row(b"k", b"v")] * 3)
    with pytest.raises(RowError, match=f"row {rows[-1]} "):
        BatchBuilder(Codec.NONE).append(records, np.array(rows))


def test_a_column_that_contradicts_itself_is_refused() -> None:
    for ends, row in [
        ([0, 2, 1, 3], 1),
        ([0, 1, 900, 3], 1),
        ([0, 1, -1, 3], 1),
        ([0, 1, -1, 3], 2),
    ]:
        buffers = [None, pa.py_buffer(np.array(ends, np.int32)), pa.py_buffer(b"abc")]
        broken = pa.Array.from_buffers(pa.binary(), 3, buffers)
        records = RecordColumns.from_arrow(timestamps=np.zeros(3), value=broken)
        with pytest.raises(RowError, match=f"row {row} lies outside"):
            BatchBuilder(Codec.NONE).append(records, np.array([0, row]))


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 values for 3 records"):
        RecordColumns.from_arrow(timestamps=np.zeros(3), value=pa.array(["a", "b"]))
    with pytest.raises(ValueError, match="1 values for 2 records"):
        RecordColumns.from_arrow(timestamps=np.zeros(2), headers=pa.array([[]], HEADERS_TYPE))
    with pytest.raises(ValueError, match="1 values for 2 records"):
        RecordColumns.from_arrow(timestamps=np.zeros(2), offsets=np.zeros(1))
