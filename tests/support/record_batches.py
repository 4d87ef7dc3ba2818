"""Record batches for tests: made by our builder, taken apart by our decoder, as plain Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import crc32c
import numpy as np
import pyarrow as pa

from kafkalog.streaming.records.batch import BatchTable, scan_batches
from kafkalog.streaming.records.builder import BatchBuilder, EncodedBatch, RecordColumns
from kafkalog.streaming.records.columns import RecordDecoder
from kafkalog.streaming.records.compression import Codec
from kafkalog.streaming.records.row_buffers import ALL_COLUMNS, HEADERS_TYPE, Columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

Header = tuple[str, bytes | None]

STORED_COLUMNS = (ALL_COLUMNS ^ Columns.TIMESTAMP) | Columns.TIMESTAMP_MS
"""All of a record, with the timestamp as it is stored."""


class Row(NamedTuple):
    """A record as a test writes it down; timestamps in ms."""

    key: bytes | None
    value: bytes | None
    timestamp: int = 0
    headers: tuple[Header, ...] = ()


class Record(NamedTuple):
    """A record as it was decoded."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] | None


def columns(rows: Sequence[Row], offsets: Sequence[int] | None = None) -> RecordColumns:
    """Put rows into columns."""
    headers = [[{"key": k, "value": v} for k, v in row.headers] for row in rows]
    return RecordColumns.from_arrow(
        timestamps=np.array([row.timestamp for row in rows], np.int64),
        key=pa.array([row.key for row in rows], pa.binary()),
        value=pa.array([row.value for row in rows], pa.binary()),
        headers=pa.array(headers, HEADERS_TYPE),
        offsets=None if offsets is None else np.array(offsets, np.int64),
    )


def encode(rows: Sequence[Row], codec: Codec = Codec.NONE, **settings: Any) -> list[EncodedBatch]:
    """Make batches of rows."""
    builder = BatchBuilder(codec, **settings)
    encoded = builder.append(columns(rows), np.arange(len(rows)))
    last = builder.finish()
    return encoded if last is None else [*encoded, last]


def joined(encoded: Iterable[EncodedBatch]) -> NDArray[np.uint8]:
    """Return the bytes of batches, writable."""
    return np.frombuffer(bytearray(b"".join(one.data for one in encoded)), np.uint8)


def array(data: bytes) -> NDArray[np.uint8]:
    """Return bytes as the read-only array that ``pread`` would."""
    return np.frombuffer(data, np.uint8)


def table_of(data: NDArray[np.uint8]) -> BatchTable:
    """Scan bytes that are whole batches and nothing else."""
    scan = scan_batches(data)
    assert (scan.consumed, scan.needed, scan.invalid) == (len(data), 0, None)
    return scan.table


def decode(data: NDArray[np.uint8] | bytes, **settings: Any) -> list[Record]:
    """Decode all records of bytes that are whole batches."""
    source = array(data) if isinstance(data, bytes) else data
    offsets = {
        name: settings.pop(name) for name in ("start_offset", "end_offset") if name in settings
    }
    decoder = RecordDecoder(STORED_COLUMNS, **settings)
    found = records_of(decoder.decode(source, table_of(source), **offsets))
    # without headers another kernel does it
    decoder = RecordDecoder(STORED_COLUMNS ^ Columns.HEADERS, **settings)
    direct = records_of(decoder.decode(source, table_of(source), **offsets))
    assert direct == [one._replace(headers=None) for one in found]
    return found


def records_of(batches: Iterable[pa.RecordBatch]) -> list[Record]:
    """Return the rows of decoded record batches; checks that Arrow finds them valid."""
    records = []
    for batch in batches:
        batch.validate(full=True)
        for row in batch.to_pylist():
            headers = row.get("headers")
            records.append(
                Record(
                    row["offset"],
                    row["timestampMs"],
                    row["timestampType"],
                    row["key"],
                    row["value"],
                    None if headers is None else tuple((h["key"], h["value"]) for h in headers),
                )
            )
    return records


def with_checksum(batch: bytes) -> bytes:
    """Return a single batch of magic 2 with the CRC-32C that its bytes have."""
    return batch[:17] + crc32c.crc32c(batch[21:]).to_bytes(4, "big") + batch[21:]


def patched(batch: bytes, position: int, replacement: bytes) -> bytes:
    """Return a single batch with some bytes replaced and a checksum that matches."""
    return with_checksum(batch[:position] + replacement + batch[position + len(replacement) :])


def batch_of(body: bytes, count: int, **header: int) -> bytes:
    """Make a batch of magic 2 around record bytes, whatever they are.

    ``header`` sets ``base_offset``, ``attributes``, ``last_offset_delta``, ``base_timestamp`` and
    ``max_timestamp``.
    """
    fields = b"".join(
        (
            header.get("base_offset", 0).to_bytes(8, "big", signed=True),
            (49 + len(body)).to_bytes(4, "big"),
            (-1).to_bytes(4, "big", signed=True),
            b"\x02" + bytes(4),
            header.get("attributes", 0).to_bytes(2, "big"),
            header.get("last_offset_delta", max(count - 1, 0)).to_bytes(4, "big"),
            header.get("base_timestamp", 0).to_bytes(8, "big", signed=True),
            header.get("max_timestamp", 0).to_bytes(8, "big", signed=True),
            b"\xff" * 14,
            count.to_bytes(4, "big", signed=True),
        )
    )
    return with_checksum(fields + body)


def varint(number: int) -> bytes:
    """Write a zig-zag varint, straight from its definition."""
    bits = (number << 1) ^ (number >> 63)
    out = bytearray()
    while bits > 0x7F:
        out.append(bits & 0x7F | 0x80)
        bits >>= 7
    return bytes([*out, bits])


def record_of(
    fields: bytes | None = None, *, timestamp_delta: int = 0, offset_delta: int = 0
) -> bytes:
    """Make a record; ``fields`` are those from the key's length on (null, null, no headers)."""
    rest = varint(-1) + varint(-1) + varint(0) if fields is None else fields
    body = b"\0" + varint(timestamp_delta) + varint(offset_delta) + rest
    return varint(len(body)) + body
