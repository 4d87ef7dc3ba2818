"""Listeners for streaming queries over the source; add them with ``spark.streams.addListener``."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from kafkalog.errors import CheckpointError, KafkaLogError
from kafkalog.files.atomic import write_atomically
from kafkalog.files.system import system
from kafkalog.model import TopicPartition, listed
from kafkalog.streaming.groups.administration import GroupWriter
from kafkalog.streaming.log.partition_log import measure_unread
from kafkalog.streaming.options.kinds import READABLE_PATHS, WRITABLE_PATHS
from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.source.offsets import from_json_text
from kafkalog.streaming.spark.versions import HAS_ADMISSION_CONTROL, warn_of_no_lag
from kafkalog.texts import Metric, metrics_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from os import PathLike

    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )


__all__ = [
    "GroupOffsetsListener",
    "LagListener",
    "QueryLag",
    "Unread",
    "json_lines",
    "lag",
    "offsets_behind_latest",
    "partition_lags",
    "prometheus_text",
]


# ----------------------------------------------------------------------------------------------
# How far queries are behind: what Spark's Kafka source reports as metrics.
#
# Spark's Python API has no place for a source's metrics. The same numbers follow from a query's
# progress, which has the offsets that were read and those that were there, or from offsets and
# the log directories as they are now.


_LOGGER: Final = logging.getLogger("kafkalog.source")


def partition_lags(source: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Return per partition how many offsets a source was behind at the end of its last micro-batch.

    Args:
        source: one of ``sources`` of a query's progress, such as
            ``query.lastProgress["sources"][0]``.

    Returns:
        nothing if the progress does not say, or is another source's; a partition that was not read
        yet counts from 0, as in Spark.
    """
    try:
        end, latest = (from_json_text(source.get(name)) for name in ("endOffset", "latestOffset"))
    except CheckpointError:
        return {}
    if not end or not latest:
        return {}
    return {key: max(0, offset - end.get(key, 0)) for key, offset in sorted(latest.items())}


def offsets_behind_latest(source: Mapping[str, Any]) -> dict[str, str]:
    """Return the three metrics of Spark's Kafka source, under its names and as text like there.

    ``minOffsetsBehindLatest``, ``maxOffsetsBehindLatest`` and ``avgOffsetsBehindLatest`` over the
    partitions; nothing if the progress does not say. ``source`` is as for :func:`partition_lags`.
    """
    lags = partition_lags(source).values()
    if not lags:
        return {}
    return {
        "minOffsetsBehindLatest": str(min(lags)),
        "maxOffsetsBehindLatest": str(max(lags)),
        "avgOffsetsBehindLatest": str(sum(lags) / len(lags)),
    }


