"""Log directories for tests, written byte by byte, without the library's own encoder.

A batch is made from rows; a partition's folder from segments of batches. Indexes are left out
unless asked for: readers do without.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Row", "append_batch", "batch_bytes", "write_checkpoint", "write_segment"]

_HEAD: Final = struct.Struct(">qiibI")
_REST: Final = struct.Struct(">hiqqqhii")


@dataclass(frozen=True)
class Row:
    """One record; ``timestamp`` in ms."""

    value: bytes | None = b"v"
    key: bytes | None = None
    timestamp: int = 1_700_000_000_000
    headers: tuple[tuple[str, bytes | None], ...] = ()


def batch_bytes(
    base_offset: int, rows: Sequence[Row], *, attributes: int = 0, deltas: Sequence[int] = ()
) -> bytes:
    """Encode one uncompressed batch of magic 2; ``deltas`` leave gaps between the offsets."""
    base_timestamp = rows[0].timestamp
    deltas = deltas or range(len(rows))
    records = b"".join(
        _record(row, delta, base_timestamp) for row, delta in zip(rows, deltas, strict=True)
    )
    rest = _REST.pack(
        attributes,
        deltas[-1],
        base_timestamp,
        max(row.timestamp for row in rows),
        -1,
        -1,
        -1,
        len(rows),
    )
    body = rest + records
    return _HEAD.pack(base_offset, 9 + len(body), 0, 2, crc32c(body)) + body


def write_segment(folder: Path, base_offset: int, batches: bytes, *, index: bool = False) -> Path:
    """Write one segment of whole batches; ``index`` makes an entry for every batch but the first.

    Gives the path of its ``.log`` file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{base_offset:020d}.log"
    path.write_bytes(batches)
    path.with_suffix(".timeindex").write_bytes(b"")
    path.with_suffix(".index").write_bytes(_index(base_offset, batches) if index else b"")
    return path


def append_batch(path: Path, batch: bytes) -> None:
    """Append to a ``.log`` file, without an index entry."""
    with path.open("ab") as file:
        file.write(batch)


def write_checkpoint(directory: Path, name: str, offsets: dict[str, int]) -> None:
    """Write an offset checkpoint; keys are names of partition folders."""
    lines = ["0", str(len(offsets))]
    for folder, offset in offsets.items():
        topic, _, partition = folder.rpartition("-")
        lines.append(f"{topic} {partition} {offset}")
    (directory / name).write_text("\n".join(lines) + "\n")


def _record(row: Row, offset_delta: int, base_timestamp: int) -> bytes:
    body = (
        b"\0"
        + _varint(row.timestamp - base_timestamp)
        + _varint(offset_delta)
        + _sized(row.key)
        + _sized(row.value)
        + _varint(len(row.headers))
        + b"".join(_sized(key.encode()) + _sized(value) for key, value in row.headers)
    )
    return _varint(len(body)) + body


def _sized(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(number: int) -> bytes:
    rest = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*encoded, rest])


def _index(base_offset: int, batches: bytes) -> bytes:
    entries = bytearray()
    position = 0
    while position < len(batches):
        offset, length = struct.unpack_from(">qi", batches, position)
        (delta,) = struct.unpack_from(">i", batches, position + 23)
        if position:
            entries += struct.pack(">ii", offset + delta - base_offset, position)
        position += 12 + length
    return bytes(entries)
