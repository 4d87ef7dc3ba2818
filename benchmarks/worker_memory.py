"""The most memory that a Python worker of Spark takes, by the shape of what it writes and reads.

Writes and then reads topics of many shapes by Spark, and watches every Python process that Spark
runs meanwhile: all of its resident memory, interpreter, Arrow and compiled kernels included. Writes
``memory.md``; the exit code is 1 if one process took more than the bound.

    python -m benchmarks.worker_memory
"""

from __future__ import annotations

import argparse
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from benchmarks.cpu import descendants
from benchmarks.segments import PartitionWriter, commit_ends, encoded_rows
from benchmarks.session import scratch, spark_session
from pyspark.sql import functions as f
from rich.console import Console

from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["WorkerPeak", "main"]

_BOUND_MIB: Final = 512
_TOPIC: Final = "rows"
_MOST_ROWS: Final = 1_000_000
_BYTES: Final = 256 << 20
_SAMPLE_SECONDS: Final = 0.02
_RESET_PEAK: Final = "5"
"""For ``clear_refs``: the peak of a process is what it has now."""


class _Shape(NamedTuple):
    """Of a topic: a key of 0 bytes is null; ``batch`` is bytes of a batch, before compression."""

    name: str
    key: int = 10
    value: int = 100
    codec: str = "lz4"
    headers: int = 0
    partitions: int = 4
    batch: int | None = None
    version: str = "v2"


_SHAPES: Final = (
    _Shape("values of 100 bytes"),
    _Shape("values of 1 KB", value=1000),
    _Shape("values of 100 KB", value=100_000),
    _Shape("batches of 1 record", batch=200),
    _Shape("batches of 10 records", batch=1_250),
    _Shape("batches of 500 records", batch=61_000),
    _Shape("batches of 10,000 records", batch=1_220_000),
    _Shape("not compressed", codec="none"),
    _Shape("gzip", codec="gzip"),
    _Shape("snappy", codec="snappy"),
    _Shape("zstd", codec="zstd"),
    _Shape("null keys", key=0),
    _Shape("keys of 1 KB", key=1000),
    _Shape("3 headers", headers=3),
    _Shape("format v1", version="v1"),
    _Shape("format v0", version="v0"),
    _Shape("1 partition", partitions=1),
    _Shape("100 partitions", partitions=100),
    _Shape("1,000 partitions", partitions=1000),
)

