"""Batches that Kafka's own writer made, read to the last field, and written alike where we can."""

from __future__ import annotations

import pytest
from tests.support.record_batches import Record, Row, array, decode, encode, joined, table_of

from kafkalog.streaming.records.batch import BatchTable, invalid_checksums
from kafkalog.streaming.records.batch_layout import HEADER_SIZE
from kafkalog.streaming.records.builder import EncodedBatch, assign_offsets
from kafkalog.streaming.records.compression import Codec, compress, decompress

# Two records from offset 5 on: (1000 ms, "k", "v") and (998 ms, null, null).
_GOLDEN = {
    Codec.NONE: (
        "000000000000000500000041ffffffff02aedf373d00000000000100000000000003e80000000000"
        "0003e8ffffffffffffffffffffffffffff0000000210000000026b0276000c000302010100"
    ),
    Codec.GZIP: (
        "000000000000000500000055ffffffff02c6e36ce100010000000100000000000003e80000000000"
        "0003e8ffffffffffffffffffffffffffff000000021f8b08000000000000ff1360606060ca662a63"
        "e061606662646400001313ce2010000000"
    ),
    Codec.SNAPPY: (
        "000000000000000500000057ffffffff020576f02900020000000100000000000003e80000000000"
        "0003e8ffffffffffffffffffffffffffff0000000282534e41505059000000000100000001000000"
        "12103c10000000026b0276000c000302010100"
    ),
    Codec.LZ4: (
        "000000000000000500000050ffffffff02c0093a6500030000000100000000000003e80000000000"
        "0003e8ffffffffffffffffffffffffffff0000000204224d186040821000008010000000026b0276"
        "000c00030201010000000000"
    ),
    Codec.ZSTD: (
        "00000000000000050000004dffffffff026b4c6df300040000000100000000000003e80000000000"
        "0003e8ffffffffffffffffffffffffffff0000000228b52ffd005880000010000000026b0276000c"
        "000302010100010000"
    ),
}
_ROWS = [Row(b"k", b"v", 1000), Row(None, None, 998)]
_RECORDS = [Record(5, 1000, 0, b"k", b"v", None), Record(6, 998, 0, None, None, None)]

_WITH_HEADERS = (
    "000000000000000500000041ffffffff020d7cbb8300000000000000000000000003e800000000000003e8"
    "ffffffffffffffffffffffffffff000000011e000000026b02760402680201026e01"
)
_ABORT_MARKER = (
    "00000000000000070000004200000003029581677a00300000000000000000075bcd1500000000075bcd15"
    "00000000000004d20005ffffffff000000012000000008000000000c00000000000900"
)
_BYTE_EXACT = (Codec.NONE, Codec.SNAPPY, Codec.LZ4)
"""zlib writes another byte for the operating system, zstd another block."""


def _facts(table: BatchTable) -> dict[str, int]:
    names = [name for name, member in vars(BatchTable).items() if isinstance(member, property)]
    return {name: int(getattr(table, name)[0]) for name in names}


@pytest.mark.parametrize("codec", Codec)
def test_records_of_the_java_writer_are_read(codec: Codec) -> None:
    assert decode(bytes.fromhex(_GOLDEN[codec])) == _RECORDS


@pytest.mark.parametrize("codec", Codec)
def test_header_of_the_java_writer_is_read(codec: Codec) -> None:
    data = array(bytes.fromhex(_GOLDEN[codec]))
    table = table_of(data)
    assert not invalid_checksums(data, table).any()
    assert _facts(table) == {
        "position": 0,
        "size": len(data),
        "end_position": len(data),
        "magic": 2,
        "base_offset": 5,
        "last_offset": 6,
        "leader_epoch": -1,
        "crc": int.from_bytes(data[17:21].tobytes(), "big"),
        "attributes": int(codec),
        "base_timestamp": 1000,
        "max_timestamp": 1000,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "count": 2,
        "codec": int(codec),
        "is_log_append_time": False,
        "is_transactional": False,
        "is_control": False,
        "is_emptied": False,
    }


@pytest.mark.parametrize("codec", Codec)
def test_rows_are_written_as_the_java_writer_does(codec: Codec) -> None:
    (batch,) = encode(_ROWS, codec)
    assert batch == EncodedBatch(batch.data, 2, 1, 1000, 1000)
    data = joined([batch])
    assert assign_offsets(data, 5, -1) == 7
    golden = bytes.fromhex(_GOLDEN[codec])
    if codec in _BYTE_EXACT:
        assert data.tobytes().hex() == golden.hex()
    else:
        assert data[21:HEADER_SIZE].tobytes() == golden[21:HEADER_SIZE]
        assert decode(data) == _RECORDS


@pytest.mark.parametrize("codec", Codec)
def test_bodies_decompress_to_the_same_records(codec: Codec) -> None:
    plain = bytes.fromhex(_GOLDEN[Codec.NONE])[HEADER_SIZE:]
    body = bytes.fromhex(_GOLDEN[codec])[HEADER_SIZE:]
    assert decompress(codec, body) == plain
    assert decompress(codec, compress(codec, plain)) == plain


def test_headers_of_the_java_writer_are_read_and_written() -> None:
    headers = (("h", b"\x01"), ("n", None))
    assert decode(bytes.fromhex(_WITH_HEADERS)) == [Record(5, 1000, 0, b"k", b"v", headers)]
    data = joined(encode([Row(b"k", b"v", 1000, headers)]))
    assign_offsets(data, 5, -1)
    assert data.tobytes().hex() == _WITH_HEADERS


def test_a_marker_of_a_transaction_is_told_apart_and_gives_no_row() -> None:
    data = array(bytes.fromhex(_ABORT_MARKER))
    facts = _facts(table_of(data))
    assert facts["is_control"]
    assert facts["is_transactional"]
    assert (facts["producer_id"], facts["producer_epoch"], facts["base_sequence"]) == (1234, 5, -1)
    assert (facts["leader_epoch"], facts["base_offset"], facts["max_timestamp"]) == (
        3,
        7,
        123456789,
    )
    assert not invalid_checksums(data, table_of(data)).any()
    assert decode(data) == []
