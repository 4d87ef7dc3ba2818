"""Listeners for streaming queries over the source; add them with ``spark.streams.addListener``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from kafkalog.files.atomic import write_atomically
from kafkalog.streaming.option_kinds import PATHS
from kafkalog.streaming.sink.group_writer import GroupWriter
from kafkalog.streaming.source.lag import offsets_behind_latest, partition_lags
from kafkalog.streaming.source.lag_export import QueryLag, json_lines, prometheus_text
from kafkalog.streaming.source.offsets import from_json_text
from kafkalog.streaming.spark.versions import HAS_ADMISSION_CONTROL, warn_of_no_lag

if TYPE_CHECKING:
    from os import PathLike

    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from kafkalog.model import TopicPartition

__all__ = ["GroupOffsetsListener", "LagListener"]

_LOGGER: Final = logging.getLogger("kafkalog.progress")


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
        self._writer = GroupWriter(PATHS.read(path), group)
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
                _LOGGER.warning("lags cannot be written to %s: %s", self._textfile, error)

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
                _LOGGER.info(
                    "query %s, batch %d, source %d is behind by %s to %s offsets a partition, %s "
                    "on average",
                    progress.name or progress.id,
                    progress.batchId,
                    number,
                    *behind.values(),
                )
