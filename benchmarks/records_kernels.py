"""Rates of the record kernels by themselves: columns to batches and back, codec by codec.

One core, in CPU time, no Spark, no files. Run as ``python -m benchmarks.records_kernels [rows]``,
or with ``--sizes`` for the cost of a row by how many there are in a batch, or with ``--apart`` for
what it costs to encode rows that lie apart, as those of a partition do.
The decoder of aiokafka, which is compiled too but makes Python objects, is shown beside ours.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
import unittest.mock
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from aiokafka.record.memory_records import MemoryRecords
from rich.console import Console
from rich.table import Table

from kafkalog.streaming.records.batch import invalid_checksums, scan_batches
from kafkalog.streaming.records.builder import BatchBuilder, RecordColumns
from kafkalog.streaming.records.columns import (
    ALL_COLUMNS,
    Columns,
    KernelDecompressor,
    RecordDecoder,
)
from kafkalog.streaming.records.compression import Codec

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Integers

_ROWS: Final = 1_000_000
_VALUE_BYTES: Final = 100
_ARROW_BATCH: Final = 10_000
_CHUNK: Final = 1 << 20
_ROUNDS: Final = 5
_SIZES: Final = (2000, 140, 10, 1)
_SIZES_ROWS: Final = 100_000
_PARTITIONS: Final = (1, 4, 16, 64)
_CAN: Final = KernelDecompressor.can


def main(arguments: list[str]) -> int:
    """Print a table of rates, in million rows a second, or of ns a row by size of batch."""
    if arguments == ["--sizes"]:
        return _by_size()
    if arguments == ["--apart"]:
        return _apart()
    rows = int(arguments[0]) if arguments else _ROWS
    batches = _columns(rows)
    table = Table(
        "codec",
        "ratio",
        "encode",
        "checksums",
        "all columns",
        "value only",
        "aiokafka",
        title=f"{rows:,} records of {_VALUE_BYTES} bytes, million rows/s (median of {_ROUNDS})",
    )
    for codec in Codec:
        data = _encode(batches, codec)
        scanned = scan_batches(data).table
        measured: list[Callable[[], Any]] = [
            lambda codec=codec: _encode(batches, codec),
            lambda data=data, scanned=scanned: invalid_checksums(data, scanned),
            lambda data=data: _decode(data, ALL_COLUMNS),
            lambda data=data: _decode(data, Columns.VALUE),
            lambda data=data: _decode_by_aiokafka(data),
        ]
        rates = [rows / _seconds(one) / 1e6 for one in measured]
        ratio = rows * (_VALUE_BYTES + 10) / len(data)
        table.add_row(codec.name.lower(), f"{ratio:.2f}", *(f"{rate:.2f}" for rate in rates))
    Console().print(table)
    return 0


def _columns(rows: int) -> list[RecordColumns]:
    """Return rows of JSON-like text that compresses about as well as such text does."""
    chooser = random.Random(1)
    words = [f"{chooser.getrandbits(24):x}" for _ in range(3000)]
    texts = ['{"a":"' + '","b":"'.join(chooser.choices(words, k=14)) for _ in range(5000)]
    values = pa.array([text[: _VALUE_BYTES - 2] + '"}' for text in texts])
    found = []
    for first in range(0, rows, _ARROW_BATCH):
        numbers = range(first, min(rows, first + _ARROW_BATCH))
        chosen = pa.array([chooser.randrange(len(values)) for _ in numbers])
        found.append(
            RecordColumns.from_arrow(
                timestamps=np.arange(1_700_000_000_000 + first, 1_700_000_000_000 + numbers.stop),
                key=pa.array([b"k%09d" % number for number in numbers]),
                value=values.take(chosen),
            )
        )
    return found


def _by_size() -> int:
    """Print what a row costs by codec and size of batch, by kernels and by calls of Python."""
    table = Table(
        *("codec", "records a batch", "by the kernel", "by calls of Python", "ratio"),
        title=f"CPU ns a row, all columns (best of {_ROUNDS})",
    )
    columns = _columns(_SIZES_ROWS)
    for codec in [one for one in Codec if one != Codec.NONE]:
        for size in _SIZES:
            data = _encode(columns[: 1 if size == 1 else None], codec, size)
            by_kernel, by_python = _both_ways(data)
            taken = f"{by_kernel:.0f}", f"{by_python:.0f}"
            table.add_row(codec.name.lower(), str(size), *taken, f"{by_python / by_kernel:.1f}")
    Console().print(table)
    return 0


def _apart() -> int:
    """Print what a row costs to encode, without a codec, by how many partitions rows go to."""
    title = f"CPU ns a row to encode, not compressed (median of {_ROUNDS})"
    table = Table("partitions", "ns a row", title=title)
    columns = _columns(_ROWS)
    for partitions in _PARTITIONS:
        placed = np.random.default_rng(1).integers(partitions, size=_ARROW_BATCH)
        groups = [np.flatnonzero(placed == number) for number in range(partitions)]
        seconds = _seconds(lambda groups=groups: _encode_apart(columns, groups))
        table.add_row(str(partitions), f"{1e9 * seconds / _ROWS:.0f}")
    Console().print(table)
    return 0


def _encode_apart(batches: list[RecordColumns], groups: list[Integers]) -> None:
    """Encode full Arrow batches, whose rows go to partitions by chance, as hashes of keys do."""
    builders = [BatchBuilder(Codec.NONE) for _ in groups]
    for records in batches:
        for rows, builder in zip(groups, builders, strict=True):
            builder.append(records, rows)


def _both_ways(data: NDArray[np.uint8]) -> tuple[float, float]:
    """Return the ns of CPU that a row takes at best, by kernels and by calls of Python."""
    taken: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(_ROUNDS):
        for is_able, seconds in taken.items():
            with unittest.mock.patch.object(KernelDecompressor, "can", _CAN if is_able else _never):
                rows = _decode(data, ALL_COLUMNS)
                start = time.process_time()
                _decode(data, ALL_COLUMNS)
                seconds.append(1e9 * (time.process_time() - start) / rows)
    return min(taken[True]), min(taken[False])


def _never(*_: object) -> bool:
    return False


def _encode(
    batches: list[RecordColumns], codec: Codec, most: int = _ARROW_BATCH
) -> NDArray[np.uint8]:
    """Encode batches of 256 KiB, or of ``most`` records if that is less than an Arrow batch."""
    builder = BatchBuilder(codec)
    encoded = []
    for records in batches:
        for first in range(0, records.length, most):
            rows = np.arange(first, min(records.length, first + most))
            encoded += builder.append(records, rows)
            if most < _ARROW_BATCH and (small := builder.finish()):
                encoded.append(small)
    last = builder.finish()
    encoded += [] if last is None else [last]
    return np.frombuffer(b"".join(one.data for one in encoded), np.uint8)


def _decode(data: NDArray[np.uint8], columns: Columns) -> int:
    """Decode as a task does: chunk after chunk of a segment, checksums included."""
    decoder = RecordDecoder(columns)
    position, rows = 0, 0
    while position < len(data):
        chunk = data[position : position + _CHUNK]
        scan = scan_batches(chunk)
        rows += sum(batch.num_rows for batch in decoder.feed(chunk, scan.table))
        position += scan.consumed
    return rows + sum(batch.num_rows for batch in decoder.flush())


def _decode_by_aiokafka(data: NDArray[np.uint8]) -> int:
    records = MemoryRecords(data.tobytes())
    rows = 0
    while records.has_next():
        batch = records.next_batch()
        batch.validate_crc()
        rows += sum(1 for record in batch if record.value)
    return rows


def _seconds(run: Callable[[], Any]) -> float:
    run()
    taken = []
    for _ in range(_ROUNDS):
        start = time.process_time()
        run()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
