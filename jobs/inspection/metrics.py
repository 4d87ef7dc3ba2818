"""Metrics of a log for Prometheus: lag, sizes, ages, writers, and the room on disks."""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from kafkalog.checkpoints.broker import PARTITION_METADATA
from kafkalog.checkpoints.committed import load_committed
from kafkalog.errors import CorruptRecordError, KafkaLogError, OptionError
from kafkalog.files.system import system
from kafkalog.jobs.inspection.lag import LagMeter
from kafkalog.jobs.inspection.log_dirs import ends_of, log_dirs_of
from kafkalog.jobs.inspection.topics import describe_partitions
from kafkalog.model import ALL_TOPICS, TopicPartition, TopicSelection
from kafkalog.streaming.log.files import LOG
from kafkalog.streaming.log.read.timestamps import largest_timestamp
from kafkalog.texts import Metric

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from threading import Thread

    from kafkalog.checkpoints.commit_state import CommitState, WriterState
    from kafkalog.jobs.inspection.lag import LagTargets
    from kafkalog.streaming.log.partition_log import PartitionLog

__all__ = ["LogMetrics", "describe_disks", "describe_writers", "lag_metrics", "serve"]

Row = dict[str, Any]

_DAY: Final = 86400.0
_WINDOW: Final = 7 * _DAY
_SHORTEST: Final = 3600.0
"""What was written in less than an hour says nothing about days."""


class LogMetrics:
    """Looks at a log again and again; what is as before is not read again. Not thread safe."""

    def __init__(
        self, paths: Sequence[str], named: LagTargets, topics: TopicSelection = ALL_TOPICS
    ) -> None:
        """Take the log directories, who reads them, and the topics to measure.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
            LogDirectoryError: there is nothing to look at.
        """
        self._paths = paths
        self._topics = topics
        self._names_readers = bool(named.groups or named.checkpoints or named.offsets)
        self._meter = LagMeter(paths, named, topics)
        self._watch = ends_of(paths, topics)

    def collect(self) -> list[Metric]:
        """Return all metrics as of now.

        Raises:
            KafkaLogError: directories, logs or checkpoints that cannot be read.
        """
        began = system.monotonic()
        rows = describe_partitions(self._paths, self._topics, self._watch)
        found = [
            *lag_metrics(self._lags()),
            *self._partition_metrics(rows),
            *_writer_metrics(self._paths),
            *_disk_metrics(describe_disks(rows)),
        ]
        took = Metric("kafkalog_collection_seconds", "How long it took to collect these metrics.")
        took.add(round(system.monotonic() - began, 6))
        return [*found, took]

    def _lags(self) -> list[Row]:
        try:
            return self._meter.look()
        except OptionError:
            if self._names_readers:
                raise
            return []  # no group has a position yet

    def _partition_metrics(self, rows: Sequence[Row]) -> list[Metric]:
        by_name = {
            name: Metric(f"kafkalog_partition_{name}", text) for name, text in _OF_PARTITION.items()
        }
        now = system.time_ns() / 1e9
        for row in rows:
            if self._topics == ALL_TOPICS and row["topic"].startswith("__"):
                continue  # Kafka's own topics have 50 partitions each
            labels = {"topic": row["topic"], "partition": row["partition"]}
            values = {
                "start_offset": row["start"],
                "end_offset": row["end"],
                "bytes": row["bytes"],
                "segments": row["segments"],
                "unfinished": int(row["unfinished"]),
                **self._ages(row, now),
            }
            for name, value in values.items():
                by_name[name].add(value, **labels)
        return [*by_name.values()]

    def _ages(self, row: Row, now: float) -> dict[str, float | None]:
        key = TopicPartition(row["topic"], row["partition"])
        try:
            with self._watch.open(key) as log:
                first, last = _first_time(log), _last_time(log, row["end"])
        except KafkaLogError:  # said where records are read; deleted since
            first = last = None
        return {
            "oldest_age_seconds": _age(first, now),
            "newest_age_seconds": _age(last, now),
        }


