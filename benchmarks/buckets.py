"""A log in a bucket beside Delta Lake's table in the same bucket: rows, commits, delay, requests.

Both write the same rows by streaming queries, compressed as on the rest of the page and as Delta
does by itself, and read them with `availableNow`. Commits a second are those of 1, 2, 4 and 8
writers of ten rows at one topic, or one table. Delta's write in one JVM: its log store for S3 is
safe for one driver only. What is appended is timed until another query has it, once both run;
kafkalog's asks every 50 ms, Delta's as often as it can. Delta's table has the column `value` alone:
"the same column" is kafkalog read by that schema. Rows go between Spark and Python by Unix sockets,
as on the rest of the page. All of it runs against an S3 server on this machine, once straight, and
once through a proxy that counts requests and adds 30 ms to each. Dollars are what AWS asks for the
requests that one query that writes and one that tails made, in a day.

    python -m benchmarks.buckets [--rows 1000000] [--commits 40] [--samples 30] [--docs docs]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
from benchmarks.report import BUCKETS, write_section
from benchmarks.rows import Shape, make_rows
from benchmarks.session import RECOMMENDED, scratch
from rich.console import Console
from tests.support.object_servers import BUCKET, S3_KEY
from tests.support.object_store import ObjectStore, Request, object_store
from tests.support.spark import end_jvm, small_session

import kafkalog
from kafkalog.jobs.process.jars import Coordinate, JarSet, delta_jars, fetch
from kafkalog.jobs.session import DELTA_SETTINGS
from kafkalog.model import many

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamReader, DataStreamWriter

__all__ = ["main", "s3_session"]

S3A: Final = JarSet(
    "hadoop-aws-3.5.0",
    (
        Coordinate("org.apache.hadoop", "hadoop-aws", "3.5.0", transitive=False),
        Coordinate("software.amazon.awssdk", "bundle", "2.35.4", transitive=False),
        Coordinate(
            "software.amazon.s3.analyticsaccelerator",
            "analyticsaccelerator-s3",
            "1.3.1",
            transitive=False,
        ),
    ),
)
"""Hadoop's client of S3, of the Hadoop that comes with Spark 4.2, and the SDK that it names."""

_DELAY_S: Final = 0.03
_WRITERS: Final = (1, 2, 4, 8)
_FILES: Final = 8
_WARM_BATCHES: Final = 8
"""Micro-batches of the query that tails before rows are timed: the first ones start processes."""
_DOLLARS: Final = {"write": 5e-6, "read": 4e-7}
"""What AWS asks for a request of S3: PUT, POST and LIST; GET and HEAD. DELETE is free."""


