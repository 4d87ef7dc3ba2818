"""What a row costs by how Spark is asked for it: which columns, and what takes them.

Each way reads the same topic whole, in turns with the others, in one session. CPU ns a row, of
Spark's JVM and of Python by themselves, so that other work on the machine hardly shows.

    python -m benchmarks.asking [--unsafe]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from benchmarks.cpu import cpu_seconds_by_name
from benchmarks.segments import write_topic
from benchmarks.session import scratch, spark_session
from rich.console import Console
from rich.table import Table

import kafkalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_Key = TypeVar("_Key")

_TOPIC: Final = "rows"
_KEY: Final = "key BINARY"
_VALUE: Final = "value BINARY"
_PLACE: Final = "offset BIGINT, timestamp TIMESTAMP, timestampType INT"
_TO_NOOP: Final = {
    "7 columns": None,
    "7 columns, topic and partition left out": f"{_KEY}, {_VALUE}, {_PLACE}",
    "key, value, offset": f"{_KEY}, {_VALUE}, offset BIGINT",
    "value": _VALUE,
    "value, topic": f"{_VALUE}, topic STRING",
    "value, partition": f"{_VALUE}, partition INT",
    "offset": "offset BIGINT",
}
"""Schemas that are asked for; the rows go to Spark's noop sink."""

_UNSAFE: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"


class Cost(NamedTuple):
    """Seconds by the clock, and of CPU."""

    wall: float
    java: float
    python: float

    def shown(self, rows: int) -> tuple[str, str, str]:
        """Return the cells of a table: seconds by the clock, and ns of CPU for each row."""
        java, python = (f"{seconds * 1e9 / rows:.0f}" for seconds in (self.java, self.python))
        return f"{self.wall:.2f}", java, python


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(prog="benchmarks.asking", description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--unsafe", action="store_true", help="Arrow's checks in Java turned off")
    asked = parser.parse_args(argv)
    if asked.unsafe:
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-java-options '{_UNSAFE}' pyspark-shell"
    with scratch() as work, spark_session(asked.cores, work) as spark:
        log = work / "log"
        rows = write_topic(log, _TOPIC, asked.rows)
        found = costs_of(_ways(spark, log), asked.rounds)
    table = Table(
        *("way", "wall s", "JVM, ns a row", "Python, ns a row"),
        title=f"{rows:,} rows, median of {asked.rounds}",
    )
    for name, cost in found.items():
        table.add_row(name, *cost.shown(rows))
    Console(width=120).print(table)
    return 0


def _ways(spark: SparkSession, log: Path) -> dict[str, Callable[[], object]]:
    def frame(schema: str | None) -> DataFrame:
        reader = spark.read.format("kafkalog").option("subscribe", _TOPIC)
        return (reader.schema(schema) if schema else reader).load(str(log))

    def to_noop(schema: str | None) -> Callable[[], object]:
        return lambda: frame(schema).write.format("noop").mode("overwrite").save()

    lengths = "rows BIGINT, bytes BIGINT"
    return {
        **{name: to_noop(schema) for name, schema in _TO_NOOP.items()},
        "value, `select` of 7 columns": lambda: (
            frame(None).select("value").write.format("noop").mode("overwrite").save()
        ),
        "value, summed by Spark": lambda: frame(_VALUE).selectExpr("sum(length(value))").collect(),
        "value, summed by `mapInArrow`": lambda: (
            frame(_VALUE).mapInArrow(_sums, lengths).selectExpr("sum(bytes)").collect()
        ),
        "value, `toArrow`": lambda: frame(_VALUE).toArrow(),
        "value, `kafkalog.read`, no Spark": lambda: [
            batch.nbytes for batch in kafkalog.read(log, _TOPIC, columns=["value"])
        ],
    }


def _sums(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # noqa: PLC0415 - runs in a worker
    import pyarrow.compute as pc  # noqa: PLC0415

    for batch in batches:
        size = pc.sum(pc.binary_length(batch.column("value"))).as_py() or 0
        yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows], "bytes": [size]})


def costs_of(ways: Mapping[_Key, Callable[[], object]], rounds: int) -> dict[_Key, Cost]:
    """Return what each way takes: medians of rounds in which they take turns, after a warm-up."""
    taken: dict[_Key, list[Cost]] = {key: [] for key in ways}
    for _ in range(rounds + 1):
        for key, way in ways.items():
            taken[key].append(_cost_of(way))
    return {
        key: Cost(*(statistics.median(each) for each in zip(*costs[1:], strict=True)))
        for key, costs in taken.items()
    }


def _cost_of(way: Callable[[], object]) -> Cost:
    before, start = cpu_seconds_by_name(), time.monotonic()
    way()
    wall, after = time.monotonic() - start, cpu_seconds_by_name()
    whole = sum(after.values()) - sum(before.values())
    java = after.get("java", 0) - before.get("java", 0)
    return Cost(wall, java, whole - java)


if __name__ == "__main__":
    raise SystemExit(main())
