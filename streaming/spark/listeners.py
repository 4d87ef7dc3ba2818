"""Listeners for streaming queries over the source; add them with ``spark.streams.addListener``."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from kafkalog.errors import CheckpointError
from kafkalog.files.atomic import write_atomically
from kafkalog.model import listed
from kafkalog.streaming.options.kinds import READABLE_PATHS, WRITABLE_PATHS
from kafkalog.streaming.sink.group_writer import GroupWriter
from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.source.offsets import from_json_text
from kafkalog.streaming.spark.versions import HAS_ADMISSION_CONTROL, warn_of_no_lag

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from os import PathLike

    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from kafkalog.model import TopicPartition


__all__ = [
    "GroupOffsetsListener",
    "LagListener",
    "QueryLag",
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
# Lags of queries for monitoring: Prometheus' text format, and JSON lines.
#
# Source: Prometheus "Exposition formats", text format 0.0.4.


_LAG: Final = "kafkalog_query_lag_offsets"
_BATCH: Final = "kafkalog_query_batch_id"
_HELP: Final = {
    _LAG: "Offsets that are committed and were not read at the end of the last micro-batch.",
    _BATCH: "The number of the last micro-batch.",
}


@dataclass(frozen=True, slots=True)
class QueryLag:
    """How far one query was behind at the end of a micro-batch.

    Attributes:
        query: its id, which outlasts restarts.
        name: its name, if it has one.
        batch_id: the micro-batch.
        sources: for each of its sources the lag of each partition, in offsets.
    """

    query: str
    name: str | None
    batch_id: int
    sources: Sequence[Mapping[TopicPartition, int]]


def prometheus_text(lags: Iterable[QueryLag]) -> str:
    """Write lags as Prometheus reads them, as a page or a file of the node exporter."""
    known = list(lags)
    lines = [*_metric(_BATCH, ((_query_labels(each), each.batch_id) for each in known))]
    lines += _metric(_LAG, ((labels, lag) for each in known for labels, lag in _by_partition(each)))
    return "".join(f"{line}\n" for line in lines)


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


def _metric(name: str, samples: Iterable[tuple[Mapping[str, str | int], int]]) -> Iterator[str]:
    yield f"# HELP {name} {_HELP[name]}"
    yield f"# TYPE {name} gauge"
    for labels, value in samples:
        shown = ",".join(f'{label}="{_escaped(str(text))}"' for label, text in labels.items())
        yield f"{name}{{{shown}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


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
    """Keeps, logs and exports how far the sources of queries are behind."""

    def __init__(
        self, *, query: str | None = None, textfile: str | PathLike[str] | None = None
    ) -> None:
        """Follow one query, or all.

        After each micro-batch ``textfile`` is replaced by :meth:`to_prometheus`: a file such as the
        textfile collector of Prometheus' node exporter reads (``….prom``).
        """
        super().__init__(query)
        if not HAS_ADMISSION_CONTROL:
            warn_of_no_lag()
        self._textfile = None if textfile is None else Path(textfile)
        self.lags: dict[str, list[dict[TopicPartition, int]]] = {}
        """By the query's id: for each of its sources the lag of each partition, in offsets."""
        self._exported: dict[str, QueryLag] = {}

    def to_prometheus(self) -> str:
        """Return the lags of all queries in Prometheus' text format."""
        return prometheus_text(list(self._exported.values()))

    def to_json(self) -> str:
        """Return them as JSON, a line for each partition of each source."""
        return json_lines(list(self._exported.values()))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Export the query no more."""
        self._exported.pop(str(event.id), None)
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
        self._exported[query] = QueryLag(query, progress.name, progress.batchId, lags)
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
