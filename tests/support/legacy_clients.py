"""Clients in Python that still know magic 0 and 1, as judges of what we read and write."""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any, Final

from tests.support.message_sets import Row

from kafkalog.streaming.records.compression import Codec

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CLIENTS", "clients_know", "read_with", "write_with"]

CLIENTS: Final = {
    "kafka-python": "kafka.record.legacy_records",
    "aiokafka": "aiokafka.record.legacy_records",
}

_Record = tuple[int, bytes | None, bytes | None]


def read_with(client: str, data: bytes) -> list[Row]:
    """Read entries with a client; it must find all checksums right, inner ones too."""
    module = _module(client)
    rows = []
    for entry in _entries(data):
        batch = module.LegacyRecordBatch(entry, entry[16])
        assert batch.validate_crc()
        for record in batch:
            if hasattr(record, "validate_crc"):
                assert record.validate_crc()
            rows.append(
                Row(
                    record.offset,
                    -1 if record.timestamp is None else record.timestamp,
                    -1 if entry[16] == 0 else record.timestamp_type or 0,
                    record.key,
                    record.value,
                )
            )
    return rows


def write_with(client: str, magic: int, codec: Codec, records: list[_Record]) -> bytes:
    """Let a client produce records (timestamp, key, value): its wrappers have offset 0."""
    module = _module(client)
    builder = module.LegacyRecordBatchBuilder(
        magic=magic, compression_type=int(codec), batch_size=1 << 30
    )
    for offset, (timestamp, key, value) in enumerate(records):
        assert builder.append(offset, timestamp=timestamp, key=key, value=value)
    return bytes(builder.build())


def clients_know(magic: int, codec: Codec) -> bool:
    """Return whether these clients can: lz4 of magic 0 is beyond aiokafka, and a library short."""
    return not (magic == 0 and codec is Codec.LZ4)


def _module(client: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's own, on import
        return importlib.import_module(CLIENTS[client])


def _entries(data: bytes) -> Iterator[bytes]:
    while data:
        size = 12 + int.from_bytes(data[8:12], "big")
        yield data[:size]
        data = data[size:]