def serve(metrics: LogMetrics, host: str, port: int) -> tuple[Any, Thread]:
    """Serve metrics over HTTP, each request as of its time; return the server and its thread.

    A look that fails is not served: Prometheus sees that the target is down, and the log why.

    Raises:
        OptionError: prometheus-client is not installed.
        OSError: the address cannot be listened on.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415
    except ModuleNotFoundError:
        raise OptionError(
            "serving metrics needs prometheus-client: pip install prometheus-client. Without it, "
            "`kafkalog lag LOG --output prometheus` prints the same"
        ) from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(metrics))
    return start_http_server(port, host, registry)


class _Collector:
    """What prometheus-client asks for metrics: one of its threads at a time."""

    def __init__(self, metrics: LogMetrics) -> None:
        self._metrics = metrics
        self._lock = Lock()

    def describe(self) -> list[Any]:
        """Name nothing: all names are of this collector."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the metrics as of now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415

        with self._lock:
            found = self._metrics.collect()
        for each in found:
            kind = CounterMetricFamily if each.name.endswith("_total") else GaugeMetricFamily
            family = kind(each.name, each.help)
            for labels, value in each.samples:
                shown = {name: str(text) for name, text in labels.items()}
                family.add_sample(each.name, shown, value)
            yield family


_OF_PARTITION: Final = {
    "start_offset": "The first offset that is there.",
    "end_offset": "The committed end: the offset of the next record. Its rate is records a second.",
    "bytes": "Size of the segments. Its rate is bytes a second.",
    "segments": "Number of segments.",
    "unfinished": "1 while a commit to it is under way, or after one that was cut off.",
    "oldest_age_seconds": "Age of the first record batch, by its timestamp.",
    "newest_age_seconds": "Age of the last record, by its timestamp.",
}


def lag_metrics(rows: Iterable[Row]) -> list[Metric]:
    """Return how far readers are behind, from rows of :meth:`LagMeter.look`."""
    records = Metric("kafkalog_lag_records", "Offsets between a reader and the committed end.")
    sizes = Metric("kafkalog_lag_bytes", "Bytes of the batches that a reader has not read.")
    times = Metric("kafkalog_lag_seconds", "Age of the next record that a reader has not read.")
    lost = Metric(
        "kafkalog_reader_lost",
        "1 where a reader cannot continue: its partition is gone, or has another history.",
    )
    for row in rows:
        labels = {name: row[name] for name in ("reader", "topic", "partition")}
        records.add(row["lag"], **labels)
        sizes.add(row["bytes"], **labels)
        times.add(None if row["behindMs"] is None else row["behindMs"] / 1000, **labels)
        lost.add(int(row["lag"] is None), **labels)
    return [records, sizes, times, lost]


def _first_time(log: PartitionLog) -> int | None:
    segments = log.segments
    header = segments[0].header_at(0) if segments else None
    return None if header is None else header.max_timestamp


def _last_time(log: PartitionLog, end: int) -> int | None:
    segments = log.segments
    with suppress(CorruptRecordError):
        for segment in reversed(segments[-2:]):  # the last may be empty
            found = largest_timestamp(segment, end, active=segment is segments[-1]).timestamp
            if found >= 0:
                return found
    return None


def _age(timestamp: int | None, now: float) -> float | None:
    if timestamp is None or timestamp < 0:
        return None
    return round(max(0.0, now - timestamp / 1000), 3)


def _writer_metrics(paths: Sequence[str]) -> list[Metric]:
    batch = Metric("kafkalog_writer_batch", "The last batch that a writer has committed.")
    time = Metric(
        "kafkalog_writer_last_commit_timestamp_seconds", "When a writer has committed last."
    )
    runs = Metric(
        "kafkalog_writer_replaced_runs", "Earlier runs of a writer that a newer one has replaced."
    )
    commits = Metric("kafkalog_commits_total", "Commits to the log, by its commit state.")
    unfinished = Metric(
        "kafkalog_commit_unfinished",
        "1 while a commit is under way, or after one that was cut off.",
    )
    committed = load_committed(log_dirs_of(paths).paths)
    if committed.state is not None:
        commits.add(committed.state.sequence)
        unfinished.add(int(committed.unfinished is not None))
        for labels, writer in _writers(committed.state):
            batch.add(writer.batch_id, **labels)
            time.add(writer.time_ms / 1000, **labels)
            runs.add(len(writer.fenced), **labels)
    return [batch, time, runs, commits, unfinished]