def lag(path: str, offsets: str | Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Return per partition how many offsets lie between what was read and what is committed now.

    Args:
        path: the log directories, as for reading.
        offsets: the next offsets to read, as Spark writes them down: ``{"flights":{"0":23}}``.

    Returns:
        of all partitions of the topics that are named; one that is not named counts from its log
        start, one that is gone is left out. One that was read beyond the end of its log, which was
        cut or replaced, has 0, with a warning: offsets alone do not say whether it has grown since.

    Raises:
        CheckpointError: ``offsets`` are none.
        LogDirectoryError: a log directory cannot be listed.
    """
    read = from_json_text(offsets)
    topics = {key.topic for key in read}
    logs = EndOffsets(READABLE_PATHS.read(path), lambda key: key.topic in topics)
    ends = logs.look(read).offsets
    lost = [
        f"{key} from {at} to {ends[key]}"
        for key, at in sorted(read.items())
        if ends.get(key, at) < at and not logs.reaches(key, at)
    ]
    if lost:
        _LOGGER.warning(
            "the end of these partitions went back: %s. The topic was recreated, or its log was "
            "cut or replaced: records that were read there are gone",
            listed(lost),
        )
    return {
        key: max(0, end - (read[key] if key in read else logs.log_start(key)))
        for key, end in ends.items()
    }


# ----------------------------------------------------------------------------------------------
# Metrics of queries for monitoring: Prometheus' text format, and JSON lines.


@dataclass(frozen=True, slots=True)
class Unread:
    """What a query has not read of a partition: bytes, and the time of the next record in ms."""

    bytes: int
    next_timestamp: int | None


@dataclass(frozen=True, slots=True)
class QueryLag:
    """How far one query was behind at the end of a micro-batch, and what that batch took.

    Attributes:
        query: its id, which outlasts restarts.
        name: its name, if it has one.
        batch_id: the micro-batch.
        sources: for each of its sources the lag of each partition, in offsets.
        rows: how many rows the micro-batch read.
        bytes: how many bytes of record batches these lie in, where that was asked for.
        seconds: how long each step of it took, by Spark's names.
        unread: of each partition, where that was asked for.
        is_running: False once the query has ended; the other values are then its last ones.
        failures: how often it has ended by an error, as far as the listener was there.
        retries: how often it was started after that, which tries its last micro-batch again.
        has_failed: whether it has ended by an error, and was not started since.
    """

    query: str
    name: str | None
    batch_id: int
    sources: Sequence[Mapping[TopicPartition, int]]
    rows: int | None = None
    bytes: int | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    unread: Mapping[TopicPartition, Unread] = field(default_factory=dict)
    is_running: bool = True
    failures: int = 0
    retries: int = 0
    has_failed: bool = False


def prometheus_text(lags: Iterable[QueryLag]) -> str:
    """Write lags as Prometheus reads them, as a page or a file of the node exporter."""
    batch = Metric("kafkalog_query_batch_id", "The number of the last micro-batch.")
    running = Metric("kafkalog_query_running", "1 while the query runs, 0 once it has ended.")
    failures = Metric("kafkalog_query_failures_total", "How often the query has ended by an error.")
    retries = Metric(
        "kafkalog_query_retries_total",
        "How often the query was started again after an error, and tried its micro-batch again.",
    )
    rows = Metric("kafkalog_query_batch_rows", "Rows that the last micro-batch read.")
    sizes = Metric("kafkalog_query_batch_bytes", "Bytes that the last micro-batch read.")
    steps = Metric(
        "kafkalog_query_step_seconds",
        "How long a step of the last micro-batch took; triggerExecution is the whole batch.",
    )
    behind = Metric(
        "kafkalog_query_lag_offsets",
        "Offsets that are committed and were not read at the end of the last micro-batch.",
    )
    unread = Metric("kafkalog_query_lag_bytes", "Bytes that were not read then.")
    ages = Metric("kafkalog_query_lag_seconds", "Age of the next record that was not read then.")
    now = system.time_ns() / 1e9
    for each in lags:
        labels = _query_labels(each)
        batch.add(each.batch_id, **labels)
        running.add(int(each.is_running), **labels)
        failures.add(each.failures, **labels)
        retries.add(each.retries, **labels)
        rows.add(each.rows, **labels)
        sizes.add(each.bytes, **labels)
        for step, seconds in each.seconds.items():
            steps.add(seconds, **labels, step=step)
        for place, lag in _by_partition(each):
            behind.add(lag, **place)
            key = TopicPartition(str(place["topic"]), int(place["partition"]))
            if key in each.unread:
                unread.add(each.unread[key].bytes, **place)
                ages.add(_age(each.unread[key], now), **place)
    metrics = [batch, running, failures, retries, rows, sizes, steps, behind, unread, ages]
    return metrics_text(metrics)


def _age(unread: Unread, now: float) -> float | None:
    if unread.next_timestamp is None:
        return None if unread.bytes else 0.0
    return round(max(0.0, now - unread.next_timestamp / 1000), 3)


def json_lines(lags: Iterable[QueryLag]) -> str:
    """Write a line for each partition of each source of each query."""
    return "".join(
        json.dumps({**labels, "batch_id": each.batch_id, "lag_offsets": lag}) + "\n"
        for each in lags
        for labels, lag in _by_partition(each)
    )


def _query_labels(lag: QueryLag) -> dict[str, str | int]:
    return {"query": lag.query, "name": lag.name or ""}


def _by_partition(lag: QueryLag) -> Iterator[tuple[dict[str, str | int], int]]:
    for number, source in enumerate(lag.sources):
        for (topic, partition), offsets in sorted(source.items()):
            place: dict[str, str | int] = {"source": number, "topic": topic, "partition": partition}
            yield {**_query_labels(lag), **place}, offsets


class _UnreadMeter:
    """Measures bytes in a log between offsets, each time as of now. Not thread safe."""

    def __init__(self, path: str) -> None:
        self._paths = READABLE_PATHS.read(path)
        self._topics: frozenset[str] = frozenset()
        self._logs: EndOffsets | None = None

    def measure(
        self, sources: Sequence[Mapping[str, Any]]
    ) -> tuple[int | None, dict[TopicPartition, Unread]]:
        """Return the bytes that a micro-batch read, and what it left of each partition.

        ``sources`` are those of its progress; ones that are not read from this log are left out.
        """
        places = [place for each in sources if (place := _places_of(each)) is not None]
        topics = frozenset(key.topic for _, ends in places for key in ends)
        if not places:
            return None, {}
        if self._logs is None or topics != self._topics:
            self._topics = topics
            self._logs = EndOffsets(self._paths, lambda key: key.topic in topics)
        latest = self._logs.look().offsets
        size, unread = 0, {}
        for starts, ends in places:
            for key in ends.keys() & latest.keys():
                with self._logs.open(key) as log:
                    start = starts.get(key, log.log_start_offset)
                    if start < ends[key] <= latest[key]:
                        size += measure_unread(log, start, ends[key])[0]
                    if ends[key] <= latest[key]:
                        unread[key] = Unread(*measure_unread(log, ends[key], latest[key]))
        return size, unread


def _places_of(
    source: Mapping[str, Any],
) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]] | None:
    try:
        start = source.get("startOffset")
        return (
            from_json_text(start) if start is not None else {},
            from_json_text(source.get("endOffset")),
        )
    except CheckpointError:
        return None


# ----------------------------------------------------------------------------------------------

_PROGRESS_LOGGER: Final = logging.getLogger("kafkalog.progress")


class _ProgressListener(StreamingQueryListener):
    """Looks at one query's progress: of the query with this name or id, or of all without one."""

    def __init__(self, query: str | None) -> None:
        self._query = query

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing is to be done."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Nothing is to be done."""

    def _is_meant(self, event: QueryProgressEvent) -> bool:
        progress = event.progress
        return self._query is None or self._query in {progress.name, str(progress.id)}


class GroupOffsetsListener(_ProgressListener):
    """Writes a group's positions when a micro-batch has ended.

    ``commitGroupOffsets`` writes them when Spark confirms the batch to the source: one batch late,
    and the last batch of a run only in the next one. With this listener they are up to date, and
    the last one is not left out.
    """

    def __init__(self, path: str, group: str, *, query: str | None = None, source: int = 0) -> None:
        """Take what to write where; ``source`` is the number of the source in the query's progress.

        Raises:
            LogDirectoryError, CheckpointError: directories that may not be written.
        """
        super().__init__(query)
        self._writer = GroupWriter(WRITABLE_PATHS.read(path), group)
        self._source = source

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Write where the batch has ended."""
        if self._is_meant(event):
            end = event.progress.sources[self._source].endOffset
            self._writer.try_to_commit(from_json_text(end))


class LagListener(_ProgressListener):
    """Keeps, logs and exports how far the sources of queries are behind, and what batches take."""

    def __init__(
        self,
        *,
        query: str | None = None,
        textfile: str | PathLike[str] | None = None,
        path: str | None = None,
    ) -> None:
        """Follow one query, or all. When a query ends, its last values stay.

        After each micro-batch ``textfile`` is replaced by :meth:`to_prometheus`: a file such as the
        textfile collector of Prometheus' node exporter reads (``….prom``). With ``path``, the log
        directories that the queries read, the lag is known in bytes and seconds too, and how many
        bytes each micro-batch has read.
        """
        super().__init__(query)
        if not HAS_ADMISSION_CONTROL:
            warn_of_no_lag()
        self._textfile = None if textfile is None else Path(textfile)
        self._meter = None if path is None else _UnreadMeter(path)
        self.lags: dict[str, list[dict[TopicPartition, int]]] = {}
        """By the query's id: for each of its sources the lag of each partition, in offsets."""
        self._exported: dict[str, QueryLag] = {}

    def to_prometheus(self) -> str:
        """Return the metrics of all queries in Prometheus' text format."""
        return prometheus_text(list(self._exported.values()))

    def to_json(self) -> str:
        """Return the lags as JSON, a line for each partition of each source."""
        return json_lines(list(self._exported.values()))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Count a start after an error."""
        last = self._exported.get(str(event.id))
        if last is not None and last.has_failed:
            again = replace(last, retries=last.retries + 1, has_failed=False)
            self._exported[last.query] = again
            self._write_textfile()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Export the last values of the query, and that it does not run any more."""
        last = self._exported.get(str(event.id))
        if last is not None:
            failed = event.exception is not None
            ended = replace(
                last, is_running=False, failures=last.failures + failed, has_failed=failed
            )
            self._exported[last.query] = ended
            self._write_textfile()

    def _write_textfile(self) -> None:
        if self._textfile is not None:
            try:
                write_atomically(self._textfile, self.to_prometheus().encode(), fsync=False)
            except OSError as error:  # a query does not fail for its monitoring
                _PROGRESS_LOGGER.warning("lags cannot be written to %s: %s", self._textfile, error)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Take the lags as of the end of a micro-batch."""
        if not self._is_meant(event):
            return
        progress = event.progress
        query, lags = str(progress.id), [partition_lags(source) for source in progress.sources]
        self.lags[query] = lags
        size, unread = self._measure(progress.sources)
        before = self._exported.get(query)
        self._exported[query] = QueryLag(
            query,
            progress.name,
            progress.batchId,
            lags,
            rows=progress.numInputRows,
            bytes=size,
            seconds={step: ms / 1000 for step, ms in sorted(progress.durationMs.items())},
            unread=unread,
            failures=before.failures if before else 0,
            retries=before.retries if before else 0,
        )
        self._write_textfile()
        for number, source in enumerate(progress.sources):
            behind = offsets_behind_latest(source)
            if behind:
                _PROGRESS_LOGGER.info(
                    "query %s, batch %d, source %d is behind by %s to %s offsets a partition, %s "
                    "on average",
                    progress.name or progress.id,
                    progress.batchId,
                    number,
                    *behind.values(),
                )

    def _measure(
        self, sources: Sequence[Mapping[str, Any]]
    ) -> tuple[int | None, dict[TopicPartition, Unread]]:
        if self._meter is not None:
            try:
                return self._meter.measure(sources)
            except (KafkaLogError, OSError) as error:  # a query does not fail for its monitoring
                _PROGRESS_LOGGER.warning("the lag in bytes is not known: %s", error)
        return None, {}
