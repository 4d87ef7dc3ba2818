"""Segments as another library reads them (aiokafka's record codec), without a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiokafka.record import MemoryRecords

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class ForeignRecord(NamedTuple):
    """A record; its timestamp in ms."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def read_partition(folder: Path) -> list[ForeignRecord]:
    """Read all segments of a partition's folder, in order, with checksums checked."""
    return [record for path in sorted(folder.glob("*.log")) for record in _read_segment(path)]


def _read_segment(path: Path) -> Iterator[ForeignRecord]:
    data = path.read_bytes()
    records = MemoryRecords(data)
    while (batch := records.next_batch()) is not None:
        assert batch.validate_crc(), f"checksum of a batch in {path}"
        for record in batch:
            headers = list(record.headers or [])
            yield ForeignRecord(record.offset, record.timestamp, record.key, record.value, headers)
    # A torn batch at the end is left in the buffer; a segment at rest has none.
    assert records.size_in_bytes() == len(data), f"{path} does not end with a whole batch"