def describe_writers(paths: Sequence[str]) -> list[Row]:
    """Return a row for each query and each id of batch writes, with what it committed last.

    ``topic`` is empty for a streaming query, and ``lastCommit`` in ms.

    Raises:
        KafkaLogError: a commit state that cannot be read.
    """
    state = load_committed(log_dirs_of(paths).paths).state
    return [
        {
            **labels,
            "batch": writer.batch_id,
            "lastCommit": writer.time_ms,
            "replacedRuns": len(writer.fenced),
        }
        for labels, writer in (_writers(state) if state is not None else ())
    ]


def _writers(state: CommitState) -> Iterator[tuple[dict[str, str], WriterState]]:
    """Yield streaming queries, and who appends by an id and a version to a topic."""
    for name, writer in sorted(state.writers.items()):
        yield {"writer": name, "topic": ""}, writer
    for topic in sorted(state.topics.values(), key=lambda each: each.name):
        for name, writer in sorted(topic.versions.items()):
            yield {"writer": name, "topic": topic.name}, writer


# ----------------------------------------------------------------------------------------------
# The room on disks, and for how long it lasts at the pace of the last days.


def describe_disks(partitions: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return a row for each file system that holds partitions; rows as of ``describe_partitions``.

    ``bytesPerDay`` is what was written in the last seven days and not deleted, by the times of
    files; a topic from which retention has begun to delete does not grow. It is None where less
    than an hour is known, and ``daysUntilFull`` where nothing grows.
    """
    growing: dict[int, list[tuple[float, float]]] = defaultdict(list)
    folders: dict[int, set[str]] = defaultdict(set)
    now = system.time_ns() / 1e9
    for row in partitions:
        folder: str = row["path"]  # no path is made of it: that takes longer than to look at it
        with suppress(OSError):  # in an object store, or deleted since
            device = os.stat(folder).st_dev  # noqa: PTH116
            folders[device].add(os.path.dirname(folder))  # noqa: PTH120
            if row["start"] == 0 or row["retention"] in {None, "keeps everything"}:
                growing[device].append(_bytes_written(folder, now))
    return [_disk(set(map(Path, folders[each])), growing[each]) for each in sorted(folders)]


def _bytes_written(folder: str, now: float) -> tuple[float, float]:
    """Return the bytes of segments that were written in the window, and when the first was begun.

    A segment is written from the time of the one before it, the first one from that of the topic.
    """
    with suppress(OSError):
        with os.scandir(folder) as entries:
            files = sorted(entry.name for entry in entries if entry.name.endswith(LOG))
        before = os.stat(f"{folder}/{PARTITION_METADATA}").st_mtime  # noqa: PTH116
        found, since = 0.0, max(before, now - _WINDOW)
        for name in files:
            stat = os.stat(f"{folder}/{name}")  # noqa: PTH116
            span = max(stat.st_mtime - before, 0.001)
            inside = min(span, max(0.0, stat.st_mtime - (now - _WINDOW)))
            found += stat.st_size * inside / span
            before = stat.st_mtime
        return found, since
    return 0.0, now


def _disk(folders: set[Path], growing: Sequence[tuple[float, float]]) -> Row:
    folder = min(folders)
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    span = system.time_ns() / 1e9 - min((since for _, since in growing), default=0.0)
    pace = None
    if growing and span >= _SHORTEST:
        pace = round(sum(size for size, _ in growing) / span * _DAY)
    return {
        "paths": sorted(map(str, folders)),
        "freeBytes": free,
        "sizeBytes": room.f_blocks * room.f_frsize,
        "bytesPerDay": pace,
        "daysUntilFull": round(free / pace, 1) if pace else None,
    }


def _disk_metrics(rows: Iterable[Row]) -> list[Metric]:
    free = Metric("kafkalog_disk_free_bytes", "Bytes that the log may still take on a disk.")
    size = Metric("kafkalog_disk_size_bytes", "Size of the file system.")
    days = Metric(
        "kafkalog_disk_days_until_full",
        "Days until a disk is full, at the pace of the last seven days, where the log grows.",
    )
    for row in rows:
        path = row["paths"][0]
        free.add(row["freeBytes"], path=path)
        size.add(row["sizeBytes"], path=path)
        days.add(row["daysUntilFull"], path=path)
    return [free, size, days]
