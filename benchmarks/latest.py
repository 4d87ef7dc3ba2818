"""``view=latest`` beside what Spark's users do: ``max_by``, and a join with ``max(offset)``.

All of them read the same log by our own source, to noop. ``get`` is timed in this process, for keys
in the last 8 MiB of a partition; the bytes that it reads from segments are counted.
"""

from __future__ import annotations

import argparse
import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from benchmarks.machine import facts
from benchmarks.measure import Contender, Goal, Workload, measure, timed
from benchmarks.report import LATEST, section_table, table, write_section
from benchmarks.session import scratch, spark_session
from benchmarks.worker_memory import WorkerPeak
from pyspark.sql import functions as f
from rich.console import Console
from tests.support.counted_reads import counted_reads

import kafkalog
from kafkalog.model import TopicPartition, many

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.measure import Measured
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["main"]

_TOPIC: Final = "rows"
_KEY: Final = ["topic", "partition", "key"]
_MAX_BY: Final = "max_by(…, offset)"
_JOIN: Final = "max(offset) and a join"
_LATEST: Final = "kafkalog, view=latest"
_SMALL: Final = "kafkalog, view=latest, table.memory of a tenth"
_AT_ONCE: Final = 250_000
_LOOK_UPS: Final = 50
_NEAR_THE_END: Final = 50_000
_DEFAULT_BUDGET: Final = 128 << 20
_CACHE_MIB: Final = 64
_SPARE_MIB: Final = 300


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all of them and print a table; with ``--docs`` put it on the page."""
    parser = argparse.ArgumentParser(prog="benchmarks.latest", description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--docs", type=Path, help="a folder whose benchmarks.md gets the figures")
    parser.add_argument("--quick", action="store_true", help="whether it works, not how fast")
    asked = parser.parse_args(argv)
    if asked.quick:
        asked.records, asked.keys, asked.rounds = 20_000, 2_000, 1
    console = Console()
    with scratch() as directory, spark_session(asked.cores, directory) as spark:
        log = directory / "log"
        end = _write(log, asked.records, asked.keys, asked.partitions)
        work = _workload(spark, log, asked)
        measured = measure(work, asked.rounds, partial(_tell, console))
        memory = _memory(work, asked)
        look_ups = _look_ups(log, end, asked.partitions)
    console.print(table([measured]))
    console.print(memory)
    console.print(look_ups)
    if asked.docs:
        write_section(asked.docs, LATEST, _section(asked, measured, memory, look_ups))
    return 0


def _write(log: Path, records: int, keys: int, partitions: int) -> int:
    """Write the log; gives the end of its first partition."""
    options = {"numPartitions": partitions, "compression.type": "lz4", "flush": "os"}
    outcome = kafkalog.append(log, _TOPIC, _batches(records, keys), options=options)
    return outcome.end_offsets[TopicPartition(_TOPIC, 0)]


def _batches(records: int, keys: int) -> Iterator[pa.RecordBatch]:
    """Give keys at random, and values of 100 bytes of which half is hex digits at random."""
    draw = np.random.default_rng(7)
    for first in range(0, records, _AT_ONCE):
        count = min(_AT_ONCE, records - first)
        numbers = draw.integers(0, keys, count)
        digits = draw.integers(0, 2**62, (count, 3))
        values = [
            f'{{"id":"{number:010d}","hash":"{a:015x}{b:015x}{c:015x}","pad":"'.ljust(100, "k")
            for number, (a, b, c) in zip(numbers.tolist(), digits.tolist(), strict=True)
        ]
        names = [f"{number:010d}" for number in numbers.tolist()]
        yield pa.RecordBatch.from_pydict({"key": pa.array(names), "value": pa.array(values)})


def _workload(spark: SparkSession, log: Path, asked: argparse.Namespace) -> Workload:
    contenders = {
        _MAX_BY: lambda: _by_max_by(_load(spark, log)),
        _JOIN: lambda: _by_join(_load(spark, log)),
        _LATEST: lambda: _load(spark, log, view="latest"),
        _SMALL: lambda: _load(spark, log, view="latest", **{"table.memory": str(_tenth(asked))}),
    }
    return Workload(
        title=f"the newest row of each of {asked.keys:,} keys",
        contenders=tuple(
            Contender(name, partial(_to_noop, frame)) for name, frame in contenders.items()
        ),
        goals=(
            Goal(_LATEST, _MAX_BY, 6),
            Goal(_LATEST, _JOIN, 4),
            Goal(_SMALL, _MAX_BY, 1),
            Goal(_SMALL, _JOIN, 1),
        ),
        rows=asked.records,
    )


def _tenth(asked: argparse.Namespace) -> int:
    """Return a tenth of the bytes of a partition's newest rows, or the least that is allowed."""
    return max(1 << 16, asked.keys * 110 // asked.partitions // 10)


def _memory(work: Workload, asked: argparse.Namespace) -> str:
    """Run both views once more, watched; says what a Python worker took at its peak."""
    told = []
    budgets = {_LATEST: _DEFAULT_BUDGET, _SMALL: _tenth(asked)}
    for contender in work.contenders:
        if contender.name in budgets:
            with WorkerPeak() as watch:
                contender.run()
            budget = budgets[contender.name] / (1 << 20)
            bound = budget + _CACHE_MIB + _SPARE_MIB
            told.append(
                f"{watch.peak_mib:,.0f} MiB with a table.memory of {budget:,.1f} MiB (goal: at "
                f"most {bound:,.0f}, {'reached' if watch.peak_mib <= bound else 'missed'})"
            )
    return f"Peak memory of a Python worker, all of it resident: {'; '.join(told)}"


def _load(spark: SparkSession, log: Path, **options: str) -> DataFrame:
    reader = spark.read.format("kafkalog").option("subscribe", _TOPIC)
    return reader.options(**options).load(str(log))


def _by_max_by(records: DataFrame) -> DataFrame:
    rest = [name for name in records.columns if name not in _KEY]
    newest = f.max_by(f.struct(*rest), "offset").alias("newest")
    return records.groupBy(*_KEY).agg(newest).select(*_KEY, "newest.*").where("value IS NOT NULL")


def _by_join(records: DataFrame) -> DataFrame:
    newest = records.groupBy(*_KEY).agg(f.max("offset").alias("offset"))
    return records.join(newest, [*_KEY, "offset"]).where("value IS NOT NULL")


def _to_noop(make: Callable[[], DataFrame]) -> float:
    return timed(lambda: make().write.format("noop").mode("overwrite").save())


def _look_ups(log: Path, end: int, partitions: int) -> str:
    """Look for keys near the end of a partition; says how long it takes, and what is read."""
    others = range(1, partitions)
    starts = {"0": max(0, end - _NEAR_THE_END)} | {str(number): 0 for number in others}
    ends = {"0": end} | {str(number): 0 for number in others}
    options = {
        "startingOffsets": json.dumps({_TOPIC: starts}),
        "endingOffsets": json.dumps({_TOPIC: ends}),
    }
    rows = kafkalog.read(log, _TOPIC, columns=["key"], options=options).read_all()
    keys = rows.column("key").to_pylist()[:: max(1, len(rows) // _LOOK_UPS)]
    kafkalog.get(log, _TOPIC, keys[0])
    took = sorted(timed(partial(kafkalog.get, log, _TOPIC, key)) * 1e3 for key in keys)
    with counted_reads() as fetched:
        for key in keys:
            assert kafkalog.get(log, _TOPIC, key) is not None
    read = fetched[".log"] / len(keys) / 1024
    return (
        f"kafkalog.get, {len(keys)} keys of the last {_NEAR_THE_END:,} records of a partition: "
        f"median {took[len(took) // 2]:.0f} ms, slowest {took[-1]:.0f} ms; {read:,.0f} KiB of "
        "segments read for each"
    )


def _section(asked: argparse.Namespace, measured: Measured, memory: str, look_ups: str) -> str:
    return (
        f"{asked.records:,} records, {asked.keys:,} keys, values of 100 bytes, lz4, "
        f"{many(asked.partitions, 'partition')}; {many(asked.cores, 'core')} for Spark "
        f"({facts()['processor']}), all columns to "
        f"Spark's noop sink; {asked.rounds} rounds after a warm-up, in turns. Each reads the log "
        "by kafkalog's source. A tenth is that of the bytes of a partition's newest rows "
        f"(`python -m benchmarks.latest`).\n\n{section_table(measured)}\n\n{memory}.\n\n"
        f"{look_ups}.\n"
    )


def _tell(console: Console, who: str, value: float) -> None:
    console.print(f"{who}: {value:.2f} s")


if __name__ == "__main__":
    raise SystemExit(main())
