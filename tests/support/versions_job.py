"""What one Spark does in a log that others use as well: a program, for any environment.

``python versions_job.py DOES LOG FOLDER [WORD]`` prints a line of JSON, if it is not to be killed:

=============  ====================================================================================
``limits``     reads topic ``t`` under each of ``OPTIONS``, and prints the offsets of the
               micro-batches as their checkpoints have them
``passes_on``  goes on with a query from ``t`` to files and to topic ``copy``, and kills all of
               itself in the micro-batch whose number is WORD, between ``offsets/`` and ``commits/``
``ends``       goes on until nothing is new
``together``   appends ``ROWS`` rows that begin with WORD to ``u``, and tails it until it has all
               rows of ``WRITERS`` programs
=============  ====================================================================================
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["OPTIONS", "ROWS", "WRITERS", "batches_of"]

OPTIONS: Final = {
    "maxOffsetsPerTrigger": {"maxOffsetsPerTrigger": "7"},
    "maxBytesPerTrigger": {"maxBytesPerTrigger": "300"},
    "minPartitions": {"minPartitions": "5", "maxOffsetsPerTrigger": "20"},
    "stopAtOffsets": {"stopAtOffsets": '{"t":{"0":9}}', "maxOffsetsPerTrigger": "8"},
    "failOnDataLoss": {"failOnDataLoss": "false", "startingOffsets": '{"t":{"0":90,"1":2}}'},
}
ROWS: Final = 40
WRITERS: Final = 4


def session() -> SparkSession:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "512m")
    builder = builder.config("spark.sql.shuffle.partitions", "1")
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def batches_of(checkpoint: Path) -> list[Any]:
    """Return the end offsets of each planned micro-batch, and whether it was committed."""
    numbers = sorted(int(file.name) for file in (checkpoint / "offsets").glob("[0-9]*"))
    return [
        [
            json.loads((checkpoint / "offsets" / str(number)).read_text().splitlines()[-1]),
            (checkpoint / "commits" / str(number)).exists(),
        ]
        for number in numbers
    ]


def _load(spark: SparkSession, log: str, topic: str, **given: str) -> DataFrame:
    options = {"subscribe": topic, "startingOffsets": "earliest"} | given
    options["fetchOffset.retryIntervalMs"] = "10"
    return spark.readStream.format("kafkalog").options(**options).load(log)


def _start(
    rows: DataFrame, checkpoint: Path, take: Callable[[DataFrame, int], None]
) -> StreamingQuery:
    return rows.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint)).start()


def _patiently(start: Callable[[], StreamingQuery], until: Callable[[StreamingQuery], bool]) -> Any:
    """Start a query, and return it when that holds.

    Spark gives up on a Python process that takes 10 s to start, which no setting changes. On a busy
    machine it may: the query starts again where it is.
    """
    while True:
        query = start()
        try:
            while not until(query):
                query.awaitTermination(0.2)  # type: ignore[arg-type] # takes them
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
        else:
            return query


def _has_read_all(query: StreamingQuery) -> bool:
    query.processAllAvailable()
    return True


def limits(spark: SparkSession, log: str, folder: Path) -> dict[str, Any]:
    found = {}
    for name, given in OPTIONS.items():
        tasks: list[int] = []
        checkpoint = folder / name

        def take(rows: DataFrame, number: int, tasks: list[int] = tasks) -> None:
            tasks.append(rows.rdd.getNumPartitions())

        rows = _load(spark, log, "t", **given)
        _patiently(functools.partial(_start, rows, checkpoint, take), _has_read_all).stop()
        found[name] = [[end for end, _ in batches_of(checkpoint)], tasks]
    return found


def passes_on(spark: SparkSession, log: str, folder: Path, last: int) -> None:
    """Go on with both queries; ``last`` is the micro-batch in which to die, -1 for none."""
    rows = _load(spark, log, "t", maxOffsetsPerTrigger="7")

    def take(batch: DataFrame, number: int) -> None:
        found = [(row.partition, row.offset) for row in batch.collect()]
        (folder / f"{number}.json").write_text(json.dumps(sorted(found)))
        if number == last:
            _die()

    write = (
        _load(spark, log, "t", maxOffsetsPerTrigger="3")
        .selectExpr("'copy' as topic", "value", "partition")
        .writeStream.format("kafkalog")
        .option("numPartitions", "2")
        .option("checkpointLocation", str(folder / "copying"))
    )
    # Each version commits some of it.
    copying = _patiently(lambda: write.start(log), lambda query: bool(query.recentProgress))
    _patiently(functools.partial(_start, rows, folder / "checkpoint", take), _has_read_all).stop()
    copying.processAllAvailable()
    copying.stop()


def together(log: str, folder: Path, name: str) -> list[str]:
    seen: list[str] = []

    def take(batch: DataFrame, number: int) -> None:
        batch = batch.orderBy("offset").selectExpr("cast(value as string) as value")
        seen.extend(row.value for row in batch.collect())

    with (folder / "lock").open("w") as lock:  # the others start before and after, not as well
        fcntl.flock(lock, fcntl.LOCK_EX)
        spark = session()
        rows = _load(spark, log, "u", waitForTopics="true")
        query = _patiently(
            functools.partial(_start, rows, folder / f"tail {name}", take),
            lambda query: "Initializing" not in query.status["message"],
        )
    for number in range(0, ROWS, 10):
        some = [(f"{name}:{n}",) for n in range(number, number + 10)]
        frame = spark.createDataFrame(some, "value string").coalesce(1)
        frame.write.format("kafkalog").option("topic", "u").mode("append").save(log)
    while len(seen) < ROWS * WRITERS:
        query.awaitTermination(1)
    query.stop()
    return seen


def _die() -> None:
    """Kill all processes of this one's group, which it leads."""
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    does, log, folder, *words = sys.argv[1:]
    told: object = None
    if does == "limits":
        told = limits(session(), log, Path(folder))
    elif does == "together":
        told = together(log, Path(folder), words[0])
    else:
        passes_on(session(), log, Path(folder), int(words[0]) if does == "passes_on" else -1)
    print(json.dumps(told))  # noqa: T201


if __name__ == "__main__":
    main()
