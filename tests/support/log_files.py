"""Partition logs for tests: appended by the library, read back, and cut, flipped and zeroed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from tests.support.logs import Row, batch_bytes

from kafkalog.model import TopicPartition
from kafkalog.streaming.log.appender import PartitionAppender
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.records.batch import BatchTable, scan_batches
from kafkalog.streaming.records.columns import Columns, RecordDecoder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from kafkalog.streaming.log.partition_log import PartitionLog

__all__ = [
    "FLIGHTS",
    "NOW_MS",
    "append",
    "contents",
    "cut",
    "flip",
    "grow_with_zeros",
    "make_batches",
    "make_table",
    "read_offsets",
    "scan",
    "swap_is_unfinished",
]

FLIGHTS: Final = TopicPartition("flights", 0)
NOW_MS: Final = 1_700_000_000_000
TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAQ"


def scan(data: bytes) -> tuple[npt.NDArray[np.uint8], BatchTable]:
    """Return bytes as an array, and the table of the batches in it."""
    array = np.frombuffer(data, np.uint8)
    result = scan_batches(array)
    assert result.consumed == len(data)
    return array, result.table


def make_batches(
    first_offset: int,
    counts: Iterable[int],
    *,
    value_bytes: int = 50,
    timestamps: Iterable[int] | None = None,
) -> bytes:
    """Encode consecutive batches of so many records; each batch has one timestamp, ascending."""
    offset, batches = first_offset, []
    times = iter(timestamps or range(NOW_MS, NOW_MS + 2**40))
    for count in counts:
        row = Row(value=b"v" * value_bytes, timestamp=next(times))
        batches.append(batch_bytes(offset, [row] * count))
        offset += count
    return b"".join(batches)


def make_table(batches: Sequence[tuple[int, int, int]], *, first_offset: int = 0) -> BatchTable:
    """Make a table without bytes from (size, records, max timestamp) of consecutive batches."""
    facts = np.full((len(batches), BatchTable.empty().facts.shape[1]), -1, np.int64)
    table = BatchTable(facts)
    position, offset = 0, first_offset
    for row, (size, records, timestamp) in enumerate(batches):
        table.position[row], table.size[row], table.magic[row] = position, size, 2
        table.base_offset[row], table.last_offset[row] = offset, offset + records - 1
        table.max_timestamp[row] = timestamp
        position += size
        offset += records
    return table


def append(
    directory: Path, data: bytes, config: LogConfig | None = None, *, now_ms: int = NOW_MS
) -> PartitionAppender:
    """Append whole batches with final offsets to a partition, as a new writer does."""
    appender = PartitionAppender(
        directory, FLIGHTS, config or LogConfig(), now_ms=now_ms, topic_id=TOPIC_ID
    )
    appender.append(*scan(data))
    return appender


def read_offsets(log: PartitionLog, start: int, end: int, *, pieces: int = 1) -> list[int]:
    """Read the offsets of the records in a range, slice by slice."""
    decoder = RecordDecoder(Columns.OFFSET)
    return [
        offset
        for whole in log.slices(start, end)
        for piece in log.split_slice(whole, pieces)
        for batch in log.read_slice(piece, decoder)
        for offset in batch.column("offset").to_pylist()
    ]


def contents(directory: Path) -> dict[str, bytes]:
    """Return the bytes of every file in a folder."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def cut(path: Path, size: int) -> None:
    """Cut a file to ``size`` bytes."""
    with path.open("r+b") as file:
        file.truncate(size)


def flip(path: Path, position: int, bits: int = 0xFF) -> None:
    """Flip bits of one byte."""
    content = bytearray(path.read_bytes())
    content[position] ^= bits
    path.write_bytes(content)


def grow_with_zeros(path: Path, size: int) -> None:
    """Let a file be ``size`` bytes long, with zeros behind what it has."""
    cut(path, size)


def swap_is_unfinished(folder: Path) -> bool:
    """Tell by the names of its files whether a swap was cut off in a folder, or runs there."""
    return any(path.suffix in {".cleaned", ".swap"} for path in folder.iterdir())
