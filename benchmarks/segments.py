"""Segments of any size, written by the library without Spark."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Final

import crc32c
import numpy as np
import pyarrow as pa

from kafkalog.checkpoints.broker import HIGH_WATERMARK, new_topic_id, write_offset_checkpoint
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.appender import PartitionAppender
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.records.batch import scan_batches
from kafkalog.streaming.records.builder import BatchBuilder, RecordColumns, assign_offsets
from kafkalog.streaming.records.compression import Codec

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import numpy.typing as npt

__all__ = [
    "FIRST_TIMESTAMP",
    "PRODUCER_BATCH_BYTES",
    "RUN_INTERVAL_MS",
    "PartitionWriter",
    "commit_ends",
    "encoded_rows",
    "postponed",
    "write_partition",
    "write_topic",
]

PRODUCER_BATCH_BYTES: Final = 16 << 10
"""``batch.size`` of a Java producer, before compression."""

_RUN_ROWS: Final = 100_000
_PARTITIONS: Final = 4
_BATCH_BYTES: Final = 256 << 10

FIRST_TIMESTAMP: Final = 1_700_000_000_000
RUN_INTERVAL_MS: Final = 1000
"""By how much later the records of each run are that a partition is filled with."""

# Of a batch of magic 2: the crc at byte 17 covers all from 21 on; baseTimestamp and maxTimestamp
# lie at 27.
_CRC: Final = struct.Struct(">I")
_CRC_POSITION: Final = 17
_CRC_START: Final = 21
_TIMES: Final = struct.Struct(">qq")
_TIMES_POSITION: Final = 27


def encoded_rows(rows: int, target_bytes: int = PRODUCER_BATCH_BYTES) -> npt.NDArray[np.uint8]:
    """Encode rows with keys of 10 and values of 100 bytes, half of them random, by lz4."""
    random = np.random.default_rng(7)
    keys = pa.array([b"%010d" % number for number in range(rows)])
    values = pa.array([random.bytes(25).hex().encode() + b" kafkalog " * 5 for _ in range(rows)])
    timestamps = np.full(rows, FIRST_TIMESTAMP, np.int64)
    columns = RecordColumns.from_arrow(timestamps=timestamps, key=keys, value=values)
    builder = BatchBuilder(Codec.LZ4, target_bytes=target_bytes)
    batches = builder.append(columns, np.arange(rows, dtype=np.int64))
    last = builder.finish()
    found = [*batches, *([last] if last else [])]
    return np.frombuffer(bytearray().join(batch.data for batch in found), np.uint8)


class PartitionWriter:
    """Appends encoded rows to a partition, which it makes or continues with."""

    def __init__(
        self, directory: Path, place: TopicPartition, *, segment_bytes: int = 2**31 - 1
    ) -> None:
        self._appender = PartitionAppender(
            directory / f"{place.topic}-{place.partition}",
            place,
            LogConfig.from_mapping({"segment.bytes": str(segment_bytes)}),
            now_ms=int(time.time() * 1000),
            topic_id=new_topic_id(),
        )

    def append(self, run: npt.NDArray[np.uint8], *, later_ms: int = 0) -> int:
        """Append the rows again, so much later, with the next offsets; return the end offset."""
        numbered = postponed(run, later_ms) if later_ms else run.copy()
        assign_offsets(numbered, self._appender.log_end_offset, self._appender.leader_epoch)
        self._appender.append(numbered, scan_batches(numbered).table)
        return self._appender.log_end_offset


def postponed(run: npt.NDArray[np.uint8], later_ms: int) -> npt.NDArray[np.uint8]:
    """Return a copy of encoded rows whose records are so much later."""
    later = run.copy()
    _postpone(later, later_ms)
    return later


def write_partition(
    directory: Path, place: TopicPartition, run: npt.NDArray[np.uint8], size: int
) -> int:
    """Append ``run`` until the partition's only segment has ``size`` bytes; return its end offset.

    Each time its records are ``RUN_INTERVAL_MS`` later.
    """
    writer = PartitionWriter(directory, place)
    times = range(-(-size // len(run)))
    return max(writer.append(run, later_ms=number * RUN_INTERVAL_MS) for number in times)


def write_topic(directory: Path, topic: str, rows: int) -> int:
    """Write a new log directory with about so many rows of a topic; return how many they are.

    They lie in four partitions, in batches of 256 KiB.
    """
    directory.mkdir()
    run = encoded_rows(_RUN_ROWS, _BATCH_BYTES)
    places = [TopicPartition(topic, partition) for partition in range(_PARTITIONS)]
    times = max(1, rows // (_RUN_ROWS * _PARTITIONS))
    size = times * len(run)
    commit_ends(directory, [(each, write_partition(directory, each, run, size)) for each in places])
    return times * _RUN_ROWS * _PARTITIONS


def commit_ends(directory: Path, ends: Iterable[tuple[TopicPartition, int]]) -> None:
    """Say in a broker's checkpoint up to which offsets the partitions may be read."""
    write_offset_checkpoint(directory, HIGH_WATERMARK, dict(ends))


def _postpone(run: npt.NDArray[np.uint8], later_ms: int) -> None:
    """Make the records of all batches later, in place."""
    data = memoryview(run)
    table = scan_batches(run).table
    for position, size in zip(table.position.tolist(), table.size.tolist(), strict=True):
        batch = data[position : position + size]
        first, last = _TIMES.unpack_from(batch, _TIMES_POSITION)
        _TIMES.pack_into(batch, _TIMES_POSITION, first + later_ms, last + later_ms)
        _CRC.pack_into(batch, _CRC_POSITION, crc32c.crc32c(batch[_CRC_START:]))