_SINKS_BATCH: Final = 256 << 10
"""The sink's batches do not get larger."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the page; 1 if a worker took more than it may."""
    parser = argparse.ArgumentParser(prog="benchmarks.worker_memory", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rows and shapes: does it work")
    parser.add_argument("--docs", type=Path, help="where memory.md goes")
    asked = parser.parse_args(argv)
    found = list(_measure(Console(), quick=asked.quick))
    docs = asked.docs or (None if asked.quick else Path(__file__).parent.parent / "docs")
    if docs:
        docs.mkdir(parents=True, exist_ok=True)
        (docs / "memory.md").write_text(_page(found), encoding="utf-8")
    return int(max(max(one.writing or 0, one.reading) for one in found) > _BOUND_MIB)


class _Found(NamedTuple):
    """MiB at the peak; ``writing`` is None where the sink makes no such batches."""

    shape: _Shape
    rows: int
    writing: float | None
    reading: float


def _measure(console: Console, *, quick: bool) -> Iterator[_Found]:
    cores = len(os.sched_getaffinity(0))
    with scratch() as work, spark_session(cores, work) as spark:
        for shape in _SHAPES[5:8] if quick else _SHAPES:
            rows = 20_000 if quick else min(_MOST_ROWS, _BYTES // (shape.key + shape.value))
            with scratch() as log:
                writing = _write(spark, log, shape, rows)
                with WorkerPeak() as watch:
                    reader = spark.read.format("kafkalog").option("subscribe", _TOPIC)
                    frame = reader.option("includeHeaders", shape.headers > 0).load(str(log))
                    frame.write.format("noop").mode("overwrite").save()
            shown = "-" if writing is None else f"{writing:.0f}"
            console.print(f"{shape.name}: writing {shown}, reading {watch.peak_mib:.0f} MiB")
            yield _Found(shape, rows, writing, watch.peak_mib)


def _write(spark: SparkSession, log: Path, shape: _Shape, rows: int) -> float | None:
    """Write the topic, and give the peak where the sink does that; it makes no larger batches."""
    if shape.batch is not None and shape.batch > _SINKS_BATCH:
        places = [TopicPartition(_TOPIC, number) for number in range(shape.partitions)]
        run = encoded_rows(20_000, target_bytes=shape.batch)
        writers = [PartitionWriter(log, place) for place in places]
        times = max(1, rows // 20_000 // len(writers))
        ends = [max(writer.append(run) for _ in range(times)) for writer in writers]
        commit_ends(log, zip(places, ends, strict=True))
        return None
    write = _rows(spark, shape, rows).write.format("kafkalog").mode("append")
    write = write.option("topic", _TOPIC).option("numPartitions", shape.partitions)
    write = write.option("compression.type", shape.codec).option("message.format", shape.version)
    if shape.batch is not None:
        write = write.option("max.message.bytes", shape.batch)
    with WorkerPeak() as watch:
        write.option("flush", "os").save(str(log))
    return watch.peak_mib


def _rows(spark: SparkSession, shape: _Shape, rows: int) -> DataFrame:
    """Return rows of which a part is random digits."""
    row = f.col("id").cast("string")
    text = f.rpad(f.sha2(row, 256), shape.value, "kafkalog ")
    columns = [text.cast("binary").alias("value")]
    if shape.key:
        columns.append(f.lpad(row, shape.key, "0").cast("binary").alias("key"))
    if shape.headers:
        header = f.struct(f.lit("name").alias("key"), f.encode(row, "UTF-8").alias("value"))
        columns.append(f.array(*[header] * shape.headers).alias("headers"))
    return spark.range(0, rows, 1, spark.sparkContext.defaultParallelism).select(*columns)


class WorkerPeak:
    """Follows the Python processes that Spark has started for the peak that one of them reaches."""

    def __init__(self) -> None:
        self.peak_mib = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        for worker in _workers():
            with suppress(OSError):
                (worker / "clear_refs").write_text(_RESET_PEAK, encoding="ascii")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    def _follow(self) -> None:
        while not self._ended.wait(_SAMPLE_SECONDS):
            self._look()

    def _look(self) -> None:
        self.peak_mib = max([self.peak_mib, *map(_peak_mib, _workers())])


def _workers() -> list[Path]:
    """Return the folders in ``/proc`` of the Python processes that Spark has started."""
    found = []
    for folder in (Path(f"/proc/{number}") for number in descendants()):
        with suppress(OSError):  # it has ended
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if any(word.startswith(b"pyspark.") for word in words):
                found.append(folder)
    return found


def _peak_mib(folder: Path) -> float:
    """Return the most resident memory that a process had since it was last reset."""
    try:
        lines = (folder / "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0)


def _page(found: Sequence[_Found]) -> str:
    lines = [
        "# Memory\n",
        (
            "The most memory in MiB (resident) of any of Spark's Python processes while it writes"
            f" or reads a topic, planning and commit included. The bound is {_BOUND_MIB}.\n\n"
            "Interpreter, libraries and compiled kernels take some 200 MiB of it. Unless the shape"
            " says otherwise, a topic has keys of 10 bytes, values of 100, lz4, the sink's own"
            " batches, format v2 and 4 partitions. The size of segments does not matter"
            " (`python -m benchmarks.segment_memory`).\n"
        ),
        "| shape | rows | writing | reading |",
        "| --- | --- | --- | --- |",
    ]
    for one in found:
        writing = "" if one.writing is None else f"{one.writing:.0f}"
        lines.append(f"| {one.shape.name} | {one.rows:,} | {writing} | {one.reading:.0f} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    raise SystemExit(main())
