"""Supervised query: its progress is shown, and it ends between two micro-batches.

Ctrl-C and SIGTERM ask it to end: it finishes the micro-batch that runs, if that takes no longer
than it may. A second signal ends the process at once. Either way a restart continues, and nothing
is there twice.

Pieces of work that are no query are attended in the same way.
"""

from __future__ import annotations

from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

import typer
from rich.console import Console

from kafkalog.files.system import system
from kafkalog.jobs.process.signals import noting_signals
from kafkalog.model import many
from kafkalog.streaming.source.offsets import from_json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from kafkalog.streaming.options.read_options import ReadOptions
    from kafkalog.streaming.source.offsets import PartitionOffsets

__all__ = ["Ended", "attend", "attend_pieces", "ends_to_reach"]

_LOOK_SECONDS: Final = 0.25


class Ended(NamedTuple):
    """How a query ended."""

    code: int
    """0 if it came to its end; 128 and the signal's number if it was asked to end."""
    rows: str
    """How many rows it took, in one line."""

    def tell(self) -> NoReturn:
        """Print the line, and end the command with the code."""
        Console(stderr=True).print(self.rows, soft_wrap=True, highlight=False)
        raise typer.Exit(self.code)


def attend(
    query: StreamingQuery,
    *,
    grace_ms: int,
    start_again: Callable[[], StreamingQuery] | None = None,
    targets: PartitionOffsets | None = None,
) -> Ended:
    """Wait until a query ends, and show meanwhile how many rows it took.

    Args:
        query: a query that was started.
        grace_ms: how long a micro-batch may take once a signal has come.
        start_again: starts it again, which is done until it has come to ``targets``, or finds
            nothing new.
        targets: what :func:`ends_to_reach` gave before it was started.

    Raises:
        StreamingQueryException: the query has failed.
    """
    console = Console(stderr=True)  # a file is not told
    count = _Count(query)
    with noting_signals() as asked, console.status(f"{query.name}: starting") as status:
        while True:
            while not query.awaitTermination(_LOOK_SECONDS):  # type: ignore[arg-type] # takes ms too
                so_far = count.look()
                if asked:
                    status.update(f"{so_far}; ending with this micro-batch")
                    _end(query, grace_ms)
                    break
                status.update(so_far)
            if asked or start_again is None or not _ended_early(query, targets or {}):
                break
            count.look()
            query = count.continues_in(start_again())
    return Ended(128 + asked[0] if asked else 0, count.look())


def attend_pieces(
    spark: SparkSession,
    name: str,
    pieces: Iterator[Callable[[], int] | None],
    *,
    grace_ms: int,
) -> Ended:
    """Do one piece of work after the other, and show meanwhile how many rows they took.

    Args:
        spark: the session whose jobs are cancelled when the time is over.
        name: what this is called.
        pieces: each does a piece and returns its number of rows; None: there is nothing to do yet.
        grace_ms: how long a piece may take once a signal has come.

    Raises:
        PySparkException, KafkaLogError: a piece has failed.
    """
    done = _Pieces(name)
    with (
        noting_signals() as asked,
        _cancelling(spark, asked, grace_ms) as cancelled,
        Console(stderr=True).status(f"{name}: starting") as status,
    ):
        for piece in pieces:
            try:
                done.do(piece)
            except Exception:  # whatever Spark makes of a job that is cancelled
                if not cancelled:
                    raise
                done.is_broken_off = True
            status.update(done.summary)
            if asked:
                break
    return Ended(128 + asked[0] if asked else 0, done.summary)


class _Pieces:
    """Counts the rows of pieces of work."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rows = self._count = 0
        self._began = system.monotonic()
        self.is_broken_off = False

    def do(self, piece: Callable[[], int] | None) -> None:
        if piece is not None:
            self._rows += piece()
            self._count += 1

    @property
    def summary(self) -> str:
        """What was done, in one line."""
        summary = _summary(self._name, self._rows, self._count, "piece", self._began)
        return f"{summary}; the piece that ran was broken off" if self.is_broken_off else summary


@contextmanager
def _cancelling(spark: SparkSession, asked: list[int], grace_ms: int) -> Iterator[list[bool]]:
    """Cancel Spark's jobs from another thread, a time after a signal has come; note that it was."""
    over: Future[None] = Future()
    cancelled: list[bool] = []

    def watch() -> None:
        deadline = None
        while not wait([over], _LOOK_SECONDS).done:
            if asked and deadline is None:
                deadline = system.monotonic() + grace_ms / 1000
            if deadline is not None and system.monotonic() >= deadline:
                cancelled.append(True)
                spark.sparkContext.cancelAllJobs()

    with system.pool(1, "grace") as pool:
        pool.submit(watch)
        try:
            yield cancelled
        finally:
            over.set_result(None)


def ends_to_reach(options: ReadOptions) -> PartitionOffsets:
    """Return where logs end now, if Spark may end a query with ``availableNow`` before it is there.

    A Spark without admission control ends it after one micro-batch.
    """
    from kafkalog.streaming.source.end_offsets import EndOffsets  # noqa: PLC0415
    from kafkalog.streaming.source.subscription import Subscription  # noqa: PLC0415
    from kafkalog.streaming.spark.versions import HAS_ADMISSION_CONTROL  # noqa: PLC0415

    if HAS_ADMISSION_CONTROL:
        return {}
    return EndOffsets.of(options, Subscription.of(options).selects).look().offsets


def _ended_early(query: StreamingQuery, targets: PartitionOffsets) -> bool:
    """Whether a query over one log that has come further did not come to its targets."""
    moved = [
        source["endOffset"]
        for progress in query.recentProgress
        for source in progress["sources"]
        if source["startOffset"] != source["endOffset"]
    ]
    if not targets or not moved:
        return False
    ends = from_json_text(moved[-1])
    return any(ends.get(key, 0) < end for key, end in targets.items())


def _end(query: StreamingQuery, grace_ms: int) -> None:
    """Stop a query once no micro-batch runs, or when its time is over."""
    deadline = system.monotonic() + grace_ms / 1000
    while query.isActive and query.status["isTriggerActive"] and system.monotonic() < deadline:
        system.sleep(_LOOK_SECONDS / 5)
    query.stop()


class _Count:
    """Counts the rows of each micro-batch once."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._last = -1
        self._rows = 0
        self._batches = 0
        self._began = system.monotonic()

    def continues_in(self, query: StreamingQuery) -> StreamingQuery:
        """Count on in the next run of the query."""
        self._query, self._last = query, -1
        return query

    def look(self) -> str:
        """Look at what has ended since, and say it in one line."""
        newest = self._query.lastProgress
        if newest is not None and newest["batchId"] > self._last:
            for progress in self._query.recentProgress:
                if progress["batchId"] > self._last and progress["numInputRows"]:
                    self._rows += progress["numInputRows"]
                    self._batches += 1
                self._last = max(self._last, progress["batchId"])
        return _summary(self._query.name, self._rows, self._batches, "micro-batch", self._began)


def _summary(name: str, rows: int, count: int, what: str, began: float) -> str:
    seconds = max(system.monotonic() - began, 0.001)
    return f"{name}: {many(rows, 'row')} in {many(count, what)}, {rows / seconds:,.0f} rows/s"