class Found(NamedTuple):
    """What was measured of one contender."""

    in_rows_s: float
    out_rows_s: float
    """Of all columns that the format has by itself: seven, and Delta's one."""
    value_rows_s: float
    """Of the column ``value`` alone."""
    commits_s: dict[int, float]
    seen_s: float
    dollars: float
    """A day; nan where requests are not counted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, and put it on the page."""
    parser = argparse.ArgumentParser(prog="benchmarks.buckets", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--commits", type=int, default=40, help="of each writer")
    parser.add_argument("--samples", type=int, default=30, help="rows that are timed")
    parser.add_argument("--docs", type=Path, help="a folder whose benchmarks.md gets the figures")
    asked = parser.parse_args(argv)
    found: dict[tuple[str, str], Found] = {}
    with scratch() as work, object_store("versitygw", work / "server") as store:
        for way, server in (("straight", store.past_the_proxy()), ("30 ms", store)):
            store.fault = _delayed if way == "30 ms" else None
            with s3_session(server, work) as spark:
                for who in (_Kafkalog, _Delta):
                    contender = who(spark, server, work / f"{way}-{who.__name__}")
                    requests = store.requests if way == "30 ms" else None
                    found[way, who.name] = _measure(contender, asked, requests)
                    Console().print(way, who.name, found[way, who.name])
            end_jvm()
    table = _table(found)
    Console().print(table)
    if asked.docs:
        text = " ".join(str(__doc__).partition("\n\n")[2].partition("\n\n")[0].split())
        how = (
            f"{asked.rows:,} rows of 100 bytes of JSON in {_FILES} files, two files a micro-batch."
        )
        write_section(asked.docs, BUCKETS, f"{text} {how}\n\n{table}\n")
    return 0


def _delayed(request: Request) -> None:
    del request
    time.sleep(_DELAY_S)


@contextmanager
def s3_session(server: ObjectStore, work: Path) -> Iterator[SparkSession]:
    """Run a local session that knows Delta and S3; its JVM must be a new one."""
    jars = ",".join(str(path) for some in (delta_jars(), S3A) for path in fetch(some))
    s3a = {
        "endpoint": server.endpoint,
        "endpoint.region": "us-east-1",
        "access.key": S3_KEY[0],
        "secret.key": S3_KEY[1],
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }
    settings = {f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()}
    own = {"spark.jars": jars, "spark.local.dir": str(work / "spark")}
    own["spark.databricks.delta.snapshotPartitions"] = "2"  # of 50: small tables, two cores
    own["spark.ui.showConsoleProgress"] = "false"
    own |= RECOMMENDED
    with small_session(**own, **settings, **DELTA_SETTINGS) as spark:
        yield spark


class _Kafkalog:
    name = "kafkalog"

    def __init__(self, spark: SparkSession, server: ObjectStore, folder: Path) -> None:
        self.spark, self.folder, self._server = spark, folder, server
        self._root = server.uri(folder.name.replace(" ", "-"))

    def write(self, rows: DataFrame, name: str) -> DataStreamWriter:
        """Return what writes rows of a stream to a place of that name."""
        writer = rows.writeStream.format("kafkalog").options(**self._server.options)
        writer = writer.option("compression.type", Shape().codec)
        return writer.options(path=f"{self._root}/{name}", topic="t", numPartitions="4")

    def read(self, name: str) -> DataFrame:
        """Return the rows of that place, as a stream from its beginning."""
        return self._reader().load(f"{self._root}/{name}")

    def read_values(self, name: str) -> DataFrame:
        """Return the column ``value`` of those rows alone, as text."""
        return self._reader().schema("value STRING").load(f"{self._root}/{name}")

    def _reader(self) -> DataStreamReader:
        reader = self.spark.readStream.format("kafkalog").options(**self._server.options)
        often = {"storage.pollInterval": "50ms"}
        return reader.options(subscribe="t", startingOffsets="earliest", **often)

    def make(self, name: str) -> None:
        """Make the place, so that it can be read."""
        self._append(name, 1)

    def _append(self, name: str, count: int) -> None:
        rows = pa.table({"value": ["0"] * count})
        kafkalog.append(f"{self._root}/{name}", "t", rows, options=self._server.options)

    def commits(self, writers: int, each: int) -> float:
        """Let some processes commit at once, and return their commits a second."""
        place = f"{self._root}/commits-{writers}"
        self.make(f"commits-{writers}")
        words = [place, json.dumps(self._server.options), str(each)]
        command = [sys.executable, "-c", _APPEND, *words]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        running = [subprocess.Popen(command, text=True, **pipes) for _ in range(writers)]
        for one in running:
            assert one.stdout is not None
            one.stdout.readline()
        begin = time.perf_counter()
        for one in running:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        for one in running:
            assert one.wait() == 0
        return writers * each / (time.perf_counter() - begin)


_APPEND: Final = """
import json, os, sys
import pyarrow as pa
import kafkalog

place, options, count = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
rows = pa.table({"value": ["x" * 100] * 10})
kafkalog.append(place, "t", rows, options=options)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(count):
    kafkalog.append(place, "t", rows, options=options)
os._exit(0)
"""


class _Delta:
    name = "Delta"

    def __init__(self, spark: SparkSession, server: ObjectStore, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        del server
        self._root = f"s3a://{BUCKET}/{folder.name.replace(' ', '-')}"

    def write(self, rows: DataFrame, name: str) -> DataStreamWriter:
        """Return what writes rows of a stream to a place of that name."""
        return rows.writeStream.format("delta").option("path", f"{self._root}/{name}")

    def read(self, name: str) -> DataFrame:
        """Return the rows of that place, as a stream from its beginning."""
        return self.spark.readStream.format("delta").load(f"{self._root}/{name}")

    read_values = read  # its only column

    def make(self, name: str) -> None:
        """Make the place, so that it can be read."""
        self._append(name, 1)

    def _append(self, name: str, count: int) -> None:
        rows = self.spark.range(count, numPartitions=1).selectExpr("repeat('0', 1) AS value")
        rows.write.format("delta").mode("append").save(f"{self._root}/{name}")

    def commits(self, writers: int, each: int) -> float:
        """Let some threads of the one driver commit at once; return their commits a second."""
        name = f"commits-{writers}"
        self._append(name, 10)

        def append(_: int) -> None:
            for _ in range(each):
                self._append(name, 10)

        begin = time.perf_counter()
        with ThreadPoolExecutor(writers) as pool:
            list(pool.map(append, range(writers)))
        return writers * each / (time.perf_counter() - begin)


def _measure(
    contender: _Kafkalog | _Delta, asked: argparse.Namespace, requests: list[Request] | None
) -> Found:
    spark, files = contender.spark, contender.folder / "files"
    made = make_rows(spark, Shape(asked.rows)).selectExpr("CAST(value AS STRING) AS value")
    made.repartition(_FILES).write.parquet(str(files))
    rows = spark.readStream.schema("value STRING").option("maxFilesPerTrigger", 2)
    _timed(contender.write(rows.parquet(str(files)), "warm"), contender.folder / "warm")
    in_s = _timed(contender.write(rows.parquet(str(files)), "rows"), contender.folder / "in")
    out_s, value_s = (
        min(_drained(read("rows"), contender.folder / f"{name}-{n}") for n in range(2))
        for name, read in (("out", contender.read), ("values", contender.read_values))
    )
    commits = {
        count: contender.commits(count, max(asked.commits // count, 5)) for count in _WRITERS
    }
    contender.make("seen")  # and the trial of the store, which is made once
    if requests is not None:
        requests.clear()
    begin = time.perf_counter()
    seen = _seen(contender, asked.samples)
    seconds = time.perf_counter() - begin
    dollars = float("nan") if requests is None else _dollars(requests) * 86400 / seconds
    rows_s = (asked.rows / seconds for seconds in (in_s, out_s, value_s))
    return Found(*rows_s, commits, seen, dollars)


def _timed(writer: DataStreamWriter, checkpoint: Path) -> float:
    begin = time.perf_counter()
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return time.perf_counter() - begin


def _drained(rows: DataFrame, checkpoint: Path) -> float:
    return _timed(rows.writeStream.format("noop"), checkpoint)


def _seen(contender: _Kafkalog | _Delta, samples: int) -> float:
    """Return the median of seconds from a row's arrival at one query until another one has it.

    A file arrives a second, which a query writes to the place that the other one tails. What comes
    while both still start is not timed.
    """
    spark, arriving = contender.spark, contender.folder / "arriving"
    arriving.mkdir()
    delays: list[float] = []
    enough = threading.Event()

    def note(batch: DataFrame, number: int) -> None:
        values = [float(row.value) for row in batch.collect() if row.value != "0"]
        if number >= _WARM_BATCHES:
            delays.extend(time.time() - value for value in values)
        if len(delays) >= samples:
            enough.set()

    rows = spark.readStream.schema("value STRING").text(str(arriving))
    queries = [
        contender.write(rows, "seen").option("checkpointLocation", str(contender.folder / "w")),
        contender.read_values("seen")
        .writeStream.foreachBatch(note)
        .option("checkpointLocation", str(contender.folder / "r")),
    ]
    running = [query.trigger(processingTime="0 seconds").start() for query in queries]
    number = 0
    while not enough.wait(1) and all(query.isActive for query in running):
        hidden = arriving / f".{number}"
        hidden.write_text(f"{time.time()}\n")
        hidden.rename(arriving / f"{number}.txt")
        number += 1
    for query in running:
        query.stop()
    return statistics.median(delays)


def _dollars(requests: Iterable[Request]) -> float:
    def kind(request: Request) -> str:
        is_listing = request.method == "GET" and "list-type=" in request.path
        return "write" if is_listing or request.method in {"PUT", "POST"} else "read"

    return sum(_DOLLARS[kind(each)] for each in requests if each.method != "DELETE")


def _table(found: dict[tuple[str, str], Found]) -> str:
    """Return a line for each figure; a quotient is that of kafkalog's and Delta's."""
    lines = [
        ["what", *(f"{way}: {who}" for way, who in found), "goal"],
        ["---", *["---:"] * len(found), "---"],
    ]

    def add(what: str, form: str, goal: str, of: Callable[[Found], float]) -> None:
        cells = []
        for (way, who), each in found.items():
            value, other = of(each), of(found[way, _Delta.name])
            ratio = value / other
            shown = f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"
            quotient = f" ({shown} times)" if who == _Kafkalog.name else ""
            cells.append("" if math.isnan(value) else format(value, form) + quotient)
        lines.append([what, *cells, goal])

    add("rows a second in", ",.0f", "1.5 times", lambda each: each.in_rows_s)
    add("rows a second out, all columns", ",.0f", "", lambda each: each.out_rows_s)
    add("rows a second out, the same column", ",.0f", "as many", lambda each: each.value_rows_s)
    for count in _WRITERS:
        goal = "10 times" if count == _WRITERS[-1] else ""
        add(f"commits a second, {many(count, 'writer')}", ".1f", goal, _commits_of(count))
    add("seconds until seen, median", ".2f", "half", lambda each: each.seen_s)
    add("dollars a day for requests", ".2f", "", lambda each: each.dollars)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _commits_of(count: int) -> Callable[[Found], float]:
    return lambda each: each.commits_s[count]


if __name__ == "__main__":
    raise SystemExit(main())
